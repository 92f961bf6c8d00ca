"""One column's public domain: which values there may be, and how they become numbers and back.

Nothing here is read from records: a person writes bounds and levels down from what is known
without the data (a code book, a unit, a law). Values outside the bounds are clamped to them.
"""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
Level = StrictInt | StrictFloat | StrictStr
Count = Annotated[int, Field(ge=1, le=1000)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]

BINS = 16
_EPOCH = datetime.date(1970, 1, 1)


class _Column(BaseModel):
    """What every kind has: ``missing`` says whether a record may lack the value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    missing: bool = False


class _Ordered(_Column):
    """A column with bounds. On the axis a value is a float; NaN is missing."""

    low: Any = None
    high: Any = None
    bins: Any = BINS

    @property
    def known(self) -> bool:
        """Whether bounds were given; else an accounted estimate must fill them in."""
        return self.low is not None

    @property
    def span(self) -> tuple[float, float]:
        """The bounds on the axis, both included."""
        return float(self.low), float(self.high)

    @property
    def edges(self) -> Floats:
        """The bins' edges on the axis, of shape (bins + 1,), rising."""
        raise NotImplementedError

    def axis(self, series: pd.Series) -> Floats:
        """The values on the axis, unclamped.

        Raises:
            ValueError: if a value is of another kind or infinite.
        """
        raise NotImplementedError

    def restored(self, values: Floats) -> pd.Series:
        """Values on the axis as values of the column: rounded, clamped, typed."""
        raise NotImplementedError

    def within(self, uniform: Floats) -> Floats:
        """Points drawn evenly between two edges, as axis values."""
        return uniform

    @property
    def levels_count(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    def bin(self, series: pd.Series) -> Codes:
        """The bin of each value (n,), -1 where it is missing."""
        values = self.clamped(series)
        bins = np.searchsorted(self.edges[1:-1], values, side="right")
        return np.where(np.isnan(values), -1, bins).astype(np.int32)

    def unbin(self, codes: Codes, rng: np.random.Generator) -> pd.Series:
        """A value drawn evenly from each bin (n,); -1 becomes missing."""
        edges, share = self.edges, rng.random(len(codes))
        low, high = edges[:-1][codes], edges[1:][codes]
        values = self.within(low + share * (high - low))
        return self.restored(np.where(codes < 0, np.nan, values))

    def clamped(self, series: pd.Series) -> Floats:
        """The values on the axis (n,), within the bounds; NaN is missing."""
        return np.clip(self.axis(series), *self.span)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.low, self.high
        if (low is None) != (high is None):
            raise ValueError("give both low and high, or neither to have them estimated")
        if low is not None and low > high:
            raise ValueError(f"low {low} lies above high {high}; exchange them")
        if isinstance(self.bins, tuple):
            if low is None:
                raise ValueError("cut points need low and high; give them too")
            if np.any(np.diff(self.edges) <= 0):
                raise ValueError("cut points in bins must rise, within low and high")
        return self


class NumberColumn(_Ordered):
    """Real numbers in [low, high].

    ``bins``: how many of equal width, or the cut points between them. ``decimals``: to which
    generated values are rounded.
    """

    kind: Literal["number"]
    low: Finite | None = None
    high: Finite | None = None
    bins: Count | tuple[Finite, ...] = BINS
    decimals: Annotated[int, Field(ge=0, le=12)] | None = None

    @property
    def edges(self) -> Floats:
        low, high = self.span
        if isinstance(self.bins, tuple):
            return np.array([low, *self.bins, high])
        return np.linspace(low, high, (self.bins if low < high else 1) + 1)

    def axis(self, series: pd.Series) -> Floats:
        return _numbers(series)

    def restored(self, values: Floats) -> pd.Series:
        if self.decimals is not None:
            values = np.round(values, self.decimals)
        return pd.Series(np.clip(values, *self.span))


class _WholeColumn(_Ordered):
    """Bins of whole numbers: from an edge up to, but without, the next."""

    @property
    def edges(self) -> Floats:
        low, high = self.span
        if isinstance(self.bins, tuple):
            return np.array([low, *map(_day_or_int, self.bins), high + 1])
        count = int(min(self.bins, high - low + 1))
        edges: Floats = low + np.ceil(np.arange(count + 1) * ((high - low + 1) / count) - 1e-9)
        return edges

    def within(self, uniform: Floats) -> Floats:
        return np.floor(uniform)


class IntegerColumn(_WholeColumn):
    """Whole numbers from low to high, both included; numbers between them are rounded."""

    kind: Literal["integer"]
    low: Whole | None = None
    high: Whole | None = None
    bins: Count | tuple[Whole, ...] = BINS

    def axis(self, series: pd.Series) -> Floats:
        return np.round(_numbers(series))

    def restored(self, values: Floats) -> pd.Series:
        whole = pd.Series(np.clip(np.round(values), *self.span))
        return whole.astype("Int64") if self.missing else whole.astype(np.int64)


class DateColumn(_WholeColumn):
    """Days from low to high, both included; on the axis they count from 1970-01-01.

    A time of day is dropped, and so is a time zone: the date counts as it is written.
    """

    kind: Literal["date"]
    low: datetime.date | None = None
    high: datetime.date | None = None
    bins: Count | tuple[datetime.date, ...] = BINS

    @property
    def span(self) -> tuple[float, float]:
        low, high = self.low or _EPOCH, self.high or _EPOCH
        return float(_day_or_int(low)), float(_day_or_int(high))

    def axis(self, series: pd.Series) -> Floats:
        return _days(series)

    def restored(self, values: Floats) -> pd.Series:
        whole = np.clip(np.round(values), *self.span)
        days = np.where(np.isnan(whole), 0, whole).astype(np.int64).astype("datetime64[D]")
        dates = pd.Series(days.astype("datetime64[s]"))
        return dates.where(~np.isnan(whole))


class CategoryColumn(_Column):
    """One of a list of levels, compared as text (1 and 1.0 are the same).

    ``other`` is the level that takes every value which is not listed; without it such a value is
    refused, since it is more often a slip in the list than a rare category.
    """

    kind: Literal["category"]
    levels: tuple[Level, ...] | None = None
    other: Level | None = None

    @field_validator("levels", "other", mode="before")
    @classmethod
    def _no_booleans(cls, given: Any) -> Any:
        if any(
            isinstance(level, bool) for level in (given if isinstance(given, list) else [given])
        ):
            raise ValueError("yes, no, true and false are truth values in YAML; put them in quotes")
        return given

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if self.levels is None:
            return self
        texts = [text_of(level) for level in self.levels]
        if not texts:
            raise ValueError("levels are empty; list at least one")
        if len(set(texts)) < len(texts):
            twice = next(t for k, t in enumerate(texts) if t in texts[:k])
            raise ValueError(f"level {twice!r} is listed twice; keep one")
        return self

    @property
    def known(self) -> bool:
        """Whether levels were given; else an accounted estimate must fill them in."""
        return self.levels is not None

    @property
    def every(self) -> tuple[Level, ...]:
        """The levels by code, ``other`` last if it is not listed."""
        assert self.levels is not None
        extra = self.other is not None and text_of(self.other) not in map(text_of, self.levels)
        return (*self.levels, self.other) if extra and self.other is not None else self.levels

    @property
    def levels_count(self) -> int:
        """How many levels there are."""
        return len(self.every)

    def bin(self, series: pd.Series) -> Codes:
        """The level of each value (n,), -1 where it is missing.

        Raises:
            ValueError: if a value is not listed and there is no level for others.
        """
        number = {text_of(level): k for k, level in enumerate(self.every)}
        rest = -2 if self.other is None else number[text_of(self.other)]
        of_unique, unique = pd.factorize(series.astype(object))
        known = np.array([number.get(text_of(u), rest) for u in unique] + [-1], dtype=np.int32)
        codes: Codes = known[of_unique]  # -1, missing, picks the last
        if (bad := np.flatnonzero(codes == -2)).size:
            shown = text_of(series.iloc[int(bad[0])])[:40]
            raise ValueError(
                f"record {bad[0]} holds {shown!r}, which is no level; list it, or name a level "
                "for all others with other"
            )
        return codes

    def unbin(self, codes: Codes, rng: np.random.Generator) -> pd.Series:
        """Each code's level (n,); -1 becomes missing. Levels that are all numbers stay numbers."""
        levels, gone = self.every, codes < 0
        if all(isinstance(level, int) for level in levels):
            found = pd.Series(np.array(levels, dtype=np.int64)[codes])
            return found.astype("Int64").mask(gone) if self.missing else found
        if all(isinstance(level, int | float) for level in levels):
            return pd.Series(np.where(gone, np.nan, np.array(levels, dtype=float)[codes]))
        texts = pd.Series([text_of(level) for level in levels])
        return texts.take(codes).reset_index(drop=True).mask(gone)


Column = Annotated[
    NumberColumn | IntegerColumn | DateColumn | CategoryColumn, Field(discriminator="kind")
]
Ordered = NumberColumn | IntegerColumn | DateColumn


def _numbers(series: pd.Series) -> Floats:
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse(series, np.isnan(numbers) & series.notna().to_numpy(), "is no number")
    _refuse(series, np.isinf(numbers), "is infinite; make it a number or missing")
    return np.array(numbers)


def _days(series: pd.Series) -> Floats:
    present = series.notna().to_numpy()
    days = np.full(len(series), np.nan)
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_localize(None)  # the date on the wall
    if not pd.api.types.is_datetime64_any_dtype(series.dtype):
        written = series[present].astype(str).str.slice(0, 10)
        parsed = pd.to_datetime(written, format="%Y-%m-%d", errors="coerce")
        bad = np.zeros(len(series), dtype=bool)
        bad[present] = parsed.isna().to_numpy()
        _refuse(series, bad, "is no date such as 2024-03-31")
    else:
        parsed = series[present]
    days[present] = parsed.to_numpy().astype("datetime64[D]").astype(np.int64)
    return days


def _refuse(series: pd.Series, bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"record {row}: {str(series.iloc[row])[:40]!r} {why}")


def _day_or_int(value: int | datetime.date) -> int:
    return value if isinstance(value, int) else (value - _EPOCH).days


def text_of(value: Any) -> str:
    """A cell's value as the text that levels are compared by; 1.0 is 1."""
    if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)
