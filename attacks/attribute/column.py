"""The sensitive column as a finite list of values: what the attacker chooses between."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from attacks.targets import Array, Floats

FEW = 20  # numeric columns with more distinct values than this are cut into bins
MOST = 50  # more categories than this are refused: too few records stand behind each


@dataclass(frozen=True, eq=False)
class SensitiveColumn:
    """One column's values: how each is called, and what the target is asked for it.

    ``edges`` (V - 1,) are the inner borders of the bins of a numeric column, None where the column
    has few values; ``candidates`` (V,) are then the bins' medians. ``prior`` (V,) is each value's
    share among the reference records, with one record added to each so that none is impossible.
    """

    name: str
    values: tuple[str, ...]
    candidates: Array
    prior: Floats
    edges: Floats | None = None

    def codes(self, column: Array) -> NDArray[np.int64]:
        """Which value each record has (n,)."""
        if self.edges is not None:
            return _bins(column, self.edges)
        place = {value: code for code, value in enumerate(self.candidates.tolist())}
        return np.array([place[value] for value in column.tolist()], dtype=np.int64)


def sensitive_column(name: str, reference: Array, judged: Array, bins: int = 5) -> SensitiveColumn:
    """The values of a column of the reference records (R,) and of the records judged (n,).

    Few numbers, or categories, stay as they are; the list of those that exist is taken as known to
    the attacker, how frequent they are only from the reference. Many numbers are cut at the
    reference's quantiles; each bin stands for its median, a value that occurs.

    Raises:
        ValueError: if the column has too many categories, or only one value or bin.
    """
    everyone = np.concatenate([reference, judged])
    distinct = set(everyone.tolist())
    numeric = is_numeric(everyone)
    if numeric and len(distinct) > FEW:
        return _binned(name, reference, bins)
    if len(distinct) > MOST:
        raise ValueError(
            f"column {name!r}: {len(distinct)} categories, at most {MOST}; group the rare ones"
        )
    _refuse_constant(name, len(set(reference.tolist())))
    ordered = sorted(distinct) if numeric else sorted(distinct, key=str)
    candidates = np.empty(len(ordered), dtype=reference.dtype)
    candidates[:] = ordered
    called = tuple(f"{value:g}" if numeric else str(value) for value in ordered)
    plain = SensitiveColumn(name, called, candidates, np.empty(0))
    prior = _shares(plain.codes(reference), len(ordered))
    return SensitiveColumn(name, called, candidates, prior)


def is_numeric(column: Array) -> bool:
    """Whether a column, of whatever type, holds numbers only."""
    return column.dtype.kind in "biuf" or all(isinstance(v, Real) for v in column.tolist())


def _binned(name: str, reference: Array, bins: int) -> SensitiveColumn:
    numbers = reference.astype(np.float64)
    # borders that occur, above the smallest: so no bin of the reference is empty
    borders = np.quantile(numbers, np.arange(1, bins) / bins, method="nearest")
    edges = np.unique(borders[borders > numbers.min()])
    _refuse_constant(name, len(edges) + 1)
    codes = _bins(reference, edges)
    candidates = np.empty(len(edges) + 1, dtype=reference.dtype)
    for code in range(len(candidates)):
        inside = np.sort(reference[codes == code])
        candidates[code] = inside[(len(inside) - 1) // 2]
    shown = [f"{edge:.6g}" for edge in edges]
    inner = [f"{low} to {high}" for low, high in pairwise(shown)]
    called = (f"below {shown[0]}", *inner, f"{shown[-1]} or more")
    return SensitiveColumn(name, called, candidates, _shares(codes, len(candidates)), edges)


def _bins(column: Array, edges: Floats) -> NDArray[np.int64]:
    return np.searchsorted(edges, column.astype(np.float64), side="right").astype(np.int64)


def _shares(codes: NDArray[np.int64], values: int) -> Floats:
    counts = np.bincount(codes, minlength=values) + 1.0
    shares: Floats = counts / counts.sum()
    return shares


def _refuse_constant(name: str, distinct: int) -> None:
    if distinct < 2:
        raise ValueError(
            f"column {name!r}: (nearly) all reference records have one value, so there is nothing "
            "to infer; name another column"
        )
