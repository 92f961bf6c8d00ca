"""How often an attack succeeds beyond its control: rates, excess risk, and their intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from attacks.metrics import Estimate, Figure, clopper_pearson, wilson

Hits = NDArray[np.bool_]


def rates(
    mode: str,
    attack: Hits,
    control: Hits,
    baseline: Hits | None = None,
    *,
    confidence: float,
    excess_confidence: float,
) -> tuple[Figure, ...]:
    """The rates of one mode of an attack and its excess risk, named ``rate:mode``.

    Args:
        mode: what was attacked and how, as the figures' names end.
        attack, control: whether each attack on train, and on the holdout, succeeded (n,) and (m,).
        baseline: the same attack without what the release knows (b,); None where there is none.
        excess_confidence: of the excess risk's interval, where several share one confidence.
    """
    sides = {"attack_rate": attack, "control_rate": control, "baseline_rate": baseline}
    told = [
        Figure(f"{name}:{mode}", clopper_pearson(int(hits.sum()), len(hits), confidence))
        for name, hits in sides.items()
        if hits is not None
    ]
    right = int(control.sum())
    if right == len(control):
        reason = "the control always succeeds, so no attack can do better"
        return (*told, Figure(f"excess_risk:{mode}", unmeasured=reason))
    excess = excess_risk(int(attack.sum()), len(attack), right, len(control), excess_confidence)
    return (*told, Figure(f"excess_risk:{mode}", excess))


def named(figure: Figure, mode: str) -> Figure:
    """The figure under the name ``name:mode``."""
    return replace(figure, name=f"{figure.name}:{mode}")


def unmeasured(mode: str, why: str, *, baseline: bool = True) -> tuple[Figure, ...]:
    """The figures of ``rates`` where nothing could be attacked."""
    names = ("attack_rate", "control_rate", *(["baseline_rate"] * baseline), "excess_risk")
    return tuple(Figure(f"{name}:{mode}", unmeasured=why) for name in names)


def excess_risk(
    hits: int, n: int, control_hits: int, control_n: int, confidence: float = 0.95
) -> Estimate:
    """(a - c) / (1 - c): the attack's successes among those that the control leaves open.

    Negative where the control does better, and its interval may be. With 1 - a and 1 - c it is one
    minus a ratio of proportions, whose interval is joined from their Wilson intervals by MOVER-R
    (Donner and Zou 2012; Newcombe 2016). At 95 % it covers 92.5 % or more, and lies above zero
    where both rates are equal in 3.5 % or less (rates from 0.001 to 0.95, 50 attacks a side).

    Raises:
        ValueError: if the control always succeeds.
    """
    if control_hits >= control_n:
        raise ValueError("excess risk: the control always succeeds")
    miss, control_miss = 1 - hits / n, 1 - control_hits / control_n
    low, high = wilson(n - hits, n, confidence)
    control_low, control_high = wilson(control_n - control_hits, control_n, confidence)
    product = miss * control_miss
    # the quadratics' roots in a form that does not divide by a difference near zero
    most = low * (2 * miss - low)
    root = np.sqrt(max(product**2 - most * control_high * (2 * control_miss - control_high), 0.0))
    least_ratio = most / (product + root) if product + root > 0 else 0.0
    below = control_low * (2 * control_miss - control_low)
    root = np.sqrt(max(product**2 - high * (2 * miss - high) * below, 0.0))
    ratio = miss / control_miss
    return Estimate(
        float(min(1 - (product + root) / below, 1 - ratio)),
        1 - ratio,
        float(max(1 - least_ratio, 1 - ratio)),
        confidence,
        "MOVER-R of Wilson intervals",
        n + control_n,
    )


def mean_share(shares: NDArray[np.float64], each: int, confidence: float = 0.95) -> Estimate:
    """The mean of shares (n,) of ``each`` trials, where the trials of one share hang together.

    Clopper-Pearson at the effective number of trials (Korn and Graubard 1998).
    """
    n, value = len(shares), float(shares.mean())
    trials = float(n * each)
    spread = float(shares.var(ddof=1)) / n if n > 1 else 0.0
    if spread > 0:
        trials = min(trials, value * (1 - value) / spread)
    hits, tail = value * trials, (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if value > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, trials - hits)) if value < 1 else 1.0
    method = "Clopper-Pearson, effective n"
    return Estimate(min(low, value), value, max(high, value), confidence, method, n)
