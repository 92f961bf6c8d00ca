"""The privacy loss distribution between independent truths: closed forms, quadrature, oracles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as google
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

from audit.accounting import convert, pld, rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    Laplace,
    MechanismEvent,
    SampledGaussian,
    UnsupportedEvent,
    ZeroConcentratedDP,
)

Floats = NDArray[np.float64]
Profile = Callable[[Floats], Floats]


def oracle(name: str) -> list[dict[str, Any]]:
    path = Path(__file__).parent / "oracles" / f"{name}.json"
    rows = json.loads(path.read_text())
    assert rows
    return list(rows)


class Mixture:
    """A mixture of normals on the line."""

    def __init__(self, weights: list[float], means: list[float], sigma: float) -> None:
        self.w, self.m, self.s = np.array(weights), np.array(means), sigma

    def log_density(self, z: Floats) -> Floats:
        terms = np.log(self.w) - (z[..., None] - self.m) ** 2 / (2 * self.s**2)
        value: Floats = logsumexp(terms, axis=-1)
        return value

    def above(self, z: Floats) -> Floats:
        value: Floats = ndtr((self.m - z[..., None]) / self.s) @ self.w
        return value

    def below(self, z: Floats) -> Floats:
        value: Floats = ndtr((z[..., None] - self.m) / self.s) @ self.w
        return value


def hockey_stick(p: Mixture, q: Mixture) -> Profile:
    """δ(ε) of a pair whose loss is monotone in z: P − e^ε·Q beyond the z with loss(z) = ε.

    z is read from a table. δ is stationary in z, so that its error counts only squared.
    """
    reach = 45 * p.s + float(max(np.abs(p.m).max(), np.abs(q.m).max())) + 2
    z = np.linspace(-reach, reach, 400_001)
    loss = p.log_density(z) - q.log_density(z)
    rising = loss[-1] > loss[0]
    mass_p, mass_q = (p.above, q.above) if rising else (p.below, q.below)
    z, loss = (z, loss) if rising else (z[::-1], loss[::-1])

    def delta(eps: Floats) -> Floats:
        place = np.interp(eps, loss, z)
        inside = mass_p(place) - np.exp(eps) * mass_q(place)
        return np.maximum(np.where(eps >= loss[-1], 0.0, inside), np.maximum(-np.expm1(eps), 0.0))

    return delta


def twice(p: Mixture, q: Mixture) -> Profile:
    """δ(ε) of two independent draws: the first one's loss taken off ε, averaged over it."""
    once = hockey_stick(p, q)
    z = np.linspace(p.m.min() - 10 * p.s, p.m.max() + 10 * p.s, 20_001)
    weight = np.exp(p.log_density(z)) / (p.s * math.sqrt(2 * math.pi)) * (z[1] - z[0])
    losses = p.log_density(z) - q.log_density(z)

    def delta(eps: Floats) -> Floats:
        return np.array([weight @ once(e - losses) for e in np.atleast_1d(eps)])

    return delta


def check(loss: pld.LossDistribution, truths: list[Profile], epsilons: list[float]) -> None:
    """The bounds hold to one part in 10⁹, and a little more ε meets the true δ."""
    for eps in epsilons:
        delta = max(float(truth(np.array([eps]))[0]) for truth in truths)
        if delta < 1e-11:
            continue
        assert loss.delta(eps) >= delta * (1 - 1e-9), eps
        assert loss.epsilon(delta * (1 - 1e-9)) >= eps, eps
        if loss.lower:
            assert loss.epsilon_lower(delta * (1 + 1e-9)) <= eps, eps
        assert loss.delta(eps * 1.01 + 0.02) <= delta * (1 + 1e-6) + 1e-12, eps


EPSILONS = [0.01, 0.1, 0.5, 2.0, 5.0, 20.0]
PLACES = [(0.001, 0.5), (0.05, 0.3), (0.05, 1.4), (0.3, 0.7), (0.9, 5.0)]


def pairs(q: float, sigma: float) -> tuple[Mixture, Mixture, Mixture]:
    """N(0), and the mixture with N(1) and with N(−1)."""
    return (
        Mixture([1.0], [0.0], sigma),
        Mixture([1 - q, q], [0.0, 1.0], sigma),
        Mixture([1 - q, q], [0.0, -1.0], sigma),
    )


