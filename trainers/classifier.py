"""Trains classifiers of tables and images, with or without differential privacy.

With privacy it is DP-SGD by ``trainers.dpsgd``. A run writes its weights as safetensors, a
description that rebuilds the module, and the ledger of every step.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from trainers.checkpoints import CHECKPOINT, Checkpoints, open_ledger, saved_step
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.plan import Plan, plan
from trainers.dpsgd.training import LEDGER_ORDERS, PrivateTraining
from trainers.files import write_whole
from trainers.ledger import Header, LedgerWriter, fingerprint
from trainers.networks import build

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OnStep = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Privacy:
    """What DP-SGD shall reach. Give either a target ε or a noise multiplier.

    ``noise`` is ``secure`` for a guarantee; ``seeded`` repeats a run and protects nobody.
    ``engine`` clips: our own in one pass, or Opacus' hooks, another implementation.

    Raises:
        ValueError: if not exactly one of the two is given, or a value is out of range.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    clipping_norm: float = 1.0
    noise: Literal["secure", "seeded"] = "secure"
    engine: Literal["book-keeping", "opacus"] = "book-keeping"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("privacy: give either epsilon or noise_multiplier")
        for name in ("noise_multiplier", "clipping_norm"):
            value = getattr(self, name)
            if value is not None and not 1e-9 <= value <= 1e9:
                raise ValueError(f"{name}: must lie between 1e-9 and 1e9, got {value}")
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon: must be positive and finite, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta: must lie between 0 and 1, got {self.delta}")


