"""Figures of scores that share targets and runs, and the least ε that they show.

Scores come as (P, K): P pairs of runs, K targets. In each pair every target is in one run
(``inside``) and out of the other (``outside``). One target's scores are alike, and so are those
read off one table, so neither scores nor targets are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.stats import beta, mannwhitneyu, norm, t

from attacks.metrics import Estimate, Figure, auc, tpr_at_fpr
from attacks.targets import Array, Floats

FPRS = (0.1, 0.01)
REPLICATES = 1000
CELLS = 4_000_000  # points of replicated curves in memory at a time
METHOD = "bootstrap of targets, of pairs of runs, or as if independent, the widest"


@dataclass(frozen=True)
class EpsilonBound:
    """At least this ε, for adding or removing one record, or no evidence of any.

    The counts are those of the pairs that nobody had looked at when the rule was chosen.

    Attributes:
        epsilon: the bound; None where the runs show nothing, which is not an ε of 0.
        target: row of the target that the rule is about.
        tail: ``in`` calls it a member at scores of at least ``threshold``, ``out`` a non-member
            below it.
        hits: of ``pairs`` runs where that is true (with the target for ``in``), how many it says
            so of; ``false_alarms`` of as many where it is not.
        most: the largest bound that so many pairs can show.
    """

    epsilon: float | None
    confidence: float
    delta: float
    target: int
    tail: Literal["in", "out"]
    threshold: float
    hits: int
    false_alarms: int
    pairs: int
    most: float


def pooled(
    inside: Floats, outside: Floats, confidence: float = 0.95, seed: int = 0
) -> tuple[Figure, ...]:
    """AUC and TPR at FPR 0.1 and 0.01 over all targets and runs, at one threshold for all.

    Interval: the widest of three. Percentiles where whole targets are drawn anew (what of other
    targets like these), where whole pairs are (what of other runs), both at the expanded levels
    for few clusters (Hesterberg 2015, section 5.3), and the interval of ``attacks.metrics`` for
    independent scores, which has width at full separation too.
    """
    figures = [Figure("auc", auc(inside, outside, confidence))]
    figures += [tpr_at_fpr(inside.ravel(), outside.ravel(), fpr, confidence) for fpr in FPRS]
    rng = np.random.default_rng(seed)
    ends = [
        np.quantile(_replicates(inside, outside, rng, axis), _levels(count, confidence), axis=0)
        for axis, count in enumerate(inside.shape)
        if count > 1
    ]
    lows, highs = np.min(ends, axis=(0, 1)), np.max(ends, axis=(0, 1))
    found = []
    for figure, low, high in zip(figures, lows, highs, strict=True):
        if (plain := figure.estimate) is not None:
            wide = (min(plain.low, float(low)), plain.value, max(plain.high, float(high)))
            figure = Figure(figure.name, Estimate(*wide, confidence, METHOD, plain.n))
        found.append(figure)
    return tuple(found)


def by_target(
    inside: Floats, outside: Floats, confidence: float = 0.95
) -> tuple[list[Estimate], Floats]:
    """Each target's AUC over its own runs, which are independent, and its p-value (K,) after Holm.

    Two-sided Mann-Whitney tests of "membership does not show", corrected for all targets (Holm
    1979). The intervals are not corrected.
    """
    columns = list(zip(inside.T, outside.T, strict=True))
    areas = [auc(a, b, confidence) for a, b in columns]
    p = np.array([float(mannwhitneyu(a, b).pvalue) for a, b in columns])
    return areas, holm(np.where(np.isnan(p), 1.0, p))


def holm(p: Floats) -> Floats:
    """p-values corrected for their number (Holm 1979), in the given order."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def least_epsilon(
    chosen_on: tuple[Floats, Floats],
    counted_on: tuple[Floats, Floats],
    targets: NDArray[np.int64],
    delta: float = 0.0,
    confidence: float = 0.95,
) -> EpsilonBound:
    """The ε that the best rule shows: log((TPR - δ) / FPR) at the worst of both rates' intervals.

    A rule is a target, a threshold and a side (Kairouz, Oh and Viswanath 2015; both sides as in
    Jagielski, Ullman and Oprea 2020). The best on the pairs ``chosen_on`` (inside, outside) is
    counted on other pairs, ``counted_on``, once: nothing is corrected, for nothing else is tried.
    Each rate has a Clopper-Pearson interval of the pairs, which are independent.
    """
    column, tail, threshold = _best_rule(*chosen_on, delta, confidence)
    inside, outside = (side[:, column] for side in counted_on)
    pairs = len(inside)
    over = int((inside >= threshold).sum()), int((outside >= threshold).sum())
    hits, alarms = over if tail == "in" else (pairs - over[1], pairs - over[0])
    low, high = _ends(pairs, delta, confidence)
    bound, most = (float(low[h] - high[a]) for h, a in ((hits, alarms), (pairs, 0)))
    return EpsilonBound(
        epsilon=bound if bound > 0 else None,
        confidence=confidence,
        delta=delta,
        target=int(targets[column]),
        tail=tail,
        threshold=threshold,
        hits=hits,
        false_alarms=alarms,
        pairs=pairs,
        most=max(most, 0.0),
    )


