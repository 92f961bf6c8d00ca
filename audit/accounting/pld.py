"""Privacy loss distributions: the tight ε, from above and from below.

Each mechanism's worst pair of output distributions (P, Q) is cut where its privacy loss
log(P/Q) passes the points of a grid. The upper estimate moves the mass of a cell to its two ends
so that its shares under P and Q both stay ("connect the dots", Doroshenko et al. 2022). The lower
estimate sinks the dots until the chords between them lie under the true curve δ(e^ε). Both err by
the square of the gap. Google's dp-accounting composes the phases and reads δ(ε) off; a phase of
many equal steps is composed here, since its own window overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import ndtr
from scipy.stats import binom

from audit.accounting import group, rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    Relation,
    SampledGaussian,
    UnsupportedEvent,
    canonical,
    release_count,
)

Floats = NDArray[np.float64]
_TAIL = 9.8  # standard deviations beyond which 1e-22 of the mass lies
_MAX_CELLS = 1_000_000
_MAX_WINDOW = 1 << 24  # cells of a composed loss; some 500 MB while it is composed
_TRUNCATION = 1e-16  # mass cut off each tail of a composition
_ROUNDING = 1e-12  # relative error of a δ that is read off: where δ(ε) is flat it moves ε far


@dataclass(frozen=True)
class Cells:
    """Masses of a pair (P, Q) in the cells [lᵢ, lᵢ + gap) of the loss, lᵢ = (start + i)·gap.

    ``p_over`` is P's mass above the last cell, ``p_under`` that below the first.
    """

    start: int
    gap: float
    p: Floats
    q: Floats
    p_over: float = 0.0
    p_under: float = 0.0

    def mirrored(self) -> Cells:
        """The pair (Q, P). What lay outside is bounded by e^(−9.8²/2) and counted as over."""
        over = max(1 - float(self.q.sum()), 0.0)
        side = min(over, 1e-20)
        return Cells(
            -self.start - len(self.p), self.gap, self.q[::-1], self.p[::-1], side, over - side
        )


@dataclass(frozen=True)
class Pmf:
    """Masses at the losses (start + i)·gap; a pessimistic one may hold mass at infinity."""

    gap: float
    start: int
    probs: Floats
    infinite: float
    pessimistic: bool

    def dense(self) -> DensePLDPmf:
        """The same as dp-accounting's type."""
        return DensePLDPmf(self.gap, self.start, self.probs, self.infinite, self.pessimistic)


@dataclass(frozen=True)
class LossDistribution:
    """The composed privacy loss, one pair of estimates for each direction of the relation."""

    upper: tuple[DensePLDPmf, ...]
    lower: tuple[DensePLDPmf, ...]
    noise: float

    def delta(self, epsilon: float) -> float:
        """The smallest δ proved at ε."""
        return min(1.0, _delta(self.upper, epsilon) + self.noise)

    def epsilon(self, delta: float) -> float:
        """The smallest ε proved at δ; infinite where FFT round-off hides so small a δ."""
        return _solve(self.upper, delta * (1 - _ROUNDING) - self.noise, up=True)

    def epsilon_lower(self, delta: float) -> float:
        """An ε that the mechanism's own ε(δ) cannot be below; 0 where nothing is known."""
        if not self.lower:
            return 0.0
        return _solve(self.lower, delta * (1 + _ROUNDING) + self.noise, up=False)


