"""Figures against closed forms, brute force, and their stated coverage on simulated nulls."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, norm

from attacks.metrics import (
    FPRS,
    advantage,
    auc,
    balanced_accuracy,
    clopper_pearson,
    measure,
    roc,
    tpr_at_fpr,
)


def pairs_auc(members, non_members):
    pairs = list(itertools.product(members, non_members))
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_auc_with_ties_is_the_share_of_pairs(seed):
    rng = np.random.default_rng(seed)
    members, others = rng.integers(0, 4, 23) + 1, rng.integers(0, 4, 17)
    estimate = auc(members, others)
    assert estimate.value == pytest.approx(pairs_auc(members, others))
    assert estimate.low < estimate.value < estimate.high
    assert estimate.n == 40


def test_tied_scores_that_a_peer_gets_wrong():
    # half of both sides tied at 0; above it members are more: the truth is 0.70, not 0.12
    members = [0] * 30 + [1] * 23 + [-1] * 7
    others = [0] * 30 + [1] * 7 + [-1] * 23
    assert auc(members, others).value == pytest.approx(pairs_auc(members, others))
    assert auc(members, others).value == pytest.approx(0.70)


def test_delong_variance_against_the_definition():
    rng = np.random.default_rng(3)
    members, others = np.round(rng.normal(0.7, 1, 60), 1), np.round(rng.normal(0, 1, 45), 1)
    wins = (members[:, None] > others) + (members[:, None] == others) / 2
    value = wins.mean()
    variance = wins.mean(1).var(ddof=1) / 60 + wins.mean(0).var(ddof=1) / 45
    reach = norm.ppf(0.975) * np.sqrt(variance) / (value * (1 - value))
    low, high = 1 / (1 + np.exp(-(np.log(value / (1 - value)) + np.array([-reach, reach]))))
    assert (auc(members, others).low, auc(members, others).high) == pytest.approx((low, high))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (5, 200), (100, 100), (1000, 7)])
def test_no_interval_of_a_finite_sample_has_zero_width(m, n):
    for members, others in (
        (np.arange(m) + 10.0 * n, np.arange(n)),  # perfect
        (np.arange(m) - 10.0 * m, np.arange(n)),  # inverted
        (np.zeros(m), np.zeros(n)),  # constant
    ):
        for figure in measure(members, others):
            if figure.estimate is not None:
                assert figure.estimate.low <= figure.estimate.value <= figure.estimate.high
                assert figure.estimate.low < figure.estimate.high
    assert auc(np.ones(m), np.zeros(n)).value == 1
    assert auc(np.ones(m), np.zeros(n)).low < 1


def test_constant_scores_are_chance_whatever_the_rows_order():
    figures = {f.name: f.estimate for f in measure(np.full(2000, 0.3), np.full(1500, 0.3))}
    assert figures["auc"].value == 0.5
    for fpr in (0.1, 0.01, 0.001):
        assert figures[f"tpr_at_fpr_{fpr:g}"].value == 0
        assert figures[f"lower_tail_tpr_at_fpr_{fpr:g}"].value == 0
    assert figures["advantage"].value == 0
    assert figures["balanced_accuracy"].value == 0.5


def test_nothing_depends_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    members, others = np.round(rng.normal(1, 1, 300), 1), np.round(rng.normal(0, 1, 400), 1)
    assert measure(members, others) == measure(members[::-1], rng.permutation(others))


def test_roc_has_one_vertex_for_each_distinct_score():
    curve = roc([3, 2, 2, 1], [2, 1, 1, 0])
    assert curve.fpr.tolist() == [0, 0, 0.25, 0.75, 1]
    assert curve.tpr.tolist() == [0, 0.25, 0.75, 1, 1]
    assert curve.thresholds[1:].tolist() == [3, 2, 1, 0]
    area = np.trapezoid(curve.tpr, curve.fpr)
    assert area == pytest.approx(auc([3, 2, 2, 1], [2, 1, 1, 0]).value)


def test_thinned_roc_is_short_and_lies_on_the_curve():
    rng = np.random.default_rng(0)
    whole = roc(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000))
    thin = whole.thinned(200)
    assert len(thin.fpr) <= 202
    assert {(0.0, 0.0), (1.0, 1.0)} <= set(zip(thin.fpr, thin.tpr, strict=True))
    assert set(zip(thin.fpr, thin.tpr, strict=True)) <= set(zip(whole.fpr, whole.tpr, strict=True))
    assert (thin.fpr[thin.fpr > 0].min()) < 1e-3  # the small rates are what the curve is drawn for


def test_tpr_counts_members_above_the_threshold():
    others = np.arange(100.0)  # at 10 % the threshold is 89: ten non-members lie above
    members = np.array([88.0, 89.0, 89.5, 95.0, 200.0])
    assert tpr_at_fpr(members, others, 0.1).estimate.value == pytest.approx(3 / 5)
    assert tpr_at_fpr(members, others, 0.01).estimate.value == pytest.approx(1 / 5)


@pytest.mark.parametrize("n", [10, 30, 70, 100, 290])
def test_allowed_false_positives_survive_rounding(n):
    # 0.29 * 100 is 28.999999999999996 in floating point; 29 false positives are allowed
    for fpr in (0.1, 0.29, 0.3, 0.7):
        others = np.arange(float(n))
        cut = n - 1 - math.floor(Fraction(str(fpr)) * n)
        hit = tpr_at_fpr(np.array([cut + 0.5]), others, fpr).estimate.value
        assert hit == 1.0, (n, fpr)


def test_too_few_non_members_is_said_not_guessed():
    figure = tpr_at_fpr(np.arange(1000), np.arange(57), 0.001)
    assert figure.estimate is None
    assert "57" in figure.unmeasured
    assert "0.018" in figure.unmeasured
    assert tpr_at_fpr(np.arange(1000), np.arange(1000), 0.001).estimate is not None


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1])
def test_impossible_rates_are_refused(bad):
    with pytest.raises(ValueError, match="fpr"):
        tpr_at_fpr([1, 2], [0, 1], bad)


def test_nan_is_refused_and_infinities_are_extremes():
    with pytest.raises(ValueError, match="members: a score is NaN"):
        auc([1, np.nan], [0, 1])
    with pytest.raises(ValueError, match="no scores"):
        auc([], [0, 1])
    finite = measure([9, 1, 2, -9], [-9, 0, 9, 1])
    infinite = measure([np.inf, 1, 2, -np.inf], [-np.inf, 0, np.inf, 1])
    assert [f.estimate and f.estimate.value for f in finite] == [
        f.estimate and f.estimate.value for f in infinite
    ]


def test_advantage_is_not_rewarded_for_choosing_its_threshold():
    rng = np.random.default_rng(5)
    gains = [advantage(rng.normal(size=30), rng.normal(size=30)).value for _ in range(400)]
    # its standard deviation is at most sqrt(2 / 30 / 4) = 0.13; four standard errors
    assert abs(np.mean(gains)) < 4 * 0.13 / 20


def test_advantage_at_a_given_threshold():
    estimate = advantage([1, 1, 1, 0], [1, 0, 0, 0], threshold=0.5)
    assert estimate.value == pytest.approx(0.5)
    assert balanced_accuracy([1, 1, 1, 0], [1, 0, 0, 0], threshold=0.5).value == 0.75


def test_reversed_leak_shows_in_the_lower_tail():
    rng = np.random.default_rng(0)
    figures = {f.name: f.estimate for f in measure(rng.normal(-3, 1, 2000), rng.normal(size=2000))}
    assert figures["auc"].high < 0.5
    assert figures["tpr_at_fpr_0.01"].high < 0.01
    assert figures["lower_tail_tpr_at_fpr_0.01"].low > 0.5


def test_clopper_pearson_known_value():
    estimate = clopper_pearson(5, 20)  # Clopper and Pearson's table
    assert (estimate.low, estimate.high) == pytest.approx((0.0866, 0.4910), abs=1e-4)


def coverage(covers):
    """The share, and the slack that a binomial share of these runs has (three standard errors)."""
    return np.mean(covers), 3 * np.sqrt(0.05 * 0.95 / len(covers))


@pytest.mark.parametrize("ties", [False, True])
def test_auc_interval_covers_one_half_on_nulls(ties):
    rng = np.random.default_rng(11)
    covers = []
    for _ in range(400):
        members, others = rng.normal(size=300), rng.normal(size=200)
        if ties:
            members, others = np.round(members), np.round(others)
        estimate = auc(members, others)
        covers.append(estimate.low <= 0.5 <= estimate.high)
    share, slack = coverage(covers)
    assert abs(share - 0.95) < slack


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_tpr_interval_covers_the_true_rate(shift):
    """The threshold is chosen on the same non-members; plain Clopper-Pearson covers 83 % here."""
    rng = np.random.default_rng(12)
    fprs = (0.1, 0.01)
    truth = norm.sf(norm.isf(fprs) - shift)
    covers = []
    for _ in range(300):
        members, others = rng.normal(shift, 1, 2000), rng.normal(size=2000)
        for fpr, rate in zip(fprs, truth, strict=True):
            estimate = tpr_at_fpr(members, others, fpr).estimate
            covers.append(estimate.low <= rate <= estimate.high)
    assert 0.93 <= np.mean(covers) <= 0.99


def test_tpr_interval_is_never_short_of_its_level_where_few_count():
    rng = np.random.default_rng(13)
    covers = []
    for _ in range(300):
        estimate = tpr_at_fpr(rng.normal(size=1000), rng.normal(size=1000), 0.001).estimate
        covers.append(estimate.low <= 0.001 <= estimate.high)
    assert np.mean(covers) >= 0.95


def test_all_rates_are_measured_or_explained():
    names = [f.name for f in measure(np.arange(50), np.arange(50))]
    assert [f"tpr_at_fpr_{f:g}" for f in FPRS] == [n for n in names if n.startswith("tpr")]


@pytest.mark.parametrize(("m", "n", "p"), [(12, 200, 0.9), (60, 600, 0.95), (20, 58, 0.9)])
def test_an_unequal_side_of_tied_scores_is_no_evidence(m, n, p):
    """Two-valued null scores: DeLong's interval alone lies above 0.5 in 9 to 28 % of these."""
    rng, above = np.random.default_rng(0), 0
    for _ in range(200):
        scores = (rng.random(m) < p, rng.random(n) < p)
        above += auc(*scores).low > 0.5
    # 2.5 % each; more than chance brings in 1 of 1,000 such tests fail
    assert above <= binom.ppf(0.999, 200, 0.025)
