"""From RDP and Gaussian DP to (ε, δ), and from an ε(δ) curve to what an attacker can achieve."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

Floats = NDArray[np.float64]
_HUGE = 1e4  # a μ above which δ(ε) has one term only, to 1 part in 10⁸


def checked_delta(delta: float) -> float:
    """δ itself.

    Raises:
        ValueError: if δ is not inside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta: must lie between 0 and 1, got {delta}")
    return float(delta)


def rdp_to_epsilon(
    orders: ArrayLike,
    rdp: ArrayLike,
    delta: float = 0.0,
    *,
    log_delta: float | None = None,
    textbook: bool = False,
) -> Floats:
    """ε that each order proves at δ, at least 0; shapes of ``orders`` and ``rdp``.

    The default is ε = rdp + log((α−1)/α) − (log δ + log α)/(α−1) (Balle et al. 2020, theorem 21;
    Canonne, Kamath and Steinke 2020, proposition 12). ``textbook`` gives rdp + log(1/δ)/(α−1)
    (Mironov 2017, proposition 3), for reproducing other people's figures. Both report 0 where
    the order already bounds the total variation by δ (Bretagnolle and Huber 1979).

    Raises:
        ValueError: if δ is outside (0, 1) or an order is at most 1.
    """
    alpha, value = np.asarray(orders, float), np.asarray(rdp, float)
    if not np.all(alpha > 1):
        raise ValueError(f"orders: each must be above 1, got {orders!r}")
    if log_delta is None:
        log_delta = math.log(checked_delta(delta))
    a = alpha - 1
    if textbook:
        epsilon = value - log_delta / a
    else:
        epsilon = value + np.log(a / alpha) - (log_delta + np.log(alpha)) / a
    hidden = -np.expm1(-value) <= math.exp(2 * log_delta)
    result: Floats = np.where(hidden, 0.0, np.maximum(epsilon, 0.0))
    return result


def rdp_to_delta(orders: ArrayLike, rdp: ArrayLike, epsilon: float) -> Floats:
    """δ that each order proves at ε: exp((α−1)(rdp − ε))·(1 − 1/α)^α/(α−1), at most 1.

    The inverse of ``rdp_to_epsilon``.

    Raises:
        ValueError: if ε is negative or NaN, or an order is at most 1.
    """
    alpha, value = np.asarray(orders, float), np.asarray(rdp, float)
    if not epsilon >= 0:
        raise ValueError(f"epsilon: must not be negative, got {epsilon}")
    if not np.all(alpha > 1):
        raise ValueError(f"orders: each must be above 1, got {orders!r}")
    a = alpha - 1
    log_delta = a * (value - epsilon + np.log1p(-1 / alpha)) - np.log(alpha)
    variation = np.sqrt(-np.expm1(-value))
    result: Floats = np.minimum(np.exp(np.minimum(log_delta, 0.0)), variation)
    return result


def gdp_to_delta(mu: float, epsilon: ArrayLike) -> Floats:
    """δ(ε) of a μ-Gaussian-DP mechanism (Dong, Roth and Su 2022, corollary 1; Balle and Wang 2018).

    Exact for Gaussian releases without sampling; with sampling μ comes from a limit theorem and
    this is an approximation, no bound.
    """
    eps = np.asarray(epsilon, float)
    if mu == 0:
        return np.zeros_like(eps)
    near = log_ndtr(-eps / mu + mu / 2)
    far = eps + log_ndtr(-eps / mu - mu / 2)
    # e^near·(1 − e^(far−near)), which keeps its digits where both are tiny
    result: Floats = np.exp(near) * -np.expm1(np.minimum(far - near, 0.0))
    return result


def gdp_to_epsilon(mu: float, delta: float) -> float:
    """The ε of a μ-Gaussian-DP mechanism at δ, at least 0.

    Raises:
        ValueError: if δ is outside (0, 1) or μ is negative or not finite.
    """
    checked_delta(delta)
    if not (mu >= 0 and math.isfinite(mu)):
        raise ValueError(f"mu: must be finite and not negative, got {mu}")
    if mu == 0 or gdp_to_delta(mu, 0.0) <= delta:
        return 0.0
    if mu > _HUGE:
        return float(mu * (mu / 2 - ndtri(delta)))  # the second term is nothing, and rounding much
    log_delta = math.log(delta)

    def gap(eps: float) -> float:
        near = float(log_ndtr(-eps / mu + mu / 2))
        far = eps + float(log_ndtr(-eps / mu - mu / 2))
        return near + math.log(-math.expm1(min(far - near, -1e-300))) - log_delta

    # δ(ε) <= Φ(−ε/μ + μ/2) <= exp(−(ε/μ − μ/2)²/2)
    top = mu**2 / 2 + mu * math.sqrt(-2 * log_delta) + mu
    return float(brentq(gap, 0.0, top, xtol=1e-14 * top, rtol=1e-14))


def gdp_mu(epsilon: float, delta: float) -> float:
    """The μ at which Gaussian DP gives exactly ε at δ; σ = 1/μ calibrates one Gaussian release.

    Raises:
        ValueError: if ε is not positive and finite or δ is outside (0, 1).
    """
    checked_delta(delta)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon: must be positive and finite, got {epsilon}")
    root = brentq(
        lambda log_mu: gdp_to_epsilon(math.exp(log_mu), delta) - epsilon,
        math.log(min(1e-6 * epsilon, 1e-8)),
        math.log(math.sqrt(2 * epsilon) + 10),
        xtol=1e-13,
    )
    return float(math.exp(root))


def clt_mu(sample_rate: float, noise_multiplier: float, steps: int) -> float:
    """μ of the central limit theorem for Poisson-sampled steps (Bu et al. 2020): no bound."""
    with np.errstate(over="ignore"):
        spread = np.expm1(np.float64(noise_multiplier) ** -2)
    return float(sample_rate * np.sqrt(steps * spread))


def gdp_trade_off(mu: float, fpr: ArrayLike) -> Floats:
    """Largest TPR at each FPR against a μ-Gaussian-DP mechanism: 1 − Φ(Φ⁻¹(1−FPR) − μ)."""
    result: Floats = ndtr(ndtri(np.asarray(fpr, float)) + mu)
    return result


def trade_off(epsilons: ArrayLike, deltas: ArrayLike, fpr: ArrayLike) -> Floats:
    """Largest TPR at each FPR that the (ε, δ) points of a curve allow (Kairouz et al. 2015).

    TPR ≤ e^ε·FPR + δ and TPR ≤ 1 − e^{−ε}·(1 − FPR − δ), for every point; never below FPR.

    Args:
        epsilons: shape (k,).
        deltas: shape (k,).
        fpr: shape (n,), in [0, 1].
    """
    eps = np.asarray(epsilons, float)[:, None]
    delta = np.asarray(deltas, float)[:, None]
    x = np.asarray(fpr, float)
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.where(x > 0, np.exp(eps) * x, 0.0) + delta
        high = 1 - np.exp(-eps) * np.maximum(1 - x - delta, 0)
    bound = np.minimum(np.nan_to_num(low, nan=1.0), high).min(axis=0)
    result: Floats = np.clip(bound, x, 1.0)
    return result
