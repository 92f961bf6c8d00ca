"""Tables of records that belong together (train, holdout, synthetic), in one common coding.

What a column is, and which number a value gets, is decided from all tables at once: else the same
value would be two different ones, or distances would depend on which table came first.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Kind = Literal["number", "category", "date"]
_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?"


@dataclass(frozen=True)
class Column:
    """A column of all tables. ``levels`` are a category's values, by code; empty otherwise."""

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Coded:
    """One table's records as arrays; columns of both parts as in ``Tables``.

    Attributes:
        numbers: (n, numeric columns) float64; dates are seconds since 1970 (UTC); NaN is missing.
        codes: (n, categorical columns) int32, into the column's levels; -1 is missing.
    """

    numbers: NDArray[np.float64]
    codes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: NDArray[np.int64]) -> Coded:
        """These records alone."""
        return Coded(self.numbers[rows], self.codes[rows])


@dataclass(frozen=True, eq=False)
class Tables:
    """Coded tables by name, all with the same columns.

    Attributes:
        numeric: the columns of ``Coded.numbers``, in order: numbers and dates.
        categorical: the columns of ``Coded.codes``, in order.
    """

    numeric: tuple[Column, ...]
    categorical: tuple[Column, ...]
    tables: Mapping[str, Coded]

    def __getitem__(self, name: str) -> Coded:
        return self.tables[name]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, numeric ones first."""
        return tuple(column.name for column in self.numeric + self.categorical)


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file.

    Raises:
        ValueError: naming the file, if it is missing, no such table, empty, or has two columns of
            one name.
    """
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as lines:
                _refuse_duplicates(next(csv.reader(lines), []))
            frame = pd.read_csv(path, encoding="utf-8-sig", low_memory=False)
        else:
            raise ValueError("must be a .csv or .parquet file")
    except FileNotFoundError:
        raise ValueError(f"{path}: is missing") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
    if not len(frame) or not frame.shape[1]:
        raise ValueError(f"{path}: holds no records")
    return frame


def code(frames: Mapping[str, pd.DataFrame]) -> Tables:
    """Bring the tables into one coding; columns are matched by name, in the first table's order.

    A column is numeric if it holds numbers in every table, a date if it holds dates (or ISO text of
    dates) in every table, else a category of its values' texts. Booleans are categories.

    Raises:
        ValueError: naming table and column, if columns differ or repeat, a table is empty, a column
            is numeric in one table and text in another, a value is infinite or no single value, or
            dates with and without time zones meet.
    """
    first, *_ = frames
    named = {table: _named(table, frame) for table, frame in frames.items()}
    for table, frame in named.items():
        missing = [c for c in named[first].columns if c not in frame.columns]
        extra = [c for c in frame.columns if c not in named[first].columns]
        if missing or extra:
            which = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}"
            raise ValueError(f"{table}: {which}, unlike {first}; give both the same columns")
    numeric: list[Column] = []
    categorical: list[Column] = []
    numbers: dict[str, list[NDArray[np.float64]]] = {table: [] for table in frames}
    codes: dict[str, list[NDArray[np.int32]]] = {table: [] for table in frames}
    for name in named[first].columns:
        parts = {table: frame[name] for table, frame in named.items()}
        kind = _kind(name, parts)
        if kind == "category":
            levels, found = _coded(parts)
            categorical.append(Column(name, kind, levels))
            for table, part in found.items():
                codes[table].append(part)
            continue
        numeric.append(Column(name, kind))
        for table, series in parts.items():
            values = _seconds(series) if kind == "date" else _floats(series)
            if np.isinf(values).any():
                row = int(np.flatnonzero(np.isinf(values))[0])
                raise ValueError(f"{table}: column {name!r}, record {row}: is infinite")
            numbers[table].append(values)
    coded = {
        table: Coded(
            np.column_stack(numbers[table]) if numeric else np.empty((len(frame), 0)),
            np.column_stack(codes[table]) if categorical else np.empty((len(frame), 0), np.int32),
        )
        for table, frame in named.items()
    }
    return Tables(tuple(numeric), tuple(categorical), coded)