@dataclass(frozen=True)
class ClassifierConfig:
    """What to train, and how.

    Attributes:
        classes: how many labels there are, from 0; known beforehand, not read from the records.
        hidden: widths of the hidden layers of an ``mlp``, channels of a ``cnn``'s convolutions.
        low, high: bounds of the features, one for all or one each, that inputs are scaled by to
            [-1, 1]. They must be public: bounds taken from the records would leak them.
        privacy: None for plain minibatch training, which may overfit.
        seed: decides the initial weights, and the batches of training without privacy.

    Raises:
        ValueError: if a number is out of range.
    """

    classes: int
    architecture: Literal["mlp", "cnn"] = "mlp"
    hidden: tuple[int, ...] = (64,)
    epochs: int = 20
    batch_size: int = 64
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    low: float | tuple[float, ...] = -1.0
    high: float | tuple[float, ...] = 1.0
    privacy: Privacy | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if any(units < 1 for units in self.hidden):
            raise ValueError(f"hidden: must be at least 1 each, got {self.hidden}")
        if self.classes < 2:
            raise ValueError(f"classes: must be at least 2, got {self.classes}")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate: must be positive, got {self.learning_rate}")


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained model and the files that hold it.

    ``epsilon`` is the trainer's own figure at ``delta`` (Opacus' RDP accountant), infinite without
    privacy. ``weights`` is safetensors; ``description`` names the factory that rebuilds the module.
    """

    model: nn.Module
    weights: Path
    description: Path
    ledger: Path
    steps: int
    sample_rate: float
    noise_multiplier: float
    epsilon: float
    delta: float | None


def train(
    config: ClassifierConfig,
    features: np.ndarray,
    labels: np.ndarray,
    out: Path,
    *,
    on_step: OnStep | None = None,
    signing_key: Ed25519PrivateKey | None = None,
    checkpoint_every: int = 0,
    resume: bool = False,
) -> TrainedClassifier:
    """Train on the records and write model.safetensors, model.json and ledger.jsonl into ``out``.

    A DP run that was killed goes on with ``resume``, from its last checkpoint if it saved any. The
    steps after that checkpoint were spent and stay counted: the run ends when the ledger holds the
    planned number of steps, so that the budget aimed at is kept. A seeded run takes them again as
    they were, and ends where it would have ended; a secure one never repeats its noise.

    Args:
        features: (n, features) for an ``mlp``, (n, channels, height, width) for a ``cnn``.
        labels: n whole numbers from 0 to ``classes`` - 1.
        on_step: called after each step with its number, how many there will be, and ε so far.
        signing_key: an Ed25519 key that signs the ledger's end mark.
        checkpoint_every: steps between checkpoints of a DP run; 0 for none.
        resume: go on with the ledger in ``out``.

    Raises:
        ValueError: if the records do not suit the configuration, or ``out`` has a ledger already,
            or has none of this run to resume.
    """
    x, y = checked_records(config, features, labels)
    if not torch.any(y != y[0]):
        raise ValueError(f"labels: all records have label {y[0]}; a classifier needs two or more")
    if config.privacy is None and (checkpoint_every or resume):
        raise ValueError("privacy: only DP runs keep checkpoints and are resumed; train anew")
    spending = spending_plan(config, len(x))
    steps = spending.steps if spending else config.epochs * -(-len(x) // config.batch_size)
    arguments = network_arguments(config, features.shape[1:])
    with torch.random.fork_rng(devices=[]):
        build(**arguments)  # refuses what cannot be built before a ledger is begun
    path = out / "ledger.jsonl"
    header = _header(config, spending, steps, len(x), fingerprint(features, labels))
    with open_ledger(path, header, resume=resume) as ledger, torch.random.fork_rng(devices=[]):
        checkpoints = Checkpoints(ledger, out / CHECKPOINT, checkpoint_every)
        torch.manual_seed(config.seed)
        model = build(**arguments)
        if spending is None:
            _fit_plain(config, model, x, y, _recorder(config, None, ledger, steps, on_step))
        else:
            assert config.privacy is not None
            source = config.privacy.noise
            repeated = ledger.steps - saved_step(checkpoints.file) if source == "seeded" else 0
            record = _recorder(config, spending, ledger, steps, on_step, repeated)
            _fit_private(config, spending, model, x, y, source, record, config.seed, checkpoints)
        model.eval()
        description = {
            "factory": "trainers.networks:build",
            "arguments": arguments,
            "training": dataclasses.asdict(config),
        }
        weights = out / "model.safetensors"
        ledger.sync()  # what is released must have been counted, also after a power cut
        write_whole(weights, lambda temporary: save_file(model.state_dict(), temporary))
        text = json.dumps(description, indent=1) + "\n"
        write_whole(
            out / "model.json", lambda temporary: temporary.write_text(text, encoding="utf-8")
        )
        ledger.checkpoint(weights)
        epsilon = spending.epsilon(ledger.steps) if spending else float("inf")
        ledger.end(epsilon=epsilon if config.privacy else None, key=signing_key)
    checkpoints.file.unlink(missing_ok=True)
    return TrainedClassifier(
        model=model,
        weights=weights,
        description=out / "model.json",
        ledger=path,
        steps=ledger.steps,
        sample_rate=config.batch_size / len(x),
        noise_multiplier=header.noise_multiplier,
        epsilon=epsilon,
        delta=config.privacy.delta if config.privacy else None,
    )


def fit_classifier(
    config: ClassifierConfig, features: np.ndarray, labels: np.ndarray, seed: int
) -> nn.Module:
    """Train as ``train`` does, but write nothing: for shadow models.

    ``seed`` stands for the configuration's. Noise is seeded here even if the configuration says
    secure: shadow models protect nobody, and must be repeatable.
    """
    x, y = checked_records(config, features, labels)
    spending = spending_plan(config, len(x))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(**network_arguments(config, features.shape[1:]))
        if spending is None:
            _fit_plain(config, model, x, y, lambda size: None)
        else:
            unseen = lambda size, clipping_norm: None  # noqa: E731
            _fit_private(config, spending, model, x, y, "seeded", unseen, seed)
    return model.eval()


def noise_multiplier(config: ClassifierConfig, records: int) -> float:
    """The σ that training on this many records uses; 0 without privacy."""
    spending = spending_plan(config, records)
    return spending.noise_multiplier if spending else 0.0


def spending_plan(config: ClassifierConfig, records: int) -> Plan | None:
    """What training on this many records spends; None without privacy."""
    privacy = config.privacy
    if privacy is None:
        return None
    return plan(
        records,
        config.batch_size,
        epochs=config.epochs,
        epsilon=privacy.epsilon,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
    )


def _fit_plain(
    config: ClassifierConfig,
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    record: Callable[[int], None],
) -> None:
    optimizer = new_optimizer(config, model)
    for _ in range(config.epochs):
        for batch in torch.split(torch.randperm(len(x)), config.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[batch]), y[batch]))
            record(len(batch))
            optimizer.step()


def _fit_private(
    config: ClassifierConfig,
    spending: Plan,
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    source: Literal["secure", "seeded"],
    record: Callable[[int, float], None],
    seed: int,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Train from where the checkpoints stand.

    A seeded run takes the steps that the ledger has beyond the checkpoint once more, to the bit,
    and ``record`` lets them pass. A secure one cannot repeat them: they were spent.
    """
    assert config.privacy is not None
    optimizer = new_optimizer(config, model)
    training = PrivateTraining(
        model,
        optimizer,
        spending,
        clipping=Flat(config.privacy.clipping_norm),
        source=source,
        seed=seed,
        record=record,
        engine=config.privacy.engine,
    )
    if checkpoints is not None:
        checkpoints.restore(model, optimizer, training)
        if source == "secure":
            training.steps = checkpoints.ledger.steps
    for batch in training:
        training.step(batch, lambda rows: cross_entropy(model(x[rows]), y[rows], reduction="none"))
        if checkpoints is not None:
            checkpoints.after_step(model, optimizer, training)
    training.release()


