"""RDP against 40-digit quadrature, Opacus at equal orders, and closed forms."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.accounting import convert, pld, rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    SampledGaussian,
    ZeroConcentratedDP,
)


def oracle(name: str) -> list[dict[str, Any]]:
    path = Path(__file__).parent / "oracles" / f"{name}.json"
    rows = json.loads(path.read_text())
    assert rows
    return list(rows)


def test_sampled_gaussian_agrees_with_the_quadrature_of_the_oracle() -> None:
    for case in oracle("rdp_exact"):
        found = rdp.sampled_gaussian(case["q"], case["sigma"], [case["alpha"]])[0]
        assert found == pytest.approx(case["exact_quadrature"], rel=1e-6), case


def quadrature(q: float, sigma: float, alpha: float) -> float:
    """RDP by 30-digit quadrature of E[(P/Q)^α − 1 − α(P/Q − 1)], P/Q the sampled mixture."""
    with mp.workdps(30):
        rate, s, a = mp.mpf(q), mp.mpf(sigma), mp.mpf(alpha)

        def integrand(z: Any) -> Any:
            ratio = (1 - rate) + rate * mp.exp((2 * z - 1) / (2 * s * s))
            return mp.npdf(z, 0, s) * (ratio**a - 1 - a * (ratio - 1))

        cuts = {-12 * s, -4 * s, -s, mp.mpf(0), mp.mpf("0.5"), mp.mpf(1), 14 * s}
        cuts |= {a / 2, a - 4 * s, a, a + 4 * s, a + 14 * s}
        return float(mp.log1p(mp.quad(integrand, sorted(cuts))) / (a - 1))


EDGES = [(1e-6, 0.025), (0.999, 0.025), (0.01, 0.031), (0.3, 0.1), (1e-6, 1.0), (0.999, 50.0)]


@pytest.mark.parametrize(("q", "sigma"), EDGES)
@pytest.mark.parametrize("alpha", [1 + 1e-8, 1.1, 3.7, 200.0])
def test_sampled_gaussian_agrees_with_quadrature_at_the_edges(
    q: float, sigma: float, alpha: float
) -> None:
    found = rdp.sampled_gaussian(q, sigma, [alpha])[0]
    assert found == pytest.approx(quadrature(q, sigma, alpha), rel=1e-6)


def test_opacus_at_equal_orders_and_never_above() -> None:
    for case in oracle("sampled_gaussian"):
        run = [SampledGaussian(case["sigma"], case["q"], case["steps"])]
        order = [case["opacus_rdp_order"]]
        theirs = max(case["opacus_rdp"], 0.0)  # Opacus lets ε fall below 0
        ours = convert.rdp_to_epsilon(order, rdp.rdp(run, order), case["delta"])[0]
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-12), case
        assert rdp.epsilon(run, case["delta"]).epsilon <= theirs * (1 + 1e-4) + 1e-12, case


def test_phases_compose_as_opacus_says() -> None:
    for case in oracle("heterogeneous"):
        run = [SampledGaussian(p["sigma"], p["q"], p["steps"]) for p in case["phases"]]
        found = rdp.epsilon(run, case["delta"]).epsilon
        assert found <= case["opacus_rdp"] * (1 + 1e-4)
        assert found > 0.97 * case["opacus_rdp"]  # their orders are a tenth apart


RUNS: list[list[MechanismEvent]] = [
    [SampledGaussian(1.0, 0.01, 10_000)],
    [SampledGaussian(0.4, 0.001, 1)],
    [SampledGaussian(0.01, 0.01, 1)],
    [SampledGaussian(8.0, 0.001, 10)],
    [SampledGaussian(30.0, 0.5, 3)],
    [SampledGaussian(1.0, 0.01, 10**9)],
    [SampledGaussian(0.5, 1e-6, 1000), SampledGaussian(3.0, 0.2, 10)],
    [Gaussian(0.1), Laplace(3.0, 7)],
    [ApproximateDP(0.5, 1e-8, 30), ZeroConcentratedDP(0.01)],
]


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_no_finer_or_wider_grid_of_orders_finds_less(
    run: list[MechanismEvent], delta: float
) -> None:
    if rdp.reserved_delta(run) >= delta:
        assert math.isinf(rdp.epsilon(run, delta).epsilon)
        return
    found = rdp.epsilon(run, delta).epsilon
    orders = 1 + np.geomspace(1e-7, 1e6, 3000)
    lost = rdp.reserved_delta(run)
    room = math.log((delta - lost) / (1 - lost))
    least = convert.rdp_to_epsilon(orders, rdp.rdp(run, orders), log_delta=room).min()
    assert found <= least * 1.0001 + 1e-12


def exact_pair(alpha: float, log_p: Any, log_q: Any, cuts: list[float]) -> float:
    """Rényi divergence of two densities on the line by quadrature."""
    with mp.workdps(25):
        a = mp.mpf(alpha)
        moment = mp.quad(lambda z: mp.exp(a * log_p(z) + (1 - a) * log_q(z)), cuts)
        return float(mp.log(moment) / (a - 1))


@pytest.mark.parametrize("alpha", [1.001, 2.0, 17.3])
@pytest.mark.parametrize("scale", [0.2, 1.0, 30.0])
def test_laplace_is_exact(alpha: float, scale: float) -> None:
    b = mp.mpf(scale)

    def at(place: float) -> Any:
        return lambda z: -abs(z - place) / b - mp.log(2 * b)

    exact = exact_pair(alpha, at(0), at(1), [-mp.inf, 0, 1, mp.inf])
    assert rdp.rdp([Laplace(scale)], alpha)[0] == pytest.approx(exact, rel=1e-9)
    twice = exact_pair(alpha, at(0), at(2), [-mp.inf, 0, 2, mp.inf])
    assert rdp.rdp([Laplace(scale)], alpha, "replace-one")[0] == pytest.approx(twice, rel=1e-9)


@pytest.mark.parametrize("alpha", [1.001, 2.0, 60.0])
@pytest.mark.parametrize("eps", [1e-4, 0.5, 12.0])
def test_a_pure_guarantee_is_randomised_response(alpha: float, eps: float) -> None:
    with mp.workdps(30):
        p, a = 1 / (1 + mp.exp(-mp.mpf(eps))), mp.mpf(alpha)
        moment = p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)
        exact = float(mp.log(moment) / (a - 1))
    assert rdp.rdp([ApproximateDP(eps)], alpha)[0] == pytest.approx(exact, rel=1e-8)


def test_formulas_of_the_unsampled_events() -> None:
    alpha = np.array([1.5, 2.0, 32.0])
    assert rdp.rdp([Gaussian(2.0, 3)], alpha) == pytest.approx(3 * alpha / 8)
    assert rdp.rdp([Gaussian(2.0, 3)], alpha, "replace-one") == pytest.approx(12 * alpha / 8)
    assert rdp.rdp([GNMax(40.0, 10)], alpha) == pytest.approx(10 * alpha / 40**2)
    assert rdp.rdp([ZeroConcentratedDP(0.3)], alpha) == pytest.approx(0.3 * alpha)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.128, 1.41), (0.5, 4.0), (0.3, 0.6)])
@pytest.mark.parametrize("alpha", [1.3, 4.0, 30.0])
def test_poisson_replace_one_is_the_divergence_of_its_pair(
    q: float, sigma: float, alpha: float
) -> None:
    s, rate = mp.mpf(sigma), mp.mpf(q)

    def towards(place: int) -> Any:
        return lambda z: mp.log((1 - rate) * mp.npdf(z, 0, s) + rate * mp.npdf(z, place, s))

    far = 2 * alpha + 14 * sigma
    cuts = [-1 - 14 * sigma, -1, 0, 1, alpha, 2 * alpha, far]
    exact = exact_pair(alpha, towards(1), towards(-1), sorted(cuts))
    found = rdp.sampled_gaussian(q, sigma, [alpha], "poisson replace-one")[0]
    assert found == pytest.approx(exact, rel=1e-6)


def test_without_replacement_keeps_the_factor_two_and_stays_above_what_is_attained() -> None:
    """All others at C: a batch is N(0) for one data set, (1−q)·N(0) + q·N(2C) for the other."""
    for case in oracle("fixed_size_wor"):
        run = [SampledGaussian(case["sigma"], case["q"], case["steps"], "without_replacement")]
        found = rdp.epsilon(run, case["delta"], "replace-one").epsilon
        known = case["dpacc_wor_rdp_sigma_half_correct_for_replace_one"]
        assert found <= known * (1 + 1e-4), case
        attained = [SampledGaussian(case["sigma"] / 2, case["q"], case["steps"])]
        assert found >= pld.compose(attained).epsilon_lower(case["delta"]), case
        assert found > case["dpacc_wor_rdp_as_shipped"], case  # the trap: σ not halved


def test_an_order_next_to_one_is_not_free() -> None:
    """tensorflow/privacy issue 166."""
    run = [SampledGaussian(1.0, 105 / 100_000, 1)]
    order = [1 + 1e-8]
    assert rdp.rdp(run, order)[0] > 0
    assert convert.rdp_to_epsilon(order, rdp.rdp(run, order), 1e-3)[0] == 0.0  # TV below δ
    hidden = pld.compose(run).delta(0.0)
    assert hidden <= 1e-3  # so that 0 is the truth and no accident
    assert convert.rdp_to_epsilon(order, rdp.rdp(run, order), 1e-5)[0] > 0


def test_tiny_noise_costs_thousands() -> None:
    run = [SampledGaussian(0.01, 0.01, 1)]
    found = rdp.epsilon(run, 1e-5).epsilon
    assert pld.compose(run).epsilon_lower(1e-5) < found <= 5561


def test_a_billion_steps_take_no_longer() -> None:
    start = time.process_time()
    found = rdp.epsilon([SampledGaussian(1.0, 0.01, 10**9)], 1e-5).epsilon
    assert time.process_time() - start < 1
    assert 80_000 < found < 90_000


def test_delta_below_the_smallest_float() -> None:
    run = [SampledGaussian(1.0, 0.01, 1000)]
    at_300 = rdp.epsilon(run, 1e-300).epsilon
    beyond = rdp.epsilon(run, 0.5, log_delta=-2000.0).epsilon
    assert 0 < at_300 < beyond < math.inf


@pytest.mark.parametrize("orders", [[1.0], [0.5], [2.0, 1.0], [math.nan], [math.inf], [-3.0]])
def test_orders_must_be_above_one(orders: list[float]) -> None:
    with pytest.raises(ValueError, match="orders: each must be above 1"):
        rdp.rdp([Gaussian(1.0)], orders)


@pytest.mark.parametrize(
    ("q", "sigma"), [(0.0, 1.0), (1.1, 1.0), (math.nan, 1.0), (0.1, 0.0), (0.1, math.nan)]
)
def test_phases_must_be_in_range(q: float, sigma: float) -> None:
    with pytest.raises(ValueError, match=r"sample_rate|noise_multiplier"):
        rdp.sampled_gaussian([0.1, q], [1.0, sigma], [2.0])


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-5, math.nan])
def test_delta_lies_inside_zero_to_one(delta: float) -> None:
    with pytest.raises(ValueError, match="delta: must lie between 0 and 1"):
        rdp.epsilon([Gaussian(1.0)], delta)


def test_phases_are_vectorised() -> None:
    q, sigma, alpha = [0.01, 1.0, 0.3], [1.0, 2.0, 0.05], [1.5, 8.0]
    together = rdp.sampled_gaussian(q, sigma, alpha)
    apart = [rdp.sampled_gaussian(a, b, alpha) for a, b in zip(q, sigma, strict=True)]
    assert together.shape == (3, 2)
    assert together == pytest.approx(np.array(apart), rel=1e-9)


sigmas = st.floats(0.2, 20)
rates = st.floats(1e-5, 1.0)
counts = st.integers(1, 10**6)
deltas = st.floats(1e-12, 0.3)


@settings(max_examples=60, deadline=None)
@given(sigmas, rates, counts, deltas)
def test_epsilon_is_monotone(sigma: float, q: float, steps: int, delta: float) -> None:
    def spent(s: float = sigma, r: float = q, n: int = steps, d: float = delta) -> float:
        return rdp.epsilon([SampledGaussian(s, r, n)], d).epsilon

    base = spent()
    slack = 1 + 1e-6
    assert spent(s=sigma * 1.3) <= base * slack
    assert spent(r=q * 0.7) <= base * slack
    assert spent(n=max(steps // 2, 1)) <= base * slack
    assert spent(d=min(delta * 3, 0.99)) <= base * slack
    assert base <= spent(r=1.0) * slack  # never above the full batch


@settings(max_examples=30, deadline=None)
@given(sigmas, rates, sigmas, rates, deltas)
def test_composition_commutes_and_adds(
    s1: float, q1: float, s2: float, q2: float, delta: float
) -> None:
    a, b = SampledGaussian(s1, q1, 10), SampledGaussian(s2, q2, 20)
    together = rdp.epsilon([a, b], delta).epsilon
    assert together == pytest.approx(rdp.epsilon([b, a], delta).epsilon, rel=1e-9)
    halves = [SampledGaussian(s1, q1, 4), b, SampledGaussian(s1, q1, 6)]
    assert together == pytest.approx(rdp.epsilon(halves, delta).epsilon, rel=1e-9)
    assert together >= max(rdp.epsilon([x], delta).epsilon for x in (a, b)) * (1 - 1e-6)
