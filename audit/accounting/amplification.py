"""Privacy amplification by subsampling, for a mechanism of which only (ε, δ) is known."""

from __future__ import annotations

import math


def subsampled(epsilon: float, delta: float, sample_rate: float) -> tuple[float, float]:
    """(log(1 + q(e^ε − 1)), q·δ) for an (ε, δ) mechanism on a secret random share of the records.

    Poisson sampling under add-remove, or fixed size without replacement under replace-one (Balle,
    Barthe and Gaboardi 2018, theorems 8 and 9). Randomised response attains it: no smaller value
    holds for all ε-DP mechanisms.

    Raises:
        ValueError: if ε is negative, δ is outside [0, 1), or q is outside (0, 1].
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon: must not be negative, got {epsilon}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta: must lie in [0, 1), got {delta}")
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate: must lie in (0, 1], got {sample_rate}")
    if epsilon > 30:  # e^ε − 1 must not overflow
        amplified = epsilon + math.log(sample_rate + (1 - sample_rate) * math.exp(-epsilon))
    else:
        amplified = math.log1p(sample_rate * math.expm1(epsilon))
    return amplified, sample_rate * delta