def compose(
    events: Sequence[MechanismEvent],
    relation: Relation = "add-remove",
    group_size: int = 1,
    *,
    gap: float | None = None,
) -> LossDistribution:
    """The privacy loss distribution of the composed events.

    Args:
        events: in any order; merged first.
        relation: the neighbouring relation.
        group_size: records of one user, added or removed together.
        gap: width of the loss cells; by default chosen so that the discretisation widens the
            total variance by about one part in 10,000.

    Raises:
        UnsupportedEvent: if an event has no worst pair of distributions under the relation.
    """
    merged = _joined_gaussians(canonical(events), relation, group_size)
    total = sum(release_count(event) for event in merged)
    gap = gap or _choose_gap(merged, relation, group_size)
    known = all_attained(events)
    upper: list[DensePLDPmf] = []
    lower: list[DensePLDPmf] = []
    for event in merged:
        pairs, lost = _pairs(event, relation, group_size, gap)
        count = release_count(event)
        upper = _composed(upper, [_connect_dots(pair, lost) for pair in pairs], count)
        if known:
            lower = _composed(lower, [_sunk_dots(pair) for pair in pairs], count)
    if not merged:
        nothing = DensePLDPmf(gap, 0, np.ones(1), 0.0, True)
        return LossDistribution((nothing,), (nothing,), 0.0)
    noise = 0.0 if total == 1 and len(merged) == 1 else 1e-13 + 1.2e-16 * total
    return LossDistribution(tuple(upper), tuple(lower), noise)


def all_attained(events: Iterable[MechanismEvent]) -> bool:
    """True where every event's worst pair is met by some data set, and is no mere upper bound."""
    return all(_is_exact(event) for event in events)


def gaussian_mu(
    events: Iterable[MechanismEvent], relation: Relation = "add-remove", group_size: int = 1
) -> float | None:
    """μ such that the events together are μ-Gaussian-DP exactly; None if some are not Gaussian."""
    square = 0.0
    for event in canonical(events):
        match event:
            case Gaussian(sigma, count):
                square += count * (group_size * (1 if relation == "add-remove" else 2) / sigma) ** 2
            case GNMax(sigma, votes):
                square += votes * 2 * (group_size / sigma) ** 2
            case _:
                return None
    return math.sqrt(square)


def _is_exact(event: MechanismEvent) -> bool:
    """True where the pair is attained by some data set, and is no mere bound."""
    if isinstance(event, SampledGaussian):
        return event.sampling in ("poisson", "full_batch")
    return isinstance(event, Gaussian | Laplace)


def _joined_gaussians(
    events: tuple[MechanismEvent, ...], relation: Relation, group_size: int
) -> tuple[MechanismEvent, ...]:
    """All unsampled Gaussian releases as one, at the noise multiplier that they amount to."""
    plain = [e for e in events if isinstance(e, Gaussian | GNMax)]
    mu = gaussian_mu(plain, relation, group_size)
    if not mu:
        return events
    sensitivity = group_size * (1 if relation == "add-remove" else 2)
    others = tuple(e for e in events if not isinstance(e, Gaussian | GNMax))
    return (*others, Gaussian(sensitivity / mu))


def _choose_gap(events: Sequence[MechanismEvent], relation: Relation, group_size: int) -> float:
    total = sum(release_count(event) for event in events)
    variance, reach = 0.0, 0.0
    for event in events:
        match event:
            case ApproximateDP(eps, _, count):
                one, far = eps**2, eps
            case Laplace(scale, count):
                far = group_size * (1 if relation == "add-remove" else 2) / scale
                one = min(far, far**2)
            case _:
                count = release_count(event)
                # twice the Kullback-Leibler divergence is the variance of a Gaussian loss
                divergence = float(rdp.rdp([_single(event)], 1 + 1e-6, relation)[0])
                one = 2 * divergence * group_size**2
                sigma = getattr(event, "noise_multiplier", 1.0)
                sigma /= group_size * (1 if relation == "add-remove" else 2)
                far = (1 + _TAIL * sigma) / sigma**2
                if isinstance(event, SampledGaussian):
                    far = max(far + math.log(event.sample_rate), 0) + event.sample_rate
                    far = min(far, event.sample_rate * math.expm1(min(far, 700)) + 1e-9) + 1e-9
        variance += count * one
        reach = max(reach, far)
    fine = 0.025 * math.sqrt(max(variance, 1e-30) / max(total, 1))
    window = 20 * math.sqrt(variance) / _MAX_CELLS
    floor = reach / _MAX_CELLS
    gap = float(np.clip(fine, max(window, floor, 1e-12), max(0.05, window, floor)))
    if len(events) == 1 and isinstance(events[0], ApproximateDP | Laplace) and reach > 0:
        gap = reach / math.ceil(reach / gap)  # the atoms at the ends fall on the grid
    return gap


