"""From noisy tables to a consistent one: what can be done without looking at the records again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROUNDS = 50


def nonnegative(noisy: Floats, total: float) -> Floats:
    """The nearest table (least squares) without negative cells whose sum is ``total``.

    One number is taken from every cell, and what falls below zero is zero (Duchi et al. 2008,
    "Efficient projections onto the l1-ball", figure 1).
    """
    falling = np.sort(noisy, axis=None)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    taken = over[np.flatnonzero(falling > over)[-1]]
    kept: Floats = np.maximum(noisy - taken, 0.0)
    return kept


def shrunk(noisy: Floats, towards: Floats, deviation: float) -> Floats:
    """The noisy table, moved towards one that is believed, as far as noise explains the distance.

    The positive part estimator of James and Stein (1961) with ``towards`` as its origin.
    """
    off = noisy - towards
    explained = deviation**2 * max(noisy.size - 2, 0)
    square = float((off**2).sum())
    return towards + off * max(0.0, 1 - explained / square) if square else towards


def raked(table: Floats, first: Floats, second: Floats) -> Floats:
    """A table (l, p, c) with the margins ``first`` (l, p) and ``second`` (l, c), slice by slice.

    Iterative proportional fitting (Deming and Stephan 1940). Where the table has no record in a row
    or column that a margin says is there, the margins' product steps in.
    """
    of_slice = first.sum(axis=1)[:, None, None]
    product = first[:, :, None] * second[:, None, :] / np.where(of_slice > 0, of_slice, 1)
    table = table + 1e-9 * (table.sum() or 1.0) / table.size
    table = np.where(product > 0, table, 0.0)
    for _ in range(ROUNDS):
        table = table * _ratio(first, table.sum(axis=2))[:, :, None]
        table = table * _ratio(second, table.sum(axis=1))[:, None, :]
    return table


def _ratio(wanted: Floats, found: Floats) -> Floats:
    return np.divide(wanted, found, out=np.zeros_like(found), where=found > 0)
