"""The noise multiplier, steps, sample rate or δ that meets a target ε.

Every answer is checked by the accountant that it was asked of: ε at the returned value is at most
the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

from scipy.optimize import brentq

from audit.accounting import guarantee, rdp
from audit.accounting.events import Relation, SampledGaussian, Sampling

Accountant = Literal["RDP", "tightest"]
_TIGHT = 1e-4  # relative width at which the search for a real value ends
_MOST_NOISE, _LEAST_NOISE = 1e6, 1e-2
_MOST_STEPS = 10**12


def noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    sample_rate: float,
    steps: int,
    sampling: Sampling = "poisson",
    relation: Relation = "add-remove",
    accountant: Accountant = "RDP",
) -> float:
    """The least σ (to one part in 10,000) with which the run costs at most ε at δ.

    Raises:
        ValueError: if a number is out of range, or no σ up to a million meets the target.
    """
    ask = _asker(delta, relation, accountant)

    def spent(log_sigma: float) -> float:
        return ask(SampledGaussian(math.exp(log_sigma), sample_rate, steps, sampling))

    start = 0.0
    if accountant == "tightest":
        start = math.log(
            noise_multiplier(
                epsilon, delta, sample_rate=sample_rate, steps=steps, sampling=sampling,
                relation=relation,
            )
        )  # fmt: skip
    found = _boundary(
        spent, _positive(epsilon), math.log(_LEAST_NOISE), math.log(_MOST_NOISE), start
    )
    if found is None:
        raise ValueError(f"epsilon: no noise multiplier up to {_MOST_NOISE:g} meets {epsilon:g}")
    return math.exp(found)


def sample_rate(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    steps: int,
    sampling: Sampling = "poisson",
    relation: Relation = "add-remove",
    accountant: Accountant = "RDP",
) -> float:
    """The largest q (to one part in 10,000) with which the run costs at most ε at δ.

    Raises:
        ValueError: if a number is out of range, or no q from 1e-9 up meets the target.
    """
    ask = _asker(delta, relation, accountant)

    def spent(log_rate: float) -> float:
        rate = min(1.0, math.exp(-log_rate))
        return ask(SampledGaussian(noise_multiplier, rate, steps, sampling))

    found = _boundary(spent, _positive(epsilon), 0.0, math.log(1e9), math.log(100))
    if found is None:
        raise ValueError(f"epsilon: no sample rate from 1e-9 up meets {epsilon:g}")
    return min(1.0, math.exp(-found))


def steps(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    sample_rate: float,
    sampling: Sampling = "poisson",
    relation: Relation = "add-remove",
    accountant: Accountant = "RDP",
) -> int:
    """The most steps that cost at most ε at δ; at most 10¹².

    Raises:
        ValueError: if a number is out of range, or a single step costs more.
    """
    ask = _asker(delta, relation, accountant)
    target = _positive(epsilon)

    def meets(count: int) -> bool:
        return ask(SampledGaussian(noise_multiplier, sample_rate, count, sampling)) <= target

    if not meets(1):
        raise ValueError(f"epsilon: one step alone costs more than {epsilon:g}")
    low = 1
    if accountant == "tightest":
        low = steps(
            epsilon, delta, noise_multiplier=noise_multiplier, sample_rate=sample_rate,
            sampling=sampling, relation=relation,
        )  # fmt: skip
    high = 2 * low
    while high <= _MOST_STEPS and meets(high):
        low, high = high, 2 * high
    if high > _MOST_STEPS:
        return _MOST_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def delta(
    epsilon: float,
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    sampling: Sampling = "poisson",
    relation: Relation = "add-remove",
    accountant: Accountant = "RDP",
) -> float:
    """The least δ (to one part in 10,000, from 1e-12) at which the run costs at most ε.

    Raises:
        ValueError: if a number is out of range.
    """
    event = SampledGaussian(noise_multiplier, sample_rate, steps, sampling)

    def spent(log_delta: float) -> float:
        return _asker(math.exp(log_delta), relation, accountant)(event)

    found = _boundary(
        spent, _positive(epsilon), math.log(1e-12), math.log(1 - 1e-9), math.log(1e-5)
    )
    if found is None:
        raise ValueError(f"epsilon: no δ below 1 meets {epsilon:g}")
    return math.exp(found)


def _asker(
    delta: float, relation: Relation, accountant: Accountant
) -> Callable[[SampledGaussian], float]:
    if accountant == "RDP":
        return lambda event: rdp.epsilon([event], delta, relation).epsilon
    return lambda event: guarantee.best([event], delta, relation=relation).epsilon


def _positive(epsilon: float) -> float:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon: must be positive and finite, got {epsilon}")
    return float(epsilon)


def _boundary(
    spent: Callable[[float], float], target: float, low: float, high: float, start: float
) -> float | None:
    """The least x in [low, high] with spent(x) ≤ target, where ``spent`` falls; None if none.

    The search goes out from ``start`` in doubling steps.
    """
    spent = cache(spent)
    left = right = start = min(max(start, low), high)
    step = 0.5
    if spent(start) <= target:
        while spent(left) <= target:
            if left <= low:
                return low
            right, left, step = left, max(left - step, low), 2 * step
    else:
        while spent(right) > target:
            if right >= high:
                return None
            left, right, step = right, min(right + step, high), 2 * step

    def gap(x: float) -> float:
        return math.log(min(max(spent(x), 1e-12), 1e12) / target)

    root = float(brentq(gap, left, right, xtol=_TIGHT / 4, rtol=8.9e-16))
    while spent(root) > target:
        root = min(root + _TIGHT / 4, right)
    return root
