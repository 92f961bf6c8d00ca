"""Membership by density: chance on clean data, above plain distance where density varies."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))

import frames

from attacks.metrics import auc
from attacks.synthetic.density import SMOOTHING, attack, scores, split
from attacks.synthetic.distances import Points, nearest
from attacks.synthetic.tables import code


def tables(train, holdout, synthetic):
    return code({"train": train, "holdout": holdout, "synthetic": synthetic})


def figures(result):
    return {f.name: f.estimate for f in result.figures}


def test_clean_data_give_chance_at_the_stated_rate():
    """Twelve 99.6 % intervals leave chance out in at most 5 % of runs; here in 40 runs."""
    missed = 0
    for seed in range(40):
        rng = np.random.default_rng([3, seed])
        sides = [
            pd.DataFrame({"x": rng.normal(size=n), "y": rng.exponential(size=n)})
            for n in (150, 200, 150)
        ]
        measured = figures(attack(tables(*sides), seed=seed))
        missed += any(
            found is not None
            and (
                found.low > 0.5 or found.high < 0.5
                if name.startswith("auc")
                else found.low > float(name.partition(":")[0].rpartition("_")[2])
            )
            for name, found in measured.items()
        )
    assert missed <= binom.ppf(0.999, 40, 0.05)


def test_the_calibrated_ratio_beats_the_plain_distance_where_density_varies():
    train, holdout = (frames.clustered(2000, seed) for seed in range(2))
    measured = figures(attack(tables(train, holdout, frames.memorised(train, 2000, 0))))
    for name in ("auc", "tpr_at_fpr_0.1"):
        ratio, plain = measured[f"{name}:log_ratio"], measured[f"{name}:distance"]
        assert ratio.low > plain.high
    assert measured["auc:domias"].low > 0.6


def test_few_copies_show_at_a_low_false_positive_rate():
    """Five in a hundred copied: an AUC near one half, a TPR at 1 % of about five in a hundred."""
    train, holdout, synthetic = (frames.mixed(2000, seed) for seed in range(3))
    planted, _ = frames.plant(synthetic, train, 0.05)
    measured = figures(attack(tables(train, holdout, planted)))
    assert measured["auc:log_ratio"].value < 0.56
    assert measured["tpr_at_fpr_0.01:log_ratio"].low > 0.01
    assert measured["tpr_at_fpr_0.01:log_ratio"].value == pytest.approx(0.05, abs=0.02)


def test_log_ratio_is_its_formula():
    rng = np.random.default_rng(0)
    records, synthetic, reference = (
        Points(rng.random((n, 3)), np.empty((n, 0), np.int32)) for n in (40, 50, 60)
    )
    found, to_synthetic, to_reference = scores(records, synthetic, reference)

    def distances(x, among):
        return np.sort(np.sqrt(((among.units - x) ** 2).sum(axis=1)))

    c = SMOOTHING * np.median([distances(x, reference)[0] for x in records.units])
    for row, x in enumerate(records.units):
        near, own = distances(x, synthetic)[0], distances(x, reference)[:5].mean()
        assert to_synthetic[row] == pytest.approx(near)
        assert to_reference[row] == pytest.approx(own)
        assert found["log_ratio"][row] == pytest.approx(-np.log((near + c) / (own + c)))
        assert found["distance"][row] == -to_synthetic[row]


def test_domias_is_a_ratio_of_kernel_densities():
    """With all records among the nearest it is the full sum of kernels."""
    rng = np.random.default_rng(1)
    records, synthetic, reference = (
        Points(rng.random((n, 2)), np.empty((n, 0), np.int32)) for n in (20, 12, 15)
    )
    found = scores(records, synthetic, reference)[0]["domias"]
    for row, x in enumerate(records.units):
        near, own = (
            np.sqrt(((among.units - x) ** 2).sum(axis=1)) for among in (synthetic, reference)
        )
        nearest_ = [nearest(records.take(np.array([k])), reference)[0] for k in range(20)]
        width = max(own.min() / 3, SMOOTHING * np.median(nearest_))
        densities = [np.exp(-0.5 * (d / width) ** 2).mean() for d in (near, own)]
        assert found[row] == pytest.approx(np.log(densities[0] / densities[1]))


def test_reference_and_judged_records_are_disjoint_and_all():
    for n in (40, 41):
        one, other = split(n, seed=5)
        assert sorted([*one, *other]) == list(range(n))
        assert abs(len(one) - len(other)) <= 1
    assert (split(40, 1)[0] != split(40, 2)[0]).any()


def test_the_evidence_gives_every_figure_again():
    train, holdout, synthetic = (frames.mixed(200, seed) for seed in range(3))
    result = attack(tables(train, holdout, synthetic))
    frame = pd.DataFrame(dict(result.rows))
    inside = frame.table == "train"
    assert inside.sum() == 200
    assert (~inside).sum() == 100
    again = auc(frame.log_ratio[inside], frame.log_ratio[~inside])
    assert figures(result)["auc:log_ratio"].value == again.value


def test_equal_records_everywhere_give_equal_scores():
    same = pd.DataFrame({"x": np.ones(60), "y": ["a"] * 60})
    assert figures(attack(tables(same, same, same)))["auc:log_ratio"].value == 0.5


def test_too_few_records_are_refused():
    few = frames.mixed(30, 0)
    with pytest.raises(ValueError, match="density: 30 train and 30 holdout records; give 20 or mo"):
        attack(tables(few, few, few))
