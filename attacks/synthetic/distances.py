"""How far records of mixed columns lie apart, and the nearest of many: exact, and block by block.

The squared distance of two records is a sum over their columns. A number or date counts by its
place among the values of all real tables, from 0 to 1: the squared difference of the places. A
category counts 0 where both have one value, else 1. Missing beside missing counts 0, missing beside
a value 1.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert
from threadpoolctl import threadpool_limits

from attacks.synthetic.rows import cell_hashes, find, row_hashes
from attacks.synthetic.tables import Tables
from attacks.targets import Floats

METRIC = (
    "distance: root of the sum over columns of the squared difference in rank (numbers and dates; "
    "rank among the different values of train and holdout together, from 0 to 1) and of 1 for each "
    "category that differs; missing beside missing counts 0, missing beside a value 1"
)
Rows = NDArray[np.int64]
BUCKETS = 16  # coordinates for one category; more levels than this share some
BUDGET = 96  # coordinates for all categories
GROUP = 32  # records of which one product is kept
SPARE = 8  # groups of candidates beyond the records asked for
BLOCK = 1 << 24  # products that a thread has in memory at once
THREADS = 4  # at most


@dataclass(frozen=True, eq=False)
class Points:
    """Records in the metric's scale: ``units`` (n, p) in [0, 1], NaN missing; ``codes`` (n, c)."""

    units: Floats
    codes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.units)

    def take(self, rows: Rows) -> Points:
        """These records alone."""
        return Points(self.units[rows], self.codes[rows])


def points(tables: Tables) -> dict[str, Points]:
    """Every table's records in one scale, made of the values of all real tables together.

    The D different values of a column stand at 1/2D, 3/2D and so on; a synthetic value between two
    of them stands in between, one beyond all of them at 0 or 1. Ranks of one real table, or its
    ranges, would favour it. How often a value occurs does not count: else a generator that writes
    0.01 for the zeros of most records would be far from all of them.
    """
    real = [table for name, table in tables.tables.items() if name != "synthetic"]
    units = {name: np.empty_like(table.numbers) for name, table in tables.tables.items()}
    for column in range(len(tables.numeric)):
        values = np.unique(np.concatenate([table.numbers[:, column] for table in real]))
        values = values[~np.isnan(values)]
        places = (np.arange(len(values)) + 0.5) / max(len(values), 1)
        for name, table in tables.tables.items():
            mine = table.numbers[:, column]
            units[name][:, column] = (
                np.interp(mine, values, places, left=0.0, right=1.0) if len(values) else 0.5
            )
            units[name][np.isnan(mine), column] = np.nan
    return {name: Points(units[name], table.codes) for name, table in tables.tables.items()}


def between(one: Points, other: Points) -> Floats:
    """Distances (n,) of records side by side."""
    return np.sqrt(_squares(one, np.arange(len(one)), other, np.arange(len(other))[:, None])[:, 0])


def nearest(queries: Points, reference: Points, k: int = 1) -> tuple[Floats, Rows]:
    """Distances (n, k), ascending, to the k nearest different records of the reference, and these.

    Equal records of the reference count once, by the first of them. Where there are fewer than k
    different ones, the distance is infinite and the row -1.

    The search filters and refines (Seidl and Kriegel 1998): coordinates in which plain Euclidean
    distance never exceeds the metric give candidates; they are sorted by the metric itself, and a
    query whose k-th is not below what the coordinates leave open gets more candidates. So the
    distances are exact; of records equally near either may be named.
    """
    asked, where = _distinct(queries)
    kept, _ = _distinct(reference)
    one, other = queries.take(asked), reference.take(kept)
    distances = np.full((len(one), k), np.inf)
    rows = np.full((len(one), k), -1, dtype=np.int64)
    open_ = np.arange(len(one))
    if k == 1:  # equal records need no search
        same = find(_hashes(one), _hashes(other))
        distances[same >= 0, 0], rows[same >= 0, 0] = 0.0, same[same >= 0]
        open_ = np.flatnonzero(same < 0)
    most = min(k, len(other))
    for part, found, near in _search(one, other, open_, most):
        distances[part, :most], rows[part, :most] = near, found
    return distances[where], np.where(rows >= 0, kept[rows], -1)[where]


def _search(one: Points, other: Points, open_: Rows, k: int) -> Iterator[tuple[Rows, Rows, Floats]]:
    """For parts of the open queries: which, the k nearest rows, their distances."""
    products = _Products(one, other)
    workers = min(THREADS, os.cpu_count() or 1)
    wide = k + SPARE
    # threads of our own, since those of a matrix product wait for one another after each block
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as pool:
        while len(open_):
            stripes = np.array_split(open_, min(workers, len(open_)))
            done = list(pool.map(partial(products.search, k=k, wide=wide), stripes))
            unsure = []
            for part, rows, apart, sure in itertools.chain.from_iterable(done):
                yield part[sure], rows[sure], apart[sure]
                unsure.append(part[~sure])
            open_ = np.concatenate(unsure)
            wide *= 4