@pytest.mark.parametrize(("q", "sigma"), PLACES)
def test_one_poisson_step_is_exact_in_both_directions(q: float, sigma: float) -> None:
    none, up, _ = pairs(q, sigma)
    loss = pld.compose([SampledGaussian(sigma, q, 1)])
    check(loss, [hockey_stick(up, none), hockey_stick(none, up)], EPSILONS)


@pytest.mark.parametrize(("q", "sigma"), PLACES)
def test_one_poisson_step_under_replace_one(q: float, sigma: float) -> None:
    _, up, down = pairs(q, sigma)
    loss = pld.compose([SampledGaussian(sigma, q, 1)], "replace-one")
    check(loss, [hockey_stick(up, down)], EPSILONS)


@pytest.mark.parametrize("q", [0.05, 0.5])
@pytest.mark.parametrize("sigma", [0.5, 1.5])
def test_opposite_vectors_are_the_worst_replacement(q: float, sigma: float) -> None:
    """Other vectors in the unit ball, in the plane, by quadrature: none exceeds the pair."""
    grid = np.linspace(-1 - 8 * sigma, 1 + 8 * sigma, 401)
    cell = (grid[1] - grid[0]) ** 2
    x, y = np.meshgrid(grid, grid)

    def batch(to: tuple[float, float]) -> Floats:
        def normal(a: float, b: float) -> Floats:
            square: Floats = (x - a) ** 2 + (y - b) ** 2
            density: Floats = np.exp(-square / (2 * sigma**2)) / (2 * math.pi * sigma**2)
            return density

        return (1 - q) * normal(0, 0) + q * normal(*to)

    loss = pld.compose([SampledGaussian(sigma, q, 1)], "replace-one")
    for length in (0.0, 0.6, 1.0):
        for angle in (0.0, 0.8, 1.6, 2.4, math.pi):
            p, r = batch((1.0, 0.0)), batch((length * math.cos(angle), length * math.sin(angle)))
            for eps in (0.05, 0.5, 2.0):
                for a, b in ((p, r), (r, p)):
                    delta = float(np.maximum(a - math.exp(eps) * b, 0).sum() * cell)
                    assert delta <= loss.delta(eps) * 1.0005 + 1e-9


@pytest.mark.parametrize(("q", "sigma"), PLACES)
def test_one_step_without_replacement_is_the_pair_of_sensitivity_two(
    q: float, sigma: float
) -> None:
    none = Mixture([1.0], [0.0], sigma)
    up = Mixture([1 - q, q], [0.0, 2.0], sigma)
    loss = pld.compose([SampledGaussian(sigma, q, 1, "without_replacement")], "replace-one")
    check(loss, [hockey_stick(up, none), hockey_stick(none, up)], EPSILONS)
    assert not loss.lower  # the pair is a bound; no one data set is known to meet all of it


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.5), (0.3, 1.4)])
def test_two_steps_are_sandwiched(q: float, sigma: float) -> None:
    none, up, down = pairs(q, sigma)
    run = [SampledGaussian(sigma, q, 2)]
    check(pld.compose(run), [twice(up, none), twice(none, up)], [0.05, 0.5, 2.0])
    check(pld.compose(run, "replace-one"), [twice(up, down)], [0.05, 0.5, 2.0])


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.8), (0.3, 3.0)])
def test_a_group_is_the_binomial_mixture(size: int, q: float, sigma: float) -> None:
    drawn = list(range(size + 1))
    group = Mixture(list(binom.pmf(drawn, size, q)), [float(j) for j in drawn], sigma)
    none = Mixture([1.0], [0.0], sigma)
    loss = pld.compose([SampledGaussian(sigma, q, 1)], "add-remove", size)
    check(loss, [hockey_stick(group, none), hockey_stick(none, group)], EPSILONS)


