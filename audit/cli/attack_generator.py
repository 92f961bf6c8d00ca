"""``dpassay attack generator``: does a generator's output tell who it was trained on?"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.errors import EXIT_CODES, BadInput

if TYPE_CHECKING:
    import pandas as pd

    from attacks.metrics import Figure
    from attacks.synthetic.generator_shadow import ShadowResult
    from trainers.tabular.domain import Domain

WRITTEN = ("generator.json", "targets.parquet")
LOOKS = 5  # AUC, TPR at two FPRs, most exposed target, ε: each may find a leak, and pays for it
_PATH = click.Path(path_type=Path)


@click.command("generator")
@click.argument("pool", type=_PATH)
@click.option(
    "--generator", "name", required=True, help="marginals, gan, or module:function of your own."
)
@click.option("--domain", "domain_file", type=_PATH, help="marginals, gan: YAML of the columns.")
@click.option("--epsilon", type=float, help="marginals, gan: train each with this ε.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Of ε, and its bound.")
@click.option("--targets", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--runs", type=int, default=128, show_default=True, help="Generators to train.")
@click.option("--records", type=int, help="Records from each.  [default: half of POOL]")
@click.option(
    "--others",
    type=click.Choice(["halves", "fixed"]),
    default="halves",
    show_default=True,
    help="Train on random halves of the other records, or on all of them.",
)
@click.option("--workers", default="1", show_default=True, help="Processes, -1, or ray.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--out", required=True, type=_PATH, help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace what this command wrote there before.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    pool: Path,
    name: str,
    domain_file: Path | None,
    epsilon: float | None,
    delta: float,
    targets: int,
    runs: int,
    records: int | None,
    others: Any,
    workers: str,
    seed: int,
    out: Path,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train a generator many times on records of POOL (.csv or .parquet) and attack its output.

    The targets are the records farthest from all others; each is in half of the runs. Your own
    function takes (records to train on, a DataFrame; how many to make; seed) and returns a
    DataFrame of the same columns. Writes generator.json and targets.parquet to the folder --out.
    Exits 1 a leak was measured, 2 bad input, 3 inconclusive: no leak was found, which proves
    nothing. It never exits 0: no answer is a pass. If it is interrupted, the same command goes on
    with the generators that it had trained.

    \b
    dpassay attack generator patients.csv --generator mycode:fit_and_sample --out leaks
    """
    from audit.cli.audit import progress_bars
    from audit.output import check_free, folder, shadow_folder
    from audit.yaml_file import InputError

    try:
        check_free(out, force, WRITTEN)  # before anything heavy is imported
        from attacks.attribute.result import shared_confidence
        from attacks.synthetic.generator_fleet import GeneratorFleet
        from attacks.synthetic.generator_shadow import attack, copies

        frame, generator, recipe = _read(pool, name, domain_file, epsilon, delta)
        kept = shadow_folder(out)
        size = records if records is not None else len(frame) // 2
        with folder(out, force, WRITTEN) as building, progress_bars(quiet or as_json) as show:
            found = []
            for stage, of in (("generators", generator), ("positive control", copies)):
                fleet = GeneratorFleet(
                    of, size, runs, seed, others, kept, f"{stage}: {recipe}", _workers(workers)
                )
                found.append(
                    attack(
                        fleet,
                        frame,
                        targets,
                        delta=delta,
                        confidence=shared_confidence(0.95, LOOKS),
                        seed=seed,
                        progress=partial(show, stage),
                    )
                )
            result, control = found
            import pyarrow as pa
            import pyarrow.parquet as pq

            (building / WRITTEN[0]).write_text(_json(result, control, name, pool), encoding="utf-8")
            pq.write_table(pa.table(dict(result.rows)), building / WRITTEN[1])
        shutil.rmtree(kept, ignore_errors=True)
    except InputError as error:
        raise BadInput(str(error)) from None
    except ValueError as error:
        told = str(error)
        field = told.partition(":")[0]
        if field in ("runs", "targets", "records", "delta", "workers"):
            told = f"--{told}"
        raise BadInput(told if field != "pool" else f"{pool}{told[4:]}") from None
    if as_json:
        click.echo((out / WRITTEN[0]).read_text(encoding="utf-8"), nl=False)
    else:
        _print(result, control, name, out)
    sys.exit(EXIT_CODES["fail" if leaks(result) else "inconclusive"])


def leaks(result: ShadowResult) -> bool:
    """Whether a figure's interval lies above what chance gives, or there is evidence of an ε."""
    chance = {"auc": 0.5, "auc_most_exposed": 0.5, "tpr_at_fpr_0.1": 0.1, "tpr_at_fpr_0.01": 0.01}
    found = [(f.estimate, chance[f.name]) for f in result.figures]
    if any(estimate is not None and estimate.low > null for estimate, null in found):
        return True
    return result.bound is not None and result.bound.epsilon is not None


