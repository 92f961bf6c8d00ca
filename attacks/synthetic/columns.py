"""What a column of several tables holds, and its values as numbers or texts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Kind = Literal["number", "category", "date"]
_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?"


def kind_of(name: str, parts: Mapping[str, pd.Series]) -> Kind:
    """What a column is, from its part in each table.

    Raises:
        ValueError: naming table and column, as ``own_kind`` and ``common_kind`` do, or if dates
            with and without a time zone meet.
    """
    kind = common_kind(name, {t: own_kind(t, name, series) for t, series in parts.items()})
    zones = {has_zone(series) for series in parts.values() if series.notna().any()}
    if kind == "date" and len(zones) > 1:
        raise ValueError(f"column {name!r}: dates with and without a time zone; give all one")
    return kind


def common_kind(name: str, kinds: Mapping[str, Kind | None]) -> Kind:
    """What a column is, from what it is in each table by itself; None where it is all missing.

    Raises:
        ValueError: naming table and column, if only some tables have numbers.
    """
    told = {kind for kind in kinds.values() if kind is not None}
    if told <= {"category"}:
        return "category"
    if len(told) > 1 and "number" in told:
        odd = next(t for t, kind in kinds.items() if kind not in (None, "number"))
        other = next(t for t, kind in kinds.items() if kind == "number")
        raise ValueError(
            f"{odd}: column {name!r} holds text, dates or yes and no where {other} holds numbers; "
            "give both one type"
        )
    if told == {"number"}:
        return "number"
    return "date" if told == {"date"} else "category"


def own_kind(table: str, name: str, series: pd.Series) -> Kind | None:
    """What one table's column holds by itself; None if it holds nothing.

    Raises:
        ValueError: naming table and column, if it holds lists or complex numbers.
    """
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
    if all(isinstance(value, date) for value in present):  # datetime is one, too
        return "date"
    if all(isinstance(v, Real | Decimal) and not isinstance(v, bool) for v in present):
        return "number"
    if all(isinstance(value, str) for value in present.head(100)):
        text = present.astype(str)
        if text.str.fullmatch(_DATE).all() and _dates(text).notna().all():
            return "date"
    return "category"


def texts(series: pd.Series) -> pd.Series:
    """Each value as text; 1 and 1.0 are one value, as they are in a column of numbers."""
    plain = series.astype(object)
    whole = plain.map(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
    return whole.where(series.isna(), whole.map(str)).where(series.notna(), None).astype(object)


def floats(series: pd.Series) -> NDArray[np.float64]:
    """Numbers (n,), NaN where missing."""
    return pd.to_numeric(series).to_numpy(dtype=np.float64, na_value=np.nan)


def has_zone(series: pd.Series) -> bool:
    """Whether dates, or texts of dates, name a time zone."""
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        return True
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return False
    return bool(series.dropna().astype(str).str.contains(r"(?:Z|[+-]\d{2}:?\d{2})$").any())


def _dates(series: pd.Series) -> pd.Series:
    return pd.to_datetime(series, format="ISO8601", utc=True, errors="coerce")


def seconds(series: pd.Series) -> NDArray[np.float64]:
    """Dates (n,) as seconds since 1970 (UTC), NaN where missing."""
    dates = _dates(series)
    plain = dates.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
    return np.where(dates.isna(), np.nan, plain.astype(np.int64) / 1e6)
