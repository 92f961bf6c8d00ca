"""What clipping by sensitivity class guarantees: for a record, and for one class' fields alone.

Noise has standard deviation σ·ΣC. Changing only class k's fields of a record moves the sum by less
than a record does, provided that other classes' losses do not depend on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


@dataclass(frozen=True)
class SensitivityClasses:
    """Each class' part of a record's gradient is clipped to a norm of its own.

    Attributes:
        names: from the least sensitive class to the most sensitive one.
        clipping_norms: C of each. A record moves the sum over classes by ΣC at most.

    Raises:
        ValueError: if names repeat or are none, or a norm is not positive and finite.
    """

    names: tuple[str, ...]
    clipping_norms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise ValueError(f"names: must be one or more and different, got {self.names}")
        if len(self.clipping_norms) != len(self.names):
            raise ValueError(
                f"clipping_norms: {len(self.clipping_norms)} for {len(self.names)} classes"
            )
        for name, value in zip(self.names, self.clipping_norms, strict=True):
            if not 0 < value < math.inf:
                raise ValueError(f"clipping_norms[{name}]: must be positive, got {value}")

    @property
    def sensitivity(self) -> float:
        """How far one record can move the sum, in L2 norm: ΣC."""
        return math.fsum(self.clipping_norms)

    def index(self, name: str) -> int:
        """Where a class stands in the order of sensitivity.

        Raises:
            ValueError: if there is no such class.
        """
        if name not in self.names:
            raise ValueError(f"class: {name!r} is none of {', '.join(self.names)}")
        return self.names.index(name)


@dataclass(frozen=True)
class Visibility:
    """What a check saw: how far each class' clipped sum moved when one class' fields changed.

    Attributes:
        names: the classes.
        moved: ``moved[k][j]`` is how far class j's sum moved when class k's fields changed.
    """

    names: tuple[str, ...]
    moved: tuple[tuple[float, ...], ...]

    def moves(self, name: str) -> tuple[str, ...]:
        """The other classes whose sums moved, if only by rounding, when this one's changed."""
        k = self.names.index(name)
        return tuple(n for j, n in enumerate(self.names) if j != k and self.moved[k][j] != 0)


@dataclass(frozen=True)
class Guarantee:
    """How far the sum moves between neighbours, and the noise it is given.

    Attributes:
        unit: ``record``, or ``<class> fields of a record``.
        relation: which two data sets are neighbours.
        distance: how far the sum moves between them at most, in L2 norm.
        sensitivity: ΣC.
        noise_multiplier: σ; the noise's standard deviation is σ·ΣC.
        condition: what must hold beside the noise.
    """

    unit: str
    relation: str
    distance: float
    sensitivity: float
    noise_multiplier: float
    condition: str

    @property
    def effective_noise_multiplier(self) -> float:
        """The noise's standard deviation over the distance: that of one release, unsampled."""
        return self.noise_multiplier * self.sensitivity / self.distance

    def __str__(self) -> str:
        return (
            f"{self.unit}; neighbours: {self.relation}; the sum moves by at most "
            f"{self.distance:.6g} under noise of standard deviation "
            f"{self.noise_multiplier * self.sensitivity:.6g}, effective noise multiplier "
            f"{self.effective_noise_multiplier:.6g} for a step on all records; holds if "
            f"{self.condition}"
        )


def state_guarantees(
    classes: SensitivityClasses, noise_multiplier: float, visibility: Visibility | None = None
) -> tuple[Guarantee, ...]:
    """The record's guarantees, and those of each class whose fields other classes do not see.

    A class has guarantees of its own if the check moved no less sensitive class, and not every
    other class. A more sensitive class that did move counts with twice its norm.

    Raises:
        ValueError: if σ is not positive and finite, or the check was made for other classes.
    """
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier: must be positive and finite, got {noise_multiplier}")
    if visibility is not None and visibility.names != classes.names:
        raise ValueError(f"visibility: is of {visibility.names}, not of {classes.names}")
    total = classes.sensitivity
    every_batch = "noise is added to every sum, empty batches included, and only that is released"

    def stated(unit: str, relation: str, distance: float, condition: str) -> Guarantee:
        return Guarantee(unit, relation, distance, total, noise_multiplier, condition)

    found = [
        stated("record", "one has a record more (add-remove)", total, every_batch),
        stated("record", "one record is another (replace-one)", 2 * total, every_batch),
    ]
    for k, name in enumerate(classes.names if visibility else ()):
        assert visibility is not None
        seen_by = visibility.moves(name)
        if set(seen_by) & set(classes.names[:k]) or len(seen_by) == len(classes.names) - 1:
            continue
        own = classes.clipping_norms[k]
        others = 2 * math.fsum(classes.clipping_norms[classes.index(n)] for n in seen_by)
        unit, blind = f"{name} fields of a record", [n for n in classes.names if n not in seen_by]
        blind.remove(name)
        condition = (
            f"{every_batch}; losses of class {', '.join(blind)} do not depend on {name} fields "
            "(checked on this model: exactly 0); which places are of which class is public and "
            "the same for both data sets"
        )
        same = f"equal but for one record's {name} fields, at the same places, "
        found += [
            stated(unit, same + "which one leaves empty (erase)", own + others, condition),
            stated(unit, same + "which hold other content (replace)", 2 * own + others, condition),
        ]
    return tuple(found)


def field_rdp(guarantee: Guarantee, sample_rate: float, orders: ArrayLike) -> NDArray[np.float64]:
    """RDP of one step on a Poisson batch for a change that leaves the record in both data sets.

    A sampled Gaussian of the effective noise multiplier would promise too much: the rest of the
    record, which is in the sum as well, gives away whether the batch holds it. The worst pair of
    outputs is (1 − q)·N(0) + q·N(ΣC) against (1 − q)·N(0) + q·N(ΣC − distance), both of the noise's
    variance (docs/sensitivity.md), taken both ways round: the privacy profile is that of the worse.

    Args:
        guarantee: for a class' fields, or for replacing a record.
        sample_rate: q in (0, 1].
        orders: α > 1, shape (m,).

    Returns:
        (m,), an upper bound at each order; steps add up.

    Raises:
        ValueError: if q or an order is out of range, or the record is added or removed: there the
            sampled Gaussian is right.
    """
    alpha = np.atleast_1d(np.asarray(orders, float))
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate: must lie in (0, 1], got {sample_rate}")
    if not np.all((alpha > 1) & np.isfinite(alpha)):
        raise ValueError(f"orders: must be above 1 and finite, got {orders!r}")
    if "add-remove" in guarantee.relation:
        raise ValueError("guarantee: adding a record is a sampled Gaussian, no change of fields")
    mode = 1 / guarantee.noise_multiplier
    shift = 1 / guarantee.effective_noise_multiplier
    full = alpha * shift**2 / 2  # without sampling
    return np.minimum([_one_order(sample_rate, mode, shift, a) for a in alpha], full)


def _one_order(q: float, mode: float, shift: float, order: float) -> float:
    """log E_Q[(P/Q)^α] / (α − 1) of the two-way pair, by Gauss-Legendre over the half where P > Q.

    The other half is its mirror: there P has the mass that Q has here, and Q that of P.
    """
    start, other = mode - shift / 2, mode - shift
    end = order * mode + (order - 1) * max(0.0, -other) + 12  # beyond the last mode of P^α Q^(1−α)
    panels = math.ceil((end - start) * 2 * max(1.0, mode))
    width = (end - start) / panels
    x = start + width * (np.arange(panels)[:, None] + (_NODES + 1) / 2)
    log_rest = math.log1p(-q) if q < 1 else -math.inf
    log_p, log_q = (
        np.logaddexp(log_rest - x**2 / 2, math.log(q) - (x - m) ** 2 / 2) for m in (mode, other)
    )
    power = (order - 1) * (log_p - log_q)
    measure = width / 2 / math.sqrt(2 * math.pi)
    top = float((log_p + power).max())
    if top > 600:  # beyond float64; what is left out is below e^-600 of it
        total = float((np.exp(log_p + power - top) @ _WEIGHTS).sum())
        return (top + math.log(total * measure)) / (order - 1)
    up = np.where(  # P·(e^power − 1): small powers lose their digits in a difference
        power < 1,
        np.exp(log_p) * np.expm1(np.minimum(power, 1)),
        np.exp(log_p + power) - np.exp(log_p),
    )
    excess = float(((up + np.exp(log_q) * np.expm1(-power)) @ _WEIGHTS).sum()) * measure
    return math.log1p(max(excess, 0.0)) / (order - 1)