@pytest.mark.parametrize("steps", [10, 10_000, 10**6, 10**9])
@pytest.mark.parametrize("mu", [0.5, 2.0, 8.0])
def test_repeated_gaussians_meet_the_closed_form(steps: int, mu: float) -> None:
    """Composed by FFT here, though ``compose`` would join them, since the truth is known."""
    sigma = math.sqrt(steps) / mu
    gap = max(0.025 / sigma, 20 * mu / 1e6)
    cells = pld._gaussian(1.0, sigma, gap)
    upper = pld._self_composed(pld._connect_dots(cells), steps).dense()
    lower = pld._self_composed(pld._sunk_dots(cells), steps).dense()
    loss = pld.LossDistribution((upper,), (lower,), 1e-13 + 1.2e-16 * steps)
    for delta in (1e-3, 1e-5, 1e-8, 1e-11):
        exact = convert.gdp_to_epsilon(mu, delta)
        assert loss.delta(exact) >= delta * (1 - 1e-9)
        assert loss.epsilon_lower(delta) <= exact <= loss.epsilon(delta)
    if steps <= 10**6:  # beyond, the window holds too few cells to be tight
        exact = convert.gdp_to_epsilon(mu, 1e-5)
        assert loss.epsilon(1e-5) == pytest.approx(exact, rel=1e-3)


def sweep(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        run = [SampledGaussian(case["sigma"], case["q"], case["steps"])]
        loss = pld.compose(run)
        upper, lower = loss.epsilon(case["delta"]), loss.epsilon_lower(case["delta"])
        assert lower <= upper
        assert lower <= rdp.epsilon(run, case["delta"]).epsilon
        if (exact := case.get("exact_gaussian")) is not None:
            # dp-accounting composes where the closed form is known; above ε = 1000 even its
            # lower estimate lies above the truth
            assert lower <= exact <= upper <= exact * (1 + 2e-3) + 1e-9, case
        elif (theirs := case.get("dpacc_pld")) is not None:
            # theirs is pessimistic by its grid of 1e-4 a step: ours may be below, not above
            assert upper <= theirs * (1 + 1e-3) + 1e-9, case
            assert upper >= case["dpacc_pld_lower"] * (1 - 1e-9), case
            assert lower <= theirs * (1 + 1e-9) + 1e-9, case
            if theirs > 0.1:
                assert upper >= theirs * (1 - 1e-3) or upper - lower < 2e-3 * upper, case


def test_dp_accounting_agrees_on_a_sample_of_the_oracle() -> None:
    sweep(oracle("sampled_gaussian")[::9])


@pytest.mark.slow
def test_dp_accounting_agrees_on_the_whole_oracle() -> None:
    sweep(oracle("sampled_gaussian"))


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"), [(0.001, 8.0, 1000, 1 / 900), (0.001, 8.0, 1, 1e-5)]
)
def test_where_dp_accountings_grid_is_coarse_a_finer_one_confirms_ours(
    q: float, sigma: float, steps: int, delta: float
) -> None:
    ours = pld.compose([SampledGaussian(sigma, q, steps)])
    bounds = [
        google.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=1e-7,
            pessimistic_estimate=pessimistic,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    ]
    assert bounds[0] * (1 - 1e-6) <= ours.epsilon(delta) <= bounds[1] * (1 + 2e-3)


def test_phases_compose_as_dp_accounting_says() -> None:
    for case in oracle("heterogeneous")[::2]:
        run = [SampledGaussian(p["sigma"], p["q"], p["steps"]) for p in case["phases"]]
        loss = pld.compose(run)
        upper = loss.epsilon(case["delta"])
        assert case["dpacc_pld_lower"] <= upper <= case["dpacc_pld"] * (1 + 1e-3), case
        assert loss.epsilon_lower(case["delta"]) <= case["dpacc_pld"]
        backwards = pld.compose(run[::-1]).epsilon(case["delta"])
        assert backwards == pytest.approx(upper, rel=1e-6)


def test_poisson_under_replace_one_equals_dp_accounting() -> None:
    for case in oracle("fixed_size_wor"):
        run = [SampledGaussian(case["sigma"], case["q"], case["steps"])]
        found = pld.compose(run, "replace-one").epsilon(case["delta"])
        known = case["dpacc_poisson_replace_one_pld"]
        assert found == pytest.approx(known, rel=1e-3), case


