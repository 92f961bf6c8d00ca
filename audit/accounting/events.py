"""What spent privacy budget: one frozen type per mechanism, kept apart from the accountants.

An event keeps its meaning once released; an accountant that does not know an event refuses it.
All noise scales are relative to the L2 (Gaussian) or L1 (Laplace) sensitivity under add-remove,
that is to the clipping norm C of a clipped sum. Under replace-one the sensitivity of a clipped sum
is 2C, and the accountants take that into account from the relation that they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Relation = Literal["add-remove", "replace-one"]
Sampling = Literal["poisson", "without_replacement", "shuffled", "full_batch"]


class UnsupportedEvent(ValueError):
    """The accountant has no valid bound for this event, relation or combination."""


@dataclass(frozen=True)
class SampledGaussian:
    """``steps`` releases of a clipped sum over a sampled batch plus Gaussian noise.

    Attributes:
        noise_multiplier: σ, the noise's standard deviation over the clipping norm.
        sample_rate: q, the share of records in a batch, in (0, 1].
        steps: how many releases.
        sampling: how a batch is drawn. ``shuffled`` means disjoint batches of one shuffled epoch.

    Raises:
        ValueError: if σ is not positive and finite, q is outside (0, 1], or steps is negative.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    sampling: Sampling = "poisson"

    def __post_init__(self) -> None:
        _positive("noise_multiplier", self.noise_multiplier)
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate: must lie in (0, 1], got {self.sample_rate}")
        _count("steps", self.steps)
        if self.sampling == "full_batch" and self.sample_rate != 1:
            raise ValueError(f"sample_rate: full_batch means 1, got {self.sample_rate}")


@dataclass(frozen=True)
class Gaussian:
    """``count`` Gaussian releases with standard deviation σ times the sensitivity."""

    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _positive("noise_multiplier", self.noise_multiplier)
        _count("count", self.count)


@dataclass(frozen=True)
class Laplace:
    """``count`` Laplace releases with scale b times the L1 sensitivity (ε = 1/b each)."""

    scale: float
    count: int = 1

    def __post_init__(self) -> None:
        _positive("scale", self.scale)
        _count("count", self.count)


@dataclass(frozen=True)
class ApproximateDP:
    """``count`` mechanisms of which only (ε, δ) each is known; δ = 0 is pure DP.

    The guarantee is taken to hold for the unit and relation that an accountant is asked for.
    """

    epsilon: float
    delta: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon: must not be negative, got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta: must lie in [0, 1), got {self.delta}")
        _count("count", self.count)


@dataclass(frozen=True)
class ZeroConcentratedDP:
    """ρ-zCDP (Bun and Steinke 2016): RDP at every order α is at most ρ·α."""

    rho: float

    def __post_init__(self) -> None:
        if not (self.rho >= 0 and math.isfinite(self.rho)):
            raise ValueError(f"rho: must be finite and not negative, got {self.rho}")


@dataclass(frozen=True)
class GNMax:
    """``votes`` PATE answers by Gaussian noisy max, data-independent (Papernot et al. 2018).

    ``sigma`` is the standard deviation of the noise on each vote count. One record changes one
    teacher, and so moves two counts by one each.
    """

    sigma: float
    votes: int

    def __post_init__(self) -> None:
        _positive("sigma", self.sigma)
        _count("votes", self.votes)


MechanismEvent = SampledGaussian | Gaussian | Laplace | ApproximateDP | ZeroConcentratedDP | GNMax


def epochs(event: SampledGaussian) -> int:
    """Passes over the data that a shuffled run has begun: the steps that one record can be in.

    An epoch has at least ⌊1/q⌋ steps (one more where the last, short batch is kept).
    """
    per_epoch = max(1, math.floor(1 / event.sample_rate + 1e-9))
    return -(-event.steps // per_epoch)


def canonical(events: Iterable[MechanismEvent]) -> tuple[MechanismEvent, ...]:
    """The same releases with the fewest events: equal ones merged, steps of all records unsampled.

    A step that holds every record is a plain Gaussian. So is an epoch of disjoint batches: a record
    is in one of its steps, whichever that is (parallel composition). Shuffling itself gains
    nothing that is proven tight. Events without a release are dropped.
    """
    counts: dict[MechanismEvent, int] = {}
    for event in events:
        one, count = _single(event)
        if count:
            counts[one] = counts.get(one, 0) + count
    return tuple(_repeat(one, count) for one, count in counts.items())


def release_count(event: MechanismEvent) -> int:
    """How many releases the event stands for."""
    match event:
        case SampledGaussian():
            return event.steps
        case Gaussian() | Laplace() | ApproximateDP():
            return event.count
        case GNMax():
            return event.votes
    return 1


def released(event: MechanismEvent) -> str:
    """One event in words, for people."""
    match event:
        case SampledGaussian(sigma, rate, steps, sampling):
            how = sampling.replace("_", " ")
            return (
                f"{steps} steps of DP-SGD: {how} batches, sample rate {rate:.4g}, σ = {sigma:.4g}"
            )
        case Gaussian(sigma, count):
            return f"{count} Gaussian releases of all records, σ = {sigma:.4g}"
        case Laplace(scale, count):
            return f"{count} Laplace releases, scale {scale:.4g}"
        case ApproximateDP(epsilon, delta, count) if math.isinf(epsilon):
            return "steps without noise or without clipping"
        case ApproximateDP(epsilon, delta, count):
            return f"{count} releases of which only ε = {epsilon:.4g}, δ = {delta:.3g} is known"
        case ZeroConcentratedDP(rho):
            return f"releases with zCDP ρ = {rho:.4g}"
        case GNMax(sigma, votes):
            return f"{votes} PATE votes by noisy maximum, σ = {sigma:.4g}"


def _single(event: MechanismEvent) -> tuple[MechanismEvent, int]:
    match event:
        case SampledGaussian(sigma, rate, steps, sampling):
            if sampling == "shuffled":
                return Gaussian(sigma), epochs(event)
            return (Gaussian(sigma) if rate == 1 else replace(event, steps=1)), steps
        case Gaussian() | Laplace() | ApproximateDP():
            return replace(event, count=1), event.count
        case GNMax():
            return replace(event, votes=1), event.votes
        case ZeroConcentratedDP():
            return event, 1
    raise UnsupportedEvent(f"event: {type(event).__name__} is not a known mechanism")


def _repeat(one: MechanismEvent, count: int) -> MechanismEvent:
    match one:
        case SampledGaussian():
            return replace(one, steps=count)
        case Gaussian() | Laplace() | ApproximateDP():
            return replace(one, count=count)
        case GNMax():
            return replace(one, votes=count)
        case ZeroConcentratedDP():
            return replace(one, rho=one.rho * count)


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}: must be positive and finite, got {value}")


def _count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: must be a whole number of at least 0, got {value!r}")
