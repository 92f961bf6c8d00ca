"""The public domain of columns: both codings and their inverses, and what is refused."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.datasets import load_breast_cancer

from trainers.tabular.domain import Domain

MIXED = """
columns:
  age: {kind: integer, low: 0, high: 110, bins: [18, 40, 65]}
  bmi: {kind: number, low: 10, high: 60, decimals: 1, missing: true}
  sex: {kind: category, levels: [f, m]}
  city: {kind: category, levels: [a, b], other: rest, missing: true}
  seen: {kind: date, low: 2010-01-01, high: 2025-12-31, bins: 32, missing: true}
  fixed: {kind: number, low: 3, high: 3}
  y: {kind: category, levels: [0, 1]}
"""


def domain(**columns: dict[str, Any]) -> Domain:
    return Domain.model_validate({"columns": columns})


def mixed(n: int = 300) -> tuple[Domain, pd.DataFrame]:
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2010-01-01") + pd.to_timedelta(rng.integers(0, 5843, n), unit="D")
    frame = pd.DataFrame(
        {
            "age": rng.integers(0, 111, n),
            "bmi": np.where(rng.random(n) < 0.2, np.nan, rng.uniform(10, 60, n).round(1)),
            "sex": rng.choice(["f", "m"], n),
            "city": pd.Series(rng.choice(["a", "b", "rest"], n)).mask(rng.random(n) < 0.1),
            "seen": pd.Series(days).mask(rng.random(n) < 0.1),
            "fixed": 3.0,
            "y": rng.integers(0, 2, n),
        }
    )
    return Domain.model_validate(yaml.safe_load(MIXED)), frame


def test_a_decoded_table_has_the_same_codes_and_types() -> None:
    known, frame = mixed()
    codes = known.encode(frame)
    assert codes.dtype == np.int32
    assert known.sizes == (4, 17, 2, 4, 33, 1, 2)
    assert (codes < known.sizes).all()
    assert (codes >= 0).all()
    back = known.decode(codes, np.random.default_rng(1))
    np.testing.assert_array_equal(np.delete(known.encode(back), 1, 1), np.delete(codes, 1, 1))
    # a bin's edge may round into its neighbour: 60 - 10 over 16 is no multiple of 0.1
    assert np.abs(known.encode(back)[:, 1] - codes[:, 1]).max() <= 1
    assert list(back.columns) == list(frame.columns)
    assert back["age"].dtype == back["y"].dtype == np.int64
    assert pd.api.types.is_datetime64_any_dtype(back["seen"])
    assert (back["fixed"] == 3).all()
    assert np.allclose(back["bmi"].dropna() * 10, (back["bmi"].dropna() * 10).round())
    for name in frame:
        np.testing.assert_array_equal(back[name].isna(), frame[name].isna())


def test_features_bring_back_every_cell() -> None:
    known, frame = mixed()
    features = known.features(frame)
    assert features.shape == (300, known.width)
    assert np.abs(features).max() <= 1
    assert [s.stop for s in known.spans[:-1]] == [s.start for s in known.spans[1:]]
    days = frame.astype({"seen": "datetime64[s]"})
    pd.testing.assert_frame_equal(known.table(features), days, check_dtype=False)


def test_values_outside_are_clamped_and_unlisted_levels_go_to_other() -> None:
    known, frame = mixed(4)
    frame["age"] = [-5, 111, 17, 18]
    frame["city"] = ["zz", "a", None, "b"]
    frame["seen"] = ["1999-01-01", "2031-01-01", "2010-01-01T23:00+05:00", None]
    codes = known.encode(frame)
    assert codes[:, 0].tolist() == [0, 3, 0, 1]
    assert codes[:, 3].tolist() == [2, 0, 3, 1]
    assert codes[:, 4].tolist() == [0, 31, 0, 32]


def test_a_date_counts_as_written_whatever_its_zone() -> None:
    known = domain(d={"kind": "date", "low": "2024-01-01", "high": "2024-01-31", "bins": 31})
    late = pd.to_datetime(["2024-01-05 23:30"]).tz_localize("Asia/Tokyo")
    for written in (
        late,
        pd.Series(late.astype(str)),
        [datetime.date(2024, 1, 5)],
        pd.Series(pd.to_datetime(["2024-01-05"])).astype("datetime64[s]"),
    ):
        assert known.encode(pd.DataFrame({"d": written})).tolist() == [[4]]


@settings(deadline=None, max_examples=60)
@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 40))
def test_integer_bins_part_the_range_without_gap_or_overlap(low: int, span: int, bins: int) -> None:
    known = domain(k={"kind": "integer", "low": low, "high": low + span, "bins": bins})
    values = np.arange(low, low + span + 1)
    codes = known.encode(pd.DataFrame({"k": values}))[:, 0]
    assert set(codes) == set(range(min(bins, span + 1)))
    assert (np.diff(codes) >= 0).all()
    sizes = np.bincount(codes)
    assert sizes.max() - sizes.min() <= 1
    drawn = known.decode(np.repeat(codes, 20)[:, None], np.random.default_rng(0))
    np.testing.assert_array_equal(known.encode(drawn)[:, 0], np.repeat(codes, 20))


def test_values_are_drawn_evenly_within_a_bin() -> None:
    known = domain(k={"kind": "integer", "low": 0, "high": 9, "bins": 2})
    drawn = known.decode(np.zeros((50_000, 1), dtype=int), np.random.default_rng(0))["k"]
    counts = np.bincount(drawn, minlength=10)
    # chi-square with 4 degrees of freedom: above 18.5 once in a thousand
    assert ((counts[:5] - 10_000) ** 2 / 10_000).sum() < 18.5
    assert counts[5:].sum() == 0


def test_ten_thousand_levels() -> None:
    levels = [f"icd-{k:05d}" for k in range(10_000)]
    known = domain(code={"kind": "category", "levels": levels, "other": "none of these"})
    frame = pd.DataFrame({"code": ["icd-00000", "icd-09999", "icd-10000"]})
    codes = known.encode(frame)
    assert codes[:, 0].tolist() == [0, 9999, 10_000]
    assert known.decode(codes, np.random.default_rng(0))["code"].iloc[2] == "none of these"


def test_integer_column_names_and_whole_floats_are_matched_as_text() -> None:
    known = Domain.model_validate({"columns": {0: {"kind": "category", "levels": [1, 2]}}})
    assert known.encode(pd.DataFrame({0: [1.0, 2.0]})).tolist() == [[0], [1]]


def test_a_domain_survives_json() -> None:
    known, _ = mixed()
    assert Domain.model_validate_json(known.model_dump_json()) == known


NUMBER = {"kind": "number", "low": 0, "high": 1}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "at least 1"),
        ({"x": {"kind": "number", "low": 2, "high": 1}}, "low 2.0 lies above high 1.0"),
        ({"x": {"kind": "number", "low": 2}}, "both low and high"),
        ({"x": {"kind": "number", "low": 0, "high": float("inf")}}, "finite"),
        ({"x": NUMBER | {"bins": 0}}, "greater than or equal to 1"),
        ({"x": NUMBER | {"bins": [0.5, 0.5]}}, "must rise"),
        ({"x": NUMBER | {"bins": [1.5]}}, "must rise"),
        ({"x": {"kind": "category", "levels": []}}, "at least one"),
        ({"x": {"kind": "category", "levels": ["a", "a"]}}, "'a' is listed twice"),
        ({"x": {"kind": "category", "levels": [1, "1"]}}, "'1' is listed twice"),
        ({"x": {"kind": "category", "levels": [True, False]}}, "in quotes"),
        ({"x": {"kind": "category", "levels": ["a"], "unseen": "drop"}}, "unseen"),
        ({"x": {"kind": "text"}}, "'number', 'integer', 'date', 'category'"),
        ({"x": {"kind": "date", "low": "2024-02-30", "high": "2025-01-01"}}, "date"),
    ],
)
def test_a_bad_domain_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        Domain.model_validate({"columns": columns})


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.DataFrame({"x": [0.5]}), "lacks column 'c'"),
        (pd.DataFrame({"x": [0.5], "c": ["a"], "z": [1]}), "column 'z' is not in the domain"),
        (pd.DataFrame([[0.5, 0.5, "a"]], columns=["x", "x", "c"]), "two columns are called 'x'"),
        (pd.DataFrame({"x": [], "c": []}), "no records"),
        (pd.DataFrame({"x": [0.5, np.inf], "c": ["a", "a"]}), "column 'x': record 1: 'inf' is inf"),
        (pd.DataFrame({"x": [0.5, "tall"], "c": ["a", "a"]}), "record 1: 'tall' is no number"),
        (pd.DataFrame({"x": [0.5, None], "c": ["a", "a"]}), "column 'x': record 1 is missing"),
        (pd.DataFrame({"x": [0.5, 0.5], "c": ["a", "q"]}), "column 'c': record 1 holds 'q'"),
        (pd.DataFrame({"x": [0.5, 0.5], "c": ["a", pd.NA]}), "column 'c': record 1 is missing"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(frame: pd.DataFrame, said: str) -> None:
    known = domain(x=NUMBER, c={"kind": "category", "levels": ["a", "b"]})
    for coding in (known.encode, known.features):
        with pytest.raises(ValueError, match=re.escape(said)):
            coding(frame)


def test_text_that_is_no_date_is_refused_and_gaps_must_be_filled() -> None:
    known = domain(d={"kind": "date", "low": "2024-01-01", "high": "2024-01-31"})
    with pytest.raises(ValueError, match=r"record 1: '31\.01\.2024' is no date such as"):
        known.encode(pd.DataFrame({"d": ["2024-01-31", "31.01.2024"]}))
    with pytest.raises(ValueError, match="column 'n': has no low and high; give them, or"):
        domain(n={"kind": "number"}).encode(pd.DataFrame({"n": [1.0]}))


def test_the_benchmarks_domain_holds_its_whole_table() -> None:
    path = Path(__file__).parents[3] / "fixtures" / "tabular" / "breast_cancer.yaml"
    known = Domain.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    frame = load_breast_cancer(as_frame=True).frame
    back = known.table(known.features(frame))
    pd.testing.assert_frame_equal(back, frame, check_dtype=False, atol=1e-3)