def test_without_replacement_lies_between_what_is_attained_and_rdp() -> None:
    for case in oracle("fixed_size_wor")[::2]:
        run = [SampledGaussian(case["sigma"], case["q"], case["steps"], "without_replacement")]
        found = pld.compose(run, "replace-one").epsilon(case["delta"])
        attained = pld.compose([SampledGaussian(case["sigma"] / 2, case["q"], case["steps"])])
        assert attained.epsilon_lower(case["delta"]) <= found
        assert found <= rdp.epsilon(run, case["delta"], "replace-one").epsilon * (1 + 1e-6)


def optimal_composition(eps: float, count: int, delta: float) -> float:
    """The exact ε of ``count`` ε-DP mechanisms (Kairouz, Oh and Viswanath 2015, theorem 3.3)."""

    def mass(total: float) -> float:
        steps = np.arange(count + 1)
        loss = (2 * steps - count) * eps
        weight = binom.pmf(steps, count, 1 / (1 + math.exp(-eps)))
        return float(weight @ -np.expm1(np.minimum(total - loss, 0)))

    return float(brentq(lambda e: mass(e) - delta, 0.0, count * eps, xtol=1e-12))


@pytest.mark.parametrize(("eps", "count"), [(0.1, 50), (1.0, 10), (0.01, 1000)])
def test_pure_guarantees_compose_optimally(eps: float, count: int) -> None:
    exact = optimal_composition(eps, count, 1e-6)
    found = pld.compose([ApproximateDP(eps, 0.0, count)]).epsilon(1e-6)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-6)


def test_delta_of_parts_is_spent_first() -> None:
    loss = pld.compose([ApproximateDP(0.5, 1e-6, 2)])
    assert math.isinf(loss.epsilon(1.9e-6))
    assert loss.epsilon(3e-6) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("scale", [0.3, 1.0, 10.0])
def test_one_laplace_release_is_exact(scale: float) -> None:
    loss = pld.compose([Laplace(scale)])
    for eps in (0.0, 0.3 / scale, 0.9 / scale):
        exact = -math.expm1((eps - 1 / scale) / 2)
        assert exact * (1 - 1e-9) <= loss.delta(eps) <= exact * 1.001
        assert loss.epsilon_lower(exact) <= eps + 1e-9
    assert loss.epsilon(1e-9) == pytest.approx(1 / scale, rel=1e-6)


def test_what_has_no_pair_is_refused() -> None:
    cases: list[tuple[MechanismEvent, Any, int]] = [
        (ZeroConcentratedDP(0.1), "add-remove", 1),
        (SampledGaussian(1.0, 0.1, 1, "without_replacement"), "add-remove", 1),
        (SampledGaussian(1.0, 0.1, 1), "replace-one", 2),
    ]
    for event, relation, size in cases:
        with pytest.raises(UnsupportedEvent):
            pld.compose([event], relation, size)


def test_nothing_released_costs_nothing() -> None:
    assert pld.compose([]).epsilon(1e-9) == 0.0


def test_a_delta_that_round_off_hides_is_not_answered() -> None:
    assert math.isinf(pld.compose([SampledGaussian(1.0, 0.01, 100)]).epsilon(1e-14))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.4, 10), st.floats(1e-4, 0.999), st.integers(1, 500), st.floats(1e-9, 0.1))
def test_bounds_are_ordered_and_monotone(sigma: float, q: float, steps: int, delta: float) -> None:
    run = [SampledGaussian(sigma, q, steps)]
    loss = pld.compose(run)
    upper, lower = loss.epsilon(delta), loss.epsilon_lower(delta)
    assert 0 <= lower <= upper
    assert lower <= rdp.epsilon(run, delta).epsilon
    full = pld.gaussian_mu([Gaussian(sigma, steps)])
    assert full is not None
    assert lower <= convert.gdp_to_epsilon(full, delta)
    assert upper <= convert.gdp_to_epsilon(full, delta) * 1.002 + 1e-9
    assert loss.epsilon(min(10 * delta, 0.9)) <= upper
    slack = 1 + 3e-3
    assert pld.compose([SampledGaussian(sigma * 1.2, q, steps)]).epsilon(delta) <= upper * slack
    assert pld.compose([SampledGaussian(sigma, q * 0.8, steps)]).epsilon(delta) <= upper * slack
