"""Composition where only (ε, δ) is known, and over disjoint data.

Where the mechanisms are known, RDP and PLD compose them more tightly: see ``guarantee``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scipy.optimize import brentq

from audit.accounting.convert import checked_delta
from audit.accounting.events import ApproximateDP


def basic(parts: Sequence[ApproximateDP], delta: float) -> float:
    """Σε, if Σδ leaves room at ``delta``; else infinite (Dwork and Roth 2014, theorem 3.16).

    Raises:
        ValueError: if ``delta`` lies outside (0, 1).
    """
    lost = math.fsum(part.count * part.delta for part in parts)
    if lost > checked_delta(delta) * (1 + 1e-12):
        return math.inf
    return math.fsum(part.count * part.epsilon for part in parts)


def advanced(parts: Sequence[ApproximateDP], delta: float) -> float:
    """ε of the advanced composition of unequal parts, never above Σε.

    Σ εᵢ·(e^εᵢ − 1)/(e^εᵢ + 1) + √(2·Σεᵢ²·ln(1/δ')), where δ' is what Π(1 − δᵢ) leaves of δ
    (Kairouz, Oh and Viswanath 2015, theorem 3.5, last term).

    Raises:
        ValueError: if ``delta`` lies outside (0, 1).
    """
    checked_delta(delta)
    lost = -math.expm1(sum(part.count * math.log1p(-part.delta) for part in parts))
    if lost > delta:
        return math.inf
    plain = math.fsum(part.count * part.epsilon for part in parts)
    slack = (delta - lost) / (1 - lost)
    if slack <= 0:
        return plain
    drift = math.fsum(p.count * p.epsilon * math.tanh(p.epsilon / 2) for p in parts)
    square = math.fsum(p.count * p.epsilon**2 for p in parts)
    return min(plain, drift + math.sqrt(2 * square * math.log(1 / slack)))


def parallel(epsilons: Iterable[float]) -> float:
    """ε over data sets that share nobody: the largest (McSherry 2009, theorem 4).

    Valid where the split into data sets does not depend on anybody's presence; all at one δ.
    """
    return max(epsilons, default=0.0)


def per_part_epsilon(total: float, delta: float, count: int) -> float:
    """The ε that each of ``count`` pure-DP parts may have, so that together they meet (ε, δ).

    Raises:
        ValueError: if ``total`` is not positive and finite or ``count`` is below 1.
    """
    if not (total > 0 and math.isfinite(total)):
        raise ValueError(f"epsilon: must be positive and finite, got {total}")
    if count < 1:
        raise ValueError(f"count: must be at least 1, got {count}")

    def over(epsilon: float) -> float:
        return advanced([ApproximateDP(epsilon, 0.0, count)], delta) - total

    return float(brentq(over, 0.0, total + 1e-9, xtol=1e-12))
