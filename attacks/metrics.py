"""How well scores tell members from non-members: every figure with its interval.

A score's direction is fixed (higher means member), ties are kept, and nothing depends on the order
of the rows. Scores of ±inf count as the extremes that they are; NaN is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betainc, expit, logit
from scipy.stats import beta, binom, norm, rankdata

from attacks.targets import Array, Floats

FPRS = (0.1, 0.01, 0.001, 0.0001)
UNEQUAL = 1.5  # one side over the other: from here on DeLong's interval alone is too narrow


@dataclass(frozen=True)
class Estimate:
    """A measured number: low <= value <= high at this confidence, by this method, from n records.

    The same fields as ``reports.record.Interval``, which this room may not import.
    """

    low: float
    value: float
    high: float
    confidence: float
    method: str
    n: int


@dataclass(frozen=True)
class Figure:
    """A named figure: an estimate, or the reason why the sample cannot say."""

    name: str
    estimate: Estimate | None = None
    unmeasured: str = ""


@dataclass(frozen=True, eq=False)
class Roc:
    """The ROC's vertices from (0, 0) to (1, 1), one for each distinct score, highest first.

    A record is called a member if its score is at least the vertex' threshold.
    """

    fpr: Floats
    tpr: Floats
    thresholds: Floats

    def thinned(self, points: int = 200) -> Roc:
        """About ``points`` vertices, spread over both rates and the logarithm of the FPR.

        Only for drawing. Both ends stay, and vertices that are kept are exact.
        """
        if len(self.fpr) <= points:
            return self
        floor = max(self.fpr[self.fpr > 0].min(initial=1.0), 1e-9)
        share = np.log(np.maximum(self.fpr, floor) / floor) / max(-np.log(floor), 1e-9)
        share = (share + self.fpr + self.tpr) / 3  # some for each axis
        cell = np.floor(share * (points - 2)).astype(np.int64)
        keep = np.flatnonzero(np.diff(cell, append=-1) != 0)  # the last vertex of each cell
        keep = np.unique(np.concatenate([[0], keep, [len(cell) - 1]]))
        return Roc(self.fpr[keep], self.tpr[keep], self.thresholds[keep])


def roc(members: ArrayLike, non_members: ArrayLike) -> Roc:
    """The exact ROC curve; tied scores make one slanted edge, whatever their order."""
    inside, outside = _scores(members, "members"), _scores(non_members, "non-members")
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    tpr = 1 - np.searchsorted(inside, thresholds) / len(inside)
    fpr = 1 - np.searchsorted(outside, thresholds) / len(outside)
    return Roc(
        np.concatenate([[0.0], fpr]),
        np.concatenate([[0.0], tpr]),
        np.concatenate([[np.inf], thresholds]),
    )


def auc(members: ArrayLike, non_members: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Area under the ROC curve: P(member > non-member) + P(equal) / 2.

    Interval: DeLong, DeLong and Clarke-Pearson (1988) by ranks (Sun and Xu 2014), on the logit
    scale so that it stays within (0, 1). Where DeLong's variance is zero or cannot be had (perfect
    separation, constant scores, a handful of records), Newcombe's method 5 (2006), which rests on
    the value and the sizes alone and always has width. Where the sides are unequal, the wider of
    the two: the larger side's variance then hides that a few records, or tied ones, tell little of
    their own (at 12 against 200 two-valued scores DeLong alone misses in 28 % instead of 5 %).
    """
    inside, outside = _scores(members, "members"), _scores(non_members, "non-members")
    m, n = len(inside), len(outside)
    ranks = rankdata(np.concatenate([inside, outside]))
    above = (ranks[:m] - rankdata(inside)) / n  # share of non-members below each member
    below = 1 - (ranks[m:] - rankdata(outside)) / m  # share of members above each non-member
    value = float(above.mean())
    if min(m, n) >= 10 and 0 < value < 1:
        error = np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
        if error > 0:
            reach = norm.ppf(0.5 + confidence / 2) * error / (value * (1 - value))
            low, high = expit(logit(value) - reach), expit(logit(value) + reach)
            if low < high:
                method = "DeLong"
                if max(m, n) >= UNEQUAL * min(m, n):
                    other = _newcombe_auc(value, m, n, confidence)
                    low, high = min(low, other[0]), max(high, other[1])
                    method = "DeLong or Newcombe 2006, the wider"
                return Estimate(float(low), value, float(high), confidence, method, m + n)
    low, high = _newcombe_auc(value, m, n, confidence)
    return Estimate(low, value, high, confidence, "Newcombe 2006", m + n)


