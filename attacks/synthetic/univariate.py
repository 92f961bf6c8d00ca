"""Predicates on one column: a value, or a range, that one record of the release alone has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.synthetic.sides import values
from attacks.synthetic.tables import Coded, Tables
from attacks.targets import Floats


@dataclass(frozen=True, eq=False)
class Ranges:
    """Predicates ``low <= column <= high``; both NaN say that the column is missing (m,).

    Columns are numbered as in ``Tables.names``; a category is its code, low = high.
    """

    column: NDArray[np.int64]
    low: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.column)

    def take(self, rows: NDArray[np.int64]) -> Ranges:
        """These predicates alone."""
        return Ranges(self.column[rows], self.low[rows], self.high[rows])

    def count(self, table: Coded) -> NDArray[np.int64]:
        """For how many records of the table each predicate holds (m,)."""
        counts = np.zeros(len(self), dtype=np.int64)
        for column in np.unique(self.column):
            mine = np.flatnonzero(self.column == column)
            present = np.sort(values(table, column))  # NaN last
            present = present[: len(present) - int(np.isnan(present).sum())]
            counts[mine] = np.where(
                np.isnan(self.low[mine]),
                len(table) - len(present),
                np.searchsorted(present, self.high[mine], side="right")
                - np.searchsorted(present, self.low[mine], side="left"),
            )
        return counts


def rare_values(tables: Tables, release: Coded) -> Ranges:
    """Every value, missing included, that exactly one record of the release has."""
    found = [_nothing()]
    for column in range(len(tables.names)):
        distinct, counts = np.unique(values(release, column), return_counts=True)
        alone = distinct[counts == 1]
        found.append(Ranges(np.full(len(alone), column), alone, alone))
    return _joined(found)


def own_ranges(tables: Tables, release: Coded) -> Ranges:
    """Around every number that one record alone has: as far as half way to its neighbours.

    The smallest and the largest reach to infinity.
    """
    found = [_nothing()]
    for column in range(len(tables.numeric)):
        numbers, counts = np.unique(values(release, column), return_counts=True)
        present = ~np.isnan(numbers)
        numbers, alone = numbers[present], counts[present] == 1
        between = numbers[:-1] / 2 + numbers[1:] / 2
        low = np.concatenate([[-np.inf], between])[: len(numbers)][alone]
        high = np.concatenate([between, [np.inf]])[: len(numbers)][alone]
        found.append(Ranges(np.full(len(low), column), low, high))
    return _joined(found)


def evenly(ranges: Ranges, count: int, rng: np.random.Generator) -> Ranges:
    """``count`` of the predicates at random, every column as often as the others while it lasts."""
    shuffled = ranges.take(rng.permutation(len(ranges)))
    by_column = np.argsort(shuffled.column, kind="stable")
    _, starts, sizes = np.unique(shuffled.column[by_column], return_index=True, return_counts=True)
    turn = np.arange(len(ranges)) - np.repeat(starts, sizes)
    return shuffled.take(by_column[np.argsort(turn, kind="stable")[:count]])


def at_random(tables: Tables, release: Coded, ranges: Ranges, rng: np.random.Generator) -> Ranges:
    """As many predicates on the same columns, their place drawn evenly over the column's range.

    Values of a category evenly over its levels, whole numbers where the release has no others; a
    range is as wide as the release's range over its number of distinct values.
    """
    low, high = np.full(len(ranges), np.nan), np.full(len(ranges), np.nan)
    a_range = ranges.low < ranges.high
    for column in np.unique(ranges.column):
        mine = np.flatnonzero(ranges.column == column)
        numbers = np.unique(values(release, column))
        numbers = numbers[~np.isnan(numbers)]
        if column >= len(tables.numeric):
            levels = tables.categorical[column - len(tables.numeric)].levels
            low[mine] = high[mine] = rng.integers(0, max(len(levels), 1), len(mine))
        elif len(numbers):
            reach = numbers[-1] - numbers[0]
            place = numbers[0] + reach * rng.random(len(mine))
            if not (numbers % 1).any():
                place = np.where(a_range[mine], place, np.round(place))
            low[mine] = place
            high[mine] = place + np.where(a_range[mine], reach / len(numbers), 0.0)
    return Ranges(ranges.column, low, high)


def _nothing() -> Ranges:
    return Ranges(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))


def _joined(parts: list[Ranges]) -> Ranges:
    return Ranges(
        np.concatenate([part.column for part in parts]),
        np.concatenate([part.low for part in parts]),
        np.concatenate([part.high for part in parts]),
    )
