"""``dpassay attack attribute``: how well the target gives a column of its training records away."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from attacks.attribute.question import Question
    from attacks.metrics import Estimate, Figure
    from audit.attribute import AttributeAudit

SHOWN = 20  # rows of each table on the terminal; the files hold all


@click.command("attribute")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--column", "columns", required=True, multiple=True, help="Sensitive column; may be repeated."
)
@click.option("--known", multiple=True, help="Columns known, as a,b,c; may be repeated.")
@click.option("--triples", "pool", help="Every three of these columns known, as a,b,c,d.")
@click.option("--attacks", help="yeom, fredrikson, confidence.  [default: by the target's access]")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace what this command wrote there before.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the tables.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    config: Path,
    columns: tuple[str, ...],
    known: tuple[str, ...],
    pool: str | None,
    attacks: str | None,
    out: Path,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Guess a sensitive column of the records that CONFIG (an AUDIT.yaml) names.

    The attacker knows the other columns, or those of --known and --triples, and the label. What
    he guesses better of members than of non-members leaked. Writes attribute.json and
    guesses.parquet to the folder --out. Exits 0 measured, 2 bad input, 3 void: members and
    non-members differ by themselves.

    \b
    dpassay attack attribute AUDIT.yaml --column smoker --known age,sex,region --out smoker
    """
    from audit.cli.audit import progress_bars
    from audit.output import ATTRIBUTE_WRITTEN, check_free, folder
    from audit.yaml_file import InputError

    try:
        check_free(out, force, ATTRIBUTE_WRITTEN)  # before anything heavy is imported
        from audit.attribute import measure_attribute, write
        from audit.config import load_config

        loaded = load_config(config)
        questions = _questions(columns, known, pool)
        with (
            folder(out, force, ATTRIBUTE_WRITTEN) as building,
            progress_bars(quiet or as_json) as show,
        ):
            audit = measure_attribute(
                loaded,
                questions,
                _listed(attacks, "--attacks") if attacks else (),
                lambda done, total: show("records", done, total),
            )
            write(audit, building, shlex.join(["dpassay", *sys.argv[1:]]))
    except InputError as error:
        raise BadInput(str(error)) from None
    if as_json:
        click.echo((out / ATTRIBUTE_WRITTEN[0]).read_text(encoding="utf-8"), nl=False)
    else:
        _print(audit, out)
    sys.exit(EXIT_CODES["inconclusive" if audit.void else "pass"])


def _questions(
    columns: Sequence[str], known: Sequence[str], pool: str | None
) -> tuple[Question, ...]:
    from attacks.attribute.question import Question, triples

    asked: list[Question] = []
    for column in columns:
        asked += [Question(column, _listed(names, "--known")) for names in known]
        if pool is not None:
            names = [name for name in _listed(pool, "--triples") if name != column]
            try:
                asked += triples(column, names)
            except ValueError as error:
                raise BadInput(f"--{error}") from None
        if not known and pool is None:
            asked.append(Question(column))
    return tuple(asked)


def _listed(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadInput(f"{option}: {text!r}: a name is empty; write a,b,c")
    return names


def _print(audit: AttributeAudit, out: Path) -> None:
    """What leaked most, its rarest values, and where the rest is."""
    from rich.console import Console
    from rich.table import Table

    from attacks.attribute.result import by_value, figures, shared_confidence
    from audit.cli.claims import safe

    console = Console()
    each = shared_confidence(audit.confidence, len(audit.results))
    measured = [(r, {f.name: f for f in figures(r, each)}) for r in audit.results]
    measured.sort(key=lambda pair: -_estimate(pair[1]["advantage"]).low)
    table = Table(title=safe(audit.title), title_justify="left", show_lines=True)
    for heading in ("attack", "right guesses", "advantage", "TPR at\n1 % FPR"):
        table.add_column(heading, overflow="fold")
    for result, found in measured[:SHOWN]:
        known = ", ".join(result.known) if result.neighbours else "all others"
        right = (
            ("members", "accuracy_members"),
            ("non-members", "accuracy_non_members"),
            ("without target", "control_accuracy_members"),
        )
        table.add_row(
            safe(f"{result.attack} (access: {result.access})")
            .append("\n")
            .append(safe(f"{result.column} from {known}"))
            .append(f"\nn = {len(result.members)} + {len(result.non_members)}"),
            "\n".join(f"{name:14} {_shown(found[figure])}" for name, figure in right),
            _shown(found["advantage"], "\n"),
            _shown(found["tpr_at_fpr_0.01"], "\n"),
        )
    console.print(table)
    _more(console, len(measured))
    values = Table(title="Values that leak", title_justify="left")
    for heading in ("value", "right: members", "non-members", "advantage"):
        values.add_column(heading, overflow="fold")
    leaking = [
        (result, group, {f.name: f for f in group.figures})
        for result, _ in measured
        for group in by_value(result, each)
        if group.figures and _estimate(group.figures[0]).low > 0
    ]
    for result, group, taken in leaking[:SHOWN]:
        called = safe(f"{result.column} = {group.name}").append(
            f"\n{result.attack}, n = {group.members} + {group.non_members}"
        )
        names = ("accuracy_members", "accuracy_non_members", "advantage")
        values.add_row(called, *(_shown(taken[name], "\n") for name in names))
    if leaking and not audit.void:
        console.print(values)
        _more(console, len(leaking))
    if audit.void:
        console.print(
            "VOID: members and non-members differ even without the target, so no figure here "
            "speaks of it; draw both from one pool at random, train again and attack that model",
            style="bold red",
        )
    tries = f"{audit.confidence:.0%} intervals, each pays for {len(measured)} tried"
    console.print(safe(f"{tries}; files: {out}/"))


def _more(console: Console, count: int) -> None:
    if count > SHOWN:
        console.print(f"... and {count - SHOWN} more in the files")


def _estimate(figure: Figure) -> Estimate:
    assert figure.estimate is not None
    return figure.estimate


def _shown(figure: Figure, between: str = " ") -> str:
    if figure.estimate is None:
        return figure.unmeasured
    found = figure.estimate
    return f"{found.value:.3f}{between}[{found.low:.3f}, {found.high:.3f}]"
