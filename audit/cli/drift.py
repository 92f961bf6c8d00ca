"""``dpassay drift``: do fresh real data ask for the generator to be trained again?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import BadInput

if TYPE_CHECKING:
    from audit.quality.drift import ColumnDrift, Drift

EXIT_CODES = {"no drift": 0, "drift": 1, "inconclusive": 3}
COLOURS = {"no drift": "green", "drift": "red", "inconclusive": "yellow"}
SHOWN = 20
FILE = click.Path(path_type=Path)


@click.command()
@click.option("--trained-on", required=True, type=FILE, help="What the generator was trained on.")
@click.option("--fresh", required=True, type=FILE, help="Fresh real data; same columns.")
@click.option("--synthetic", type=FILE, help="A release, shown beside the fresh data.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    help="Distance above which to train again.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the tables.")
def command(
    trained_on: Path,
    fresh: Path,
    synthetic: Path | None,
    threshold: float,
    seed: int,
    as_json: bool,
) -> None:
    """Compare fresh real data with what a generator was trained on.

    Exit codes, for a scheduler: 0 no drift, 1 drift: train again, 2 bad input, 3 inconclusive: too
    few records to tell, or a distance at the threshold.

    \b
    dpassay drift --trained-on train.csv --fresh march.csv --synthetic release.csv
    """
    if threshold != threshold:  # NaN lies in every range of click's
        raise BadInput("--threshold: must be a number between 0 and 1")
    from attacks.synthetic.tables import code, read_table
    from audit.quality.drift import find_drift

    paths = {"trained-on": trained_on, "fresh": fresh, "synthetic": synthetic}
    try:
        tables = code({role: read_table(path) for role, path in paths.items() if path})
    except ValueError as error:
        raise BadInput(str(error)) from None
    release = "synthetic" if synthetic else None
    found = find_drift(tables, "trained-on", "fresh", release, threshold=threshold, seed=seed)
    if as_json:
        from audit.cli.claims import plain

        told = {"seed": seed, "files": {role: str(path) for role, path in paths.items() if path}}
        told |= plain(found)
        click.echo(json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False))
    else:
        _print(found)
    raise SystemExit(EXIT_CODES[found.state])


def _print(found: Drift) -> None:
    from rich.console import Console
    from rich.table import Table

    from audit.cli.claims import safe
    from audit.cli.quality import STATES, shown

    console = Console()
    n = f"{found.trained_on} trained-on, {found.fresh} fresh records"
    table = Table(title=safe(f"Drift above {found.threshold:g}? {n}"), title_justify="left")
    for heading in ("column", "state", "distance", "halves", "p, corrected", "found from"):
        table.add_column(heading, overflow="fold")
    worst = ("drift", "inconclusive", "no drift")
    columns = sorted(found.columns, key=lambda c: (worst.index(c.state), -_value(c)))
    for c in columns[:SHOWN]:
        table.add_row(
            safe(c.column),
            safe(c.state, COLOURS[c.state]),
            safe(f"{c.metric} {shown(c.distance)}" if c.distance else c.unmeasured),
            f"{c.halves:.3f}",
            f"{c.p_corrected:.2g}",
            "never" if math.isinf(c.detectable) else f"{c.detectable:.2f}",
        )
    console.print(table)
    if len(columns) > SHOWN:
        console.print(f"... and {len(columns) - SHOWN} more with --json")
    if found.release:
        beside = Table(title="The release beside the fresh data", title_justify="left")
        for heading in ("column", f"at most {found.threshold:g}?", "distance"):
            beside.add_column(heading, overflow="fold")
        for r in sorted(found.release, key=lambda r: -r.distance.value if r.distance else -2)[
            :SHOWN
        ]:
            beside.add_row(
                safe(r.column),
                safe(r.state, STATES.get(r.state, "yellow")),
                safe(f"{r.metric} {shown(r.distance)}" if r.distance else r.unmeasured),
            )
        console.print(beside)
    console.print(safe(f"{found.state.upper()}: ", f"bold {COLOURS[found.state]}"), end="")
    console.print(safe(_advice(found)))


def _value(column: ColumnDrift) -> float:
    return column.distance.value if column.distance else 2.0


def _advice(found: Drift) -> str:
    if found.state == "drift":
        return f"train the generator again; moved: {_names(found)}"
    if found.state == "no drift":
        return f"every distance is at most {found.threshold:g}, at {found.confidence:.0%} together"
    open_ = [c for c in found.columns if c.state == "inconclusive"]
    names = _names(found)
    if min(found.trained_on, found.fresh) >= found.needed:
        return (
            f"{names}: the distance lies too near {found.threshold:g}, has too many levels, or "
            "too few values"
        )
    largest = max(c.detectable for c in open_)
    power = "no drift, however large" if math.isinf(largest) else f"a drift from {largest:.2f} on"
    return (
        f"{names}: too few records to rule out {found.threshold:g}; with a probability of 80 % "
        f"they show {power}; about {found.needed} in each table would do, where nothing moved"
    )


def _names(found: Drift) -> str:
    """The columns that made the verdict."""
    names = dict.fromkeys(c.column for c in found.columns if c.state == found.state)
    return ", ".join(list(names)[:SHOWN])
