"""``dpassay train tabular``: make a generator of tables with DP, and its ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.errors import BadInput
from audit.cli.keys import signing_key

if TYPE_CHECKING:
    import pandas as pd

    from trainers.tabular.domain import Domain

_PATH = click.Path(path_type=Path)


@click.command("tabular")
@click.argument("data", type=_PATH)
@click.option("--domain", required=True, type=_PATH, help="YAML file of the columns' domain.")
@click.option("--out", required=True, type=_PATH, help="Folder to write; it may hold no run.")
@click.option("--epsilon", required=True, type=float, help="Stay below this ε.")
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--method", type=click.Choice(["marginals", "gan"]), default="marginals")
@click.option("--label", help="Column to measure all others with: what will be predicted.")
@click.option(
    "--quasi-identifier", "known", multiple=True, help="gan: a column that strangers may know."
)
@click.option("--risk-weight", type=float, default=0.0, help="gan: weight of rare combinations.")
@click.option("--steps", type=click.IntRange(min=1), help="gan: of the critic.  [default: 1000]")
@click.option("--seeded-noise", is_flag=True, help="Repeatable noise, for tests: no guarantee.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Of seeded noise.",
)
@click.option("--sign", type=_PATH, help="Ed25519 private key (PEM) that signs the ledger's end.")
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), help="gan: steps between checkpoints."
)
@click.option("--resume", is_flag=True, help="gan: go on with the killed run in --out.")
def command(
    data: Path,
    domain: Path,
    out: Path,
    epsilon: float,
    delta: float,
    method: str,
    label: str | None,
    known: tuple[str, ...],
    risk_weight: float,
    steps: int | None,
    seeded_noise: bool,
    seed: int,
    sign: Path | None,
    checkpoint_every: int | None,
    resume: bool,
) -> None:
    """Train a generator on DATA (.csv or .parquet) and write generator.json and its weights.

    Bounds and levels come from the domain file, not from the records; where it leaves some out, a
    tenth of the budget estimates them.
    """
    key = None if sign is None else signing_key(sign)
    if method == "gan" and label is not None:
        raise BadInput("--label: is for --method marginals; a GAN learns all columns alike")
    if method == "marginals" and (known or risk_weight or steps or checkpoint_every or resume):
        raise BadInput(
            "--quasi-identifier, --risk-weight, --steps, --checkpoint-every, --resume: are for "
            "--method gan"
        )
    from audit.yaml_file import InputError, load
    from trainers.tabular.domain import Domain

    try:
        columns = load(domain, Domain)
        frame = table_of(data, columns)
    except InputError as error:
        raise BadInput(str(error)) from None
    from trainers.tabular.privacy import Privacy

    try:
        noise: Any = "seeded" if seeded_noise else "secure"
        privacy = Privacy(epsilon=epsilon, delta=delta, noise=noise, seed=seed)
    except ValueError as error:
        raise BadInput(f"--{error}") from None
    try:
        trained: Any
        if method == "marginals":
            from trainers.tabular import marginals

            trained = marginals.train(frame, columns, privacy, out, label=label, signing_key=key)
        else:
            from trainers.tabular import gan
            from trainers.tabular.gan_training import GanConfig

            config = GanConfig() if steps is None else GanConfig(steps=steps)
            with _bar() as on_step:
                trained = gan.train(
                    frame, columns, privacy, out, quasi_identifiers=known, config=config,
                    risk_weight=risk_weight, on_step=on_step, signing_key=key,
                    checkpoint_every=checkpoint_every or 0, resume=resume,
                )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"dpassay: {out / 'ledger.jsonl'}: keeps what was spent, if it began", err=True)
        raise
    except ValueError as error:
        said = str(error)
        about_run = said.startswith((str(out), "label:", "risk_weight:", "batch_size:", "resume:"))
        raise BadInput(said if about_run else f"{data}: {said}") from None
    except OSError as error:
        raise BadInput(f"{error.filename}: cannot be written: {error.strerror}") from None
    click.echo(
        f"{trained.weights}: {method}, {trained.steps} releases, ε = {trained.epsilon:.3g} at "
        f"δ = {trained.delta:g} (add-remove, per record, by the trainer's own account; "
        "dpassay account --ledger recomputes it)"
    )
    signed = "" if key is None else f", signed by {key.public_key().public_bytes_raw().hex()}"
    click.echo(f"{trained.ledger}: the ledger{signed}")


def table_of(path: Path, domain: Domain) -> pd.DataFrame:
    """The records. Levels written as text are compared as text: 007 in a CSV stays 007."""
    import pandas as pd

    from attacks.synthetic.tables import read_table

    try:
        frame = read_table(path)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if path.suffix == ".csv":
        as_text = [
            name
            for name, column in domain.columns.items()
            if column.kind == "category" and name in frame.columns
            and not all(isinstance(level, int | float) for level in column.levels or ("",))
            and (pd.api.types.is_numeric_dtype(frame[name]) or frame[name].dtype == bool)
        ]  # fmt: skip
        if as_text:
            texts = pd.read_csv(
                path, encoding="utf-8-sig", index_col=False, usecols=as_text, dtype=str
            )
            frame[as_text] = texts[as_text]
    return frame


@contextmanager
def _bar() -> Iterator[Callable[[int, int, float], None]]:
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("training"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("ε so far {task.fields[epsilon]:.2f}"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:

        def on_step(step: int, steps: int, epsilon: float) -> None:
            if not bars.tasks:  # only now: an error about the input stays the one line printed
                bars.add_task("training", total=steps, epsilon=0.0)
            bars.update(bars.task_ids[0], completed=step, epsilon=epsilon)

        yield on_step
