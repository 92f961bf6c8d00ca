"""The records that a synthetic release gives away most easily: those far from all others.

Meeus, Guépin, Crețu and de Montjoye (2023, "Achilles' Heels: Vulnerable Record Identification in
Synthetic Data Publishing", section 4): a record's vulnerability is its mean distance to its k
nearest neighbours. What a release leaks of them is the worst that it leaks of anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from attacks.synthetic.tables import Coded
from attacks.targets import Floats

CELLS = 400_000  # distances in memory at a time


@dataclass(frozen=True, eq=False)
class Vulnerable:
    """Records by row, the most vulnerable first, with their mean distance to the nearest others."""

    rows: NDArray[np.int64]
    distances: Floats


def most_vulnerable(records: Coded, count: int, neighbours: int = 5) -> Vulnerable:
    """The ``count`` records with the largest mean distance to their ``neighbours`` nearest.

    Records with an exact copy among the others are left out: with the copy in the training set,
    nobody can say of the record that it was not. Equal distances: the lower row first.

    Raises:
        ValueError: if there are no more records than neighbours, or fewer unique ones than asked.
    """
    if len(records) <= neighbours:
        raise ValueError(f"pool: {len(records)} records are too few for {neighbours} neighbours")
    nearest = neighbour_distances(records, np.arange(len(records)), neighbours)
    unique = np.flatnonzero(nearest[:, 0] > 0)
    if not 1 <= count <= len(unique):
        raise ValueError(
            f"targets: asked for {count}, the pool has {len(unique)} records without an exact "
            "copy; ask for 1 or more, and no more than these"
        )
    means = nearest[unique].mean(axis=1)
    order = np.argsort(-means, kind="stable")[:count]
    return Vulnerable(unique[order], means[order])


def neighbour_distances(records: Coded, rows: NDArray[np.int64], neighbours: int) -> Floats:
    """Each row's distances (rows, neighbours) to its nearest other records, ascending."""
    unit = units(records)
    found = np.empty((len(rows), neighbours))
    step = max(1, CELLS // len(records))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        gaps = distances(records.take(part), records, unit)
        gaps[np.arange(len(part)), part] = np.inf
        found[start : start + step] = np.sort(
            np.partition(gaps, neighbours - 1, axis=1)[:, :neighbours], axis=1
        )
    return found


def units(records: Coded) -> Floats:
    """One standard deviation of each numeric column; 1 where a column is constant or missing."""
    present = np.isfinite(records.numbers)
    count = np.maximum(present.sum(axis=0), 1)
    mean = np.where(present, records.numbers, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.where(present, (records.numbers - mean) ** 2, 0.0).sum(axis=0) / count)
    return np.asarray(np.where(spread > 0, spread, 1.0))


def distances(left: Coded, right: Coded, unit: Floats) -> Floats:
    """Mixed distances (left, right), the mean over columns.

    A number's part is the absolute difference in ``unit``s, a category's 0 or 1. Missing against
    missing is 0, against a value 1. Differences are not ranked, as in ``synthetic.distances``: a
    value far out is what makes a record vulnerable, and ranks hide how far.
    """
    columns = len(unit) + left.codes.shape[1]
    total = np.zeros((len(left), len(right)))
    a, b = left.numbers / unit, right.numbers / unit
    gaps = np.isnan(a).any(axis=0) | np.isnan(b).any(axis=0)
    if not gaps.all():
        total += cdist(a[:, ~gaps], b[:, ~gaps], "cityblock")
    for j in np.flatnonzero(gaps):
        gap = np.abs(a[:, j, None] - b[None, :, j])
        one_lacks = np.isnan(a[:, j, None]) != np.isnan(b[None, :, j])
        total += np.where(np.isnan(gap), one_lacks, gap)
    if left.codes.shape[1]:
        differing = cdist(left.codes.astype(float), right.codes.astype(float), "hamming")
        total += differing * left.codes.shape[1]
    return np.asarray(total / columns)