def _best_rule(
    inside: Floats, outside: Floats, delta: float, confidence: float
) -> tuple[int, Literal["in", "out"], float]:
    pairs, columns = inside.shape
    low, high = _ends(pairs, delta, confidence)
    best: tuple[float, int, Literal["in", "out"], float] = (-np.inf, 0, "in", np.inf)
    for column in range(columns):
        a, b = np.sort(inside[:, column]), np.sort(outside[:, column])
        values = np.unique(np.concatenate([a, b]))
        thresholds = np.append(values[0], (values[1:] + values[:-1]) / 2)
        over_a = pairs - np.searchsorted(a, thresholds)
        over_b = pairs - np.searchsorted(b, thresholds)
        sides: tuple[tuple[Literal["in", "out"], Array, Array], ...] = (
            ("in", over_a, over_b),
            ("out", pairs - over_b, pairs - over_a),
        )
        for tail, hits, alarms in sides:
            bounds = low[hits] - high[alarms]
            at = int(np.argmax(bounds))
            if bounds[at] > best[0]:
                best = (float(bounds[at]), column, tail, float(thresholds[at]))
    return best[1:]


def _ends(pairs: int, delta: float, confidence: float) -> tuple[Floats, Floats]:
    """For 0 to ``pairs`` cases, the least log(share - δ) and the largest log(share).

    Ends of Clopper-Pearson intervals; -inf where the share may be δ or less.
    """
    tail, cases = (1 - confidence) / 2, np.arange(1, pairs + 1)
    least = np.append(0.0, beta.ppf(tail, cases, pairs - cases + 1))
    largest = np.append(beta.ppf(1 - tail, cases, pairs - cases + 1), 1.0)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(least - delta, 0.0)), np.log(largest)


def _levels(count: int, confidence: float) -> tuple[float, float]:
    """The percentiles that act as Student's interval of ``count`` clusters does."""
    reach = np.sqrt(count / (count - 1)) * t.ppf((1 + confidence) / 2, count - 1)
    return float(norm.cdf(-reach)), float(norm.cdf(reach))


def _replicates(inside: Floats, outside: Floats, rng: np.random.Generator, axis: int) -> Floats:
    """AUC and TPR at each FPR (REPLICATES, 3); drawn are pairs (axis 0) or targets (axis 1)."""
    values, place = np.unique(np.concatenate([inside, outside]).ravel(), return_inverse=True)
    clusters, each = inside.shape[axis], inside.shape[1 - axis]
    tables = []  # for each cluster, the scores above each value: from none to all
    for side in place.reshape(2, *inside.shape):
        table = np.zeros((clusters, len(values) + 1))
        np.add.at(table, (np.indices(side.shape)[axis], len(values) - side), 1.0)
        tables.append(np.cumsum(table, axis=1))
    parts = -(-REPLICATES * len(values) // CELLS)
    found = []
    for part in np.array_split(np.arange(REPLICATES), parts):
        drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), len(part))
        tpr, fpr = (drawn @ table / (clusters * each) for table in tables)
        at = [np.count_nonzero(fpr <= f + 1e-12, axis=1) - 1 for f in FPRS]
        rates = [np.take_along_axis(tpr, k[:, None], axis=1)[:, 0] for k in at]
        found.append(np.stack([trapezoid(tpr, fpr, axis=1), *rates], axis=1))
    return np.asarray(np.clip(np.concatenate(found), 0.0, 1.0))  # rounding


def most_exposed(
    inside: Floats, outside: Floats, targets: NDArray[np.int64], confidence: float = 0.95
) -> tuple[int, Estimate]:
    """The target (its row) with the largest AUC, with an interval that pays for all targets."""
    each = 1 - (1 - confidence) / len(targets)
    areas = [auc(a, b, each) for a, b in zip(inside.T, outside.T, strict=True)]
    worst = int(np.argmax([area.value for area in areas]))
    found = areas[worst]
    method = f"{found.method}, Bonferroni over {len(targets)} targets"
    return int(targets[worst]), Estimate(
        found.low, found.value, found.high, confidence, method, found.n
    )
