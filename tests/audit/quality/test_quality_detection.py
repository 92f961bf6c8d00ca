"""A classifier that tells synthetic from real: quiet where it must be, loud where it must be."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, norm

from attacks.synthetic.tables import code
from audit.quality.detection import detect
from reports.record import Interval


def draw(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": random.normal(shift, 1, size=n),
            "b": random.normal(size=n),
            "c": random.choice(list("xyz"), n),
        }
    )


def figure(real: pd.DataFrame, synthetic: pd.DataFrame, name: str = "auc") -> Interval:
    tables = code({"real": real, "synthetic": synthetic})
    (found,) = [m.interval for m in detect(tables, "real", "synthetic") if m.name == name]
    assert found is not None
    return found


def test_one_law_is_not_told_apart() -> None:
    """False alarms promised below 5 % (both sides); 8 seeds, p > 0.001."""
    hits = 0
    for seed in range(8):
        found = figure(draw(100, 2 * seed), draw(100, 2 * seed + 1))
        hits += found.low <= 0.5 <= found.high
    assert binomtest(hits, 8, 0.95, alternative="less").pvalue > 0.001


@pytest.mark.slow
def test_one_law_is_not_told_apart_over_many_seeds() -> None:
    """False alarms promised below 5 % (both sides); 150 seeds, p > 0.001."""
    hits = 0
    for seed in range(150):
        found = figure(draw(150, 2 * seed), draw(150, 2 * seed + 1))
        hits += found.low <= 0.5 <= found.high
    assert binomtest(hits, 150, 0.95, alternative="less").pvalue > 0.001


def test_a_shift_is_found_near_what_the_best_classifier_finds() -> None:
    """Two normals one shift apart: the best AUC is Φ(shift/√2), here 0.76."""
    found = figure(draw(1000, 1), draw(1000, 2, shift=1.0))
    best = norm.cdf(1 / np.sqrt(2))
    assert found.low > 0.6
    assert found.value < best + 0.02
    assert figure(draw(1000, 1), draw(1000, 2, 1.0), "tpr_at_fpr_0.01").low > 0.01


def test_a_copy_of_the_real_table_is_half_and_not_less() -> None:
    real = draw(300, 1)
    assert figure(real, real.sample(frac=1, random_state=0)).value == 0.5


@pytest.mark.parametrize("how", ["missing", "level", "decimals"])
def test_it_sees_what_single_distances_may_not(how: str) -> None:
    real, synthetic = draw(600, 1), draw(600, 2)
    random = np.random.default_rng(3)
    if how == "missing":
        synthetic["b"] = synthetic.b.where(random.random(600) < 0.7)
    elif how == "level":
        synthetic["c"] = synthetic.c.where(random.random(600) < 0.7, "invented")
    else:
        real["a"] = real.a.round(1)
    assert figure(real, synthetic).low > 0.5


def test_perfect_separation_keeps_an_interval_with_width() -> None:
    found = figure(draw(100, 1), draw(100, 2, shift=50.0))
    assert found.value == 1
    assert found.low < 1


@pytest.mark.parametrize(("n", "m", "said"), [(49, 100, "real: 49"), (100, 3, "synthetic: 3")])
def test_few_records_are_not_measured(n: int, m: int, said: str) -> None:
    tables = code({"real": draw(n, 1), "synthetic": draw(m, 2)})
    for metric in detect(tables, "real", "synthetic"):
        assert metric.interval is None
        assert said in metric.unmeasured


def test_records_all_alike_are_not_measured() -> None:
    frame = pd.DataFrame({"a": [1] * 60, "b": ["x"] * 60})
    tables = code({"real": frame, "synthetic": frame})
    assert "distinct" in detect(tables, "real", "synthetic")[0].unmeasured
