"""Tables of records that belong together (train, holdout, synthetic), in one common coding.

What a column is, and which number a value gets, is decided from all tables at once: else the same
value would be two different ones, or distances would depend on which table came first.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks.synthetic.columns import Kind as Kind
from attacks.synthetic.columns import floats, kind_of, seconds, texts


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
    with reading(path):
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                _refuse_duplicates(next(csv.reader(lines), []))
            with named_fields():
                frame = pd.read_csv(path, encoding="utf-8-sig", index_col=False, low_memory=False)
    if not len(frame) or not frame.shape[1]:
        raise ValueError(f"{path}: holds no records")
    return frame


@contextmanager
def named_fields() -> Iterator[None]:
    """Of ``read_csv(..., index_col=False)`` inside: rows with more fields than names are refused.

    Without ``index_col`` pandas takes their first field for the row's name, and moves all others
    by one. Empty fields at the end of every row are no loss, and left out.

    Raises:
        ValueError: if there are such rows.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            yield
        except pd.errors.ParserWarning:
            raise ValueError(
                "rows hold more fields than the header names; name every column"
            ) from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong with the file inside is a ValueError of one line that names it."""
    try:
        if path.suffix not in (".csv", ".parquet"):
            raise ValueError("must be a .csv or .parquet file")
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: is missing") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is no UTF-8 text; save it as UTF-8") from None
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path}: holds no records") from None
    except (pd.errors.ParserError, csv.Error) as error:
        said = str(error).splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{path}: is no CSV file ({said}); quote fields, one row a line") from None
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None


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
    renamed = {table: named(table, frame) for table, frame in frames.items()}
    same_columns({table: frame.columns for table, frame in renamed.items()})
    numeric: list[Column] = []
    categorical: list[Column] = []
    numbers: dict[str, list[NDArray[np.float64]]] = {table: [] for table in frames}
    codes: dict[str, list[NDArray[np.int32]]] = {table: [] for table in frames}
    for name in renamed[first].columns:
        parts = {table: frame[name] for table, frame in renamed.items()}
        kind = kind_of(name, parts)
        if kind == "category":
            levels, found = _coded(parts)
            categorical.append(Column(name, kind, levels))
            for table, part in found.items():
                codes[table].append(part)
            continue
        numeric.append(Column(name, kind))
        for table, series in parts.items():
            values = seconds(series) if kind == "date" else floats(series)
            if np.isinf(values).any():
                row = int(np.flatnonzero(np.isinf(values))[0])
                raise ValueError(f"{table}: column {name!r}, record {row}: is infinite")
            numbers[table].append(values)
    coded = {
        table: Coded(
            np.column_stack(numbers[table]) if numeric else np.empty((len(frame), 0)),
            np.column_stack(codes[table]) if categorical else np.empty((len(frame), 0), np.int32),
        )
        for table, frame in renamed.items()
    }
    return Tables(tuple(numeric), tuple(categorical), coded)


def same_columns(columns: Mapping[str, Iterable[str]]) -> None:
    """Refuse tables, by name, that have not the same columns: the ValueError names the first."""
    (first, expected), *others = ((table, list(names)) for table, names in columns.items())
    for table, names in others:
        missing = [c for c in expected if c not in names]
        extra = [c for c in names if c not in expected]
        if missing or extra:
            which = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}"
            raise ValueError(f"{table}: {which}, unlike {first}; give both the same columns")


def named(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with text for column names.

    Raises:
        ValueError: naming the table, if it is empty or two columns have one name.
    """
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


def _coded(parts: Mapping[str, pd.Series]) -> tuple[tuple[str, ...], dict[str, NDArray[np.int32]]]:
    said = {table: texts(series) for table, series in parts.items()}
    levels = pd.Index(pd.unique(pd.concat(list(said.values())).dropna())).sort_values()
    found = {table: levels.get_indexer(text) for table, text in said.items()}
    return (
        tuple(str(level) for level in levels),
        {table: np.where(said[table].isna(), -1, c).astype(np.int32) for table, c in found.items()},
    )
