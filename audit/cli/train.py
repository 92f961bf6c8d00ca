"""``dpassay train``: make a model, with or without DP, and its ledger."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.errors import BadInput
from audit.cli.keys import signing_key
from audit.cli.train_tabular import command as tabular

if TYPE_CHECKING:
    import numpy as np

_PATH = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """Train a model on records and write it with its ledger, ledger.jsonl."""


command.add_command(tabular)


@command.command()
@click.argument("data", type=_PATH)
@click.option("--label", required=True, help="Column (or npz array) of whole numbers from 0.")
@click.option("--out", required=True, type=_PATH, help="Folder to write; it may hold no ledger.")
@click.option("--classes", type=int, help="How many labels there are.  [default: largest + 1]")
@click.option("--architecture", type=click.Choice(["mlp", "cnn"]), default="mlp", show_default=True)
@click.option("--hidden", default="64", show_default=True, help="Widths or channels, as 64,32.")
@click.option("--epochs", type=int, default=20, show_default=True)
@click.option("--batch-size", type=int, default=64, show_default=True)
@click.option("--learning-rate", type=float, default=5e-3, show_default=True)
@click.option("--low", type=float, default=-1.0, show_default=True, help="Public lower bound.")
@click.option("--high", type=float, default=1.0, show_default=True, help="Public upper bound.")
@click.option("--epsilon", type=float, help="Train with DP, and stay below this ε.")
@click.option("--noise-multiplier", type=float, help="Train with DP, with this σ.")
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--clipping-norm", type=float, default=1.0, show_default=True)
@click.option("--seeded-noise", is_flag=True, help="Repeatable noise, for tests: no guarantee.")
@click.option(
    "--engine",
    type=click.Choice(["book-keeping", "opacus"]),
    default="book-keeping",
    show_default=True,
    help="What clips (DP): our single pass, or Opacus' hooks.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--sign", type=_PATH, help="Ed25519 private key (PEM) that signs the ledger's end.")
@click.option("--checkpoint-every", type=int, default=0, help="Steps between checkpoints (DP).")
@click.option("--resume", is_flag=True, help="Go on with the killed DP run in --out.")
def classifier(
    data: Path,
    label: str,
    out: Path,
    classes: int | None,
    hidden: str,
    low: float,
    high: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clipping_norm: float,
    seeded_noise: bool,
    engine: Any,
    sign: Path | None,
    checkpoint_every: int,
    resume: bool,
    **options: Any,
) -> None:
    """Train a classifier on DATA (.csv, .parquet, or .npz with an array 'features').

    Without --epsilon and --noise-multiplier there is no DP, and the ledger says so.
    """
    features, labels = _records(data, label)
    key = None if sign is None else signing_key(sign)
    from trainers.classifier import ClassifierConfig, Privacy

    try:
        privacy = None
        if epsilon is not None or noise_multiplier is not None:
            privacy = Privacy(
                epsilon=epsilon,
                noise_multiplier=noise_multiplier,
                delta=delta,
                clipping_norm=clipping_norm,
                noise="seeded" if seeded_noise else "secure",
                engine=engine,
            )
        config = ClassifierConfig(
            classes=_largest(data, label, labels) + 1 if classes is None else classes,
            hidden=_widths(hidden),
            low=low,
            high=high,
            privacy=privacy,
            **options,
        )
        running: dict[str, Any] = {
            "signing_key": key,
            "checkpoint_every": checkpoint_every,
            "resume": resume,
        }
        _train(config, features, labels, out, running)
    except ValueError as error:
        said = str(error)
        about_data = said.startswith(("features:", "labels:"))
        raise BadInput(f"{data}: {said}" if about_data else said) from None
    except OSError as error:
        raise BadInput(f"{error.filename}: cannot be written: {error.strerror}") from None


def _train(
    config: Any, features: np.ndarray, labels: np.ndarray, out: Path, running: dict[str, Any]
) -> None:
    from rich import progress as rich
    from rich.console import Console

    from trainers.classifier import train

    columns = (
        rich.TextColumn("training"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("ε so far {task.fields[epsilon]:.2f}"),
        rich.TimeRemainingColumn(),
    )
    with _note_what_stays(out), rich.Progress(*columns, console=Console(stderr=True)) as bars:

        def on_step(step: int, steps: int, epsilon: float) -> None:
            if not bars.tasks:  # only now: an error about the input stays the one line printed
                bars.add_task("training", total=steps, epsilon=0.0)
            bars.update(bars.task_ids[0], completed=step, epsilon=epsilon)

        trained = train(config, features, labels, out, on_step=on_step, **running)
    spent = "no DP: ε = ∞"
    if trained.delta is not None:
        spent = (
            f"σ = {trained.noise_multiplier:.4g}, sample rate {trained.sample_rate:.4g}: "
            f"ε = {trained.epsilon:.3g} at δ = {trained.delta:g} (add-remove, per record, by "
            "Opacus' RDP accountant; dpassay account --ledger recomputes it)"
        )
    click.echo(f"{trained.weights}: {trained.steps} steps, {spent}")
    signed = ""
    if key := running["signing_key"]:
        signed = f", signed by the public key {key.public_key().public_bytes_raw().hex()}"
    click.echo(f"{trained.ledger}: the ledger{signed}")


def _largest(path: Path, label: str, labels: np.ndarray) -> int:
    if labels.dtype.kind not in "iu" or not labels.size:
        raise BadInput(
            f"{path}: {label}: must hold whole numbers from 0, got {labels.dtype}; encode classes "
            "beforehand"
        )
    return int(labels.max())


@contextlib.contextmanager
def _note_what_stays(out: Path) -> Iterator[None]:
    """Say, when a run is interrupted, that its ledger stays: the steps that ran were spent."""
    try:
        yield
    except KeyboardInterrupt:
        said = "keeps the steps that ran; a DP run goes on with --resume"
        click.echo(f"dpassay: {out / 'ledger.jsonl'}: {said}", err=True)
        raise


def _widths(text: str) -> tuple[int, ...]:
    widths = tuple(int(part) if part.strip().isdigit() else 0 for part in text.split(","))
    if 0 in widths:
        raise BadInput(f"--hidden: {text!r} is no list of whole numbers such as 64,32")
    return widths


def _records(path: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of one file; the trainer checks the values."""
    import numpy as np

    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return arrays["features"], arrays[label]
        import pandas as pd

        from attacks.synthetic.tables import named_fields

        if path.suffix not in (".csv", ".parquet"):
            raise BadInput(f"{path}: unknown kind {path.suffix!r}; give .csv, .parquet or .npz")
        if path.suffix == ".csv":
            with named_fields():
                frame = pd.read_csv(path, index_col=False)
        else:
            frame = pd.read_parquet(path)
        labels, frame = frame[label].to_numpy(), frame.drop(columns=label)
        if not len(frame):
            raise BadInput(f"{path}: holds no records; give at least two")
        for name, column in frame.items():
            if column.dtype.kind not in "fiub":
                raise BadInput(f"{path}: {name}: must hold numbers, got {column.dtype}; encode it")
        return frame.to_numpy(dtype=float), labels
    except KeyError as error:
        raise BadInput(f"{path}: column {error} is missing; --label names one") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
