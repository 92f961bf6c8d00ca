"""``dpassay attack membership``: who was in the training data, as far as the target tells."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    from attacks.metrics import Estimate
    from attacks.result import AttackResult
    from audit.membership import MembershipAudit

EXPOSED = 5  # members on the terminal; the files hold more


@click.command("membership")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--attacks", help="As a,b,c.  [default: those of CONFIG]")
@click.option("--shadow-models", type=click.IntRange(min=2), help="How many; overrides CONFIG.")
@click.option("--workers", help="Processes, -1 for one a core, or ray; overrides CONFIG.")
@click.option("--group", "columns", multiple=True, help="Figures by this column too; repeatable.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace what this command wrote there before.")
@click.option("--quiet", is_flag=True, help="No progress bars; the table only.")
def command(
    config: Path,
    attacks: str | None,
    shadow_models: int | None,
    workers: str | None,
    columns: tuple[str, ...],
    out: Path,
    force: bool,
    quiet: bool,
) -> None:
    """Attack the target that CONFIG (an AUDIT.yaml) names, and its positive control.

    For each attack it writes ATTACK.json (every figure with its interval, by class, and the most
    exposed members) and ATTACK.parquet (each record's score) to the folder --out. It measures and
    judges nothing: exits 0 measured, 2 bad input, 3 void or out of time (budget.seconds). If it is
    interrupted or out of time, the same command goes on with the shadow models that it had
    finished.

    \b
    dpassay attack membership AUDIT.yaml --attacks lira,rmia --shadow-models 64 --out attacks
    """
    from audit.cli.audit import progress_bars
    from audit.output import check_free, folder, shadow_folder
    from audit.yaml_file import InputError

    try:
        check_free(out, force, names := _files())  # before anything heavy is imported
        from audit.config import load_config
        from audit.membership import attack_target, within, write

        loaded = load_config(config)
        if loaded.records is None or loaded.target is None:
            raise BadInput(f"{config}: target, records: needed; there is nothing to attack")
        loaded = loaded.model_copy(
            update={
                "attacks": _listed(attacks) if attacks else loaded.attacks,
                "budget": _budget(loaded.budget, shadow_models, workers),
            }
        )
        kept = shadow_folder(out)
        with folder(out, force, names) as building, progress_bars(quiet) as show:

            def watch(stage: str) -> Callable[[int, int], None]:
                return lambda done, total: show(stage, done, total)

            timed = within(loaded.budget.seconds, watch)
            audit = attack_target(loaded, timed, kept, columns)
            write(audit, building)
        if not audit.unfinished:  # else it goes on from here next time
            shutil.rmtree(kept, ignore_errors=True)
    except InputError as error:
        raise BadInput(str(error)) from None
    _print(loaded.title, audit, out)
    sys.exit(EXIT_CODES["inconclusive" if audit.void or audit.unfinished else "pass"])


def _files() -> list[str]:
    """Every name that this command may write; the first is in each of its folders."""
    from attacks.registry import entries

    stems = ["blind_baseline"]
    stems += [f"{name}{of}" for name in entries() for of in ("", ".positive-control")]
    return [f"{stem}.{kind}" for stem in stems for kind in ("json", "parquet")]


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise BadInput(f"--attacks: {text!r}: a name is empty or stands twice; write a,b,c")
    return names


def _budget(given: Any, shadow_models: int | None, workers: str | None) -> Any:
    from pydantic import ValidationError

    changed = given.model_dump()
    if shadow_models is not None:
        changed["shadow_models"] = shadow_models
    if workers is not None:
        changed["workers"] = workers if workers == "ray" else _number(workers)
    try:
        return type(given).model_validate(changed)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise BadInput(f"--{option}: {first['msg']}") from None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"--workers: {text!r} is neither a number nor ray") from None


def _print(title: str, audit: MembershipAudit, out: Path) -> None:
    """One row an attack, with its AUC on the positive control, then who stands out most."""
    from rich.console import Console
    from rich.table import Table

    from attacks.breakdown import most_exposed
    from audit.cli.claims import safe

    console = Console()
    console.print(safe(title, "bold"))
    table = Table(show_lines=True)
    for heading in ("attack", "AUC", "TPR at\n1 % FPR", "TPR at\n0.1 % FPR"):
        table.add_column(heading, no_wrap=True)
    targets = [result for subject, result in audit.results if subject == "target"]
    order = {result.name: place for place, result in enumerate(targets)}
    found = sorted(audit.results, key=lambda pair: order.get(pair[1].name, len(order)))
    for subject, result in (("target", audit.blind), *found):
        trained = f", {result.models_trained} models" if result.models_trained else ""
        of = "\non the positive control" if subject == "positive control" else ""
        sizes = f"n = {len(result.member_scores)} + {len(result.non_member_scores)}"
        table.add_row(
            safe(result.name, "bold").append(
                f"{of}\n{sizes}\naccess: {result.access}{trained}", "not bold"
            ),
            *_figures(result, audit.confidence),
        )
    console.print(table)
    strongest = _strongest(audit)
    if strongest is not None and not audit.void:
        exposed = most_exposed(strongest, EXPOSED, audit.confidence)
        listed = ", ".join(f"{e.id} (at most {e.false_positives.high:.2%})" for e in exposed)
        console.print(safe(
            f"Members that stand out most ({strongest.name}; share of non-members scored as high): "
            f"{listed}"
        ))  # fmt: skip
    for note in audit.records.notes:
        console.print(safe(f"note: {note}"))
    if audit.void:
        console.print(
            "VOID: members and non-members differ even without the target, so no figure here "
            "speaks of it; draw both from one pool at random, train again and attack that model",
            style="bold red",
        )
    for name, error in audit.unfinished:
        console.print(
            safe(f"{name} did not finish: {error}; allow more, and run again", "bold red")
        )
    tries = f"intervals at {audit.confidence:.2%}: they pay for {len(targets)} attacks tried"
    console.print(safe(f"{tries}; files: {out}/"))


def _figures(result: AttackResult, confidence: float) -> list[str]:
    from attacks.metrics import auc, tpr_at_fpr

    sides = (result.member_scores, result.non_member_scores)
    shown = [_shown(auc(*sides, confidence))]
    for fpr in (0.01, 0.001):
        rate = tpr_at_fpr(*sides, fpr, confidence).estimate
        shown.append(_shown(rate) if rate else f"not known\nn < {1 / fpr:,.0f}")
    return shown


def _shown(found: Estimate) -> str:
    return f"{found.value:.3f}\n[{found.low:.3f}, {found.high:.3f}]"


def _strongest(audit: MembershipAudit) -> AttackResult | None:
    """The attack on the target with the highest lower end of its AUC."""
    from attacks.metrics import auc

    on_target = [result for subject, result in audit.results if subject == "target"]
    return max(
        on_target,
        key=lambda r: auc(r.member_scores, r.non_member_scores, audit.confidence).low,
        default=None,
    )
