"""Our attacks for the three criteria on one set of frames: ``run_criteria.py FOLDER OUT PLAN``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.synthetic import inference, linkability, singling_out, tables
from attacks.synthetic.result import SyntheticResult


def main() -> None:
    folder, out, plan = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    names = ("train", "holdout", "synthetic")
    frames = {name: tables.read_table(folder / f"{name}.parquet") for name in names}
    small = tables.code({name: frame.head(500) for name, frame in frames.items()})
    for attack in attacks(plan | {"attacks": 20}).values():
        attack(small)
    started = time.perf_counter()
    given = tables.code(frames)
    found: dict[str, Any] = {"coding": {"seconds": time.perf_counter() - started}}
    for name, attack in attacks(plan).items():
        started, spent = time.perf_counter(), time.process_time()
        result = attack(given)
        found[name] = {
            "seconds": time.perf_counter() - started,
            "cpu": time.process_time() - spent,
            "figures": {
                figure.name: [figure.estimate.value, figure.estimate.low, figure.estimate.high]
                for figure in result.figures
                if figure.estimate is not None
            },
        }
    out.write_text(json.dumps(found))


def attacks(plan: dict[str, Any]) -> dict[str, Callable[[tables.Tables], SyntheticResult]]:
    """By name, each attack as a call."""
    count = plan["attacks"]
    one, other = plan["parts"]
    return {
        "singling out": lambda given: singling_out.attack(given, attacks=count),
        "linkability": lambda given: linkability.attack(given, parts=(one, other), attacks=count),
        **{
            f"inference of {s}": lambda given, s=s: inference.attack(
                given, secrets=[s], attacks=count
            )
            for s in plan["secrets"]
        },
    }


if __name__ == "__main__":
    main()
