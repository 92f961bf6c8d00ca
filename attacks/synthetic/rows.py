"""One 64-bit number for each cell and each record, so that equal records are found by sorting.

A record's number is the sum of its cells' (Zobrist 1970), so that leaving columns out is a
subtraction. Two different records share a number with a chance of about 2^-64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attacks.targets import Floats

Hashes = NDArray[np.uint64]


def cell_hashes(numbers: Floats, codes: NDArray[np.int32] | NDArray[np.int64]) -> Hashes:
    """A number for each cell (n, columns), numeric columns first: equal where the values are.

    Missing values equal one another, and 0 equals -0.
    """
    plain = np.where(np.isnan(numbers), np.nan, numbers + 0.0)
    cells = np.hstack([plain.view(np.uint64), codes.astype(np.int64).view(np.uint64)])
    columns = np.arange(1, cells.shape[1] + 1, dtype=np.uint64)
    salt: Hashes = columns * np.uint64(0x9E3779B97F4A7C15)
    return _mixed(np.add(_mixed(cells), salt, dtype=np.uint64))


def row_hashes(cells: Hashes) -> Hashes:
    """Each record's number (n,) from those of its cells."""
    total: Hashes = cells.sum(axis=1, dtype=np.uint64)
    return total


def find(wanted: Hashes, among: Hashes) -> NDArray[np.int64]:
    """For each of ``wanted`` (n,) the first place where it stands in ``among``, or -1."""
    if not len(among):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(among, kind="stable")
    place = np.searchsorted(among, wanted, sorter=order)
    first = order[np.minimum(place, len(among) - 1)]
    return np.where(among[first] == wanted, first, -1).astype(np.int64)


def _mixed(x: Hashes) -> Hashes:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): near bits in, unrelated bits out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
