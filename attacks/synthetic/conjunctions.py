"""Predicates on several columns, grown from records of a release until they hold for one alone.

A condition is an equality between codes. Every column has one coarse condition (a category's value,
or in which eighth of the release a number lies) and every numeric column a second, its exact value.
Which records a predicate holds for is a row of bits, so that a condition more is an ``and``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.synthetic.tables import Coded

EIGHTHS = 8
ANY = -2  # no condition on this column
OTHER = -1  # a number that the release does not have
BLOCK = 1 << 25  # predicates times records compared at once, bytes

Codes = NDArray[np.int32]
Bits = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Coding:
    """How records become codes (conditions, n): coarse ones first, then the exact numbers."""

    edges: tuple[NDArray[np.float64], ...]
    values: tuple[NDArray[np.float64], ...]

    def __call__(self, table: Coded) -> Codes:
        """The codes of a table's records (conditions, n)."""
        coarse, exact = [], []
        for column, (edges, values) in enumerate(zip(self.edges, self.values, strict=True)):
            numbers = table.numbers[:, column]
            missing = np.isnan(numbers)
            coarse.append(
                np.where(missing, len(edges) + 1, np.searchsorted(edges, numbers, "right"))
            )
            place = np.minimum(np.searchsorted(values, numbers), max(len(values) - 1, 0))
            known = values[place] == numbers if len(values) else np.zeros(len(table), np.bool_)
            exact.append(np.where(missing, len(values), np.where(known, place, OTHER)))
        rows = [*coarse, *(table.codes.T + 1), *exact]
        return np.array(rows, dtype=np.int32).reshape(len(rows), len(table))

    @property
    def exact(self) -> int:
        """How many of the conditions, the last ones, are exact numbers."""
        return len(self.values)


def coding(release: Coded) -> Coding:
    """The coding whose eighths and exact values are the release's."""
    edges, values = [], []
    for numbers in release.numbers.T:
        present = numbers[~np.isnan(numbers)]
        values.append(np.unique(present))
        cuts = np.quantile(present, np.arange(1, EIGHTHS) / EIGHTHS) if len(present) else present
        edges.append(np.unique(cuts))
    return Coding(tuple(edges), tuple(values))


def grow(codes: Codes, exact: int, rows: NDArray[np.int64], rng: np.random.Generator) -> Codes:
    """A predicate from each of these records of the release, as codes (m, conditions).

    Conditions are added in random order, coarse ones first, until the predicate holds for the
    record alone, and then as many again, so far as coarse ones are left. If k conditions isolate
    one of n records, each predicate has a weight of about 1/n; 2k bring it to about 1/n².

    Args:
        codes: of the release's distinct records (conditions, n).
        exact: how many of the conditions are exact numbers.
        rows: the records to start from (m,).
    """
    conditions, n = codes.shape
    coarse = conditions - exact
    grown = np.full((len(rows), conditions), ANY, dtype=np.int32)
    for block in _blocks(len(rows), n):
        mine = rows[block]
        values = codes[:, mine].T
        haste = rng.random((len(mine), conditions))
        haste[:, coarse:] += 1  # exact conditions come last
        order = haste.argsort(axis=1)
        alive = np.tile(np.packbits(np.ones(n, np.bool_)), (len(mine), 1))
        depth = np.full(len(mine), conditions)
        active = np.arange(len(mine))
        for step in range(conditions):
            next_one = order[active, step]
            for condition in np.unique(next_one):
                which = active[next_one == condition]
                alive[which] &= _bits(codes[condition], values[which, condition])
            alone = _counts(alive[active]) == 1
            depth[active[alone]] = step + 1
            active = active[~alone]
            if not len(active):
                break
        kept = np.maximum(depth, np.minimum(2 * depth, coarse))
        grown[block] = np.where(order.argsort(axis=1) < kept[:, None], values, ANY)
    return grown


def mixed(predicates: Codes, codes: Codes, rng: np.random.Generator) -> Codes:
    """As many predicates on the same columns, each condition from a record of its own (m, c)."""
    drawn = rng.integers(0, codes.shape[1], predicates.shape)
    others = codes[np.arange(len(codes)), drawn]
    return np.where(predicates == ANY, ANY, others)


def count(predicates: Codes, codes: Codes) -> NDArray[np.int64]:
    """For how many of the records with these codes (c, n) each predicate (m, c) holds (m,)."""
    n = codes.shape[1]
    counts = np.empty(len(predicates), dtype=np.int64)
    for block in _blocks(len(predicates), n):
        asked = predicates[block]
        alive = np.tile(np.packbits(np.ones(n, np.bool_)), (len(asked), 1))
        for condition, of_records in enumerate(codes):
            which = np.flatnonzero(asked[:, condition] != ANY)
            if len(which):
                alive[which] &= _bits(of_records, asked[which, condition])
        counts[block] = _counts(alive)
    return counts


def _bits(codes: Codes, values: Codes) -> Bits:
    """Which records have each value, as bits (len(values), bytes)."""
    distinct, place = np.unique(values, return_inverse=True)
    return np.packbits(codes == distinct[:, None], axis=1)[place]


def _counts(bits: Bits) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.bitwise_count(bits).sum(axis=1, dtype=np.int64)
    return counts


def _blocks(predicates: int, records: int) -> Iterator[slice]:
    size = max(1, BLOCK // records)
    return (slice(k, min(k + size, predicates)) for k in range(0, predicates, size))
