"""``dpassay audit``: one configuration in; a report, a record and an exit code out."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from audit.run import Progress
    from reports.record import Decision, Record


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace the folder of an earlier audit.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="audit.json of an earlier release: did this one leak more?",
)
@click.option("--locale", type=click.Choice(["en", "zh"]), default="en", show_default=True)
@click.option("--quiet", is_flag=True, help="No progress bars; the verdict table only.")
def command(
    config: Path, out: Path, force: bool, baseline: Path | None, locale: str, quiet: bool
) -> None:
    """Audit the target that CONFIG (an AUDIT.yaml) names.

    Writes index.html, audit.json and evidence files to the folder --out, prints the verdict, and
    exits 0 pass, 1 fail, 2 bad input, 3 inconclusive, 4 error. If it is interrupted, the same
    command goes on with the shadow models that it had finished.
    """
    record = run_audit(config, out, force=force, baseline=baseline, locale=locale, quiet=quiet)
    print_verdict(record, out, locale)
    sys.exit(EXIT_CODES[record.verdict.outcome])


def run_audit(
    config: Path,
    out: Path,
    *,
    force: bool = False,
    baseline: Path | None = None,
    locale: str = "en",
    quiet: bool = False,
) -> Record:
    """Run one audit and write its folder; BadInput for whatever cannot be used."""
    from audit.output import RECORD, REPORT, check_free, folder, shadow_folder

    command = ["dpassay", "audit", str(config), "--out", str(out)]
    command += ["--baseline", str(baseline)] if baseline else []
    try:
        check_free(out, force)  # before anything heavy is imported
        from audit.config import load_config

        loaded = load_config(config)
        earlier = _read_baseline(baseline)
        from audit.run import run
        from reports import html
        from reports.record import to_json

        kept = shadow_folder(out)
        with folder(out, force) as building, progress_bars(quiet) as progress:
            record = run(
                loaded,
                config,
                building,
                command=shlex.join(command),
                progress=progress,
                baseline=earlier,
                baseline_file=baseline,
                shadow_folder=kept,
            )
            (building / RECORD).write_text(to_json(record), encoding="utf-8")
            (building / REPORT).write_text(html.render(record, locale), encoding="utf-8")
        if record.verdict.outcome != "error":  # what ran out of time goes on from here next time
            shutil.rmtree(kept, ignore_errors=True)
    except BadInput:
        raise
    except ValueError as error:
        from audit.yaml_file import InputError

        if isinstance(error, InputError):
            raise BadInput(str(error)) from None
        raise
    return record


def _read_baseline(path: Path | None) -> Record | None:
    from reports.record import from_json

    if path is None:
        return None
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; --baseline wants an audit.json") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: no record to compare with: {error}") from None


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Progress]:
    """One bar a stage, with what is being done and how long it has left; none if ``quiet``."""
    if quiet:
        yield lambda stage, done, total: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=24),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def print_verdict(record: Record, out: Path, locale: str = "en") -> None:
    """The verdict and what decided it, as a short table."""
    from rich.console import Console
    from rich.table import Table

    from audit.cli.claims import safe
    from reports.sentence import sentence

    colours = {"pass": "green", "fail": "red", "inconclusive": "yellow", "error": "red"}
    console = Console()
    table = Table(title=safe(record.title), title_justify="left", show_lines=True)
    table.add_column("verdict")
    table.add_column("of", overflow="fold")
    table.add_column("because", overflow="fold", ratio=1)
    held = [d for d in record.verdict.decisions if d.rule == "ledger" and d.outcome == "pass"]
    for decision in record.verdict.decisions:
        if decision in held[1:]:
            continue
        of, because = decision.finding or decision.rule, ""
        if held and decision is held[0]:  # one line for all: the report has each
            of, because = "ledger", f"{len(held)} checks hold: {_listed(held)}"
        else:
            because = sentence(decision.message, decision.values, locale)
        if decision.waiver:
            because += f" [{decision.waiver}]"
        colour = colours[decision.outcome]
        table.add_row(f"[{colour}]{decision.outcome}[/]", safe(of), safe(because))
    console.print(table)
    outcome = record.verdict.outcome
    console.print(
        safe(outcome.upper(), f"bold {colours[outcome]}"), safe(f" report: {out}/index.html")
    )


def _listed(decisions: Sequence[Decision]) -> str:
    return ", ".join(d.finding.rpartition(".")[2] for d in decisions)
