"""The blind baseline is quiet on exchangeable splits and loud where the two sides differ."""

import numpy as np
import pytest
from scipy.stats import binom

from attacks.baselines import blind_baseline, distribution_shift
from attacks.metrics import auc
from attacks.records import Membership, Records


def split(members, others, labels=None):
    labels = labels or [np.arange(len(side)) % 2 for side in (members, others)]
    sides = [
        Records(x, y, np.array([f"{name}{i}" for i in range(len(x))]))
        for x, y, name in ((members, labels[0], "m"), (others, labels[1], "n"))
    ]
    return Membership(sides[0], sides[1], np.unique(np.concatenate(labels)))


def area(records, seed=0):
    result = blind_baseline(records, seed=seed)
    return auc(result.member_scores, result.non_member_scores).value


@pytest.mark.slow
def test_false_alarms_stay_at_their_level_on_two_hundred_nulls():
    rng = np.random.default_rng(4)
    alarms, areas = 0, []
    for seed in range(200):
        records = split(rng.normal(size=(60, 4)), rng.normal(size=(60, 4)))
        result = blind_baseline(records, seed=seed)
        alarms += distribution_shift(result)
        areas.append(auc(result.member_scores, result.non_member_scores).value)
    # 2.5 % expected; more than binomial chance allows in 1 of 1000 such tests fails
    assert alarms <= binom.ppf(0.999, 200, 0.025)
    # unbiased: the standard error of the mean is sqrt(61 / (12 * 30 * 30)) / sqrt(200)
    assert abs(np.mean(areas) - 0.5) < 4 * np.sqrt(61 / (12 * 900) / 200)


def test_a_few_nulls_raise_no_alarm():
    rng = np.random.default_rng(4)
    alarms = sum(
        distribution_shift(
            blind_baseline(split(rng.normal(size=(60, 4)), rng.normal(size=(60, 4))), seed=s)
        )
        for s in range(10)
    )
    assert alarms <= binom.ppf(0.999, 10, 0.025)


@pytest.mark.parametrize("kind", ["mean", "spread", "label", "text", "mixed"])
def test_shift_is_found(kind):
    rng = np.random.default_rng(7)
    n = 150
    x = [rng.normal(size=(n, 4)) for _ in range(2)]
    labels = [rng.integers(0, 2, n) for _ in range(2)]
    if kind == "mean":
        x[1][:, 2] += 1
    if kind == "spread":  # no linear rule sees it
        x[1][:, 2] *= 3
    if kind == "label":
        labels[1] = (rng.random(n) < 0.9).astype(int)
    if kind == "text":
        dates = (["in 2019", "in 2020"], ["in 2023", "in 2024"])
        x = [
            np.array([f"news {rng.choice(d)} of {rng.integers(99)}" for _ in range(n)])
            for d in dates
        ]
    if kind == "mixed":
        towns = (["Ulm", "Bonn"], ["Bonn", "Kiel"])
        x = [
            np.c_[a.astype(object)[:, :2], rng.choice(t, n).astype(object)]
            for a, t in zip(x, towns, strict=True)
        ]
    result = blind_baseline(split(x[0], x[1], labels), seed=0)
    assert distribution_shift(result)
    assert result.access == "none"
    assert result.queries == result.models_trained == 0


def test_same_seed_same_scores_and_images_are_flattened():
    rng = np.random.default_rng(0)
    records = split(rng.normal(size=(41, 1, 6, 6)), rng.normal(size=(33, 1, 6, 6)))
    one, two = (blind_baseline(records, seed=3) for _ in range(2))
    assert np.array_equal(one.member_scores, two.member_scores)
    assert len(one.member_scores) == 21


def test_too_few_records_are_chance_and_say_so():
    rng = np.random.default_rng(0)
    result = blind_baseline(split(rng.normal(size=(4, 2)), rng.normal(size=(4, 2))))
    assert not distribution_shift(result)
    assert any("too few" in note for note in result.notes)


def test_a_coarse_table_is_no_shift():
    """Copies would fall into the learned and the judged half, and tell their side."""
    void = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        table = np.stack([rng.integers(0, 80, 600), rng.integers(0, 2, 600)], 1).astype(float)
        drawn = Records(table, rng.integers(0, 2, 600), np.arange(600).astype(str))
        inside = rng.permutation(600) < 300
        void += distribution_shift(
            blind_baseline(Membership.of(drawn.take(inside), drawn.take(~inside)), seed=seed)
        )
    # 2.5 % each; more than chance brings in 1 of 1,000 such tests fail
    assert void <= 3


@pytest.mark.parametrize("change", [str.upper, lambda text: text.replace(" ", "\u00a0")])
def test_capitals_and_white_space_are_a_shift(change):
    rng = np.random.default_rng(0)
    words = np.array(
        ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "run", "by"]
    )
    texts = [" ".join(rng.choice(words, 8)) for _ in range(400)]
    ids = np.arange(400).astype(str)
    labels = rng.integers(0, 2, 400)
    members = Records(np.array([change(t) for t in texts[:200]], object), labels[:200], ids[:200])
    others = Records(np.array(texts[200:], object), labels[200:], ids[200:])
    assert distribution_shift(blind_baseline(Membership.of(members, others)))
