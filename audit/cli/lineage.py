"""``dpassay lineage``: the budget of every stage, for every population whose data it rests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.claims import STYLES, plain, safe
from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from audit.lineage import Lineage


@click.command()
@click.argument("file", metavar="LINEAGE.yaml", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print exposures and findings as JSON.")
def command(file: Path, as_json: bool) -> None:
    """Recompute the budget along every path of LINEAGE.yaml.

    Exit codes: 0 every budget is finite and every promise supported, 1 a stage read raw data
    without DP or a promise is refuted, 2 bad input, 3 anything left open.
    """
    from audit.lineage import read_lineage
    from audit.yaml_file import InputError

    try:
        lineage = read_lineage(file)
    except InputError as error:
        raise BadInput(str(error)) from None
    if as_json:
        click.echo(json.dumps(plain(lineage), ensure_ascii=False, indent=1, allow_nan=False))
    else:
        _print(lineage)
    states = {finding.state for finding in lineage.findings}
    if "refuted" in states:
        raise SystemExit(EXIT_CODES["fail"])
    open_ = states - {"supported", "measured"}
    raise SystemExit(EXIT_CODES["inconclusive" if open_ else "pass"])


def _print(lineage: Lineage) -> None:
    from rich.console import Console
    from rich.table import Table

    from reports.sentence import figure

    console = Console()
    table = Table(title=safe(lineage.title) if lineage.title else None)
    for name in ("stage", "population", "ε at most", "δ", "accountant", "path"):
        table.add_column(name, overflow="fold")
    for e in lineage.exposures:
        table.add_row(
            safe(e.stage),
            safe(e.population),
            safe(figure(e.account.high), "red" if e.raw else ""),
            safe(figure(e.delta) if not e.raw else "–"),
            safe(e.account.accountant),
            safe(" → ".join(e.path)),
        )
    console.print(table)
    console.print(
        f"Unit: one record, or the user of a ledger that accounts for users; "
        f"relation: {lineage.relation}.",
        highlight=False,
    )
    for finding in lineage.findings:
        if finding.state != "measured":
            console.print(safe(f"{finding.state}: ", STYLES.get(finding.state, "")), end="")
            console.print(safe(finding.meaning))
