"""Rényi accountant: RDP of every event at chosen orders, and the ε that it proves.

The moments of the sampled Gaussian are those of Mironov, Talwar and Zhang (2019, section 3.3). They
are integrated here instead of expanded in a signed series: the integrand is split into parts
that are all positive, so nothing cancels, and the trapezoidal rule converges exponentially on it.
That holds at every order above 1, whole or not, and for moments as close to 1 as 1 + 1e-30.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.accounting import convert
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    Relation,
    SampledGaussian,
    UnsupportedEvent,
    ZeroConcentratedDP,
    canonical,
)

Floats = NDArray[np.float64]
Pair = Literal["poisson add-remove", "poisson replace-one", "without_replacement replace-one"]

_SMALLEST_SIGMA = 0.03  # below, the modes of the mixture share no mass and two terms are exact
_MAX_NODES = 20_000
_BLOCK = 2_000_000  # array elements held at once


@dataclass(frozen=True)
class RdpBound:
    """An ε proved by RDP at ``order``; ε is infinite where the reserved δ leaves nothing."""

    epsilon: float
    order: float


def sampled_gaussian(
    sample_rate: ArrayLike,
    noise_multiplier: ArrayLike,
    orders: ArrayLike,
    pair: Pair = "poisson add-remove",
) -> Floats:
    """RDP of one step of the sampled Gaussian.

    Args:
        sample_rate: q in (0, 1], a number or one per phase, shape (p,).
        noise_multiplier: σ over the clipping norm, a number or shape (p,).
        orders: α > 1, shape (m,).
        pair: the sampling scheme and relation. Without replacement the pair is that of Zhu, Dong
            and Wang (2022, theorem 11) for a base mechanism of sensitivity 2C; for Poisson
            sampling under replace-one it is (1−q)·N(0) + q·N(±1).

    Returns:
        Shape (m,) where both q and σ are numbers, else (p, m).

    Raises:
        ValueError: if an order is at most 1, q lies outside (0, 1] or σ is not positive.
    """
    alpha = checked_orders(orders)
    scalar = np.ndim(sample_rate) == 0 and np.ndim(noise_multiplier) == 0
    q, sigma = (
        np.ascontiguousarray(v)
        for v in np.broadcast_arrays(
            np.atleast_1d(np.asarray(sample_rate, float)),
            np.atleast_1d(np.asarray(noise_multiplier, float)),
        )
    )
    if not np.all((q > 0) & (q <= 1)):
        raise ValueError(f"sample_rate: must lie in (0, 1], got {sample_rate!r}")
    if not np.all((sigma > 0) & np.isfinite(sigma)):
        raise ValueError(f"noise_multiplier: must be positive and finite, got {noise_multiplier!r}")
    sensitivity = 1.0 if pair == "poisson add-remove" else 2.0
    full = alpha * (sensitivity / sigma[:, None]) ** 2 / 2
    result = full.copy()
    sampled = q < 1
    if sampled.any():
        step = _sampled_gaussian(q[sampled], sigma[sampled], alpha, pair)
        result[sampled] = np.minimum(step, full[sampled])
    return result[0] if scalar else result


def rdp(
    events: Iterable[MechanismEvent], orders: ArrayLike, relation: Relation = "add-remove"
) -> Floats:
    """Total RDP of the composed events at each order, without the δ that the events carry.

    ``ApproximateDP`` and ``ZeroConcentratedDP`` are taken to be stated under the relation asked
    for. The δ of an ``ApproximateDP`` event is left to ``reserved_delta``.

    Raises:
        UnsupportedEvent: if an event has no valid bound under the relation.
        ValueError: if an order is at most 1.
    """
    return _total(canonical(events), checked_orders(orders), relation)


def reserved_delta(events: Iterable[MechanismEvent]) -> float:
    """1 − Π(1 − δᵢ): what the (ε, δ) events take of δ before RDP begins.

    An (ε, δ) mechanism is dominated by one that fails with probability δ and is ε-DP otherwise
    (Kairouz, Oh and Viswanath 2015, section 3), so the failures add up apart from the rest.
    """
    lost = sum(e.count * math.log1p(-e.delta) for e in events if isinstance(e, ApproximateDP))
    return -math.expm1(lost)


def epsilon(
    events: Sequence[MechanismEvent],
    delta: float,
    relation: Relation = "add-remove",
    *,
    log_delta: float | None = None,
) -> RdpBound:
    """The smallest ε that RDP proves at δ, over a grid of orders refined around the optimum.

    Args:
        events: composed, in any order.
        delta: in (0, 1).
        relation: the neighbouring relation.
        log_delta: log δ in place of ``delta``, for a δ below the smallest float.

    Raises:
        ValueError: if δ lies outside (0, 1).
        UnsupportedEvent: if an event has no valid bound under the relation.
    """
    events = canonical(events)
    if log_delta is None:
        log_delta = math.log(convert.checked_delta(delta))
    if lost := reserved_delta(events):
        if lost >= math.exp(log_delta):
            return RdpBound(math.inf, math.inf)
        log_delta = math.log((math.exp(log_delta) - lost) / (1 - lost))
    if not events:
        return RdpBound(0.0, math.inf)

    def at(excess: Floats) -> Floats:
        orders = 1 + excess
        return convert.rdp_to_epsilon(orders, _total(events, orders, relation), log_delta=log_delta)

    excess = np.geomspace(0.1, 100, 25)
    found = at(excess)
    while found.argmin() == 0 and excess[0] > 1e-9 and found[0] > 0:
        lower = np.geomspace(excess[0] / 32, excess[0], 7)[:-1]
        excess, found = np.r_[lower, excess], np.r_[at(lower), found]
    while found.argmin() == len(found) - 1 and excess[-1] < 1e10 and found[-1] > 0:
        upper = np.geomspace(excess[-1], excess[-1] * 32, 7)[1:]
        excess, found = np.r_[excess, upper], np.r_[found, at(upper)]
    for _ in range(3):  # the optimum may sit at the foot of a cliff
        best = int(found.argmin())
        if found[best] == 0 or not math.isfinite(found[best]):
            break
        low, high = excess[max(best - 1, 0)], excess[min(best + 1, len(excess) - 1)]
        excess = np.geomspace(low, high, 25)
        found = at(excess)
    best = int(found.argmin())
    return RdpBound(float(found[best]), float(1 + excess[best]))


def checked_orders(orders: ArrayLike) -> Floats:
    """The orders as a flat array.

    Raises:
        ValueError: if one is not above 1 and finite.
    """
    alpha = np.atleast_1d(np.asarray(orders, float))
    if not np.all((alpha > 1) & np.isfinite(alpha)):
        raise ValueError(f"orders: each must be above 1 and finite, got {orders!r}")
    return alpha


def _total(events: Iterable[MechanismEvent], alpha: Floats, relation: Relation) -> Floats:
    total = np.zeros_like(alpha)
    phases: dict[Pair, list[SampledGaussian]] = {}
    for event in events:
        if isinstance(event, SampledGaussian):
            phases.setdefault(_pair(event, relation), []).append(event)
        else:
            total += _simple_event(event, alpha, relation)
    for pair, group in phases.items():
        q = np.array([e.sample_rate for e in group])
        sigma = np.array([e.noise_multiplier for e in group])
        steps = np.array([e.steps for e in group], float)
        total += steps @ sampled_gaussian(q, sigma, alpha, pair)
    return total


def _pair(event: SampledGaussian, relation: Relation) -> Pair:
    if event.sampling == "poisson":
        return "poisson add-remove" if relation == "add-remove" else "poisson replace-one"
    if event.sampling == "without_replacement" and relation == "replace-one":
        return "without_replacement replace-one"
    raise UnsupportedEvent(f"sampling: {event.sampling} has no RDP bound under {relation}")


def _simple_event(event: MechanismEvent, alpha: Floats, relation: Relation) -> Floats:
    a, sensitivity = alpha - 1, 1.0 if relation == "add-remove" else 2.0
    match event:
        case Gaussian(sigma, count):
            return count * alpha * (sensitivity / sigma) ** 2 / 2
        case GNMax(sigma, votes):  # two counts move by one: squared sensitivity 2
            return votes * alpha / sigma**2
        case ZeroConcentratedDP(rho):
            return rho * alpha
        case Laplace(scale, count):  # Mironov 2017, proposition 6
            loss = sensitivity / scale
            up, down = a * loss, -alpha * loss
            head, tail = np.log(alpha / (2 * alpha - 1)), a / (2 * alpha - 1)
            with np.errstate(over="ignore"):
                excess = np.exp(head) * np.expm1(up) + tail * np.expm1(down)
            return count * np.where(up > 30, up + head, np.log1p(np.minimum(excess, 1e300))) / a
        case ApproximateDP(eps, _, count):  # randomised response is the worst ε-DP mechanism
            if math.isinf(eps):
                return np.full_like(alpha, math.inf)
            up, share = a * eps, 1 / (1 + math.exp(-eps))
            with np.errstate(over="ignore"):
                excess = share * np.expm1(up) + (1 - share) * np.expm1(-up)
            big = up + math.log(share)
            return count * np.where(up > 30, big, np.log1p(np.clip(excess, 0, 1e300))) / a
    raise UnsupportedEvent(f"event: {type(event).__name__} has no RDP bound here")


def _sampled_gaussian(q: Floats, sigma: Floats, alpha: Floats, pair: Pair) -> Floats:
    """RDP for q < 1: closed where the modes are far apart, integrated elsewhere."""
    a = alpha - 1
    width = sigma if pair == "poisson add-remove" else sigma / 2
    without = pair == "without_replacement replace-one"
    log_excess, exact = _two_modes(q, width if without else sigma, alpha)
    if without:  # E_M[f(Q/M); M > Q] is at most (α−1)·TV
        log_excess = np.logaddexp(log_excess, np.log(a * q[:, None]))
    elif pair == "poisson replace-one":
        # Q = (1−q)·N(0) + q·N(−1) is at least its first part, and little more at the far mode
        lifted = np.logaddexp(0, log_excess) - a * np.log1p(-q[:, None])
        log_excess = lifted + np.log(-np.expm1(-lifted))
    step = _node_gap(width)
    if without:
        step = step / 4
    reach = np.maximum(2 * alpha if pair == "poisson replace-one" else alpha, 2)
    spread = sigma if pair == "poisson replace-one" else width
    nodes = np.ceil((reach + 2 + 20 * spread[:, None]) / step[:, None]).astype(int)
    open_ = ~exact & ((nodes <= _MAX_NODES) | (pair == "poisson add-remove"))
    band = np.where(open_, np.ceil(np.log2(np.maximum(nodes, 256))), 0).astype(int)
    for b in np.unique(band[open_]):
        rows = np.flatnonzero((band == b).any(axis=1))
        columns = np.flatnonzero((band == b).any(axis=0))
        chunk = max(1, _BLOCK // (len(columns) << int(b)))
        for i in range(0, len(rows), chunk):
            r = rows[i : i + chunk]
            mine = (band == b)[np.ix_(r, columns)]
            count = int(nodes[np.ix_(r, columns)][mine].max())
            cell = np.ix_(r, columns)
            value = _integrate(q[r], sigma[r], a[columns], step[r], count, pair)
            log_excess[cell] = np.where(mine, value, log_excess[cell])
    moment: Floats = np.logaddexp(0, log_excess)
    return moment / a


def _two_modes(q: Floats, sigma: Floats, alpha: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """log(A − 1) from the two outer terms of the series, and where they are all that counts.

    A = (1−q)^α + q^α·exp(α(α−1)/2σ²). The next term of the far mode is smaller by
    α(1−q)/q·exp(−(α−1)/σ²), that of the near mode is at most 2^α in all.
    """
    a, q, sigma = alpha - 1, q[:, None], sigma[:, None]
    growth = alpha / (2 * sigma**2)
    log_moment = np.logaddexp(alpha * np.log1p(-q), np.log(q) + a * (np.log(q) + growth))
    with np.errstate(over="ignore", invalid="ignore"):
        excess = (1 - q) * np.expm1(a * np.log1p(-q)) + q * np.expm1(a * (np.log(q) + growth))
        log_excess = np.where(log_moment > 40, log_moment, np.log(np.maximum(excess, 1e-300)))
    gap = a / sigma**2 + np.log(q) - np.log(alpha)
    lead = alpha * (np.log(q / 2) + a / (2 * sigma**2))
    exact = ((gap > 40) & (lead > 40)) | (sigma < _SMALLEST_SIGMA)
    return log_excess, exact


def _node_gap(sigma: Floats) -> Floats:
    """Distance of the nodes at which the trapezoidal rule is exact to about exp(−35).

    The integrand is analytic in a strip of half-width πσ² and grows by exp(y²/2σ²) inside it
    (Trefethen and Weideman 2014, theorem 5.1).
    """
    strip = 2 * math.pi**2 * sigma**2 / (35 + math.pi**2 * sigma**2 / 2)
    return np.where(sigma > 2.67, 0.75 * sigma, strip)


def _integrate(q: Floats, sigma: Floats, a: Floats, step: Floats, count: int, pair: Pair) -> Floats:
    """log(A − 1) of shape (p, m) with ``count`` nodes ``step`` apart for each phase."""
    q, sigma, step = q[:, None], sigma[:, None], step[:, None]
    if pair == "poisson add-remove":
        z = -9.5 * sigma + step * np.arange(count)
        ratio = log_mixture(q, (z - 0.5) / sigma**2)
        return _log_excess(_log_normal(z, sigma, step), ratio, a)
    if pair == "poisson replace-one":
        z = -1 - 9.5 * sigma + step * np.arange(count)
        below = log_mixture(q, (-z - 0.5) / sigma**2)
        ratio = log_mixture(q, (z - 0.5) / sigma**2) - below
        return _log_excess(_log_normal(z, sigma, step) + below, ratio, a)
    # A symmetric pair: its profile at ε ≥ 0 is that of the mixture M against Q, and below 0 the
    # mirror of that, so the half line M > Q counts in both directions.
    sigma = sigma / 2
    z = 0.5 + step * np.arange(count)
    weight, ratio = _log_normal(z, sigma, step), log_mixture(q, (z - 0.5) / sigma**2)
    there, back = _log_excess(weight, ratio, a), _log_excess(weight + ratio, -ratio, a)
    return np.logaddexp(there, back) + 1e-5  # the half line's end costs about 1e-6


def _log_normal(z: Floats, sigma: Floats, step: Floats) -> Floats:
    return -(z**2) / (2 * sigma**2) + np.log(step / (sigma * math.sqrt(2 * math.pi)))


def log_mixture(q: Floats | float, t: Floats) -> Floats:
    """log(1 − q + q·eᵗ) without cancellation."""
    x = q * np.expm1(np.minimum(t, 700))
    small = np.log1p(np.clip(x, -0.5, 0.5))
    return np.where(np.abs(x) < 0.5, small, np.logaddexp(np.log1p(-q), np.log(q) + t))


def _log_excess(log_weight: Floats, log_ratio: Floats, a: Floats) -> Floats:
    """log Σ w·((1+x)^(1+a) − 1 − (1+a)·x) for 1 + x = exp(log_ratio).

    Shapes (p, n), (p, n) and (m,) give (p, m). With L = log(1+x) each summand is
    (1+x)·(e^{aL} − 1 − aL) + a·((1+x)·L − x): both positive.
    """
    low, high = log_ratio, log_weight + log_ratio
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        weight, lifted = np.exp(log_weight), np.exp(high)
        tiny = np.clip(low, -0.03, 0.03)
        # (1+x)·L − x = eᴸ·(L − 1) + 1 = Σ Lᵏ/(k·(k−2)!)
        series = tiny**2 * (
            1 / 2
            + tiny * (1 / 3 + tiny * (1 / 8 + tiny * (1 / 30 + tiny * (1 / 144 + tiny / 840))))
        )
        entropy = np.where(np.abs(low) < 0.03, weight * series, lifted * (low - 1) + weight)
        u = a[:, None] * low[:, None, :]
        exponent = high[:, None, :] + u
        top = exponent.max(axis=-1, keepdims=True)
        scaled = np.exp(exponent - top)
        top = top[..., 0]
        log_sum = top + np.log(scaled.sum(axis=-1))
        rest = lifted.sum(axis=-1)[:, None] + a * (lifted - weight).sum(axis=-1)[:, None]
        direct = log_sum + np.log1p(-rest * np.exp(-log_sum))
        clipped = np.clip(u, -0.03, 0.03)
        power = (
            clipped**2
            / 2
            * (1 + clipped / 3 * (1 + clipped / 4 * (1 + clipped / 5 * (1 + clipped / 6))))
        )
        lift = lifted[:, None, :]
        growth = np.where(
            np.abs(u) < 0.03, lift * power, scaled * np.exp(top)[..., None] - lift * (1 + u)
        )
        positive = growth.sum(axis=-1) + a * entropy.sum(axis=-1)[:, None]
        result: Floats = np.where(log_sum > 5, direct, np.log(positive))
        return result
