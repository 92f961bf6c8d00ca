"""Trains classifiers of tables and images, with or without differential privacy.

With privacy it is DP-SGD (Abadi et al. 2016, algorithm 1): Poisson batches, each record's gradient
clipped to L2 norm C, Gaussian noise of standard deviation σ·C on their sum, division by the
expected batch size. Opacus computes, clips and adds up the gradients per record; the sampler, the
noise and the ledger are ours, so that the sample rate is batch size over record count and an empty
batch is a step like any other.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from opacus.accountants.rdp import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from trainers.checkpoints import Checkpoints, saved_step
from trainers.ledger import Header, LedgerWriter, fingerprint
from trainers.randomness import Randomness, secure, seeded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LEDGER_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)
# Opacus' own orders end at 63, where ε cannot fall below 0.1 at δ = 1e-5
_ORDERS = (*RDPAccountant.DEFAULT_ALPHAS, *(64, 80, 96, 128, 192, 256, 384, 512, 768, 1024))
CHECKPOINT = "checkpoint.pt"
OnStep = Callable[[int, int, float], None]
Record = Callable[[int], None]


@dataclass(frozen=True)
class Privacy:
    """What DP-SGD shall reach. Give either a target ε or a noise multiplier.

    ``noise`` is ``secure`` for a guarantee; ``seeded`` repeats a run and protects nobody.

    Raises:
        ValueError: if not exactly one of the two is given, or a value is out of range.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    clipping_norm: float = 1.0
    noise: Literal["secure", "seeded"] = "secure"

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