class _Products:
    """Squared Euclidean distances of coordinates by single-precision products, in blocks.

    Only the least product in each group of 32 records is kept. The records of the groups with the
    least ones are candidates; what is in no such group cannot be nearer than the greatest of these
    least products, less its rounding.
    """

    def __init__(self, one: Points, other: Points) -> None:
        self.one, self.other = one, other
        self.left, right = coordinates(one, other)
        squares = (right**2).sum(axis=1)
        self.groups = -(-len(other) // GROUP)
        self.factors = np.zeros((right.shape[1] + 1, self.groups * GROUP), dtype=np.float32)
        self.factors[-1] = np.inf  # no record
        self.factors[:, : len(other)] = np.vstack([right.T, squares])
        self.lengths = (self.left**2).sum(axis=1)
        reach = 2 * np.sqrt(self.lengths.max() * squares.max()) + squares.max()
        self.slack = (len(self.factors) + 2) * np.finfo(np.float32).eps * reach

    def search(
        self, open_: Rows, k: int, wide: int
    ) -> list[tuple[Rows, Rows, Floats, NDArray[np.bool_]]]:
        """By parts: the queries, their k nearest rows, the distances, and whether that is sure."""
        answers = []
        groups, wide = self.groups, min(wide, self.groups)
        size = max(1, BLOCK // self.factors.shape[1])  # queries at once
        room = np.empty((min(size, len(open_)), self.factors.shape[1]), dtype=np.float32)
        for part in np.split(open_, range(size, len(open_), size)):
            ours = np.hstack([-2 * self.left[part], np.ones((len(part), 1))]).astype(np.float32)
            products = np.matmul(ours, self.factors, out=room[: len(part)])
            least = products.reshape(len(part), GROUP, groups).min(axis=1)
            near = np.argpartition(least, wide - 1, axis=1)[:, :wide]
            bound = np.take_along_axis(least, near, 1).max(axis=1) + self.lengths[part] - self.slack
            found = (near[:, :, None] + groups * np.arange(GROUP)).reshape(len(part), -1)
            gone = found >= len(self.other)
            found[gone] = 0
            squared = _squares(self.one, part, self.other, found)
            squared[gone] = np.inf
            order = np.argpartition(squared, k - 1, axis=1)[:, :k]
            order = np.take_along_axis(
                order, np.argsort(np.take_along_axis(squared, order, 1), axis=1), 1
            )
            apart, rows = np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)
            sure = (apart[:, -1] <= bound) | (wide == groups)
            answers.append((part, rows, np.sqrt(apart), sure))
        return answers


def coordinates(one: Points, other: Points) -> tuple[Floats, Floats]:
    """Euclidean coordinates of both, around their mean, whose distance never exceeds the metric.

    A missing number stands beside the middle of the scale, at a distance of at most 1 from all of
    it. A category's levels are the corners of a regular simplex of edge 1; rare levels share one.
    """
    units = np.vstack([one.units, other.units])
    missing = np.isnan(units)
    gaps = missing.any(axis=0)
    parts = [np.where(missing, 0.5, units), np.sqrt(0.75) * missing[:, gaps]]
    codes = np.vstack([one.codes, other.codes])
    most = int(np.clip(BUDGET // max(codes.shape[1], 1), 2, BUCKETS))
    for column in codes.T:
        _, level, counts = np.unique(column, return_inverse=True, return_counts=True)
        common = np.argsort(np.argsort(-counts, kind="stable"))[level]  # 0 is the commonest
        if len(counts) > most:
            half = most // 2
            common = np.where(common < half, common, half + common % (most - half))
        if len(counts) > 1:
            parts.append(helmert(min(len(counts), most)).T[common] / np.sqrt(2))
    both = np.hstack([np.zeros((len(units), 1)), *parts])
    both -= both.mean(axis=0)
    return both[: len(one)], both[len(one) :]


def _squares(one: Points, part: Rows, other: Points, found: Rows) -> Floats:
    """Squared distances (n, w) of the queries ``part`` (n,) to the records ``found`` (n, w)."""
    total = np.zeros(found.shape)
    for mine, theirs in zip(one.units.T, other.units.T, strict=True):
        left, right = mine[part][:, None], theirs[found]
        gap = left - right
        total += np.where(np.isnan(gap), np.isnan(left) != np.isnan(right), gap * gap)
    for code, theirs_ in zip(one.codes.T, other.codes.T, strict=True):
        total += code[part][:, None] != theirs_[found]
    return total


def _hashes(records: Points) -> NDArray[np.uint64]:
    return row_hashes(cell_hashes(records.units, records.codes))


def _distinct(records: Points) -> tuple[Rows, Rows]:
    """The first of each set of equal records, ascending, and where every record's first stands."""
    _, first, inverse = np.unique(_hashes(records), return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(first), dtype=np.int64)
    place[order] = np.arange(len(first))
    return first[order].astype(np.int64), place[inverse]