def _single(event: MechanismEvent) -> MechanismEvent:
    if isinstance(event, SampledGaussian):
        return SampledGaussian(event.noise_multiplier, event.sample_rate, 1, event.sampling)
    return event


def _pairs(
    event: MechanismEvent, relation: Relation, group_size: int, gap: float
) -> tuple[list[Cells], float]:
    """The worst pairs, one for each direction that differs, and a δ that is lost outright."""
    sensitivity = group_size * (1 if relation == "add-remove" else 2)
    match event:
        case Gaussian(sigma):
            return [_gaussian(1.0, sigma / sensitivity, gap)], 0.0
        case Laplace(scale):
            return [_laplace(scale / sensitivity, gap)], 0.0
        case ApproximateDP(eps, delta):
            eps, delta = group.approximate(eps, delta, group_size)
            return [_randomised_response(eps, gap)], min(delta, math.nextafter(1.0, 0.0))
        case SampledGaussian(sigma, rate, _, "poisson") if relation == "add-remove":
            remove = _gaussian(rate, sigma, gap, group_size)
            return [remove, remove.mirrored()], 0.0
        case SampledGaussian(sigma, rate, _, "poisson") if group_size == 1:
            return [_poisson_replace(rate, sigma, gap)], 0.0
        case SampledGaussian(sigma, rate, _, "without_replacement") if (
            relation == "replace-one" and group_size == 1
        ):
            return [_without_replacement(rate, sigma / 2, gap)], 0.0
        case SampledGaussian():
            raise UnsupportedEvent(
                f"sampling: {event.sampling} has no known worst pair under {relation}"
                + (f" for groups of {group_size}" if group_size > 1 else "")
            )
    raise UnsupportedEvent(f"event: {type(event).__name__} has no privacy loss distribution")


def _cut(low: float, high: float, gap: float) -> tuple[int, Floats]:
    start, end = math.floor(low / gap) - 1, math.ceil(high / gap) + 1
    return start, gap * np.arange(start, end + 1, dtype=float)


