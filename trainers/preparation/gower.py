"""Which records of a table lie near a record of another one, by Gower's distance (1971)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Kind = Literal["number", "date", "category"]
_ROWS, _OTHERS = 64, 4096  # pairs of records compared at once: they stay in a processor's cache
_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?"


@dataclass(frozen=True, eq=False)
class _Column:
    """A column of both tables; ``scaled`` by the first one's range, or codes, -1 for missing."""

    first: NDArray[np.float32]
    second: NDArray[np.float32]
    scaled: bool


def near(
    table: pd.DataFrame, raw: pd.DataFrame, distance: float, name: str = "raw"
) -> NDArray[np.bool_]:
    """Whether each record of ``table`` is within ``distance`` of a record of ``raw``.

    The distance is the mean over columns of: the difference of numbers or dates over the range that
    they have in ``table``, at most 1; 0 for equal and 1 for unequal categories; 0 where both are
    missing and 1 where one is. Distance 0 asks for exact copies.

    Args:
        name: what messages call ``raw``.

    Raises:
        ValueError: if a table is empty, columns differ or repeat, a column has numbers in one table
            and not in the other, or a number is infinite.
    """
    for called, frame in (("synthetic", table), (name, raw)):
        if not len(frame):
            raise ValueError(f"{called}: holds no records")
        refuse_duplicates(frame, called)
    if odd := sorted(set(map(str, table.columns)) ^ set(map(str, raw.columns))):
        where = name if odd[0] in map(str, table.columns) else "synthetic"
        raise ValueError(f"{where}: column {odd[0]!r} is missing; give both tables the same ones")
    first = table.set_axis([str(c) for c in table.columns], axis=1)
    second = raw.set_axis([str(c) for c in raw.columns], axis=1)
    columns = [_column(c, first[c], second[c], distance > 0, name) for c in first.columns]
    if distance == 0:
        return _copies(columns)
    limit = np.float32(distance * len(columns) * (1 + 1e-5))  # sums of float32 are not exact
    found = np.zeros(len(table), dtype=np.bool_)
    for i in range(0, len(table), _ROWS):
        for j in range(0, len(raw), _OTHERS):
            total = np.zeros((1, 1), np.float32)
            for column in columns:
                a = column.first[i : i + _ROWS, None]
                b = column.second[None, j : j + _OTHERS]
                total = total + (_gap(a, b) if column.scaled else a != b)
            found[i : i + _ROWS] |= (total <= limit).any(axis=1)
    return found


def kind(series: pd.Series) -> Kind | None:
    """What a column holds, ISO texts of dates being dates; None if it holds nothing."""
    present = series.dropna()
    if not len(present):
        return None
    held = pd.api.types.infer_dtype(present)
    if held in ("integer", "floating", "mixed-integer-float", "decimal"):
        return "number"
    if held in ("date", "datetime", "datetime64"):
        return "date"
    if held == "string" and present.str.fullmatch(_DATE).all() and _dates(present).notna().all():
        return "date"
    return "category"


def numbers(series: pd.Series) -> NDArray[np.float64] | None:
    """A column of numbers, or of dates in seconds, NaN where missing; None for categories."""
    found = kind(series)
    if found == "number":
        return _floats(series)
    return _seconds(series) if found == "date" else None


def texts(series: pd.Series) -> pd.Series:
    """Values as texts, missing ones as None."""
    plain = series.astype(object)
    found = [None if gone else str(v) for v, gone in zip(plain, plain.isna(), strict=True)]
    return pd.Series(found, dtype=object)


def refuse_duplicates(table: pd.DataFrame, name: str) -> None:
    """Raise a ValueError if two columns of the table have one name."""
    names = [str(c) for c in table.columns]
    if twice := next((c for k, c in enumerate(names) if c in names[:k]), None):
        raise ValueError(f"{name}: two columns are called {twice!r}; rename one")


def _copies(columns: Sequence[_Column]) -> NDArray[np.bool_]:
    """Records of the first table that the second has too."""
    first = pd.MultiIndex.from_arrays([c.first for c in columns])
    return np.asarray(first.isin(pd.MultiIndex.from_arrays([c.second for c in columns])))


def _gap(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    gap: NDArray[np.float32] = np.abs(a - b)
    np.fmin(gap, np.float32(1), out=gap)  # NaN, where one is missing, becomes 1
    if (gone := np.isnan(a)).any():
        gap[gone & np.isnan(b)] = 0
    return gap


def _column(column: str, table: pd.Series, raw: pd.Series, scale: bool, name: str) -> _Column:
    kinds = {kind(table), kind(raw)} - {None}
    if "number" in kinds and len(kinds) > 1:
        raise ValueError(
            f"{name}: column {column!r} holds numbers in one table and not in the other; "
            "give both one type"
        )
    if len(kinds) == 1 and "category" not in kinds:
        x, y = (_seconds(s) if "date" in kinds else _floats(s) for s in (table, raw))
        for called, values in (("synthetic", x), (name, y)):
            if np.isinf(values).any():
                row = int(np.flatnonzero(np.isinf(values))[0])
                raise ValueError(f"{called}: column {column!r}, record {row}: is infinite")
        present = x[~np.isnan(x)]
        if scale and len(present) and (reach := float(np.ptp(present))) > 0:
            x, y = ((v - present.min()) / reach for v in (x, y))
            return _Column(x.astype(np.float32), y.astype(np.float32), True)
        both = pd.Series(np.concatenate([x, y]))
    else:
        both = pd.concat([texts(table), texts(raw)])
    codes = pd.factorize(both)[0].astype(np.float32)  # exact for 16 million levels
    return _Column(codes[: len(table)], codes[len(table) :], False)


def _floats(series: pd.Series) -> NDArray[np.float64]:
    return pd.to_numeric(series).to_numpy(dtype=np.float64, na_value=np.nan)


def _dates(series: pd.Series) -> pd.Series:
    return pd.to_datetime(series, format="ISO8601", utc=True, errors="coerce")


def _seconds(series: pd.Series) -> NDArray[np.float64]:
    values = (_dates(series) - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)
