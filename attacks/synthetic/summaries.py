"""What a membership attack reads off a synthetic table: of all of it, and around each target.

The families are those of Stadler, Oprisanu and Troncoso (2022, section 4.3: naive, histogram,
correlation) and Houssiau et al. (2022, "TAPAS", section 3: distance and counts of records like the
target). All is fixed beforehand on the pool of real records; nothing is fitted to a table's truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.synthetic.tables import Coded
from attacks.synthetic.vulnerable import distances, neighbour_distances, units
from attacks.targets import Floats

WHOLE = ("naive", "range", "histogram", "correlation")  # families of a table alone
NEAR = ("distance", "matches")  # families of a table as a target sees it
FAMILIES = WHOLE + NEAR
BINS = 10
LEVELS = 20  # a column's most frequent ones, beside the targets' own
CORRELATED = 40  # columns (numbers, then levels) whose pairwise correlations are taken
NEAREST = 5
RADII = (1, 5, 20)  # counted are synthetic records nearer than these neighbours in the pool
SLACK = (0, 1, 2)  # columns in which a match may differ
FLOOR = 1e-3  # of a target's nearest distance in the pool: what is closer is as good as a copy


@dataclass(frozen=True, eq=False)
class Summary:
    """How tables are summarised, fixed on the pool of real records.

    Attributes:
        centre: (numeric,) means in the pool, and ``unit`` its standard deviations.
        edges: for each numeric column the inner edges of its bins, quantiles in the pool.
        levels: for each categorical column the codes whose shares are taken.
        targets: the K targets.
        radii: (K, 3) distances around each target.
    """

    centre: Floats
    unit: Floats
    edges: tuple[Floats, ...]
    levels: tuple[NDArray[np.int32], ...]
    targets: Coded
    radii: Floats

    @classmethod
    def of(cls, pool: Coded, targets: NDArray[np.int64]) -> Summary:
        """For these target rows of the pool, which needs more than 20 records."""
        if len(pool) <= max(RADII):
            raise ValueError(f"pool: {len(pool)} records; needs more than {max(RADII)}")
        present = np.isfinite(pool.numbers)
        count = np.maximum(present.sum(axis=0), 1)
        inner = np.linspace(0, 1, BINS + 1)[1:-1]
        chosen = pool.take(targets)
        return cls(
            np.where(present, pool.numbers, 0.0).sum(axis=0) / count,
            units(pool),
            tuple(
                np.unique(np.quantile(column[mask], inner)) if mask.any() else np.empty(0)
                for column, mask in zip(pool.numbers.T, present.T, strict=True)
            ),
            tuple(map(_levels, pool.codes.T, chosen.codes.T)),
            chosen,
            neighbour_distances(pool, targets, max(RADII))[:, [r - 1 for r in RADII]],
        )

    def whole(self, table: Coded) -> dict[str, Floats]:
        """The table's own features by family.

        ``naive``: means, spreads and shares of missing values and levels; ``range``: extremes;
        ``histogram``: shares of bins; ``correlation``: of all pairs of columns.
        """
        numbers = (table.numbers - self.centre) / self.unit
        missing = np.isnan(numbers)
        numbers = np.where(missing, 0.0, numbers)
        marks = [
            table.codes[:, [j]] == levels for j, levels in enumerate(self.levels) if len(levels)
        ]
        shares = np.hstack(marks).astype(np.float64) if marks else np.empty((len(table), 0))
        means = [numbers.mean(axis=0), numbers.std(axis=0), missing.mean(axis=0)]
        return {
            "naive": np.concatenate([*means, shares.mean(axis=0)]),
            "range": np.concatenate([numbers.min(axis=0), numbers.max(axis=0)]),
            "histogram": self._bins(table),
            "correlation": _correlations(np.hstack([numbers, shares])[:, :CORRELATED]),
        }

    def near(self, table: Coded) -> dict[str, Floats]:
        """The features (K, ...) around each target by family.

        ``distance``: logarithms of the distances to the nearest records, and of the numbers of
        records within the radii. ``matches``: logarithms of the numbers of exact copies, and of
        records that agree with the target in all columns but 0, 1, 2; numbers agree within a bin.
        """
        gaps = distances(self.targets, table, self.unit)
        nearest = np.sort(np.partition(gaps, NEAREST - 1, axis=1)[:, :NEAREST], axis=1)
        floor = FLOOR * np.maximum(self.radii[:, :1], 1e-12)
        within = np.stack([(gaps <= r[:, None]).sum(axis=1) for r in self.radii.T], axis=1)
        agreeing = np.zeros(gaps.shape, dtype=np.int64)
        for j, edges in enumerate(self.edges):
            agreeing += _same(
                _bin(self.targets.numbers[:, j], edges), _bin(table.numbers[:, j], edges)
            )
        for j in range(table.codes.shape[1]):
            agreeing += _same(self.targets.codes[:, j], table.codes[:, j])
        columns = len(self.edges) + table.codes.shape[1]
        alike = [(agreeing >= columns - slack).sum(axis=1) for slack in SLACK]
        copies = (gaps == 0).sum(axis=1)
        return {
            "distance": np.hstack([np.log(nearest + floor), np.log1p(within)]),
            "matches": np.log1p(np.stack([copies, *alike], axis=1)),
        }

    def influence(self, pool: Coded, targets: NDArray[np.int64]) -> dict[str, Floats]:
        """How far each target alone moves the pool's own summary (K, features), by family.

        The empirical influence function (Hampel 1974): the direction in which a generator that
        passes a statistic on moves with the target in its training set.
        """
        everybody = self.whole(pool)
        without = [self.whole(pool.take(np.delete(np.arange(len(pool)), row))) for row in targets]
        return {
            family: np.stack([everybody[family] - rest[family] for rest in without])
            for family in WHOLE
        }

    def _bins(self, table: Coded) -> Floats:
        shares = [
            np.bincount(_bin(column, edges) + 1, minlength=len(edges) + 2)[1:] / len(table)
            for column, edges in zip(table.numbers.T, self.edges, strict=True)
        ]
        return np.concatenate(shares) if shares else np.empty(0)


def _levels(pool: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.int32]:
    """The codes whose shares are taken; -1 (missing) is one of them where it occurs."""
    codes, counts = np.unique(pool, return_counts=True)
    frequent = codes[np.argsort(-counts, kind="stable")[:LEVELS]]
    rare = np.setdiff1d(targets, frequent)
    return np.concatenate([frequent, rare]).astype(np.int32)


def _bin(values: Floats, edges: Floats) -> NDArray[np.int64]:
    """The number of each value's bin, edges belong to the right one; -1 for missing."""
    return np.where(np.isnan(values), -1, np.searchsorted(edges, values, side="right"))


def _same(targets: NDArray[np.integer], table: NDArray[np.integer]) -> NDArray[np.bool_]:
    return np.asarray(targets[:, None] == table[None, :])


def _correlations(columns: Floats) -> Floats:
    """Pairwise correlations, row by row above the diagonal; 0 where a column is constant."""
    centred = columns - columns.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    # of a constant column rounding leaves less than this
    unit = np.where(length > 1e-9 * np.sqrt(len(columns)), length, np.inf)
    above = np.triu_indices(columns.shape[1], 1)
    return np.asarray(((centred / unit).T @ (centred / unit))[above])
