"""Excess risk and weights: coverage by enumeration, known values, signs."""

import numpy as np
import pytest
from scipy.stats import binom

from attacks.metrics import wilson
from attacks.synthetic.rates import excess_risk, mean_share, rates

RATES = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95)


@pytest.mark.parametrize(("n", "m"), [(50, 50), (80, 50), (50, 80)])
def test_excess_risk_covers_as_stated(n, m):
    """All outcomes, weighted by their probability; false alarms are misses below at a = c."""
    low, high = np.empty((2, n + 1, m))
    for hits in range(n + 1):
        for control in range(m):
            found = excess_risk(hits, n, control, m)
            assert found.low <= found.value <= found.high
            low[hits, control], high[hits, control] = found.low, found.high
    for attack in RATES:
        for control in RATES:
            weight = binom.pmf(np.arange(n + 1), n, attack)[:, None]
            weight = weight * binom.pmf(np.arange(m), m, control)
            truth = (attack - control) / (1 - control)
            covered = weight[(low <= truth) & (truth <= high)].sum() / weight.sum()
            assert covered >= 0.925, (attack, control)
            if attack == control:
                assert weight[low > 0].sum() <= 0.035, attack


def test_excess_risk_of_no_difference_of_all_and_of_less():
    same = excess_risk(30, 100, 30, 100)
    assert same.value == 0
    assert same.low < 0 < same.high
    everything = excess_risk(100, 100, 30, 100)
    assert everything.value == everything.high == 1
    assert everything.low > 0.9
    less = excess_risk(10, 100, 60, 100)
    assert less.value == pytest.approx((0.1 - 0.6) / 0.4)
    assert less.high < 0


@pytest.mark.parametrize("hits", [0, 3, 40, 99, 100])
def test_beside_a_control_known_exactly_the_interval_is_wilson_s(hits):
    """A thousand million controls leave the attack's own uncertainty, rescaled."""
    found = excess_risk(hits, 100, 3 * 10**8, 10**9)
    low, high = ((end - 0.3) / 0.7 for end in wilson(hits, 100, 0.95))
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-3)


def test_a_control_that_always_succeeds_leaves_nothing_to_measure():
    hits = np.ones(20, bool)
    *_, excess = rates("m", hits, hits, hits, confidence=0.95, excess_confidence=0.95)
    assert excess.estimate is None
    assert "always succeeds" in excess.unmeasured
    with pytest.raises(ValueError, match="always succeeds"):
        excess_risk(5, 10, 10, 10)


@pytest.mark.parametrize("mean", [0.0005, 0.02, 0.3])
def test_the_mean_of_shares_that_differ_is_covered(mean):
    """400 samples of 200 shares, each of its own Beta(1, ·) chance; 1 of 1000 such tests fails."""
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(400):
        chances = rng.beta(1, (1 - mean) / mean, 200)
        found = mean_share(rng.binomial(1000, chances) / 1000, 1000)
        misses += not found.low <= mean <= found.high
    assert misses <= binom.ppf(0.999, 400, 0.06)


def test_shares_that_are_all_zero_have_an_upper_end():
    found = mean_share(np.zeros(10), 100)
    assert found.value == found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 1000))