def _between(edges: Floats, centre: float, sigma: float) -> Floats:
    """Mass of N(centre, σ²) between neighbouring edges, exact in both tails."""
    u = (edges - centre) / sigma
    below, above = ndtr(u), ndtr(-u)
    mass: Floats = np.where(u[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
    return mass


def _gaussian(rate: float, sigma: float, gap: float, group_size: int = 1) -> Cells:
    """P = Σⱼ Bin(k, q)(j)·N(j, σ²) against Q = N(0, σ²): removal of k records (Ganesh 2024)."""
    shifts = np.arange(group_size + 1.0)
    weights = binom.pmf(shifts, group_size, rate) if rate < 1 else np.r_[np.zeros(group_size), 1.0]
    most = shifts[int(np.argmax(binom.sf(shifts, group_size, rate) < 1e-23))]
    shifts, weights = shifts[weights > 0], weights[weights > 0]

    def loss(z: Floats) -> Floats:
        if len(weights) == 2 and shifts[0] == 0:
            far = shifts[1]
            return rdp.log_mixture(float(weights[1]), (z - far / 2) * far / sigma**2)

        def terms() -> Iterator[Floats]:
            for weight, shift in zip(weights, shifts, strict=True):
                yield math.log(weight) + (z - shift / 2) * (shift / sigma**2)

        top = reduce(np.maximum, terms())
        total: Floats = top + np.log(sum(np.exp(term - top) for term in terms()))
        return total

    ends = np.array([-_TAIL * sigma, most + _TAIL * sigma])
    low, high = loss(ends)
    start, grid = _cut(float(low), float(high), gap)
    z = _inverse(loss, grid, ends[0] - 40 * sigma, ends[1] + 40 * sigma)
    p = sum(w * _between(z, j, sigma) for w, j in zip(weights, shifts, strict=True))
    q = _between(z, 0.0, sigma)
    over = float(weights @ ndtr(-(z[-1] - shifts) / sigma))
    return Cells(start, gap, np.asarray(p), q, over, float(weights @ ndtr((z[0] - shifts) / sigma)))


def _poisson_replace(rate: float, sigma: float, gap: float) -> Cells:
    """P = (1−q)·N(0) + q·N(1) against Q = (1−q)·N(0) + q·N(−1)."""

    def loss(z: Floats) -> Floats:
        up = rdp.log_mixture(rate, (z - 0.5) / sigma**2)
        return up - rdp.log_mixture(rate, (-z - 0.5) / sigma**2)

    end = 1 + _TAIL * sigma
    high = float(loss(np.array([end]))[0])
    start, grid = _cut(-high, high, gap)
    z = _inverse(loss, grid, -end - 40 * sigma, end + 40 * sigma)
    p = (1 - rate) * _between(z, 0.0, sigma) + rate * _between(z, 1.0, sigma)
    q = (1 - rate) * _between(z, 0.0, sigma) + rate * _between(z, -1.0, sigma)
    over = (1 - rate) * ndtr(-z[-1] / sigma) + rate * ndtr((1 - z[-1]) / sigma)
    return Cells(start, gap, p, q, float(over), max(1 - float(over + p.sum()), 0.0))


def _without_replacement(rate: float, sigma: float, gap: float) -> Cells:
    """Zhu, Dong and Wang 2022, theorem 11: for ε ≥ 0 the profile of (1−q)Q + qP against Q, for
    ε < 0 that of P against (1−q)P + qQ. The two halves mirror each other; the rest has loss 0.
    """
    half = _gaussian(rate, sigma, gap)
    first = max(0, -half.start)
    p, q = half.p[first:].copy(), half.q[first:].copy()
    gain = np.r_[q[::-1], p]
    lose = np.r_[p[::-1], q]
    middle = len(q)
    rest = max(1 - float(gain.sum()) - half.p_over, 0.0)
    gain[middle] += rest
    lose[middle] += rest
    return Cells(-middle, gap, gain, lose, half.p_over, 0.0)


def _laplace(scale: float, gap: float) -> Cells:
    """P = Lap(0) against Q = Lap(1); the loss runs from −1/b to 1/b, with mass at both ends."""
    end = 1 / scale
    start, grid = _cut(-end, end, gap)
    x = (1 - np.clip(grid, -end, end) * scale) / 2

    def below(v: Floats) -> Floats:
        half = np.exp(-np.abs(v) / scale) / 2
        return np.where(v < 0, half, 1 - half)

    tail_p = np.where(grid > end, 0.0, np.where(grid <= -end, 1.0, below(x)))
    tail_q = np.where(grid > end, 0.0, np.where(grid <= -end, 1.0, below(x - 1)))
    return Cells(start, gap, -np.diff(tail_p), -np.diff(tail_q))


def _randomised_response(eps: float, gap: float) -> Cells:
    start, grid = _cut(-eps, eps, gap)
    p, q = np.zeros(len(grid) - 1), np.zeros(len(grid) - 1)
    truth = 1 / (1 + math.exp(-eps))
    for loss, mass in ((eps, truth), (-eps, 1 - truth)):
        cell = min(max(int(np.searchsorted(grid, loss, side="right")) - 1, 0), len(p) - 1)
        p[cell] += mass
        q[cell] += 1 - mass
    return Cells(start, gap, p, q)


def _inverse(loss: Callable[[Floats], Floats], values: Floats, low: float, high: float) -> Floats:
    """Where the increasing ``loss`` takes the values, within [low, high]: by table, then Illinois.

    δ is stationary in the place of the cut, so that its error counts only squared.
    """
    table = np.linspace(low, high, 2 * len(values) + 1001)
    known = loss(table)
    right = np.clip(np.searchsorted(known, values), 1, len(table) - 1)
    a, b = table[right - 1], table[right]
    under, over = known[right - 1] - values, known[right] - values
    kept = np.zeros(len(values), int)
    middle = (a + b) / 2
    for _ in range(9):
        with np.errstate(divide="ignore", invalid="ignore"):
            middle = np.where(over > under, b - over * (b - a) / (over - under), (a + b) / 2)
        middle = np.clip(middle, a, b)
        found = loss(middle) - values
        left = found < 0
        # the end that stays twice counts half, lest it never move
        under = np.where(left, found, np.where(kept < 0, under / 2, under))
        over = np.where(left, np.where(kept > 0, over / 2, over), found)
        a, b = np.where(left, middle, a), np.where(left, b, middle)
        kept = np.where(left, 1, -1)
    return middle


def _connect_dots(cells: Cells, lost: float = 0.0) -> Pmf:
    up = _upward(cells)
    probs = np.zeros(len(cells.p) + 1)
    probs[1:] += up
    probs[:-1] += cells.p - up
    probs[0] += cells.p_under
    probs *= (1 - cells.p_over) / probs.sum()
    infinite = lost + (1 - lost) * cells.p_over
    return Pmf(cells.gap, cells.start, probs * (1 - lost), infinite, True)


def _upward(cells: Cells) -> Floats:
    """The part of each cell's mass that moves to its upper end so that Q's share stays."""
    floor = cells.gap * (cells.start + np.arange(len(cells.p)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        share = -np.expm1(np.log(cells.q / cells.p) + floor) / -math.expm1(-cells.gap)
    moved: Floats = cells.p * np.clip(np.nan_to_num(share, nan=1.0), 0.0, 1.0)
    return moved


def _sunk_dots(cells: Cells) -> Pmf:
    """A pair that the true one dominates, on the same grid.

    In a cell the curve δ(α), α = e^loss, lies above its two end tangents. They meet where the
    chord is u·(1 − P/Q·e^(−end)) above them, u the mass moved up: so far both dots sink. A dot that
    cannot sink below the trivial curve max(0, 1 − α) leaves it to the other one, which sinks onto
    the tangent.
    Then dots sink further until the chords are convex again. Mass outside the grid is dropped.
    """
    up = np.where(cells.q > 1e-290, _upward(cells), 0.0)  # q underflows: round the loss down
    down = cells.p - up
    probs = np.r_[0.0, up] + np.r_[down, 0.0]
    end = cells.gap * (cells.start + 1 + np.arange(len(up)))
    grow = math.expm1(cells.gap)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        slack = up * -np.expm1(np.minimum(np.log(cells.p / cells.q) - end, 0.0))
    slack = np.nan_to_num(slack, nan=0.0)
    room = _room(probs, cells)
    left_can, right_can = slack <= room[:-1], slack <= room[1:]
    left = np.where(left_can, np.where(right_can, slack, up * grow / (1 + grow)), 0.0)
    right = np.where(right_can, np.where(left_can, slack, down * grow), 0.0)
    sink = np.minimum(np.maximum(np.r_[left, 0.0], np.r_[0.0, right]), room)
    sink[0] = sink[-1] = 0.0
    for _ in range(1000):
        raised = (sink[2:] + (1 + grow) * sink[:-2] - grow * probs[1:-1]) / (2 + grow)
        if np.all(raised <= sink[1:-1] * (1 + 1e-12) + 1e-22):
            break
        sink[1:-1] = np.maximum(sink[1:-1], raised)
    else:  # too steep somewhere: round every loss down instead
        return Pmf(cells.gap, cells.start, cells.p.copy(), 0.0, False)
    above, below = np.r_[sink[1:], 0.0], np.r_[0.0, sink[:-1]]
    sunk = probs - (above + (1 + grow) * below - (2 + grow) * sink) / grow
    return Pmf(cells.gap, cells.start, np.maximum(sunk, 0.0), 0.0, False)


def _room(probs: Floats, cells: Cells) -> Floats:
    """How far each dot lies above max(0, 1 − α)."""
    shrink, grow = math.exp(-cells.gap), math.exp(cells.gap)
    loss = cells.start + np.arange(len(probs))
    beyond = np.r_[probs[1:], 0.0][::-1]
    delta = (np.cumsum(beyond) - lfilter([shrink], [1, -shrink], beyond))[::-1]
    before = np.r_[0.0, probs[:-1]]
    with np.errstate(over="ignore", invalid="ignore"):
        lead = lfilter([grow], [1, -grow], np.where(loss <= 0, before, 0.0)) - np.cumsum(before)
    room: Floats = np.maximum(np.where(loss >= 0, delta, np.nan_to_num(lead, nan=0.0)), 0.0)
    return room


def _composed(sofar: list[DensePLDPmf], steps: list[Pmf], count: int) -> list[DensePLDPmf]:
    both = max(len(sofar), len(steps))
    repeated = [(step if count == 1 else _self_composed(step, count)).dense() for step in steps]
    if not sofar:
        return repeated
    first = sofar * (both // len(sofar))
    second = repeated * (both // len(repeated))
    return [a.compose(b, 2 * _TRUNCATION) for a, b in zip(first, second, strict=True)]


def _self_composed(pmf: Pmf, count: int) -> Pmf:
    """``count`` independent losses added up, by FFT within a window that Chernoff's bound gives.

    dp-accounting's own window tries fixed exponents and grows with ``count`` where its root would
    do; a billion steps would not fit into memory. Losses are centred first, which keeps the phase.
    """
    size = len(pmf.probs)
    place = np.arange(size, dtype=float)
    mass = float(pmf.probs.sum())
    centre = round(float(place @ pmf.probs) / mass)
    place -= centre
    spread = math.sqrt(max(float(place**2 @ pmf.probs) / mass, 1e-30) * count)
    low, high = count * place[0], count * place[-1]
    held = pmf.probs > 0
    somewhere, log_probs = place[held], np.log(pmf.probs[held])
    # rare and large losses ask for tilts on their own scale, far below that of the spread
    least = min(0.1 / spread, 1 / max(place[-1], -place[0], 1.0))
    for tilt in np.geomspace(
        least, 30 / spread, 16 + math.ceil(2 * math.log(0.1 / spread / least))
    ):
        for sign in (1, -1):
            exponent = sign * tilt * somewhere + log_probs
            top = float(exponent.max())
            log_mgf = top + math.log(float(np.exp(exponent - top).sum()))
            bound = (count * log_mgf - math.log(_TRUNCATION)) / tilt
            low, high = (low, min(high, bound)) if sign > 0 else (max(low, -bound), high)
    first, last = math.floor(low), math.ceil(high)
    if last - first > _MAX_WINDOW:
        raise UnsupportedEvent(f"PLD: {count} steps need {last - first:.0e} cells of the loss")
    length = next_fast_len(max(last - first + 1, size), real=True)
    wrapped = np.zeros(length)
    wrapped[:size] = pmf.probs
    wave = rfft(np.roll(wrapped, -centre))
    seen = np.abs(wave) > math.exp(-80 / count)  # the others vanish, and powers are dear
    wave[seen] **= count
    wave[~seen] = 0.0
    total = irfft(wave, length)
    probs = np.maximum(np.roll(total, -first)[: last - first + 1], 0.0)
    infinite = -math.expm1(count * math.log1p(-pmf.infinite))
    if pmf.pessimistic:
        infinite += 2 * _TRUNCATION
    return Pmf(pmf.gap, count * (pmf.start + centre) + first, probs, infinite, pmf.pessimistic)


def _delta(pmfs: Sequence[DensePLDPmf], epsilon: float) -> float:
    return max(float(pmf.get_delta_for_epsilon(epsilon)) for pmf in pmfs)


def _solve(pmfs: Sequence[DensePLDPmf], delta: float, *, up: bool) -> float:
    """ε with δ(ε) = delta, rounded away from the truth; at least 0."""
    if delta <= 0:
        return math.inf if up else 0.0
    if _delta(pmfs, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while _delta(pmfs, high) > delta:
        low, high = high, 8 * high
        if high > 1e13:
            return math.inf
    root = float(
        brentq(
            lambda e: math.log(max(_delta(pmfs, e), 1e-300)) - math.log(delta),
            low,
            high,
            xtol=1e-12,
            rtol=1e-10,
        )
    )
    slack = 1e-11 + 1e-9 * root
    return root + slack if up else max(root - slack, 0.0)