def tpr_at_fpr(
    members: ArrayLike, non_members: ArrayLike, fpr: float, confidence: float = 0.95
) -> Figure:
    """Share of members found at the lowest threshold with at most ``fpr`` false alarms.

    The rule is "score above the threshold", so ties at the threshold count against the attacker.
    The interval speaks of the attack's TPR at a true FPR of ``fpr``: it covers both the members
    drawn and the threshold, which the same non-members chose. The number of non-members above the
    true threshold is Binomial(n, fpr); for each such number the TPR has its Clopper-Pearson
    distribution, and the interval's ends are quantiles of the mixture. Plain Clopper-Pearson takes
    the threshold as given and covers only 83 % instead of 95 % where both sides are equally large.

    Raises:
        ValueError: if fpr lies outside (0, 1).
    """
    if not 0 < fpr < 1:
        raise ValueError(f"fpr: must lie in (0, 1), got {fpr}")
    inside, outside = _scores(members, "members"), _scores(non_members, "non-members")
    name, m, n = f"tpr_at_fpr_{fpr:g}", len(inside), len(outside)
    allowed = int(np.floor(fpr * n + 1e-9))
    if allowed < 1:
        return Figure(
            name,
            unmeasured=f"too few non-members to say: {n} support an FPR of {1 / n:.2g} at best",
        )
    law = binom(n, fpr)
    counts = np.arange(law.ppf(1e-7), law.ppf(1 - 1e-7) + 1, dtype=np.int64)
    weights = law.pmf(counts) / law.pmf(counts).sum()
    # members above the j-th highest non-member, j = 0 .. n + 1
    over = m - np.searchsorted(inside, outside[::-1], side="right")
    over = np.concatenate([[0], over, [m]])
    least, most = over[counts], over[counts + 1]
    tail = (1 - confidence) / 2
    value = float(over[allowed + 1] / m)
    low = _mixture_quantile(weights, least, m - least + 1, tail)
    high = _mixture_quantile(weights, most + 1, m - most, 1 - tail)
    method = "Clopper-Pearson, threshold estimated"
    return Figure(
        name, Estimate(min(low, value), value, max(high, value), confidence, method, m + n)
    )


