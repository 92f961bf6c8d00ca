"""Distances between two samples of one column, each with an interval that needs no assumption."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.synthetic.tables import Coded, Tables
from reports.record import Interval

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def ks(first: Floats, second: Floats) -> float:
    """Kolmogorov-Smirnov: the largest gap between two distribution functions, from 0 to 1.

    Args:
        first: values (n,), none missing, in any order.
        second: values (m,), likewise.
    """
    first, second = np.sort(first), np.sort(second)
    at = np.concatenate([first, second])
    below = np.searchsorted(first, at, side="right") / len(first)
    return float(np.abs(below - np.searchsorted(second, at, side="right") / len(second)).max())


def tv(first: Counts, second: Counts) -> float:
    """Total variation of two tables of counts over the same levels (k,), from 0 to 1."""
    return float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)


def reach(n: int, m: int, confidence: float) -> float:
    """How far a distance of samples of n and m may fall below its mean, or rise above it.

    McDiarmid (1989): one record moves either distance by 1/n or 1/m. Each side is missed with
    probability (1 - confidence) / 2.
    """
    return math.sqrt(math.log(2 / (1 - confidence)) * (1 / n + 1 / m) / 2)


def ks_interval(value: float, n: int, m: int, confidence: float) -> Interval:
    """Where the population's distance lies, given the samples' one.

    Upper end: the mean over samples is no smaller than the truth (a supremum is convex), and
    ``reach`` bounds how far below its mean the sample's distance lies. Lower end: each empirical
    distribution function lies within √(ln(2/β)/2n) of its own (Dvoretzky, Kiefer and Wolfowitz
    with the constant of Massart 1990), β a quarter of what the interval may miss.
    """
    band = math.sqrt(math.log(8 / (1 - confidence)) / 2)
    low = value - band * (1 / math.sqrt(n) + 1 / math.sqrt(m))
    return _within(
        low, value, value + reach(n, m, confidence), confidence, "Massart, McDiarmid", n, m
    )


def tv_interval(value: float, n: int, m: int, levels: int, confidence: float) -> Interval:
    """Where the population's distance lies, given the samples' one over ``levels`` levels seen.

    The upper end as in ``ks_interval``. Lower end: the mean over samples exceeds the truth by at
    most half of √((k-1)/n) + √((k-1)/m) (Cauchy-Schwarz on the levels' standard deviations).
    """
    bias = math.sqrt(max(levels - 1, 0)) * (1 / math.sqrt(n) + 1 / math.sqrt(m)) / 2
    far = reach(n, m, confidence)
    return _within(value - far - bias, value, value + far, confidence, "McDiarmid", n, m)


def present(table: Coded, tables: Tables, name: str) -> NDArray[Any]:
    """A column's present values: numbers (n,), or a category's codes (n,)."""
    numeric = [column.name for column in tables.numeric]
    if name in numeric:
        values = table.numbers[:, numeric.index(name)]
        return values[~np.isnan(values)]
    codes = table.codes[:, [column.name for column in tables.categorical].index(name)]
    return codes[codes >= 0].astype(np.int64)


def _within(
    low: float, value: float, high: float, confidence: float, method: str, n: int, m: int
) -> Interval:
    return Interval(max(0.0, low), value, max(value, min(1.0, high)), confidence, method, min(n, m))