def _named(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    if not len(frame):
        raise ValueError(f"{table}: holds no records")
    names = [str(name) for name in frame.columns]
    try:
        _refuse_duplicates(names)
    except ValueError as error:
        raise ValueError(f"{table}: {error}") from None
    return frame.set_axis(names, axis=1)


def _refuse_duplicates(names: list[str]) -> None:
    for k, name in enumerate(names):
        if name in names[:k]:
            raise ValueError(f"two columns are called {name!r}; rename one")


def _kind(name: str, parts: Mapping[str, pd.Series]) -> Kind:
    kinds = {table: _own_kind(table, name, series) for table, series in parts.items()}
    told = {kind for kind in kinds.values() if kind is not None}
    if told <= {"category"}:
        return "category"
    if len(told) > 1 and "number" in told:
        odd = next(t for t, kind in kinds.items() if kind not in (None, "number"))
        other = next(t for t, kind in kinds.items() if kind == "number")
        raise ValueError(
            f"{odd}: column {name!r} holds text or dates where {other} holds numbers; "
            "give both one type"
        )
    if told == {"number"}:
        return "number"
    if told != {"date"}:
        return "category"
    zones = {_has_zone(series) for series in parts.values() if series.notna().any()}
    if len(zones) > 1:
        raise ValueError(f"column {name!r}: dates with and without a time zone; give all one")
    return "date"


def _own_kind(table: str, name: str, series: pd.Series) -> Kind | None:
    """What one table's column holds by itself; None if it holds nothing."""
    present = series.dropna()
    if not len(present):
        return None
    kind = present.dtype
    if pd.api.types.is_bool_dtype(kind) or isinstance(kind, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_numeric_dtype(kind):
        if pd.api.types.is_complex_dtype(kind):
            raise ValueError(f"{table}: column {name!r} holds complex numbers")
        return "number"
    if pd.api.types.is_datetime64_any_dtype(kind):
        return "date"
    for value in present.head(1000):
        if isinstance(value, list | tuple | dict | set | np.ndarray):
            raise ValueError(f"{table}: column {name!r} holds lists; give one value a record")
    if all(isinstance(value, str) for value in present.head(100)):
        text = present.astype(str)
        if text.str.fullmatch(_DATE).all() and _dates(text).notna().all():
            return "date"
    return "category"


def _coded(parts: Mapping[str, pd.Series]) -> tuple[tuple[str, ...], dict[str, NDArray[np.int32]]]:
    texts = {table: _texts(series) for table, series in parts.items()}
    levels = pd.Index(pd.unique(pd.concat(list(texts.values())).dropna())).sort_values()
    found = {table: levels.get_indexer(text) for table, text in texts.items()}
    return (
        tuple(str(level) for level in levels),
        {
            table: np.where(texts[table].isna(), -1, c).astype(np.int32)
            for table, c in found.items()
        },
    )


def _texts(series: pd.Series) -> pd.Series:
    """Each value as text; 1 and 1.0 are one value, as they are in a column of numbers."""
    plain = series.astype(object)
    whole = plain.map(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
    return whole.where(series.isna(), whole.map(str)).where(series.notna(), None).astype(object)


def _floats(series: pd.Series) -> NDArray[np.float64]:
    return pd.to_numeric(series).to_numpy(dtype=np.float64, na_value=np.nan)


def _has_zone(series: pd.Series) -> bool:
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        return True
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return False
    return bool(series.dropna().astype(str).str.contains(r"(?:Z|[+-]\d{2}:?\d{2})$").any())


def _dates(series: pd.Series) -> pd.Series:
    return pd.to_datetime(series, format="ISO8601", utc=True, errors="coerce")


def _seconds(series: pd.Series) -> NDArray[np.float64]:
    dates = _dates(series)
    values = (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)
