"""Distances of columns against scipy, closed forms and the stated confidence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, ks_2samp, norm

from attacks.synthetic.tables import code
from audit.quality.columns import ColumnResult, compare_columns
from audit.quality.distances import ks, ks_interval, tv, tv_interval


def one(real: pd.Series, synthetic: pd.Series) -> ColumnResult:
    tables = code({"real": real.to_frame("x"), "synthetic": synthetic.to_frame("x")})
    (found,) = compare_columns(tables, "real", "synthetic")
    return found


@pytest.mark.parametrize("seed", range(5))
def test_ks_is_scipys_with_and_without_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    for first, second in (
        (random.normal(size=137), random.normal(0.3, 1, size=81)),
        (random.integers(0, 4, 60).astype(float), random.integers(1, 5, 90).astype(float)),
    ):
        assert ks(first, second) == pytest.approx(ks_2samp(first, second).statistic, abs=1e-12)


def test_tv_by_hand() -> None:
    assert tv(np.array([3, 1, 0]), np.array([1, 1, 2])) == pytest.approx(0.5)
    assert tv(np.array([2, 6]), np.array([1, 3])) == 0


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_ks_interval_holds_the_populations_distance(shift: float) -> None:
    """Two normals one shift apart: 2Φ(shift/2) - 1. Promised 95 %; 300 seeds, p > 0.001."""
    truth, hits = 2 * norm.cdf(shift / 2) - 1, 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        first, second = random.normal(size=80), random.normal(shift, 1, size=120)
        found = ks_interval(ks(first, second), 80, 120, 0.95)
        hits += found.low <= truth <= found.high
    assert binomtest(hits, 300, 0.95, alternative="less").pvalue > 0.001


@pytest.mark.parametrize("levels", [2, 5, 200])
def test_the_tv_interval_holds_the_populations_distance(levels: int) -> None:
    """Promised 95 %; 300 seeds, p > 0.001; with more levels than records too."""
    p = np.full(levels, 1 / levels)
    q = p * np.where(np.arange(levels) < levels / 2, 1.2, 0.8)
    q /= q.sum()
    truth, hits = np.abs(p - q).sum() / 2, 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        first, second = random.multinomial(150, p), random.multinomial(90, q)
        seen = int((first + second > 0).sum())
        found = tv_interval(tv(first, second), 150, 90, seen, 0.95)
        hits += found.low <= truth <= found.high
    assert binomtest(hits, 300, 0.95, alternative="less").pvalue > 0.001


def test_a_shift_is_refuted_the_same_law_supported_and_few_records_neither() -> None:
    random = np.random.default_rng(0)
    real = pd.Series(random.normal(size=3000))
    same, moved = pd.Series(random.normal(size=3000)), pd.Series(random.normal(0.5, 1, 3000))
    assert one(real, same).state == "supported"
    assert one(real, moved).state == "refuted"
    assert one(real.head(30), same.head(30)).state == "inconclusive"


def test_values_that_vanish_are_a_distance_of_their_own() -> None:
    random = np.random.default_rng(0)
    real = pd.Series(random.normal(size=4000))
    holes = pd.Series(random.normal(size=4000)).where(random.random(4000) < 0.7)
    found = one(real, holes)
    assert found.distance is not None
    assert found.distance.high < 0.1  # what is there looks right
    assert found.state == "refuted"
    assert found.missing_difference.value == pytest.approx(holes.isna().mean())
    assert found.missing_real.value == 0
    assert found.missing_synthetic.low < 0.3 < found.missing_synthetic.high


@pytest.mark.parametrize("empty", ["real", "synthetic", "both"])
def test_a_column_without_values_is_named_and_not_supported(empty: str) -> None:
    values, nothing = pd.Series(np.arange(50.0)), pd.Series([np.nan] * 50)
    found = one(
        nothing if empty in ("real", "both") else values,
        nothing if empty in ("synthetic", "both") else values,
    )
    assert found.distance is None
    assert found.unmeasured == f"no value in {'real and synthetic' if empty == 'both' else empty}"
    assert found.state == ("not checkable" if empty == "both" else "refuted")


def test_kinds_are_dates_words_and_numbers() -> None:
    frame = pd.DataFrame(
        {
            "when": pd.date_range("2020-01-01", periods=200, tz="Europe/Berlin"),
            "flag": [True, False] * 100,
            "same": [7] * 200,
        }
    )
    tables = code({"real": frame, "synthetic": frame})
    found = {c.column: c for c in compare_columns(tables, "real", "synthetic")}
    assert {n: (c.kind, c.metric) for n, c in found.items()} == {
        "when": ("date", "ks"),
        "flag": ("category", "tv"),
        "same": ("number", "ks"),
    }
    assert all(c.distance is not None and c.distance.value == 0 for c in found.values())
    assert found["flag"].levels == 2
