"""Group privacy: never below the exact mixture, and the group property's fixed point."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from audit.accounting import convert, group, pld, rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    Relation,
    SampledGaussian,
    ZeroConcentratedDP,
)

RUNS = [
    SampledGaussian(1.0, 0.01, 1000),
    SampledGaussian(2.0, 0.1, 100),
    SampledGaussian(0.8, 0.001, 5000),
    SampledGaussian(5.0, 0.5, 20),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("size", [2, 5, 12])
def test_rdp_of_a_group_is_never_below_the_exact_mixture(run: SampledGaussian, size: int) -> None:
    exact = pld.compose([run], "add-remove", size)
    found = group.rdp_epsilon([run], 1e-5, "add-remove", size)
    assert found >= exact.epsilon_lower(1e-5)
    by_property = group._by_property([run], 1e-5, "add-remove", size)
    assert by_property >= exact.epsilon_lower(1e-5)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.2, 3.0), (0.6, 0.9)])
@pytest.mark.parametrize("alpha", [1.5, 4.0, 20.0])
def test_any_drawn_at_once_is_worse_than_the_binomial(
    size: int, q: float, sigma: float, alpha: float
) -> None:
    """Rényi divergences in both directions, by quadrature of the binomial mixture."""
    far = size * alpha + 14 * sigma
    z = np.linspace(-far, far, 400_001)
    shifts = np.arange(size + 1)
    log_none = -(z**2) / (2 * sigma**2)
    terms = (shifts[:, None] * z - shifts[:, None] ** 2 / 2) / sigma**2
    with np.errstate(divide="ignore"):
        log_ratio = np.logaddexp.reduce(np.log(binom.pmf(shifts, size, q))[:, None] + terms)
    width = (z[1] - z[0]) / (sigma * math.sqrt(2 * math.pi))
    any_drawn = 1 - (1 - q) ** size
    bound = rdp.sampled_gaussian(any_drawn, sigma / size, [alpha])[0]
    for exponent in (alpha, 1 - alpha):
        log_terms = log_none + exponent * log_ratio
        top = log_terms.max()
        moment = top + math.log(np.exp(log_terms - top).sum() * width)
        assert moment / (alpha - 1) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_fixed_point_proves_itself(size: int, relation: Relation) -> None:
    """ε/k holds per record at δ/Σe^{jε/k}, asked anew: that is the group property, no limit."""
    run = [RUNS[1]]
    found = group._by_property(run, 1e-5, relation, size)
    per_record = found / size
    growth = sum(math.exp(j * per_record) for j in range(size))
    assert rdp.epsilon(run, 1e-5 / growth, relation).epsilon <= per_record * (1 + 1e-6)
    # and it is the least such: a little less fails
    less = 0.999 * per_record
    growth = sum(math.exp(j * less) for j in range(size))
    assert rdp.epsilon(run, 1e-5 / growth, relation).epsilon > less


def test_huge_groups_end_in_a_bound() -> None:
    found = group.rdp_epsilon([SampledGaussian(1.0, 0.01, 1000)], 1e-5, "add-remove", 1000)
    whole = convert.gdp_to_epsilon(1000 * math.sqrt(1000), 1e-5)
    assert 0 < found <= whole * 1.1


EVENTS: list[MechanismEvent] = [
    *RUNS,
    Gaussian(3.0, 4),
    Laplace(5.0, 2),
    GNMax(40.0, 10),
    ZeroConcentratedDP(0.02),
    ApproximateDP(0.1, 1e-9, 3),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_a_group_of_one_is_a_record_and_more_cost_more(event: MechanismEvent) -> None:
    costs = [group.rdp_epsilon([event], 1e-5, "add-remove", k) for k in (1, 2, 3, 4)]
    assert costs[0] == rdp.epsilon([event], 1e-5).epsilon
    assert all(a < b for a, b in itertools.pairwise(costs))


def test_gaussian_groups_are_exact() -> None:
    """A group of k is a Gaussian of noise σ/k, which RDP must not undercut."""
    for k in (2, 5):
        exact = convert.gdp_to_epsilon(k / 4.0, 1e-5)
        found = group.rdp_epsilon([Gaussian(4.0)], 1e-5, "add-remove", k)
        assert exact <= found <= 1.15 * exact


def test_the_group_property_of_a_bare_guarantee() -> None:
    eps, delta = group.approximate(0.5, 1e-6, 3)
    assert eps == 1.5
    assert delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)))
    assert group.approximate(50.0, 1e-6, 40) == (2000.0, 1.0)
    assert group.approximate(50.0, 0.0, 40) == (2000.0, 0.0)


def test_a_bare_guarantee_that_a_large_group_uses_up_proves_nothing() -> None:
    event = ApproximateDP(50.0, 1e-6)
    assert math.isinf(group.rdp_epsilon([event], 1e-5, "add-remove", 40))
    assert math.isinf(pld.compose([event], "add-remove", 40).epsilon(1e-5))
    pure = ApproximateDP(0.1)
    assert pld.compose([pure], "add-remove", 5).epsilon(1e-9) == pytest.approx(0.5, rel=1e-6)
