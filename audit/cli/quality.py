"""``dpassay quality``: is a synthetic release still useful, column by column and as a whole?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from audit.quality.measure import Quality
    from audit.quality.rules import RuleCount
    from reports.record import Interval, Metric

SHOWN = 20  # rows of each table on the terminal; the file holds all
STATES = {"satisfied": "green", "violated": "red", "supported": "green", "refuted": "red"}
FILE = click.Path(path_type=Path)


@click.command()
@click.option("--real", required=True, type=FILE, help="What the generator was trained on.")
@click.option("--synthetic", required=True, type=FILE, help="The release; same columns.")
@click.option("--holdout", type=FILE, help="Real records that the generator never saw.")
@click.option("--label", help="Column that a model is to predict; needs --holdout.")
@click.option("--rules", type=FILE, help="RULES.yaml with logic rules.")
@click.option("--text", help="Column of texts: BLEU, ROUGE and similarity.")
@click.option("--encoder", type=FILE, help="Folder of a sentence encoder, in place of TF-IDF.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    help="Largest distance of a column that is fine.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--out", required=True, type=FILE, help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace what this command wrote there before.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the tables.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    real: Path,
    synthetic: Path,
    holdout: Path | None,
    label: str | None,
    rules: Path | None,
    text: str | None,
    encoder: Path | None,
    threshold: float,
    seed: int,
    out: Path,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare a synthetic table with the real one that it stands for.

    Distances of columns, associations, detection by a classifier, and what is asked for besides:
    utility (--label), rules (--rules), texts (--text). Writes quality.json to the folder --out.
    Nothing here speaks of privacy. Exits 0 measured, 2 bad input.

    \b
    dpassay quality --real train.csv --synthetic release.csv --holdout test.csv --label outcome \\
        --rules RULES.yaml --out quality
    """
    if threshold != threshold:  # NaN lies in every range of click's
        raise BadInput("--threshold: must be a number between 0 and 1")
    from audit.cli.audit import progress_bars
    from audit.output import check_free, folder
    from audit.yaml_file import InputError

    written = ("quality.json",)
    try:
        check_free(out, force, written)  # before anything heavy is imported
        from audit.quality.measure import Asked, measure_quality, write

        asked = Asked(real, synthetic, holdout, label, rules, text, encoder, threshold, seed=seed)
        with (
            folder(out, force, written) as building,
            progress_bars(quiet or as_json) as show,
        ):
            quality = measure_quality(asked, lambda done, total: show("parts", done, total))
            write(quality, building, shlex.join(["dpassay", *sys.argv[1:]]))
    except InputError as error:
        raise BadInput(str(error)) from None
    if as_json:
        click.echo((out / written[0]).read_text(encoding="utf-8"), nl=False)
    else:
        _print(quality, out)


def _print(quality: Quality, out: Path) -> None:
    from rich.console import Console

    from audit.cli.claims import safe

    console = Console()
    if quality.columns:
        _columns(console, quality)
    if quality.associations is not None:
        _associations(console, quality)
    if quality.detection:
        _figures(console, "Can a classifier tell the tables apart? (0.5: no)", quality.detection)
    if quality.utility is not None:
        of = quality.utility
        title = f"Trained on synthetic records instead of real ones: {of.label}"
        _figures(console, title, of.figures)
    if quality.text:
        _figures(console, f"Texts: {quality.asked.text}", quality.text)
    if quality.rules:
        _rules(console, quality)
    notes = quality.notes + (quality.utility.notes if quality.utility else ())
    for note in notes:
        console.print(safe(note))
    console.print(safe(f"{quality.asked.confidence:.0%} intervals; file: {out}/quality.json"))


def _columns(console: Console, quality: Quality) -> None:
    from audit.cli.claims import safe

    worst = ("refuted", "not checkable", "inconclusive", "supported")
    rows = sorted(quality.columns, key=lambda c: worst.index(c.state))
    table = _table(
        f"Columns: is the distance at most {quality.asked.threshold:g}? "
        f"{_n(quality, 'real')} real, {_n(quality, 'synthetic')} synthetic records",
        ("column", "state", "distance", "missing:\nreal", "missing:\nsynthetic"),
    )
    for c in rows[:SHOWN]:
        distance = f"{c.metric} {shown(c.distance)}" if c.distance else c.unmeasured
        table.add_row(
            safe(c.column),
            safe(c.state, STATES.get(c.state, "yellow")),
            safe(distance),
            shown(c.missing_real, "\n"),
            shown(c.missing_synthetic, "\n"),
        )
    console.print(table)
    _more(console, len(rows))


def _associations(console: Console, quality: Quality) -> None:
    from audit.cli.claims import safe

    found = quality.associations
    assert found is not None
    mean = found.mean_absolute_difference
    said = shown(mean.interval) if mean.interval else mean.unmeasured
    table = _table(
        f"Associations; mean absolute difference {said}",
        ("columns", "measure", "real", "synthetic", "difference"),
    )
    for pair in found.pairs[: SHOWN // 2]:
        table.add_row(
            safe(f"{pair.first}, {pair.second}"),
            pair.measure,
            *(shown(x, "\n") for x in (pair.real, pair.synthetic, pair.difference)),
        )
    console.print(table)
    _more(console, len(found.pairs), SHOWN // 2)
    if found.unmeasured:
        first, second, why = found.unmeasured[0]
        console.print(
            safe(f"{len(found.unmeasured)} pairs not measured, as {first}, {second}: {why}")
        )


def _figures(console: Console, title: str, figures: Sequence[Metric]) -> None:
    from audit.cli.claims import safe

    table = _table(title, ("figure", "value", "n"))
    for metric in figures:
        found = metric.interval
        table.add_row(
            metric.name,
            safe(shown(found) if found else metric.unmeasured),
            str(found.n) if found else "–",
        )
    console.print(table)


def _rules(console: Console, quality: Quality) -> None:
    from audit.cli.claims import safe

    table = _table("Rules", ("rule", "real", "synthetic"))
    for rule in quality.rules[:SHOWN]:
        called = safe(rule.id)
        if rule.unmeasured:
            called.append("\n").append(safe(rule.unmeasured))
        table.add_row(called, _count(rule.real), _count(rule.synthetic))
    console.print(table)
    _more(console, len(quality.rules))


def _count(side: RuleCount) -> Text:
    from audit.cli.claims import safe

    told = safe(side.state, STATES.get(side.state, "yellow"))
    told.append(f"\n{side.violations} of {side.applies}", style="")
    if side.violation_rate:
        told.append(f": {shown(side.violation_rate)}")
    if side.undecided:
        told.append(f"\n{side.undecided} undecided")
    return told


def _table(title: str, headings: Sequence[str]) -> Any:
    from rich.table import Table

    from audit.cli.claims import safe

    table = Table(title=safe(title), title_justify="left", show_lines=True)
    for heading in headings:
        table.add_column(heading, overflow="fold", min_width=12 if heading == "state" else None)
    return table


def _n(quality: Quality, role: str) -> int | None:
    return next(i.rows for i in quality.inputs if i.role == role)


def _more(console: Console, count: int, limit: int = SHOWN) -> None:
    if count > limit:
        console.print(f"... and {count - limit} more in the file")


def shown(found: Interval, between: str = " ") -> str:
    """A figure with its interval, for a table."""
    return f"{found.value:.3f}{between}[{found.low:.3f}, {found.high:.3f}]"
