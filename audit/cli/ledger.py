"""``dpassay ledger``: verify a training ledger, or another record of training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from audit.ledger import Ledger
    from reports.record import Finding, Outcome

_FILE = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """What a run recorded, and whether the record holds."""


@command.command()
@click.argument("file", type=_FILE)
@click.option("--model", "models", multiple=True, type=_FILE, help="A model file of this run.")
@click.option("--public-key", metavar="HEX", help="Ed25519 key that must have signed, 64 digits.")
@click.option("--format", help="The record's format, where detection by content fails.")
@click.option("--locale", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def verify(
    file: Path, models: tuple[Path, ...], public_key: str | None, format: str | None, locale: str
) -> None:
    """Run every check on the ledger FILE and print what each found.

    Exits 0 if all hold, 1 if one is refuted, 3 if one stays open or nothing could be checked, 2 for
    a file that is no ledger.
    """
    from audit.ledger_checks import verify as verify_ledger
    from audit.ledger_format import LedgerError
    from audit.ledger_readers import read

    key = _key(public_key)
    try:
        ledger = read(file, format)
        findings = verify_ledger(ledger, models, public_key=key)
    except LedgerError as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        raise BadInput(f"{error.filename}: cannot be read: {error.strerror}") from None
    _print(ledger, findings, locale)
    sys.exit(EXIT_CODES[_outcome(findings)])


def _key(text: str | None) -> bytes | None:
    try:
        key = None if text is None else bytes.fromhex(text)
    except ValueError:
        key = b""
    if key is not None and len(key) != 32:
        raise BadInput("--public-key: needs the 64 hexadecimal digits of an Ed25519 public key")
    return key


def _outcome(findings: Sequence[Finding]) -> Outcome:
    states = {finding.state for finding in findings}
    if "refuted" in states:
        return "fail"
    return "inconclusive" if "inconclusive" in states or "supported" not in states else "pass"


def _print(ledger: Ledger, findings: Sequence[Finding], locale: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from reports.sentence import finish

    colours = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}
    table = Table(title=escape(str(ledger.path)), title_justify="left", show_lines=True)
    table.add_column("state")
    table.add_column("check", no_wrap=True)
    table.add_column("what it found", ratio=1, overflow="fold")
    for finding in (finish(f, locale) for f in findings):
        said = finding.meaning
        if finding.state != "supported" and finding.remedy:
            said += f" {finding.remedy}"
        if finding.check == "ledger.batches" and finding.power:
            said += f" ({finding.power})"
        colour = colours.get(finding.state, "dim")
        table.add_row(f"[{colour}]{finding.state}[/]", finding.check, escape(said))
    console = Console()
    console.print(table)
    for event in ledger.events():
        console.print(f"ran: {event}", highlight=False, markup=False)
    for note in ledger.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
