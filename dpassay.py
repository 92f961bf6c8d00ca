"""The command ``dpassay``: checks that the packages found are ours, then hands over to the CLI.

``audit`` and ``reports`` are common names. A folder of that name in front of ours on the path would
be run in our stead, so this module, which has a name of its own, looks before anything is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("audit", "attacks", "trainers", "reports")


def shadowed() -> list[str]:
    """One line for each of our packages that Python would load from somewhere else."""
    home = Path(__file__).resolve().parent
    lines = []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found != home / name / "__init__.py":
            place = found or (spec and list(spec.submodule_search_locations or [])) or "nowhere"
            lines.append(f"package '{name}' is found at {place}, dpassay's own is in {home}")
    return lines


def main() -> None:
    """Run the command line; exit 2 if another package shadows one of ours."""
    if lines := shadowed():
        for line in lines:
            print(
                f"dpassay: {line}; rename or move yours, or run from another folder",
                file=sys.stderr,
            )
        raise SystemExit(2)
    from audit.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
