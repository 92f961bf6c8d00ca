"""Have fresh real data drifted away from what a generator was trained on?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.stats import false_discovery_control, ks_2samp, norm

from attacks.synthetic.tables import Coded, Tables
from audit.quality.columns import ColumnResult, compare_columns
from audit.quality.distances import Counts, Floats, ks, ks_interval, present, tv_interval
from reports.record import Interval

State = Literal["drift", "no drift", "inconclusive"]
Metric = Literal["ks", "tv", "missing"]
HALVINGS = 20
FEW = 20  # from so many records on halves of a table say anything
FOUND = 0.8  # the power that `detectable` speaks of
COUNTED = 100  # up to so many values a column of numbers is permuted as counts
BLOCK = 100  # permutations held at once


@dataclass(frozen=True)
class ColumnDrift:
    """One comparison of a column: its values, or whether they are missing.

    Attributes:
        metric: ``ks`` of numbers and dates, ``tv`` of categories, ``missing`` for the difference
            of the shares of missing values.
        distance: between trained-on and fresh data, with an interval; None where a side has no
            value, and ``unmeasured`` says which.
        halves: the mean distance of two random halves of the trained-on data, at these sizes.
        p: probability of such a distance or a larger one without drift.
        p_corrected: the same after Benjamini and Hochberg (1995), over all comparisons.
        detectable: the smallest true distance that is found with a probability of 80 %.
    """

    column: str
    metric: Metric
    state: State
    distance: Interval | None
    halves: float
    p: float
    p_corrected: float
    detectable: float
    unmeasured: str = ""


@dataclass(frozen=True)
class Drift:
    """The verdict on fresh data, each column's part in it, and the release beside it.

    Attributes:
        state: ``drift`` if one column drifted, else ``inconclusive`` if one may have.
        needed: records of either table with which columns without drift would be cleared.
        release: fresh data against a synthetic release; it takes no part in the verdict.
    """

    state: State
    threshold: float
    confidence: float
    trained_on: int
    fresh: int
    needed: int
    columns: tuple[ColumnDrift, ...]
    release: tuple[ColumnResult, ...] = ()


def find_drift(
    tables: Tables,
    trained_on: str,
    fresh: str,
    synthetic: str | None = None,
    *,
    threshold: float = 0.1,
    confidence: float = 0.95,
    seed: int = 0,
) -> Drift:
    """Compare two tables column by column; what is missing is compared as well.

    A column drifted if its distance is significant (at 1 - confidence, corrected for all
    comparisons) and exceeds that of two halves of the trained-on data by more than ``threshold``.
    It did not drift if the whole interval of its distance lies at or below ``threshold``; the
    intervals of all columns hold together. In between it is inconclusive: the records are too few
    to tell, or the distance lies at the threshold.

    p: exact or asymptotic two-sample Kolmogorov-Smirnov test; for categories, and numbers of few
    values, a permutation test with the counts drawn from the multivariate hypergeometric.
    """
    alpha = 1 - confidence
    sides = (tables[trained_on], tables[fresh])
    compared = list(_compared(tables, sides))
    sample = _Sample(alpha / len(compared), threshold, np.random.default_rng(seed))
    found = [_compare(tables, sides, name, metric, sample) for name, metric in compared]
    corrected = false_discovery_control([column.p for column in found])
    columns = tuple(
        replace(column, p_corrected=float(p), state=_state(column, float(p), threshold, alpha))
        for column, p in zip(found, corrected, strict=True)
    )
    states = {column.state for column in columns}
    worst: tuple[State, ...] = ("drift", "inconclusive")
    return Drift(
        next((state for state in worst if state in states), "no drift"),
        threshold,
        confidence,
        len(sides[0]),
        len(sides[1]),
        # a column's distance without drift, and the reach of its interval, are both below
        # sqrt(log(2 / each) / n) but for a probability of `each`
        math.ceil(4 * math.log(2 / sample.each) / threshold**2),
        columns,
        compare_columns(tables, fresh, synthetic, threshold=threshold, confidence=confidence)
        if synthetic
        else (),
    )


@dataclass(frozen=True)
class _Sample:
    """What all comparisons share: ``each`` is what one of them may miss."""

    each: float
    threshold: float
    rng: np.random.Generator


def _compared(tables: Tables, sides: tuple[Coded, Coded]) -> Iterator[tuple[str, Metric]]:
    """Each column's values, and what is missing where anything is."""
    for column in tables.numeric + tables.categorical:
        yield column.name, "tv" if column.kind == "category" else "ks"
        if any(len(present(side, tables, column.name)) < len(side) for side in sides):
            yield column.name, "missing"