class Rescale(nn.Module):
    """Maps features from [low, high] to [-1, 1]; the bounds are no weights and are not trained."""

    middle: torch.Tensor
    reach: torch.Tensor

    def __init__(self, low: float | Sequence[float], high: float | Sequence[float]) -> None:
        super().__init__()
        low_, high_ = torch.tensor(low, dtype=torch.float), torch.tensor(high, dtype=torch.float)
        if not torch.all(high_ > low_):
            raise ValueError("low, high: every upper bound must lie above its lower bound")
        self.register_buffer("middle", (high_ + low_) / 2, persistent=False)
        self.register_buffer("reach", (high_ - low_) / 2, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled features, of the same shape."""
        scaled: torch.Tensor = (x - self.middle) / self.reach
        return scaled


def build(
    architecture: str,
    inputs: int | Sequence[int],
    classes: int,
    hidden: Sequence[int],
    low: float | Sequence[float] = -1.0,
    high: float | Sequence[float] = 1.0,
) -> nn.Module:
    """A fresh classifier: raw features in, logits out.

    Args:
        architecture: ``mlp`` or ``cnn``.
        inputs: how many features, or (channels, height, width) for a ``cnn``.
        classes: how many logits.
        hidden: widths of the hidden layers, or channels of the convolutions.
        low, high: bounds of the features, scaled to [-1, 1].

    Raises:
        ValueError: if the architecture is unknown, or inputs or bounds do not suit it.
    """
    for bounds in (low, high):
        if isinstance(bounds, Sequence) and len(bounds) != inputs:
            raise ValueError(f"low, high: {len(bounds)} bounds for {inputs} features; one fits all")
    layers: list[nn.Module] = [Rescale(low, high)]
    if architecture == "mlp":
        width = inputs if isinstance(inputs, int) else int(np.prod(inputs))
        layers.append(nn.Flatten())
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
    elif architecture == "cnn":
        if isinstance(inputs, int) or len(inputs) != 3:
            raise ValueError(f"inputs: a cnn needs (channels, height, width), got {inputs}")
        channels, height, width_ = inputs
        for filters in hidden:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels, height, width_ = filters, height // 2, width_ // 2
        if height * width_ == 0:
            raise ValueError(f"hidden: too many convolutions for inputs of {tuple(inputs)}")
        layers.append(nn.Flatten())
        width = channels * height * width_
    else:
        raise ValueError(f"architecture: {architecture!r} is none of mlp, cnn")
    return nn.Sequential(*layers, nn.Linear(width, classes))


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
    planned number of steps, so that the budget aimed at is kept.

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
    x, y = _checked(config, features, labels)
    if not torch.any(y != y[0]):
        raise ValueError(f"labels: all records have label {y[0]}; a classifier needs two or more")
    if config.privacy is None and (checkpoint_every or resume):
        raise ValueError("privacy: only DP runs keep checkpoints and are resumed; train anew")
    plan = _plan(config, len(x))
    arguments = _arguments(config, features.shape[1:])
    with torch.random.fork_rng(devices=[]):
        build(**arguments)  # refuses what cannot be built before a ledger is begun
    path = out / "ledger.jsonl"
    header = _header(config, plan, fingerprint(features, labels))
    with _ledger(path, header, resume) as ledger:
        checkpoints = Checkpoints(ledger, out / CHECKPOINT, checkpoint_every)
        if ledger.steps and plan.randomness is not None and plan.randomness.source == "seeded":
            # from the seed alone, the batches and the noise of the steps that ran would come again
            plan = dataclasses.replace(plan, randomness=seeded([config.seed, ledger.steps]))

        def record(batch_size: int) -> None:
            ledger.step(
                batch_size=batch_size,
                expected_batch_size=config.batch_size,
                noise_multiplier=plan.noise_multiplier,
                clipping_norm=plan.clipping_norm,
                rdp=plan.step_rdp,
            )
            if on_step is not None:
                on_step(ledger.steps, plan.steps, plan.epsilon(ledger.steps))

        model = _fit(config, plan, x, y, config.seed, arguments, record, checkpoints)
        description = {
            "factory": "trainers.classifier:build",
            "arguments": arguments,
            "training": dataclasses.asdict(config),
        }
        weights = out / "model.safetensors"
        ledger.sync()  # what is released must have been counted, also after a power cut
        _write(weights, lambda temporary: save_file(model.state_dict(), temporary))
        text = json.dumps(description, indent=1) + "\n"
        _write(out / "model.json", lambda temporary: temporary.write_text(text, encoding="utf-8"))
        ledger.checkpoint(weights)
        epsilon = plan.epsilon(ledger.steps)
        ledger.end(epsilon=epsilon if config.privacy else None, key=signing_key)
    checkpoints.file.unlink(missing_ok=True)
    return TrainedClassifier(
        model=model,
        weights=weights,
        description=out / "model.json",
        ledger=path,
        steps=ledger.steps,
        sample_rate=plan.sample_rate,
        noise_multiplier=plan.noise_multiplier,
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
    x, y = _checked(config, features, labels)
    arguments = _arguments(config, features.shape[1:])
    plan = _plan(config, len(x), randomness=seeded(seed))
    return _fit(config, plan, x, y, seed, arguments, lambda _: None)


def noise_multiplier(config: ClassifierConfig, records: int) -> float:
    """The σ that training on this many records uses; 0 without privacy."""
    return _plan(config, records).noise_multiplier


@dataclass(frozen=True)
class _Plan:
    """What follows from a configuration and the number of records."""

    records: int
    steps: int
    sample_rate: float
    noise_multiplier: float
    clipping_norm: float | None
    randomness: Randomness | None
    delta: float

    @property
    def step_rdp(self) -> list[list[float]]:
        if self.clipping_norm is None:
            return []
        return [list(_rdp(self.sample_rate, self.noise_multiplier, LEDGER_ORDERS))]

    def epsilon(self, steps: int) -> float:
        if self.clipping_norm is None:
            return float("inf")
        rdp = np.array(_rdp(self.sample_rate, self.noise_multiplier, _ORDERS)) * steps
        with warnings.catch_warnings():
            # after few steps the best order lies beyond Opacus' grid: ε is then too high, not wrong
            warnings.filterwarnings("ignore", message="Optimal order is the")
            return float(get_privacy_spent(orders=_ORDERS, rdp=rdp, delta=self.delta)[0])


def _plan(config: ClassifierConfig, records: int, randomness: Randomness | None = None) -> _Plan:
    rate = config.batch_size / records
    privacy = config.privacy
    if privacy is None:
        steps = config.epochs * -(-records // config.batch_size)
        return _Plan(records, steps, rate, 0.0, None, None, 0.0)
    steps = max(1, round(config.epochs / rate))
    sigma = privacy.noise_multiplier
    if sigma is None:
        assert privacy.epsilon is not None
        sigma = _calibrated(privacy.epsilon, privacy.delta, rate, steps)
    if randomness is None:
        randomness = secure() if privacy.noise == "secure" else seeded(config.seed)
    return _Plan(records, steps, rate, sigma, privacy.clipping_norm, randomness, privacy.delta)


@cache
def _calibrated(epsilon: float, delta: float, rate: float, steps: int) -> float:
    sigma = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=delta,
        sample_rate=rate,
        steps=steps,
        accountant="rdp",
        epsilon_tolerance=epsilon / 1000,
        alphas=_ORDERS,
    )
    return float(sigma)


@cache
def _rdp(rate: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    rdp = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(orders))
    return tuple(float(r) for r in rdp)


def _fit(
    config: ClassifierConfig,
    plan: _Plan,
    x: torch.Tensor,
    y: torch.Tensor,
    seed: int,
    arguments: dict[str, Any],
    record: Record,
    checkpoints: Checkpoints | None = None,
) -> nn.Module:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Opacus hooks every layer, and the first one's input needs no gradient: nothing is lost
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        torch.manual_seed(seed)
        model = build(**arguments)
        if plan.randomness is None:
            _fit_plain(config, model, x, y, record)
        else:
            _fit_private(config, plan, plan.randomness, model, x, y, record, checkpoints)
    return model.eval()


def _fit_plain(
    config: ClassifierConfig, model: nn.Module, x: torch.Tensor, y: torch.Tensor, record: Record
) -> None:
    optimizer = _optimizer(config, model)
    for _ in range(config.epochs):
        for batch in torch.split(torch.randperm(len(x)), config.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[batch]), y[batch]))
            record(len(batch))
            optimizer.step()


def _fit_private(
    config: ClassifierConfig,
    plan: _Plan,
    randomness: Randomness,
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    record: Record,
    checkpoints: Checkpoints | None,
) -> None:
    wrapped = GradSampleModule(model, loss_reduction="sum")
    optimizer = _NoisyOptimizer(
        _optimizer(config, model),
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=plan.clipping_norm,
        expected_batch_size=config.batch_size,
    )
    optimizer.randomness = randomness
    taken = 0
    if checkpoints is not None:
        taken = checkpoints.ledger.steps
        checkpoints.restore(model, optimizer)
    for _ in range(plan.steps - taken):
        batch = torch.from_numpy(randomness.poisson_batch(len(x), plan.sample_rate))
        optimizer.zero_grad()
        if len(batch):
            loss = cross_entropy(wrapped(x[batch]), y[batch], reduction="sum")
            torch.autograd.backward(loss)
        else:  # nothing to clip, but the noise is due: who sees no step knows that nobody was drawn
            for p in optimizer.params:
                p.grad_sample = p.new_zeros((0, *p.shape))
        record(len(batch))
        optimizer.step()
        if checkpoints is not None:
            checkpoints.after_step(model, optimizer)
    optimizer.zero_grad(set_to_none=True)
    wrapped.to_standard_module()


class _NoisyOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' optimizer with noise from ``randomness``, added in float64 before rounding."""

    randomness: Randomness

    def add_noise(self) -> None:
        """Put the clipped sum plus noise into each parameter's gradient."""
        for p in self.params:
            noise = torch.from_numpy(self.randomness.gaussian(p.numel())).view_as(p)
            scale = self.noise_multiplier * self.max_grad_norm
            p.grad = (p.summed_grad.double() + scale * noise).to(p.dtype)


def _optimizer(config: ClassifierConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(
            model.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.SGD(
        model.parameters(), config.learning_rate, momentum=0.9, weight_decay=config.weight_decay
    )


def _checked(
    config: ClassifierConfig, features: np.ndarray, labels: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
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


def _ledger(path: Path, header: Header, resume: bool) -> LedgerWriter:
    if resume and not path.exists():
        raise ValueError(f"{path}: is missing, so there is no run to resume")
    if not resume and path.exists():
        raise ValueError(f"{path}: exists; resume its run, or give a new run a folder of its own")
    if not resume:
        path.parent.mkdir(parents=True, exist_ok=True)
        return LedgerWriter.create(path, header)
    step = saved_step(path.with_name(CHECKPOINT))
    ledger = LedgerWriter.resume(path, step, header=header)
    if not step and header.planned_steps and ledger.steps >= header.planned_steps:
        ledger.close()
        raise ValueError(f"{path}: holds all planned steps and no checkpoint: nothing to resume")
    return ledger


def _arguments(config: ClassifierConfig, shape: Sequence[int]) -> dict[str, Any]:
    return {
        "architecture": config.architecture,
        "inputs": list(shape) if len(shape) > 1 else int(shape[0]),
        "classes": config.classes,
        "hidden": list(config.hidden),
        "low": config.low if isinstance(config.low, int | float) else list(config.low),
        "high": config.high if isinstance(config.high, int | float) else list(config.high),
    }


def _header(config: ClassifierConfig, plan: _Plan, data: str) -> Header:
    privacy = config.privacy
    packages = ("dpassay", "torch", "opacus", "numpy")
    return Header(
        data_fingerprint=data,
        records=plan.records,
        sampler="poisson" if privacy else "shuffled",
        sample_rate=plan.sample_rate,
        expected_batch_size=config.batch_size,
        clipping="per_sample" if privacy else "none",
        clipping_norm=plan.clipping_norm,
        noise_multiplier=plan.noise_multiplier,
        noise_source=plan.randomness.source if plan.randomness else "seeded",
        orders=LEDGER_ORDERS if privacy else (),
        planned_steps=plan.steps,
        delta=privacy.delta if privacy else None,
        epsilon=privacy.epsilon if privacy else None,
        code="trainers.classifier",
        versions={name: importlib.metadata.version(name) for name in packages},
    )


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    os.replace(temporary, path)
