"""``dpassay claims``: judges the claims of a CLAIMS.yaml, each with what was recomputed and why."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from rich.text import Text

    from audit.claims.schema import ClaimsFile
    from reports.record import Finding

STYLES = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}


@click.command()
@click.argument("file", metavar="CLAIMS.yaml", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--expect", is_flag=True, help="Compare with each claim's `expected` verdict instead."
)
def command(file: Path, as_json: bool, expect: bool) -> None:
    """Judge the privacy claims in CLAIMS.yaml.

    Exit codes: 0 all supported, 1 any refuted, 2 bad input, 3 any inconclusive or not checkable.
    With --expect: 0 if every verdict is the expected one, 1 if not.
    """
    from audit.claims import judge
    from audit.claims.context import for_file
    from audit.claims.schema import read_claims
    from audit.yaml_file import InputError

    try:
        claims = read_claims(file)
        listed = claims.as_claims(str(file))
        findings = judge(listed, for_file(file, claims.ledger))
    except InputError as error:
        raise BadInput(str(error)) from None
    if as_json:
        shown = {"claims": [plain(c) for c in listed], "findings": [plain(f) for f in findings]}
        click.echo(json.dumps(shown, ensure_ascii=False, indent=1, allow_nan=False))
    else:
        _print(claims, findings)
    raise SystemExit(_expected(claims, findings) if expect else exit_code(findings))


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if all are supported, 1 if one is refuted, else 3."""
    states = {finding.state for finding in findings}
    if "refuted" in states:
        return EXIT_CODES["fail"]
    return EXIT_CODES["pass" if states == {"supported"} else "inconclusive"]


def plain(value: Any) -> Any:
    """A dataclass as JSON data; infinities as the strings ±"Infinity", as in audit.json."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def safe(text: str, style: str = "") -> Text:
    """Foreign text for a terminal: no markup, no control characters."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else " " for c in text), style=style)


def _print(claims: ClaimsFile, findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    from reports.sentence import figure, figure_name, figures_text

    table = Table(title=safe(claims.title) if claims.title else None, show_lines=True)
    for name, least in (("claim", 8), ("verdict", 12), ("claimed", 8), ("recomputed", 10)):
        table.add_column(name, min_width=least, overflow="fold")
    table.add_column("why", ratio=1, overflow="fold")
    for found in findings:
        claimed = found.values.get("claimed")
        said = "–" if not isinstance(claimed, int | float) else figure(claimed)
        name = str(found.values["figure"])
        interval = found.figures.get(name) or next(iter(found.figures.values()), None)
        table.add_row(
            safe(found.claim),
            safe(found.state, STYLES.get(found.state, "magenta")),
            safe(f"{figure_name(name)} {said}"),
            safe(figures_text(interval) if interval else "–"),
            safe(found.meaning),
        )
    Console().print(table)


def _expected(claims: ClaimsFile, findings: Sequence[Finding]) -> int:
    wrong = 0
    for entry, found in zip(claims.claims, findings, strict=True):
        if entry.expected != found.state:
            wrong += 1
            said = entry.expected or "nothing"
            click.echo(f"{entry.id}: expected {said}, found {found.state}", err=True)
    click.echo(f"{len(findings) - wrong} of {len(findings)} verdicts as expected", err=True)
    return EXIT_CODES["fail" if wrong else "pass"]