def advantage(
    members: ArrayLike,
    non_members: ArrayLike,
    threshold: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """TPR minus FPR of one yes-or-no rule (Yeom et al. 2018), higher scores meaning member.

    ``threshold`` was fixed before the scores were seen. Without one, each half of the records is
    judged at the threshold that does best on the other half, so that choosing it is not rewarded.
    Interval: Newcombe's hybrid score interval for a difference of proportions (1998).
    """
    inside, outside = _scores(members, "members"), _scores(non_members, "non-members")
    if threshold is None:
        ranks = np.unique(np.concatenate([inside, outside]))  # finite, where scores need not be
        inside, outside = (
            np.searchsorted(ranks, side).astype(np.float64) for side in (inside, outside)
        )
        rng = np.random.default_rng([seed, crc32(inside.tobytes() + outside.tobytes())])
        halves = [_halves(side, rng) for side in (inside, outside)]
        hits = false = 0
        for judged in (0, 1):
            chosen = _best_threshold(halves[0][1 - judged], halves[1][1 - judged])
            hits += int((halves[0][judged] >= chosen).sum())
            false += int((halves[1][judged] >= chosen).sum())
    else:
        hits, false = int((inside >= threshold).sum()), int((outside >= threshold).sum())
    m, n = len(inside), len(outside)
    value = hits / m - false / n
    (t_low, t_high), (f_low, f_high) = wilson(hits, m, confidence), wilson(false, n, confidence)
    low = value - np.hypot(hits / m - t_low, f_high - false / n)
    high = value + np.hypot(t_high - hits / m, false / n - f_low)
    return Estimate(
        max(float(low), -1.0), value, min(float(high), 1.0), confidence, "Newcombe 1998", m + n
    )


def balanced_accuracy(
    members: ArrayLike,
    non_members: ArrayLike,
    threshold: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Mean of the shares of members and of non-members judged rightly: (1 + advantage) / 2."""
    gain = advantage(members, non_members, threshold, confidence, seed)
    low, value, high = ((1 + x) / 2 for x in (gain.low, gain.value, gain.high))
    return Estimate(low, value, high, confidence, gain.method, gain.n)


def measure(
    members: ArrayLike,
    non_members: ArrayLike,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    fprs: Sequence[float] = FPRS,
) -> tuple[Figure, ...]:
    """Every figure of one attack: AUC, TPR at each FPR, advantage, balanced accuracy, lower tail.

    ``lower_tail_tpr_at_fpr_x`` and ``lower_tail_advantage`` are those of the reversed score:
    members that stand out by a low score leak as well, and an AUC below one half is no privacy.
    """
    inside, outside = _scores(members, "members"), _scores(non_members, "non-members")
    upper = [tpr_at_fpr(inside, outside, fpr, confidence) for fpr in fprs]
    lower = [tpr_at_fpr(-inside, -outside, fpr, confidence) for fpr in fprs]
    return (
        Figure("auc", auc(inside, outside, confidence)),
        *upper,
        Figure("advantage", advantage(inside, outside, None, confidence, seed)),
        Figure("balanced_accuracy", balanced_accuracy(inside, outside, None, confidence, seed)),
        *(Figure(f"lower_tail_{f.name}", f.estimate, f.unmeasured) for f in lower),
        # the reversed rule needs a threshold of its own
        Figure("lower_tail_advantage", advantage(-inside, -outside, None, confidence, seed)),
    )


def clopper_pearson(hits: int, n: int, confidence: float = 0.95) -> Estimate:
    """A share of n with its exact interval (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return Estimate(low, hits / n, high, confidence, "Clopper-Pearson", n)


def wilson(hits: int, n: int, confidence: float) -> tuple[float, float]:
    """The score interval of a share of n (Wilson 1927): both ends, within [0, 1]."""
    z = float(norm.ppf(0.5 + confidence / 2))
    centre = (hits + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * np.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(float(centre - reach), 0.0), min(float(centre + reach), 1.0)


def _scores(values: ArrayLike, name: str) -> Floats:
    scores = np.sort(np.asarray(values, dtype=np.float64).ravel())
    if not len(scores):
        raise ValueError(f"{name}: no scores")
    if np.isnan(scores[-1]):  # NaN sorts last
        raise ValueError(f"{name}: a score is NaN; drop the record or give it a score")
    return scores


def _mixture_quantile(weights: Floats, a: Array, b: Array, probability: float) -> float:
    """Where the mixture of Beta(a, b) reaches this probability; a = 0 stands at 0, b = 0 at 1."""
    first, second = np.maximum(a, 1e-12), np.maximum(b, 1e-12)

    def gap(x: float) -> float:
        mass = np.where(a == 0, 1.0, np.where(b == 0, 0.0, betainc(first, second, x)))
        return float(weights @ mass) - probability

    if gap(0.0) >= 0:
        return 0.0
    return float(brentq(gap, 0.0, 1.0)) if gap(1.0) > 0 else 1.0


def _newcombe_auc(value: float, m: int, n: int, confidence: float) -> tuple[float, float]:
    """Where (x - value)² = z² Var(x) below and above the value."""
    z = float(norm.ppf(0.5 + confidence / 2))
    size = (m + n) / 2 - 1

    def lower_end(value: float) -> float:
        def gap(x: float) -> float:
            spread = 1 + size * ((1 - x) / (2 - x) + x / (1 + x))
            noise = z * z * x * spread / (m * n)
            # at value 1 both sides share the factor 1 - x, and 1 itself is no end of the interval
            return (1 - x) - noise if value == 1 else (x - value) ** 2 - noise * (1 - x)

        return float(brentq(gap, 0.0, value)) if value > 0 else 0.0

    return lower_end(value), 1 - lower_end(1 - value)


def _halves(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two random halves of sorted scores, so that row order cannot matter."""
    first = np.zeros(len(scores), dtype=np.bool_)
    first[rng.permutation(len(scores))[: len(scores) // 2]] = True
    return scores[first], scores[~first]


def _best_threshold(inside: Floats, outside: Floats) -> float:
    """The threshold with the largest TPR - FPR; infinity (no member) where a side is empty."""
    if not len(inside) or not len(outside):
        return np.inf
    curve = roc(inside, outside)
    return float(curve.thresholds[np.argmax(curve.tpr - curve.fpr)])
