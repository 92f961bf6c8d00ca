"""Closer to train or to the holdout: the stated false-alarm rate on clean data, power on leaks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))

import frames

from attacks.synthetic.nearest import attack, closer, quantile
from attacks.synthetic.tables import code


def tables(train, holdout, synthetic):
    return code({"train": train, "holdout": holdout, "synthetic": synthetic})


def figures(result):
    return {f.name: f.estimate for f in result.figures}


def misses(draw, runs, confidence=0.9):
    """In how many clean runs the share's interval leaves one half out."""
    count = 0
    for seed in range(runs):
        share = figures(attack(tables(*draw(seed)), seed=seed, confidence=confidence))
        found = share["share:closer_to_train"]
        count += not found.low <= 0.5 <= found.high
    return count


def numbers(n, rng):
    return pd.DataFrame({"x": rng.normal(size=n), "y": rng.exponential(size=n)}).assign(
        z=rng.integers(0, 4, n).astype(str)
    )


@pytest.mark.parametrize(
    ("train", "holdout", "synthetic"),
    [(150, 150, 150), (300, 100, 100), (60, 60, 600)],
    ids=["equal", "more train", "more synthetic than real"],
)
def test_clean_data_are_called_leaky_as_rarely_as_the_interval_says(train, holdout, synthetic):
    """At 5 % a run, more than the 99.9 % quantile of 60 runs has a chance below 0.1 %."""

    def draw(seed):
        rng = np.random.default_rng([train, synthetic, seed])
        return [numbers(n, rng) for n in (train, holdout, synthetic)]

    assert misses(draw, 60) <= binom.ppf(0.999, 60, 0.05)


def test_a_generator_that_repeats_itself_is_not_called_leaky_for_it():
    """Ten values, each written sixty times: a plain binomial interval is wrong most of the time."""
    plain = runs = 0
    for seed in range(30):
        rng = np.random.default_rng([9, seed])
        synthetic = pd.concat([numbers(40, rng)] * 20, ignore_index=True)
        share = figures(
            attack(tables(numbers(200, rng), numbers(200, rng), synthetic), confidence=0.9)
        )["share:closer_to_train"]
        runs += share is not None and not share.low <= 0.5 <= share.high
        if share is not None:
            plain += abs(share.value - 0.5) > norm.ppf(0.975) / 2 / 800**0.5
    assert plain > 15
    assert runs <= binom.ppf(0.999, 30, 0.05)


def test_copies_move_the_share_by_half_their_own():
    """With a tenth copied, nine tenths lie at one half: 0.1 + 0.9 / 2 = 0.55."""
    train, holdout, synthetic = (frames.mixed(3000, seed) for seed in range(3))
    planted, _ = frames.plant(synthetic, train, 0.1)
    share = figures(attack(tables(train, holdout, planted)))["share:closer_to_train"]
    assert 0.5 < share.low < 0.55 < share.high


def test_interpolated_records_are_closer_to_train():
    train, holdout = (frames.mixed(600, seed) for seed in range(2))
    result = attack(tables(train, holdout, frames.memorised(train, 600, 0)))
    measured = figures(result)
    assert measured["share:closer_to_train"].low > 0.8
    assert measured["quantile_0.5:distance_train"].high < (
        measured["quantile_0.5:distance_holdout"].low
    )
    assert measured["share:lower_ratio"].low > 0.5


def test_duplicated_training_records_do_not_hide_copies_from_the_ratio():
    """Where every training record stands twice, first over second distance would be 0 over 0."""
    train, holdout, _ = (frames.mixed(200, seed) for seed in range(3))
    twice = pd.concat([train, train], ignore_index=True)
    both = pd.concat([holdout, holdout], ignore_index=True)
    result = attack(tables(twice, both, train))
    assert (result.rows["ratio_train"] == 0).all()
    assert figures(result)["share:lower_ratio"].value == 1


def test_ties_count_half_and_decide_nothing():
    same = np.ones(50)
    rows = {"train": np.arange(50), "holdout": np.arange(50)}
    found = closer("share", same, same, rows, 0.95).estimate
    assert found.value == 0.5
    assert found.high - found.low == pytest.approx(1.96 / 50**0.5, abs=1e-3)


def test_clusters_count_as_what_they_are_worth():
    """Sixty records in clusters of three are worth 60² / (20 · 9) = 20 records."""
    near, far = np.zeros(60), np.ones(60)
    rows = {"train": np.repeat(np.arange(20), 3), "holdout": np.arange(60)}
    found = closer("share", near, far, rows, 0.95).estimate
    assert found.value == 1
    assert found.low == pytest.approx(1 - 1.96 / 2 / 20**0.5, abs=1e-3)
    assert found.n == 60
    one = closer("share", near, far, rows | {"train": np.zeros(60, int)}, 0.95)
    assert one.unmeasured == "worth 1 independent records, need 20 or more"


def test_quantile_intervals_cover():
    """A 90 % interval covers in at least 90 % of 400 samples, but for chance of 0.1 %."""
    rng = np.random.default_rng(0)
    for q, n in ((0.5, 25), (0.05, 200)):
        truth = norm.ppf(q)
        hit = 0
        for _ in range(400):
            found = quantile(rng.normal(size=n), q, 0.9)
            assert found.low <= found.value <= found.high
            hit += found.low <= truth <= found.high
        assert hit >= binom.ppf(0.001, 400, 0.9)


def test_one_synthetic_record_and_one_real_one():
    one = pd.DataFrame({"x": [1.0], "y": ["a"]})
    result = attack(tables(one, one, one))
    measured = {f.name: f for f in result.figures}
    assert measured["share:closer_to_train"].unmeasured
    assert measured["share:lower_ratio"].unmeasured == "all real records of a table are equal"
    assert measured["quantile_0.5:distance_train"].estimate.value == 0
