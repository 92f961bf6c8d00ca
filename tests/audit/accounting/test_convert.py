"""Conversions against closed forms, quadrature and each other."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from audit.accounting import convert, rdp
from audit.accounting.events import Gaussian, SampledGaussian


def test_rdp_conversion_is_balle_and_canonne() -> None:
    alpha, value, delta = 7.5, 0.6, 1e-5
    expected = value + math.log(6.5 / 7.5) - (math.log(delta) + math.log(7.5)) / 6.5
    assert convert.rdp_to_epsilon([alpha], [value], delta)[0] == pytest.approx(expected)
    textbook = convert.rdp_to_epsilon([alpha], [value], delta, textbook=True)[0]
    assert textbook == pytest.approx(value + math.log(1 / delta) / 6.5)
    assert expected < textbook


def test_an_epsilon_is_never_negative() -> None:
    assert convert.rdp_to_epsilon([2.0, 50.0], [1e-9, 1e-9], 0.5).min() == 0.0


@settings(max_examples=60, deadline=None)
@given(st.floats(1.01, 500), st.floats(1e-4, 50), st.floats(1e-12, 0.5))
def test_delta_and_epsilon_invert_each_other(alpha: float, value: float, delta: float) -> None:
    eps = convert.rdp_to_epsilon([alpha], [value], delta)[0]
    if eps > 0:
        back = convert.rdp_to_delta([alpha], [value], eps)[0]
        assert back == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("mu", [0.3, 1.0, 5.0])
def test_the_bound_holds_for_the_gaussian_whose_truth_is_known(mu: float) -> None:
    orders = 1 + np.geomspace(1e-3, 1e3, 200)
    value = rdp.rdp([Gaussian(1 / mu)], orders)
    for delta in (1e-10, 1e-5, 0.01, 0.3):
        exact = convert.gdp_to_epsilon(mu, delta)
        assert convert.rdp_to_epsilon(orders, value, delta).min() >= exact * (1 - 1e-12)


@pytest.mark.parametrize("mu", [0.01, 0.5, 2.0, 30.0])
def test_gdp_profile_in_forty_digits(mu: float) -> None:
    with mp.workdps(40):
        for eps in (0.0, 0.1, 3.0, 40.0):
            m, e = mp.mpf(mu), mp.mpf(eps)
            exact = float(mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2))
            assert float(convert.gdp_to_delta(mu, eps)) == pytest.approx(
                exact, rel=1e-7, abs=1e-300
            )


def test_one_gaussian_release() -> None:
    """ε = 1, δ = 1e-5: the classical σ is 4.845, the exact one 3.731; σ = 1.41 gives 2.953."""
    assert math.sqrt(2 * math.log(1.25 / 1e-5)) == pytest.approx(4.845, abs=5e-4)
    assert 1 / convert.gdp_mu(1.0, 1e-5) == pytest.approx(3.731, abs=1e-3)
    assert convert.gdp_to_epsilon(1 / 1.41, 1e-5) == pytest.approx(2.953, abs=5e-4)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 50), st.floats(1e-12, 0.1))
def test_gdp_mu_inverts_gdp_to_epsilon(eps: float, delta: float) -> None:
    assert convert.gdp_to_epsilon(convert.gdp_mu(eps, delta), delta) == pytest.approx(eps, rel=1e-6)


def test_trade_off_of_a_gaussian() -> None:
    fpr = np.array([0.0, 1e-3, 0.1, 0.5, 1.0])
    assert convert.gdp_trade_off(1.5, fpr) == pytest.approx(norm.sf(norm.isf(fpr) - 1.5))


def test_trade_off_of_single_points() -> None:
    """ε = 0.3 allows an accuracy of e^ε/(1 + e^ε) = 57.4 % and no more."""
    fpr = np.linspace(0, 1, 100_001)
    tpr = convert.trade_off([0.3], [0.0], fpr)
    assert ((tpr + 1 - fpr) / 2).max() == pytest.approx(0.5744, abs=1e-4)
    assert convert.trade_off([0.0], [0.0], fpr) == pytest.approx(fpr)
    assert convert.trade_off([0.0], [0.1], [0.2])[0] == pytest.approx(0.3)
    assert convert.trade_off([math.log(3)], [0.01], [0.1])[0] == pytest.approx(0.31)
    assert convert.trade_off([800.0], [0.0], [0.0, 1e-9])[0] == 0.0


def test_the_trade_off_of_a_curve_stays_above_the_attack_that_reaches_it() -> None:
    mu = 1.3
    eps = np.linspace(0, 12, 200)
    fpr = np.geomspace(1e-5, 0.9, 40)
    bound = convert.trade_off(eps, convert.gdp_to_delta(mu, eps), fpr)
    reached = convert.gdp_trade_off(mu, fpr)
    assert np.all(bound >= reached - 1e-12)
    assert np.all(bound <= reached * 1.01)


def test_the_limit_theorem_is_no_bound() -> None:
    """Below the true ε, which the PLD's own lower estimate proves; so it is never a guarantee."""
    from audit.accounting import pld

    mu = convert.clt_mu(0.01, 1.0, 10_000)
    truth = pld.compose([SampledGaussian(1.0, 0.01, 10_000)]).epsilon_lower(1e-5)
    assert convert.gdp_to_epsilon(mu, 1e-5) < truth


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0, -1.0, math.nan])
def test_delta_is_checked(delta: float) -> None:
    for ask in (
        lambda: convert.rdp_to_epsilon([2.0], [1.0], delta),
        lambda: convert.gdp_to_epsilon(1.0, delta),
        lambda: convert.gdp_mu(1.0, delta),
    ):
        with pytest.raises(ValueError, match="delta"):
            ask()


def test_the_rest_is_checked() -> None:
    with pytest.raises(ValueError, match="orders"):
        convert.rdp_to_epsilon([1.0], [1.0], 1e-5)
    with pytest.raises(ValueError, match="orders"):
        convert.rdp_to_delta([0.9], [1.0], 1.0)
    with pytest.raises(ValueError, match="epsilon"):
        convert.rdp_to_delta([2.0], [1.0], math.nan)
    with pytest.raises(ValueError, match="mu"):
        convert.gdp_to_epsilon(math.inf, 1e-5)
    with pytest.raises(ValueError, match="epsilon"):
        convert.gdp_mu(0.0, 1e-5)
