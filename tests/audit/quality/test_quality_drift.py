"""Drift: quiet on halves of one law, loud at the power it states, never clear without records."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.stats import binomtest, hypergeom, norm

from attacks.synthetic.tables import code
from audit.quality.drift import ColumnDrift, Drift, find_drift


def draw(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": random.normal(shift, 1, size=n),
            "b": random.exponential(size=n),
            "c": random.choice(list("xyz"), n, p=[0.5, 0.3, 0.2]),
            "d": random.integers(0, 6, n),
        }
    )


def found(trained: pd.DataFrame, fresh: pd.DataFrame, seed: int = 0) -> Drift:
    return find_drift(code({"trained": trained, "fresh": fresh}), "trained", "fresh", seed=seed)


def of(drift: Drift, name: str, metric: str = "") -> ColumnDrift:
    return next(c for c in drift.columns if c.column == name and metric in ("", c.metric))


def shift_of(distance: float) -> float:
    """By how much two normals must lie apart for this Kolmogorov-Smirnov distance."""
    return float(brentq(lambda x: 2 * norm.cdf(x / 2) - 1 - distance, 0, 10))


def test_halves_of_one_law_do_not_ask_for_training() -> None:
    """80 seeds of 400 and 300 records, four columns: at most 5 % promised, p > 0.001."""
    alarms = significant = 0
    for seed in range(80):
        drift = found(draw(400, 2 * seed), draw(300, 2 * seed + 1), seed)
        alarms += drift.state == "drift"
        significant += any(c.p_corrected <= 0.05 for c in drift.columns)
    assert alarms <= significant
    assert binomtest(significant, 80, 0.05, alternative="greater").pvalue > 0.001


def test_a_drift_is_found_with_the_power_that_is_stated() -> None:
    """At the distance in ``detectable`` 80 % is promised; 40 seeds, p > 0.001."""
    stated = of(found(draw(500, 0), draw(500, 1)), "a").detectable
    assert 0.15 < stated < 0.25
    hits = sum(
        of(found(draw(500, 2 * s), draw(500, 2 * s + 1, shift_of(stated)), s), "a").state == "drift"
        for s in range(40)
    )
    assert binomtest(hits, 40, 0.8, alternative="less").pvalue > 0.001


@pytest.mark.parametrize("n", [1500, 4000])
def test_a_distance_above_the_threshold_is_not_called_clear(n: int) -> None:
    """A true distance of 0.105: clearing it is promised in at most 5 %; 40 seeds, p > 0.001."""
    states = Counter(
        of(found(draw(n, 2 * s)[["a"]], draw(n, 2 * s + 1, shift_of(0.105))[["a"]], s), "a").state
        for s in range(40)
    )
    assert binomtest(states["no drift"], 40, 0.05, alternative="greater").pvalue > 0.001


def test_with_the_records_that_it_asks_for_it_clears_columns_that_did_not_move() -> None:
    """Promised in 95 %; 20 seeds, p > 0.001."""
    needed = found(draw(100, 0), draw(100, 1)).needed
    states = Counter(
        found(draw(needed, 2 * s), draw(needed, 2 * s + 1), s).state for s in range(20)
    )
    assert states["drift"] == 0
    assert binomtest(states["no drift"], 20, 0.95, alternative="less").pvalue > 0.001


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 2000), (2000, 1), (60, 60)])
def test_too_few_records_are_inconclusive(n: int, m: int) -> None:
    drift = found(draw(n, 0), draw(m, 1, shift=0.2))
    assert drift.state == "inconclusive"
    assert drift.needed > min(n, m)


def test_one_record_cannot_show_any_drift() -> None:
    assert of(found(draw(1, 0), draw(1, 1)), "a").detectable == math.inf


def test_the_permutation_p_is_that_of_the_hypergeometric() -> None:
    """Two levels: the share of draws at least as far apart, summed exactly; 2,000 draws."""
    trained, fresh = ["u"] * 30 + ["v"] * 30, ["u"] * 13 + ["v"] * 27
    drift = found(pd.DataFrame({"c": trained}), pd.DataFrame({"c": fresh}))
    drawn = np.arange(44)
    gap = np.abs((43 - drawn) / 60 - drawn / 40)
    exact = hypergeom(100, 43, 40).pmf(drawn)[gap >= abs(30 / 60 - 13 / 40) - 1e-12].sum()
    (column,) = drift.columns
    assert column.p == pytest.approx(exact, abs=4 * math.sqrt(exact / 2000))


def test_values_that_go_missing_are_drift() -> None:
    fresh = draw(2500, 1)
    fresh["b"] = fresh.b.where(np.random.default_rng(2).random(2500) < 0.7)
    drift = found(draw(2500, 0), fresh)
    assert drift.state == "drift"
    assert of(drift, "b", "missing").state == "drift"
    assert of(drift, "b", "ks").state != "drift"
    assert {c.column for c in drift.columns if c.state == "drift"} == {"b"}


def test_columns_without_values() -> None:
    trained, fresh = draw(5000, 0), draw(5000, 1)
    both = found(trained.assign(e=np.nan), fresh.assign(e=np.nan))
    assert both.state == "no drift"
    assert of(both, "e").unmeasured == "no value in trained-on and fresh data"
    one = found(trained, fresh.assign(b=np.nan))
    assert one.state == "drift"
    assert of(one, "b", "missing").state == "drift"
    assert of(one, "b", "ks").unmeasured == "no value in fresh data"


def test_thousands_of_levels_do_not_pose_as_drift() -> None:
    """Of 5,000 levels two samples share few: the distance is large, and so is that of halves."""

    def draw_codes(seed: int, levels: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame({"c": np.random.default_rng(seed).choice(levels, 2000)})

    old = np.array([f"old{i}" for i in range(5000)])
    same = found(draw_codes(0, old), draw_codes(1, old))
    assert of(same, "c").distance.value > 0.5  # type: ignore[union-attr]
    assert same.state == "inconclusive"
    replaced = np.where(np.arange(5000) < 2500, old, [f"new{i}" for i in range(5000)])
    assert found(draw_codes(0, old), draw_codes(1, replaced)).state == "drift"


def test_constant_columns_are_clear() -> None:
    frame = pd.DataFrame({"a": [1.0] * 3000, "b": ["x"] * 3000})
    assert found(frame, frame).state == "no drift"
    assert found(frame, frame.assign(a=2.0)).state == "drift"


def test_the_release_stands_beside_and_takes_no_part() -> None:
    tables = code({"t": draw(4000, 0), "f": draw(4000, 1), "s": draw(4000, 2, shift=1)})
    drift = find_drift(tables, "t", "f", "s")
    assert drift.state == "no drift"
    assert {r.column: r.state for r in drift.release}["a"] == "refuted"
