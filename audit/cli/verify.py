"""``dpassay verify``: checks a sealed folder offline, and recomputes what can be recomputed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from audit.seal import Check
    from reports.record import Outcome

_PATH = click.Path(path_type=Path)
_COLOURS = {"same": "green", "differs": "red", "not at hand": "yellow"}
_LARGEST_KEY = 1 << 20


@click.command()
@click.argument("folder", metavar="DIR", type=_PATH)
@click.option("--public-key", metavar="HEX", help="Ed25519 key that must have signed, 64 digits.")
@click.option("--public-key-file", type=_PATH, help="It as PEM, as hex, or a public.json.")
@click.option("--inputs", type=_PATH, help="Folder to look for the audit's inputs in.")
@click.option("--json", "as_json", is_flag=True, help="Print every check as JSON.")
def command(
    folder: Path,
    public_key: str | None,
    public_key_file: Path | None,
    inputs: Path | None,
    as_json: bool,
) -> None:
    """Check the seal of DIR, and run again what its record can be recomputed from.

    Compares the signature, every file and every input that is at hand; then the account of the
    ledger, the verdict on each claim and the gate's decisions, figure by figure. Attacks are not
    run again.

    Exits 0 if all is the same, 1 if something differs, 3 if something is not at hand, 2 for a
    folder without a usable seal.
    """
    from audit.seal import verify
    from audit.yaml_file import InputError

    keys = _keys(public_key, public_key_file)
    try:
        verified = verify(folder, keys)
        checks = list(verified.checks)
        if verified.record is not None:
            from audit.reproduce import reproduce

            checks += reproduce(verified.record, verified.texts, inputs)
    except InputError as error:
        raise BadInput(str(error)) from None
    outcome = _outcome(checks)
    if as_json:
        shown = {"outcome": outcome, "checks": [vars(check) for check in checks]}
        click.echo(json.dumps(shown, indent=1))
    else:
        _print(checks, folder, outcome)
    sys.exit(EXIT_CODES[outcome])


def _keys(text: str | None, file: Path | None) -> list[bytes]:
    keys = [] if text is None else [_hex(text, "--public-key")]
    return keys if file is None else [*keys, *_read_keys(file)]


def _hex(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise BadInput(f"{where}: needs the 64 hexadecimal digits of an Ed25519 public key")
    return key


def _read_keys(path: Path) -> list[bytes]:
    """The public keys in a PEM file, a file of hexadecimal digits, or a key folder's public.json.

    The last has every key that was in force, from the root on.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_KEY).strip()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if content.startswith(b"{"):
        return _succession(path, content)
    if not content.startswith(b"-----"):
        return [_hex(content.decode("ascii", "replace"), str(path))]
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{path}: holds no Ed25519 public key; openssl pkey -pubout writes one")
    return [key.public_bytes_raw()]


def _succession(path: Path, content: bytes) -> list[bytes]:
    from audit.keys import Link, succession

    try:
        data = json.loads(content)
        links = [Link(**link) for link in data["succession"]]
        root = _hex(data["root"], f"{path}: root")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadInput(f"{path}: is no public.json of a key folder") from None
    return list(succession(root, links))


def _outcome(checks: Sequence[Check]) -> Outcome:
    states = {check.state for check in checks}
    if "differs" in states:
        return "fail"
    return "inconclusive" if "not at hand" in states else "pass"


def _print(checks: Sequence[Check], folder: Path, outcome: Outcome) -> None:
    from rich.console import Console
    from rich.table import Table

    from audit.cli.claims import safe

    table = Table(title=safe(str(folder)), title_justify="left")
    table.add_column("part")
    table.add_column("what", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("because", overflow="fold", ratio=1)
    for check in _gathered(checks):
        state = f"[{_COLOURS[check.state]}]{check.state}[/]"
        table.add_row(check.part, safe(check.subject), state, safe(check.detail))
    console = Console()
    console.print(table)
    said = {
        "pass": "all that was compared is the same",
        "fail": "something differs: do not rely on this folder",
        "inconclusive": "nothing differs, but not everything was at hand",
    }[outcome]
    console.print(said, highlight=False)


def _gathered(checks: Sequence[Check]) -> Iterator[Check]:
    """What differs, then what is missing, then one line for all files that are as sealed."""
    from audit.seal import Check

    order = ("differs", "not at hand", "same")
    same = [check for check in checks if check.part == "file" and check.state == "same"]
    rest = [check for check in checks if check not in same]
    if same:
        rest.insert(1, Check("file", f"{len(same)} files", "same"))
    yield from sorted(rest, key=lambda check: order.index(check.state))
