"""Groups of codes: fewer, larger cells where the noise would drown small ones.

After McKenna, Miklau and Sheldon (2021, "Winning the NIST contest", section 4.1), who merge what
is rare in a noisy one-way count; here neighbouring bins are merged with each other, since a column
with an order keeps its meaning that way. It reads noisy counts only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainers.tabular.columns import CategoryColumn, Column
from trainers.tabular.project import nonnegative

Floats = NDArray[np.float64]
MOST = 100  # groups of one column


@dataclass(frozen=True, eq=False)
class Groups:
    """How a column's codes fall into groups.

    Attributes:
        of_code: (codes,) int64, each code's group.
        within: (codes,) each code's share of its group.
    """

    of_code: NDArray[np.int64]
    within: Floats

    @property
    def count(self) -> int:
        """How many groups there are."""
        return int(self.of_code.max()) + 1

    def summed(self, heights: Floats) -> Floats:
        """The groups' counts from the codes' counts."""
        sums: Floats = np.bincount(self.of_code, heights, self.count).astype(np.float64)
        return sums

    def codes(self, groups: NDArray[np.int64], uniform: Floats) -> NDArray[np.int64]:
        """A code of each group (n,), by its share, from uniform numbers of [0, 1)."""
        order = np.argsort(self.of_code, kind="stable")
        ends = np.cumsum(self.within[order])
        last = np.searchsorted(self.of_code[order], np.arange(self.count), side="right") - 1
        first = np.concatenate([[0], last[:-1] + 1])
        at = np.searchsorted(ends, groups + uniform, side="right")
        return order[np.clip(at, first[groups], last[groups])]


def grouped(column: Column, noisy: Floats, total: float, least: float) -> Groups:
    """Groups of at least ``least`` records each, by noisy counts of the codes."""
    least = max(least, total / MOST)
    levels = column.levels_count
    if isinstance(column, CategoryColumn):
        large = noisy >= least
        of_code = np.where(large, np.cumsum(large) - 1, large.sum())
    else:
        of_code = np.empty(len(noisy), dtype=np.int64)
        of_code[:levels] = _runs(noisy[:levels], least)
        of_code[levels:] = of_code[:levels].max() + 1  # missing stands by itself
    heights = nonnegative(noisy, total)
    sums = np.bincount(of_code, heights)
    sizes = np.bincount(of_code)
    empty = sums[of_code] <= 0
    within = np.where(empty, 1 / sizes[of_code], heights / np.where(empty, 1, sums[of_code]))
    return Groups(of_code.astype(np.int64), within)


def _runs(noisy: Floats, least: float) -> NDArray[np.int64]:
    """Neighbours joined from the left until they are large enough; the rest joins the last."""
    of_code, group, height = np.zeros(len(noisy), dtype=np.int64), 0, 0.0
    for code, count in enumerate(noisy):
        of_code[code] = group
        height += count
        if height >= least:
            group, height = group + 1, 0.0
    if height < least and of_code[-1] == group and group:
        of_code[of_code == group] = group - 1
    return of_code
