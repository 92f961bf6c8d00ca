"""Bounds and levels that nobody wrote down, from one noisy histogram a column.

Numbers: a histogram over powers of two, zero, and their negatives; the bounds are the outer edges
of the outermost bins that hold more than noise (the approximate bounds of Wilson et al. 2020,
"Differentially private SQL with bounded user contribution", section 5). Dates: the same by year.

Categories: the levels seen whose noisy count passes a threshold (Korolova et al. 2009, "Releasing
search queries and clicks privately"; Wilson et al. 2020, section 3). Noise stands only for levels
that are there, so a level of one record betrays it if its noisy count passes. The threshold is 1 +
9 standard deviations: that has a probability of 1.1e-19 a column, no more than what the noise's own
cut tail leaves (trainers/dpsgd/noise.py), and far below any δ that people state. It is not in the
ledger.
"""

from __future__ import annotations

import datetime
import math
import re

import numpy as np
import pandas as pd
from scipy.stats import norm

from trainers.tabular.columns import CategoryColumn, Column, DateColumn, Ordered, text_of
from trainers.tabular.domain import Domain
from trainers.tabular.measure import Floats, Measurements

THRESHOLD = 9.0
FALSE_BIN = 0.01  # the probability that a column gets a bin of noise alone
_POWERS = 2.0 ** np.arange(-20, 50)
_POWER_EDGES = np.concatenate([-_POWERS[::-1], _POWERS])
_YEARS = range(1850, 2151)
_EPOCH = datetime.date(1970, 1, 1)
_YEAR_EDGES = np.array([(datetime.date(y, 1, 1) - _EPOCH).days for y in _YEARS], dtype=float)


def fill(domain: Domain, frame: pd.DataFrame, measurements: Measurements, mu: float) -> Domain:
    """The domain with bounds and levels for the columns that lacked them, by one measurement.

    Raises:
        ValueError: if a value does not fit its column (before anything is measured), or a column
            has too few records for the noise (after it).
    """
    table = domain.checked(frame)
    histograms = [_histogram(name, domain.columns[name], table[name]) for name in domain.unknown]
    noisy, deviation = measurements.tables(
        [found for _, found in histograms], mu, "bounds and levels of columns"
    )
    filled = dict(domain.columns)
    for name, (keys, _), heights in zip(domain.unknown, histograms, noisy, strict=True):
        column = filled[name]
        given = column.model_dump()
        if isinstance(column, CategoryColumn):
            other = "other" if column.other is None else column.other
            kept = [k for k, h in zip(keys, heights, strict=True) if h > 1 + THRESHOLD * deviation]
            given |= {"levels": _typed(kept) or [other], "other": other}
        else:
            edges = _edges(column)
            level = deviation * norm.isf(FALSE_BIN / len(heights))
            bins = np.flatnonzero(heights > level)
            if not bins.size:
                raise ValueError(
                    f"column {name!r}: too few records for bounds under this noise; give low, high"
                )
            given |= _bounds(column, edges[bins[0]], edges[bins[-1] + 1])
        filled[name] = type(column).model_validate(given)
    return Domain(columns=filled)


def _histogram(name: str, column: Column, series: pd.Series) -> tuple[list[str], Floats]:
    """The levels (none for bounds) and their counts; one record is in one of them at most."""
    if series.isna().any() and not column.missing:
        row = int(np.flatnonzero(series.isna())[0])
        raise ValueError(f"column {name!r}: record {row} is missing; allow it: missing: true")
    if isinstance(column, CategoryColumn):
        texts = series.dropna().astype(object).map(text_of)
        found = texts.value_counts().sort_index()  # the records' order must not show
        return list(found.index), found.to_numpy().astype(np.float64)
    try:
        values = column.axis(series)
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}") from None
    edges = _edges(column)
    inside = np.clip(values[~np.isnan(values)], edges[0], np.nextafter(edges[-1], -math.inf))
    heights: Floats = np.histogram(inside, edges)[0].astype(np.float64)
    return [], heights


def _typed(levels: list[str]) -> list[str] | list[int]:
    """Whole numbers if all are; told from the released levels alone."""
    whole = all(re.fullmatch(r"0|-?[1-9]\d{0,14}", level) for level in levels)
    return [int(level) for level in levels] if whole else levels


def _edges(column: Ordered) -> Floats:
    return _YEAR_EDGES if isinstance(column, DateColumn) else _POWER_EDGES


def _bounds(column: Ordered, low: float, high: float) -> dict[str, object]:
    if isinstance(column, DateColumn):
        days = datetime.timedelta(days=low), datetime.timedelta(days=high - 1)
        return {"low": _EPOCH + days[0], "high": _EPOCH + days[1]}
    low, high = (0.0 if abs(edge) == _POWERS[0] else edge for edge in (low, high))
    if column.kind == "integer":
        return {"low": math.floor(low), "high": math.ceil(high)}
    return {"low": float(low), "high": float(high)}
