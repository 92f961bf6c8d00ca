"""The public domain of a table: its columns, and the two codings that generators learn from.

``encode`` gives whole numbers, one a cell, for marginals; ``features`` gives numbers in [-1, 1] and
one-hot levels, for networks. Both follow from the domain alone: bounds and levels that came from
the records for free would be a leak that no account shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from trainers.tabular.columns import CategoryColumn, Codes, Column

Features = NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """Which features a column has: ``features[:, start:stop]``.

    ``number`` is one value in [-1, 1] (0 where it is missing), ``levels`` a one-hot code (missing
    is its last place, where allowed), ``missing`` one indicator, 1 where a number is missing.
    """

    column: str
    role: Literal["number", "levels", "missing"]
    start: int
    stop: int


class Domain(BaseModel):
    """Columns by name, in the order of the tables to come; written by hand, or read from JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    columns: Mapping[str, Column] = Field(min_length=1)

    @field_validator("columns", mode="before")
    @classmethod
    def _text_names(cls, given: Any) -> Any:
        return {str(name): c for name, c in given.items()} if isinstance(given, dict) else given

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(self.columns)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Columns without bounds or levels: ``trainers.tabular.estimate`` fills them in."""
        return tuple(name for name, column in self.columns.items() if not column.known)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many codes each column has; the last one is missing, where allowed."""
        return tuple(c.levels_count + c.missing for c in self.columns.values())

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The layout of the features, without gaps."""
        spans: list[Span] = []

        def add(column: str, role: Literal["number", "levels", "missing"], width: int) -> None:
            start = spans[-1].stop if spans else 0
            spans.append(Span(column, role, start, start + width))

        for name, column in self.columns.items():
            if isinstance(column, CategoryColumn):
                add(name, "levels", column.levels_count + column.missing)
            else:
                add(name, "number", 1)
                if column.missing:
                    add(name, "missing", 1)
        return tuple(spans)

    @property
    def width(self) -> int:
        """How many features there are."""
        return self.spans[-1].stop

    def encode(self, frame: pd.DataFrame) -> Codes:
        """The table as codes (n, columns) int32, each below its entry of ``sizes``.

        Raises:
            ValueError: if the table's columns are not those of the domain, it is empty, or a value
                does not fit its column.
        """
        table = self.checked(frame)
        codes = np.empty((len(table), len(self.columns)), dtype=np.int32)
        for k, (name, column) in enumerate(self.columns.items()):
            codes[:, k] = self._binned(table, name)
            codes[codes[:, k] < 0, k] = column.levels_count
        return codes

    def decode(self, codes: NDArray[np.integer], rng: np.random.Generator) -> pd.DataFrame:
        """A table from codes (n, columns): values are drawn evenly within their bins."""
        parts = {}
        for k, (name, column) in enumerate(self.columns.items()):
            own = np.where(codes[:, k] >= column.levels_count, -1, codes[:, k]).astype(np.int32)
            parts[name] = column.unbin(own, rng)
        return pd.DataFrame(parts)

    def features(self, frame: pd.DataFrame) -> Features:
        """The table as features (n, ``width``) float32, laid out as ``spans`` says.

        Raises:
            ValueError: as ``encode`` does.
        """
        table = self.checked(frame)
        features = np.zeros((len(table), self.width), dtype=np.float32)
        rows = np.arange(len(table))
        for span in self.spans:
            column = self.columns[span.column]
            if isinstance(column, CategoryColumn):
                codes = self._binned(table, span.column)
                features[rows, np.where(codes < 0, span.stop - 1, span.start + codes)] = 1
                continue
            values = self._clamped(table, span.column)
            if span.role == "missing":
                features[:, span.start] = np.isnan(values)
            else:
                low, high = column.span
                scaled = 2 * (values - low) / ((high - low) or 1.0) - (high > low)
                features[:, span.start] = np.nan_to_num(scaled)
        return features

    def table(self, features: NDArray[np.floating]) -> pd.DataFrame:
        """The table that features (n, ``width``) stand for: the largest level, numbers rounded.

        Numbers outside [-1, 1] are clamped; an indicator above 1/2 is missing.
        """
        parts: dict[str, pd.Series] = {}
        unused = np.random.default_rng(0)
        gone = {s.column: features[:, s.start] > 0.5 for s in self.spans if s.role == "missing"}
        for span in self.spans:
            column = self.columns[span.column]
            if isinstance(column, CategoryColumn):
                codes = features[:, span.start : span.stop].argmax(axis=1).astype(np.int32)
                codes[codes >= column.levels_count] = -1
                parts[span.column] = column.unbin(codes, unused)
            elif span.role == "number":
                low, high = column.span
                share = (np.clip(features[:, span.start].astype(np.float64), -1, 1) + 1) / 2
                values = low + share * (high - low)
                missing = gone.get(span.column, np.zeros(len(features), dtype=bool))
                parts[span.column] = column.restored(np.where(missing, np.nan, values))
        return pd.DataFrame(parts)

    def checked(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with the domain's columns in its order, named by text.

        Raises:
            ValueError: if columns repeat, are missing or unknown, or there are no records.
        """
        names = [str(name) for name in frame.columns]
        if twice := [name for k, name in enumerate(names) if name in names[:k]]:
            raise ValueError(f"two columns are called {twice[0]!r}; rename one")
        if lacking := [name for name in self.columns if name not in names]:
            raise ValueError(f"lacks column {lacking[0]!r} of the domain; add it, or strike it")
        if extra := [name for name in names if name not in self.columns]:
            raise ValueError(f"column {extra[0]!r} is not in the domain; describe it, or drop it")
        if not len(frame):
            raise ValueError("holds no records")
        return frame.set_axis(names, axis=1)[list(self.columns)]

    def _binned(self, table: pd.DataFrame, name: str) -> Codes:
        self._known(name)
        try:
            codes = self.columns[name].bin(table[name])
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None
        self._allowed(name, codes < 0)
        return codes

    def _clamped(self, table: pd.DataFrame, name: str) -> NDArray[np.float64]:
        self._known(name)
        column = self.columns[name]
        assert not isinstance(column, CategoryColumn)
        try:
            values = column.clamped(table[name])
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None
        self._allowed(name, np.isnan(values))
        return values

    def _known(self, name: str) -> None:
        if not self.columns[name].known:
            what = "levels" if self.columns[name].kind == "category" else "low and high"
            raise ValueError(f"column {name!r}: has no {what}; give them, or have them estimated")

    def _allowed(self, name: str, gone: NDArray[np.bool_]) -> None:
        if gone.any() and not self.columns[name].missing:
            row = int(np.flatnonzero(gone)[0])
            raise ValueError(f"column {name!r}: record {row} is missing; allow it: missing: true")