def _compare(
    tables: Tables, sides: tuple[Coded, Coded], name: str, metric: Metric, sample: _Sample
) -> ColumnDrift:
    first, second = (present(side, tables, name) for side in sides)
    n, m = len(first), len(second)
    if metric == "missing":
        gone, also = (np.array([k, len(side) - k]) for k, side in zip((n, m), sides, strict=True))
        return _of_counts(name, metric, gone, also, sample)
    if not n or not m:
        empty = " and ".join(said for said, k in (("trained-on", n), ("fresh", m)) if not k)
        state: State = "inconclusive" if n or m else "no drift"
        why = f"no value in {empty} data"
        return ColumnDrift(name, metric, state, None, 0.0, 1.0, 1.0, math.inf, why)
    levels, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    if metric == "tv" or len(levels) <= COUNTED:
        counts = [np.bincount(x, minlength=len(levels)) for x in (places[:n], places[n:])]
        return _of_counts(name, metric, counts[0], counts[1], sample)
    return _of_numbers(name, first, second, sample)


def _of_numbers(name: str, first: Floats, second: Floats, sample: _Sample) -> ColumnDrift:
    n, m = len(first), len(second)
    critical = math.sqrt(math.log(2 / sample.each) / 2 * (1 / n + 1 / m))
    halves = [ks(*np.split(sample.rng.permutation(first), [n // 2])) for _ in range(_halvings(n))]
    distance = ks_interval(ks(first, second), n, m, 1 - sample.each)
    p = float(ks_2samp(first, second).pvalue)
    return _column(name, "ks", distance, halves, p, critical, n, m, sample)


def _of_counts(
    name: str, metric: Metric, first: Counts, second: Counts, sample: _Sample
) -> ColumnDrift:
    """A comparison of counts over the same levels (k,), in their order."""
    n, m = int(first.sum()), int(second.sum())
    gaps = _ks_of_counts if metric == "ks" else _tv_of_counts
    value = float(gaps(first[None], second[None])[0])
    distance = (
        ks_interval(value, n, m, 1 - sample.each)
        if metric == "ks"
        else tv_interval(value, n, m, len(first), 1 - sample.each)
    )
    halves = [
        float(gaps(half, first - half)[0])
        for half in (_drawn(first, n // 2, 1, sample.rng) for _ in range(_halvings(n)))
    ]
    pooled, null = first + second, []
    draws = max(2000, math.ceil(2 / sample.each))
    for start in range(0, draws, BLOCK):
        part = _drawn(pooled, m, min(BLOCK, draws - start), sample.rng)
        null.append(gaps(pooled - part, part))
    moved = np.concatenate(null)
    p = (1 + int((moved >= value - 1e-12).sum())) / (1 + draws)
    critical = float(np.quantile(moved, 1 - sample.each, method="higher"))
    return _column(name, metric, distance, halves, p, critical, n, m, sample)


def _column(
    name: str,
    metric: Metric,
    distance: Interval,
    halves: list[float],
    p: float,
    critical: float,
    n: int,
    m: int,
    sample: _Sample,
) -> ColumnDrift:
    """The comparison before its p-value is corrected."""
    noise = math.sqrt(1 / n + 1 / m)
    # halves of n are n/2 each; without any, no distance can exceed what they would show
    floor = float(np.mean(halves)) * noise / math.sqrt(4 / n) if halves else 1.0
    # the sample's distance is no smaller than the gap at the event where the truth is largest
    detectable = max(critical, sample.threshold + floor) + norm.ppf(FOUND) * noise / 2
    return ColumnDrift(
        name,
        metric,
        "inconclusive",
        distance,
        floor,
        p,
        p,
        float(detectable) if detectable < 1 else math.inf,
    )


def _state(column: ColumnDrift, p: float, threshold: float, alpha: float) -> State:
    if column.distance is None:
        return column.state
    if p <= alpha and column.distance.value - column.halves > threshold:
        return "drift"
    return "no drift" if column.distance.high <= threshold else "inconclusive"


def _halvings(n: int) -> int:
    return HALVINGS if n >= FEW else 0


def _drawn(counts: Counts, size: int, times: int, rng: np.random.Generator) -> Counts:
    """Counts of ``size`` records drawn without replacement (times, k)."""
    method: Literal["marginals", "count"] = "marginals" if len(counts) <= COUNTED else "count"
    drawn: Counts = rng.multivariate_hypergeometric(counts, size, times, method=method)
    return drawn


def _tv_of_counts(first: Counts, second: Counts) -> Floats:
    gap: Floats = np.abs(_shares(first) - _shares(second)).sum(axis=1) / 2
    return gap


def _ks_of_counts(first: Counts, second: Counts) -> Floats:
    gap: Floats = np.abs(np.cumsum(_shares(first) - _shares(second), axis=1)).max(axis=1)
    return gap


def _shares(counts: Counts) -> Floats:
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares
