"""Do pairs of columns hang together in the synthetic table as they do in the real one?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from attacks.synthetic.tables import Coded, Tables
from reports.record import Interval, Metric

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Mask = NDArray[np.bool_]
Measure = Literal["spearman", "correlation_ratio", "cramers_v"]
DRAWN = 2000  # records a replicate: more would only cost time


@dataclass(frozen=True)
class Pair:
    """One pair of columns: its association in either table, and synthetic minus real."""

    first: str
    second: str
    measure: Measure
    real: Interval
    synthetic: Interval
    difference: Interval


@dataclass(frozen=True)
class Associations:
    """Every pair that both tables can tell of, largest difference first, and those they cannot.

    ``unmeasured`` holds both names and the reason. ``mean_absolute_difference`` is over ``pairs``.
    """

    pairs: tuple[Pair, ...]
    mean_absolute_difference: Metric
    unmeasured: tuple[tuple[str, str, str], ...]


def compare_associations(
    tables: Tables,
    real: str,
    synthetic: str,
    *,
    confidence: float = 0.95,
    replicates: int = 200,
    seed: int = 0,
) -> Associations:
    """Spearman's ρ of two numbers, Cramér's V of two categories, the correlation ratio of both.

    V with the correction of Bergsma (2013), the correlation ratio with that of Kelley (1935): else
    columns of many levels would seem associated where records are few. Dates are numbers. A pair
    is judged on the records that have both values; ranks are among a column's present values.

    Intervals: bootstrap with ``replicates`` resamples of both tables, of at most 2,000 records
    each with the deviations scaled by √(drawn/n) (Bickel, Götze and van Zwet 1997). The intervals
    of the pairs hold together: their width is the quantile of the largest studentised deviation.
    The mean absolute difference is off by at most the mean absolute deviation, whose quantile is
    added on either side, since the sample's mean is too large where the truth is near zero.
    """
    values = [_associations(tables[table]) for table in (real, synthetic)]
    told = ~(np.isnan(values[0]) | np.isnan(values[1]))
    names = list(_pairs(tables))
    unmeasured = tuple(
        (a, b, _reason(tables, (real, synthetic), (a, b)))
        for (a, b, _), fine in zip(names, told, strict=True)
        if not fine
    )
    figure = "mean_absolute_difference"
    if not told.any():
        return Associations((), Metric(figure, unmeasured="no pair could be measured"), unmeasured)
    rng = np.random.default_rng(seed)
    first, second = (x[told] for x in values)
    moved = [
        np.array([_deviation(tables[t], x, told, rng) for _ in range(replicates)])
        for t, x in ((real, first), (synthetic, second))
    ]
    n = min(len(tables[real]), len(tables[synthetic]))
    deviations = moved[1] - moved[0]
    spreads = [np.maximum(np.sqrt((d**2).mean(axis=0)), 1 / n) for d in (*moved, deviations)]
    factor = float(np.quantile((np.abs(deviations) / spreads[2]).max(axis=1), confidence))
    shown = (  # figures, spreads, and the range of each measure
        (first, spreads[0], False),
        (second, spreads[1], False),
        (second - first, spreads[2], True),
    )
    kept = [name for name, fine in zip(names, told, strict=True) if fine]
    pairs = []
    for i in np.argsort(-np.abs(second - first), kind="stable"):
        least = -1.0 if kept[i][2] == "spearman" else 0.0
        intervals = [
            _interval(x[i], factor * s[i], least - signed, 1.0 + signed, confidence, n)
            for x, s, signed in shown
        ]
        pairs.append(Pair(*kept[i], *intervals))
    mean = float(np.abs(second - first).mean())
    off = float(np.quantile(np.abs(deviations).mean(axis=1), confidence))
    return Associations(
        tuple(pairs), Metric(figure, _interval(mean, off, 0.0, 2.0, confidence, n)), unmeasured
    )


def spearman(values: Floats) -> Floats:
    """Spearman's ρ of every two columns of (n, p), on the records that have both; (p, p).

    NaN where a column does not vary on them, or fewer than three have both.
    """
    present = ~np.isnan(values)
    counts = present.sum(axis=0)
    ranks = rankdata(values, axis=0, nan_policy="omit") - (counts + 1) / 2
    ranks = np.where(present, ranks / np.maximum(counts, 1), 0.0)
    both = present.astype(np.float64)
    n, sums, squares = both.T @ both, ranks.T @ both, (ranks**2).T @ both
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = squares - sums**2 / n
        variances = np.where((n >= 3) & (variances > 1e-9), variances, np.nan)
        rho: Floats = (ranks.T @ ranks - sums * sums.T / n) / np.sqrt(variances * variances.T)
    return np.clip(rho, -1, 1)


def correlation_ratio(codes: Codes, values: Floats) -> float:
    """How much of the variance of ``values`` lies between levels: η, with Kelley's correction.

    NaN where either does not vary on the records that have both, or no level repeats.
    """
    both = (codes >= 0) & ~np.isnan(values)
    codes, values = codes[both], values[both]
    n = len(codes)
    if n < 3 or np.ptp(values) == 0:
        return np.nan
    values = values - values.mean()
    counts = np.bincount(codes)
    levels = int((counts > 0).sum())
    if levels < 2 or levels == n:
        return np.nan
    between = (np.bincount(codes, weights=values) ** 2 / np.maximum(counts, 1)).sum()
    within = 1 - between / (values**2).sum()
    return float(np.sqrt(max(0.0, 1 - within * (n - 1) / (n - levels))))


def cramers_v(first: Codes, second: Codes) -> float:
    """Cramér's V of two categories with the bias correction of Bergsma (2013), from 0 to 1.

    NaN where either does not vary on the records that have both, or nearly every level is unique.
    """
    both = (first >= 0) & (second >= 0)
    first, second = first[both], second[both]
    n = len(first)
    if n < 3:
        return np.nan
    rows, columns = np.bincount(first), np.bincount(second)
    r, k = int((rows > 0).sum()), int((columns > 0).sum())
    cells, counts = np.unique(first.astype(np.int64) * len(columns) + second, return_counts=True)
    expected = rows[cells // len(columns)] * columns[cells % len(columns)].astype(np.float64)
    phi2 = (counts**2 / expected).sum() - 1
    smaller = min(r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)) - 1
    if smaller < 1e-9:
        return np.nan
    return float(np.sqrt(min(1.0, max(0.0, phi2 - (r - 1) * (k - 1) / (n - 1)) / smaller)))


def _pairs(tables: Tables) -> Iterator[tuple[str, str, Measure]]:
    """The names of every pair, in the order of ``_associations``."""
    numbers, categories = ([c.name for c in part] for part in (tables.numeric, tables.categorical))
    yield from ((a, b, "spearman") for a, b in combinations(numbers, 2))
    yield from ((a, b, "correlation_ratio") for a, b in product(categories, numbers))
    yield from ((a, b, "cramers_v") for a, b in combinations(categories, 2))


def _associations(table: Coded) -> Floats:
    """Every pair's association (P,); NaN where there is none to tell."""
    numbers, codes = table.numbers, table.codes
    p, q = range(numbers.shape[1]), range(codes.shape[1])
    return np.array(
        [
            *spearman(numbers)[np.triu_indices(len(p), 1)],
            *(correlation_ratio(codes[:, i], numbers[:, j]) for i, j in product(q, p)),
            *(cramers_v(codes[:, i], codes[:, j]) for i, j in combinations(q, 2)),
        ]
    )


def _deviation(table: Coded, found: Floats, told: Mask, rng: np.random.Generator) -> Floats:
    """By how much one resample's associations (P,) lie beside the table's own."""
    n = len(table)
    drawn = min(n, DRAWN)
    again = _associations(table.take(rng.integers(0, n, drawn)))[told]
    # a pair that vanishes from a resample is one of no association
    deviation: Floats = (np.nan_to_num(again) - found) * np.sqrt(drawn / n)
    return deviation


def _interval(
    value: float, half: float, least: float, most: float, confidence: float, n: int
) -> Interval:
    low, high = max(least, value - half), min(most, value + half)
    ends = float(min(low, value)), float(value), float(max(high, value))
    return Interval(*ends, confidence, "bootstrap", n)


def _reason(tables: Tables, sides: tuple[str, str], names: tuple[str, str]) -> str:
    """Why a pair has no association in one of the tables."""
    numbers = [column.name for column in tables.numeric]
    categories = [column.name for column in tables.categorical]
    for side in sides:
        columns = []
        for name in names:
            if name in numbers:
                column: NDArray[Any] = tables[side].numbers[:, numbers.index(name)]
                gone = np.isnan(column)
            else:
                column = tables[side].codes[:, categories.index(name)]
                gone = column < 0
            if gone.all():
                return f"{side}: {name!r} has no value"
            if len(np.unique(column[~gone])) == 1:
                return f"{side}: {name!r} has one value"
            columns.append(gone)
        if (~columns[0] & ~columns[1]).sum() < 3:
            return f"{side}: fewer than 3 records have both"
    return "too few records for so many levels, or no variation where both are present"
