"""Group privacy: what events on records cost a user who has several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import logsumexp

from audit.accounting import convert, rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    Relation,
    SampledGaussian,
    ZeroConcentratedDP,
    canonical,
)

_NEARLY_ONE = math.nextafter(1.0, 0.0)  # a δ that no smaller one leaves room beside: ε is infinite


def rdp_epsilon(
    events: Sequence[MechanismEvent], delta: float, relation: Relation, group_size: int
) -> float:
    """The ε that RDP proves at δ for a user with ``group_size`` records.

    The smaller of two bounds: the RDP of what the events are to a whole group, and the group
    property of (ε, δ) for one record. Batches under replace-one have the second only.

    Raises:
        ValueError: if δ lies outside (0, 1).
        UnsupportedEvent: if an event has no RDP bound under the relation.
    """
    if group_size == 1:
        return rdp.epsilon(events, delta, relation).epsilon
    events = canonical(events)
    sampled = any(isinstance(event, SampledGaussian) for event in events)
    by_property = _by_property(events, delta, relation, group_size) if sampled else math.inf
    if sampled and relation == "replace-one":
        return by_property
    grouped = [_grouped(event, group_size) for event in events]
    return min(by_property, rdp.epsilon(grouped, delta, relation).epsilon)


def approximate(epsilon: float, delta: float, group_size: int) -> tuple[float, float]:
    """(kε, δ·Σⱼ e^{jε}) for a group of k from (ε, δ) per record (Dwork and Roth 2014, thm 2.2)."""
    if delta == 0:
        return group_size * epsilon, 0.0
    log_delta = math.log(delta) + _log_growth(epsilon, group_size)
    return group_size * epsilon, math.exp(min(log_delta, 0.0))


def _grouped(event: MechanismEvent, size: int) -> MechanismEvent:
    match event:
        case Gaussian(sigma, count):
            return Gaussian(sigma / size, count)
        case Laplace(scale, count):
            return Laplace(scale / size, count)
        case GNMax(sigma, votes):
            return GNMax(sigma / size, votes)
        case ZeroConcentratedDP(rho):  # Bun and Steinke 2016, proposition 1.9
            return ZeroConcentratedDP(size**2 * rho)
        case ApproximateDP(eps, delta, count):
            eps, delta = approximate(eps, delta, size)
            return ApproximateDP(eps, min(delta, _NEARLY_ONE), count)
        case SampledGaussian(sigma, rate):
            # One of k records is drawn with probability 1 − (1−q)^k and then moves the sum by at
            # most k. More of them at once is worse for privacy (Ganesh 2024, lemma 4.5).
            any_of_them = -math.expm1(size * math.log1p(-rate))
            return replace(event, noise_multiplier=sigma / size, sample_rate=any_of_them)


def _by_property(
    events: Sequence[MechanismEvent], delta: float, relation: Relation, size: int
) -> float:
    """kε where ε holds per record at a δ' so small that the group's δ'·Σⱼ e^{jε} is δ.

    ε rises as δ' falls and δ' falls as ε rises: the least fixed point is approached from below.
    """
    log_delta = math.log(convert.checked_delta(delta))
    epsilon = 0.0
    for _ in range(200):
        allowed = log_delta - _log_growth(epsilon, size)
        needed = rdp.epsilon(events, 0.5, relation, log_delta=allowed).epsilon
        if not math.isfinite(needed):
            return math.inf
        if needed <= epsilon:
            return size * needed
        # overshoot a little, so that the check above proves the result instead of a limit
        epsilon = needed * (1 + 1e-6) + 1e-12
    return math.inf


def _log_growth(epsilon: float, size: int) -> float:
    return float(logsumexp([j * epsilon for j in range(size)]))
