"""Post-processing of a synthetic table; each step also says which data it looked at.

What reads the synthetic table alone is free (Dwork and Roth 2014, proposition 2.1): thresholds come
from that table, or are public. A filter that compares with real records reads them again. It is no
post-processing: which records it removes, and how many, tells about the real ones, and no noise
covers that. ``trainers.preparation.access_record`` writes down what was done.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from trainers.preparation.gower import kind, near, numbers, refuse_duplicates, texts

Stage = Literal["drop-outliers", "generalise-rare", "remove-near"]
OTHER = "other"


@dataclass(frozen=True)
class RawData:
    """Real records that a step read. ``population`` is what LINEAGE.yaml calls these people."""

    name: str
    population: str
    records: int
    fingerprint: str


@dataclass(frozen=True)
class Step:
    """What one step did.

    Attributes:
        records: how many the table had before; ``removed`` of them are gone, ``changed`` differ.
        before, after: ``fingerprint`` of the table.
        raw: None where the step read the synthetic table alone. Else ``removed`` is a statistic of
            the raw data that no budget covers.
    """

    stage: Stage
    parameters: Mapping[str, Any]
    records: int
    removed: int
    changed: int
    before: str
    after: str
    raw: RawData | None = None


def drop_outliers(table: pd.DataFrame, reach: float = 3.0) -> tuple[pd.DataFrame, Step]:
    """Remove records with a number or date outside the table's own fences (Tukey 1977).

    The fences are the first quartile minus, and the third plus, ``reach`` times the distance
    between the two. Columns whose quartiles are equal have none; a missing value is no outlier.

    Raises:
        ValueError: if ``reach`` is negative or not finite, two columns have one name, or no record
            would be left.
    """
    if not 0 <= reach < math.inf:
        raise ValueError(f"reach: must be 0 or more and finite, got {reach}")
    refuse_duplicates(table, "synthetic")
    out = np.zeros(len(table), dtype=np.bool_)
    fences: dict[str, list[float]] = {}
    for name in table.columns:
        if (values := numbers(table[name])) is None or not np.isfinite(values).any():
            continue
        first, third = np.quantile(values[np.isfinite(values)], (0.25, 0.75))
        if first < third:
            low, high = first - reach * (third - first), third + reach * (third - first)
            fences[str(name)] = [float(low), float(high)]
            out |= (values < low) | (values > high)
    kept = table[~out].reset_index(drop=True)
    return kept, _step("drop-outliers", {"reach": reach, "fences": fences}, table, kept)


def generalise_rare(
    table: pd.DataFrame, least: int, steps: Mapping[str, float] | None = None
) -> tuple[pd.DataFrame, Step]:
    """Replace categories that fewer than ``least`` of the table's records have by ``other``.

    A column with such categories becomes text. Numbers are rounded down to a multiple of their
    column's step, where one is given: with a step of 5, 35 stands for 35 up to, not including, 40.
    Dates, and numbers without a step, stay.

    Raises:
        ValueError: if ``least`` is below 2, a step is not positive or names a column that is absent
            or holds no numbers, or two columns have one name.
    """
    if least < 2:
        raise ValueError(f"least: must be at least 2 records, got {least}")
    refuse_duplicates(table, "synthetic")
    steps = dict(steps or {})
    done = table.reset_index(drop=True)
    changed = np.zeros(len(table), dtype=np.bool_)
    for name, step in steps.items():
        if name not in done.columns or kind(done[name]) != "number":
            raise ValueError(f"steps: {name!r} is no column of numbers; leave it out")
        if not 0 < step < math.inf:
            raise ValueError(f"steps: {name}: must be positive and finite, got {step}")
        done[name], hit = _coarsened(done[name], step)
        changed |= hit
    rare: dict[str, dict[str, int]] = {}
    for name in done.columns:
        if kind(done[name]) != "category":
            continue
        found = texts(done[name])
        counts = found.value_counts()
        few = set(counts.index[counts < least]) - {OTHER}
        hit = found.isin(few).to_numpy()
        rare[str(name)] = {"levels": len(few), "records": int(hit.sum())}
        if few:
            done[name] = found.mask(hit, OTHER)
            changed |= hit
    parameters = {"least": least, "steps": steps, "other": OTHER, "categories": rare}
    return done, _step("generalise-rare", parameters, table, done, int(changed.sum()))


def remove_near(
    table: pd.DataFrame,
    raw: pd.DataFrame,
    distance: float,
    *,
    population: str = "people",
    name: str = "raw",
) -> tuple[pd.DataFrame, Step]:
    """Remove records within ``distance`` of a real one. This reads raw data, without DP.

    The distance is Gower's, as ``trainers.preparation.gower.near`` states it, from 0 to 1. Takes
    time in proportion to records × raw records × columns, except for exact copies.

    Args:
        distance: 0 for exact copies.
        population: what LINEAGE.yaml calls the people whose records ``raw`` holds.
        name: what messages and the record call ``raw``.

    Raises:
        ValueError: if ``distance`` is outside [0, 1), the tables cannot be compared, or no record
            would be left.
    """
    if not 0 <= distance < 1:
        raise ValueError(f"distance: must be from 0 to below 1, got {distance}")
    kept = table[~near(table, raw, distance, name)].reset_index(drop=True)
    data = RawData(name, population, len(raw), fingerprint(raw))
    return kept, _step("remove-near", {"distance": distance}, table, kept, raw=data)


def fingerprint(table: pd.DataFrame) -> str:
    """The SHA-256 of a table's records, whatever their order.

    A record's bytes are its values as a JSON object, columns sorted by name. The records' digests,
    sorted and joined, are hashed again.
    """
    named = table.set_axis([str(c) for c in table.columns], axis=1)
    lines = named[sorted(named.columns)].to_json(
        orient="records", lines=True, date_format="iso", double_precision=15
    )
    digests = sorted(hashlib.sha256(line.encode()).digest() for line in lines.split("\n") if line)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _coarsened(series: pd.Series, step: float) -> tuple[pd.Series, np.ndarray]:
    """The values rounded down to multiples of ``step``, and which of them changed."""
    steps = np.floor(pd.to_numeric(series) / step + 1e-9)  # 0.3 / 0.1 is a hair below 3
    values = (steps * step).round(10)
    if pd.api.types.is_integer_dtype(series.dtype) and float(step).is_integer():
        values = values.astype(series.dtype)
    return values, ((values != series) & series.notna()).to_numpy(dtype=np.bool_, na_value=False)


def _step(
    stage: Stage,
    parameters: Mapping[str, Any],
    table: pd.DataFrame,
    kept: pd.DataFrame,
    changed: int = 0,
    raw: RawData | None = None,
) -> Step:
    if not len(kept):
        raise ValueError(f"synthetic: {stage} would leave no record; loosen it")
    before, after = fingerprint(table), fingerprint(kept)
    removed = len(table) - len(kept)
    return Step(stage, parameters, len(table), removed, changed, before, after, raw)