@dataclass(frozen=True)
class OwnFunction:
    """The user's function; what it raises becomes one line."""

    function: Callable[..., Any]
    name: str

    def __call__(self, training: pd.DataFrame, records: int, seed: int) -> pd.DataFrame:
        """Call it; ValueError for whatever it raises."""
        try:
            table: pd.DataFrame = self.function(training, records, seed)
        except (Exception, SystemExit) as error:
            reason = str(error).strip().splitlines()[:1]
            told = ": ".join([f"{self.name}: raised {type(error).__name__}", *reason])
            raise ValueError(told) from error
        return table


@dataclass(frozen=True)
class OurGenerator:
    """One of ``trainers.tabular``, trained with repeatable noise: shadows protect nobody."""

    method: str
    domain: Domain
    epsilon: float
    delta: float

    def __call__(self, training: pd.DataFrame, records: int, seed: int) -> pd.DataFrame:
        """Train in a folder that goes away, and sample."""
        import importlib
        from tempfile import TemporaryDirectory

        from trainers.tabular.privacy import Privacy

        train = importlib.import_module(f"trainers.tabular.{self.method}").train
        privacy = Privacy(self.epsilon, self.delta, "seeded", seed)
        with TemporaryDirectory() as folder:
            trained = train(training, self.domain, privacy, Path(folder) / "generator")
            table: pd.DataFrame = trained.generator.sample(records, seed)
        return table


def _read(
    pool: Path, name: str, domain_file: Path | None, epsilon: float | None, delta: float
) -> tuple[pd.DataFrame, Callable[..., Any], str]:
    """The records, the generator, and all that decides what it does."""
    from attacks.synthetic.tables import read_table
    from audit.models import code_of, import_function, recipe_text

    if name in ("marginals", "gan"):
        if domain_file is None or epsilon is None:
            raise BadInput(f"--generator {name}: needs --domain and --epsilon; give both")
        from audit.cli.train_tabular import table_of
        from audit.yaml_file import load
        from trainers.tabular.domain import Domain

        domain = load(domain_file, Domain)
        parts = [name, domain.model_dump(mode="json"), epsilon, delta]
        generator = OurGenerator(name, domain, epsilon, delta)
        return table_of(pool, domain), generator, recipe_text(parts)
    if domain_file is not None or epsilon is not None:
        raise BadInput("--domain, --epsilon: are for --generator marginals or gan")
    function = import_function(name, "--generator", Path.cwd())
    recipe = recipe_text([name, code_of([(name, function)], Path.cwd())])
    return read_table(pool), OwnFunction(function, name), recipe


def _workers(text: str) -> Any:
    if text == "ray":
        return text
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"--workers: {text!r}: give a number of processes, or ray") from None


def _json(result: ShadowResult, control: ShadowResult, name: str, pool: Path) -> str:
    import json

    from audit.record_files import digest

    def plain(found: ShadowResult) -> dict[str, Any]:
        return {
            "figures": [asdict(figure) for figure in found.figures],
            "bound": asdict(found.bound) if found.bound else None,
            "notes": found.notes,
            "models_trained": found.models_trained,
            "seconds": found.seconds,
        }

    about = {
        "command": shlex.join(["dpassay", *sys.argv[1:]]),
        "generator": name,
        "access": result.access,
        "source": result.source,
        "seed": result.seed,
        "leaks": leaks(result),
        "versions": {name: metadata.version(name) for name in ("dpassay", "numpy", "scikit-learn")},
        "inputs": [asdict(digest(pool, "pool"))],
    }
    whole = about | plain(result) | {"positive_control": plain(control)}
    return json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _print(result: ShadowResult, control: ShadowResult, name: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from audit.cli.claims import safe

    console = Console()
    table = Table(title=safe(f"Who trained {name}? (access: {result.access})"))
    for heading in ("figure", "generator", "positive control: copies", "n"):
        table.add_column(heading, overflow="fold")
    for figure, leaky in zip(result.figures, control.figures, strict=True):
        n = figure.estimate.n if figure.estimate else ""
        table.add_row(figure.name, _shown(figure), _shown(leaky), str(n))
    console.print(table)
    for note in result.notes:
        console.print(safe(note))
    if not leaks(result):
        seen = "it finds the positive control" if leaks(control) else "nor in the positive control"
        console.print(safe(f"INCONCLUSIVE: no leak found; {seen}"), style="bold yellow")
    console.print(safe(f"95 % intervals, each pays for {LOOKS} figures; files: {out}/"))


def _shown(figure: Figure) -> str:
    if (found := figure.estimate) is None:
        return figure.unmeasured
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