def new_optimizer(config: ClassifierConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The configured optimizer over the model's weights."""
    if config.optimizer == "adam":
        return torch.optim.Adam(
            model.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.SGD(
        model.parameters(), config.learning_rate, momentum=0.9, weight_decay=config.weight_decay
    )


def checked_records(
    config: ClassifierConfig, features: np.ndarray, labels: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n, ...) in float32 and labels (n,).

    Raises:
        ValueError: naming the field, if they do not suit the configuration.
    """
    features, labels = np.asarray(features), np.asarray(labels)
    records = len(features) if features.ndim else 0
    if labels.shape != (records,) or not records:
        raise ValueError(f"labels: need one for each of {records} records, got {labels.shape}")
    if features.ndim < 2 or not features[0].size:
        raise ValueError(f"features: need one row a record, got the shape {features.shape}")
    if features.dtype.kind not in "fiub":
        raise ValueError(f"features: must be numbers, got {features.dtype}; encode text beforehand")
    with np.errstate(over="ignore"):
        x = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    if not torch.isfinite(x).all():
        row = int(torch.nonzero(~torch.isfinite(x))[0][0])
        raise ValueError(f"features: record {row} holds NaN or an infinite (or too large) value")
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels: must be whole numbers from 0, got {labels.dtype}; encode classes beforehand"
        )
    if labels.min() < 0 or labels.max() >= config.classes:
        raise ValueError(f"labels: must lie between 0 and {config.classes - 1}")
    if config.batch_size > records:
        raise ValueError(f"batch_size: {config.batch_size} is more than the {records} records")
    return x, torch.from_numpy(np.asarray(labels).astype(np.int64))


def network_arguments(config: ClassifierConfig, shape: Sequence[int]) -> dict[str, Any]:
    """What ``trainers.networks.build`` is called with, for records of that shape."""
    return {
        "architecture": config.architecture,
        "inputs": list(shape) if len(shape) > 1 else int(shape[0]),
        "classes": config.classes,
        "hidden": list(config.hidden),
        "low": config.low if isinstance(config.low, int | float) else list(config.low),
        "high": config.high if isinstance(config.high, int | float) else list(config.high),
    }


def _header(
    config: ClassifierConfig, spending: Plan | None, steps: int, records: int, data: str
) -> Header:
    privacy = config.privacy
    packages = ("dpassay", "torch", "opacus", "numpy")
    return Header(
        data_fingerprint=data,
        records=records,
        sampler="poisson" if privacy else "shuffled",
        sample_rate=config.batch_size / records,
        expected_batch_size=config.batch_size,
        clipping="per_sample" if privacy else "none",
        clipping_norm=privacy.clipping_norm if privacy else None,
        noise_multiplier=spending.noise_multiplier if spending else 0.0,
        noise_source=privacy.noise if privacy else "seeded",
        orders=LEDGER_ORDERS if privacy else (),
        planned_steps=steps,
        delta=privacy.delta if privacy else None,
        epsilon=privacy.epsilon if privacy else None,
        code="trainers.classifier",
        versions={name: importlib.metadata.version(name) for name in packages},
    )


def _recorder(
    config: ClassifierConfig,
    spending: Plan | None,
    ledger: LedgerWriter,
    steps: int,
    on_step: OnStep | None,
    repeated: int = 0,
) -> Callable[..., None]:
    """What puts each step into the ledger, before its update; ``repeated`` ones are in it already.

    These were released before, to the bit: nothing new is spent.
    """
    rdp = [spending.step_rdp(LEDGER_ORDERS)] if spending else []

    def record(size: int, clipping_norm: float | None = None) -> None:
        nonlocal repeated
        if repeated:
            repeated -= 1
            return
        ledger.step(
            batch_size=size,
            expected_batch_size=config.batch_size,
            noise_multiplier=spending.noise_multiplier if spending else 0.0,
            clipping_norm=clipping_norm,
            rdp=rdp,
        )
        if on_step is not None:
            spent = spending.epsilon(ledger.steps) if spending else float("inf")
            on_step(ledger.steps, steps, spent)

    return record
