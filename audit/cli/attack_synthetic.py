"""``dpassay attack synthetic``: what a synthetic table gives away of the records it came from."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from attacks.metrics import Figure
    from attacks.synthetic.result import SyntheticResult
    from audit.synthetic import SyntheticAudit

SHOWN = 20  # figures of each attack on the terminal; the file holds all


@click.command("synthetic")
@click.option("--train", required=True, type=click.Path(path_type=Path), help="What it came from.")
@click.option(
    "--holdout", required=True, type=click.Path(path_type=Path), help="Of the same kind, not used."
)
@click.option("--synthetic", required=True, type=click.Path(path_type=Path), help="The release.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--attacks", help="copies,nearest,density, ...  [default: all]")
@click.option("--secret", "secrets", multiple=True, help="Column to guess; may be repeated.")
@click.option("--part", "parts", multiple=True, help="Columns of one source, as a,b; give two.")
@click.option("--text", multiple=True, help="Column of free text; may be repeated.")
@click.option("--stream", is_flag=True, help="Exact copies alone, of files of any length.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="For what is drawn at random.",
)
@click.option("--force", is_flag=True, help="Replace what this command wrote there before.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the tables.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    train: Path,
    holdout: Path,
    synthetic: Path,
    out: Path,
    attacks: str | None,
    secrets: tuple[str, ...],
    parts: tuple[str, ...],
    text: tuple[str, ...],
    stream: bool,
    seed: int,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Attack a synthetic table (CSV or Parquet), beside a holdout that it never saw.

    Draw train and holdout at random from one pool before the generator is fitted. Writes
    synthetic.json and the evidence of each attack as Parquet to the folder --out. Exits 1 a leak
    was measured, 2 bad input, 3 inconclusive: no attack found a leak, which proves nothing, or
    train and holdout differ by themselves. It never exits 0: none of its answers is a pass.

    \b
    dpassay attack synthetic --train train.csv --holdout holdout.csv --synthetic new.csv --out leaks
    """
    from audit.cli.audit import progress_bars
    from audit.output import check_free, folder
    from audit.yaml_file import InputError

    if len(parts) not in (0, 2):
        raise BadInput(f"--part: given {len(parts)} times; give it twice, once for each source")
    if stream and (attacks or secrets or parts or text):
        raise BadInput("--stream: looks for exact copies alone; leave the other options off")
    asked = _listed(attacks, "--attacks") if attacks else ()
    for option, given, users in (
        ("--secret", secrets, ("inference", "uniqueness")), ("--part", parts, ("linkability",))
    ):  # fmt: skip
        if given and asked and not set(asked) & set(users):
            raise BadInput(f"{option}: is for {' and '.join(users)}; add it to --attacks")
    files = {"train": train, "holdout": holdout, "synthetic": synthetic}
    sources = tuple(_listed(part, "--part") for part in parts)
    try:
        from audit.synthetic import measure_synthetic, stream_synthetic, write, written

        check_free(out, force, written())
        with folder(out, force, written()) as building, progress_bars(quiet or as_json) as show:
            if stream:
                audit = stream_synthetic(files)
            else:
                audit = measure_synthetic(
                    files,
                    attacks=asked,
                    secrets=secrets,
                    parts=sources,
                    text=text,
                    seed=seed,
                    progress=lambda done, total: show("attacks", done, total),
                )
            write(audit, building, shlex.join(["dpassay", *sys.argv[1:]]))
    except InputError as error:
        raise BadInput(str(error)) from None
    if as_json:
        click.echo((out / written()[0]).read_text(encoding="utf-8"), nl=False)
    else:
        _print(audit, out)
    sys.exit(EXIT_CODES["fail" if audit.leaks else "inconclusive"])


def _listed(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadInput(f"{option}: {text!r}: a name is empty; write a,b,c")
    return names


def _print(audit: SyntheticAudit, out: Path) -> None:
    """Every attack's figures, those that leak first, and what to make of them."""
    from rich.console import Console
    from rich.table import Table

    from audit.cli.claims import safe

    console = Console()
    found = set(map(id, (figure for _, figure in audit.leaks)))
    for result in audit.results:
        table = Table(title=safe(f"{result.title} (access: {result.access})"), title_justify="left")
        table.add_column("figure", overflow="fold", min_width=24)
        table.add_column("interval", min_width=22)
        table.add_column("n", justify="right")
        for figure in sorted(result.figures, key=lambda f: id(f) not in found)[:SHOWN]:
            style = "bold red" if id(figure) in found else ""
            table.add_row(safe(figure.name, style), *(safe(x, style) for x in _cells(figure)))
        console.print(table)
        if len(result.figures) > SHOWN:
            console.print(f"... and {len(result.figures) - SHOWN} more in synthetic.json")
    for note in dict.fromkeys(note for result in audit.results for note in result.notes):
        console.print(safe(f"· {note}"), style="dim")
    for name, why in audit.refused.items():
        console.print(safe(f"{name} did not run: {why}"), style="yellow")
    if audit.shared:
        n = next(read.rows for read in audit.inputs if read.role == "holdout")
        said = f"{audit.shared} of {n} holdout records equal a training record: unless few values "
        console.print(safe(said + "are possible, they hide as many copies", style="yellow"))
    if (blind := audit.blind) is None:
        shown = "not tried; if they were not drawn at random from one pool, this says nothing"
    else:
        shown = f"AUC {blind.value:.3f} [{blind.low:.3f}, {blind.high:.3f}], n = {blind.n}"
    console.print(safe(f"train told from holdout without the release: {shown}"))
    if audit.void:
        console.print(
            "VOID: train and holdout differ even without the release, so no figure here speaks of "
            "it; draw both from one pool at random and fit the generator again",
            style="bold red",
        )
    elif audit.leaks:
        console.print(safe(f"LEAKS: {_named(audit.leaks)}", "bold red"))
    else:
        console.print(
            "INCONCLUSIVE: none of these attacks found a leak. Distances miss leaks, and a "
            "stronger attack may find one: this is no evidence of privacy",
            style="bold yellow",
        )
    tries = f"{audit.confidence:.0%} intervals, all together"
    console.print(safe(f"{tries}; files: {out}/"))


def _named(leaks: tuple[tuple[SyntheticResult, Figure], ...]) -> str:
    by_attack: dict[str, list[str]] = {}
    for result, figure in leaks:
        by_attack.setdefault(result.attack, []).append(figure.name)
    return "; ".join(f"{attack} ({', '.join(names)})" for attack, names in by_attack.items())


def _cells(figure: Figure) -> tuple[str, str]:
    if figure.estimate is None:
        return figure.unmeasured, ""
    found = figure.estimate
    return f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]", str(found.n)
