"""How far each synthetic column lies from the real one, in its values and in what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from attacks.metrics import clopper_pearson
from attacks.synthetic.tables import Kind, Tables
from audit.quality.distances import ks, ks_interval, present, tv, tv_interval
from audit.to_record import interval
from reports.record import ClaimState, Interval

Metric = Literal["ks", "tv"]


@dataclass(frozen=True)
class ColumnResult:
    """One column of two tables.

    Attributes:
        metric: ``ks`` of numbers and dates, ``tv`` of categories.
        distance: of the present values; None where a side has none, and ``unmeasured`` says which.
        missing_difference: by how much the shares of missing values differ.
        levels: a category's levels in both tables together; 0 for numbers and dates.
        state: whether both distances are at most ``threshold``: supported or refuted where the
            whole interval lies on one side of it, not checkable where there are no values.
    """

    column: str
    kind: Kind
    metric: Metric
    distance: Interval | None
    missing_difference: Interval
    missing_real: Interval
    missing_synthetic: Interval
    levels: int
    threshold: float
    state: ClaimState
    unmeasured: str = ""


def compare_columns(
    tables: Tables,
    real: str,
    synthetic: str,
    *,
    threshold: float = 0.1,
    confidence: float = 0.95,
) -> tuple[ColumnResult, ...]:
    """Every column of two of the tables, numeric ones first.

    The two distances of all columns hold together at ``confidence`` (Bonferroni).
    """
    each = 1 - (1 - confidence) / (2 * len(tables.names))
    return tuple(_compare(tables, real, synthetic, name, threshold, each) for name in tables.names)


def _compare(
    tables: Tables, real: str, synthetic: str, name: str, threshold: float, confidence: float
) -> ColumnResult:
    column = next(c for c in tables.numeric + tables.categorical if c.name == name)
    first, second = (present(tables[table], tables, name) for table in (real, synthetic))
    rows = (len(tables[real]), len(tables[synthetic]))
    n, m = len(first), len(second)
    gone = (rows[0] - n, rows[1] - m)
    difference = abs(gone[0] / rows[0] - gone[1] / rows[1])
    missing = tv_interval(difference, *rows, levels=2, confidence=confidence)
    distance, levels, unmeasured = None, 0, ""
    if not n or not m:
        empty = [table for table, some in ((real, n), (synthetic, m)) if not some]
        unmeasured = f"no value in {' and '.join(empty)}"
    elif column.kind == "category":
        counts = [np.bincount(side, minlength=len(column.levels)) for side in (first, second)]
        levels = int((counts[0] + counts[1] > 0).sum())
        distance = tv_interval(tv(counts[0], counts[1]), n, m, levels, confidence)
    else:
        distance = ks_interval(ks(first, second), n, m, confidence)
    return ColumnResult(
        name,
        column.kind,
        "tv" if column.kind == "category" else "ks",
        distance,
        missing,
        interval(clopper_pearson(gone[0], rows[0], confidence)),
        interval(clopper_pearson(gone[1], rows[1], confidence)),
        levels,
        threshold,
        _state([distance, missing], threshold),
        unmeasured,
    )


def at_most(found: Interval, limit: float) -> ClaimState:
    """Whether a figure is at most ``limit``, where the whole interval says so."""
    if found.high <= limit:
        return "supported"
    return "refuted" if found.low > limit else "inconclusive"


def _state(distances: list[Interval | None], threshold: float) -> ClaimState:
    states = {at_most(d, threshold) if d else "not checkable" for d in distances}
    order: tuple[ClaimState, ...] = ("refuted", "not checkable", "inconclusive")
    return next((state for state in order if state in states), "supported")
