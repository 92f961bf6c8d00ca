"""What calibration answers meets its target, and a little less privacy does not."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.accounting import calibrate, convert, rdp
from audit.accounting.calibrate import Accountant
from audit.accounting.events import Relation, SampledGaussian, Sampling
from audit.accounting.guarantee import best


def spent(
    accountant: Accountant,
    sigma: float,
    q: float,
    steps: int,
    delta: float,
    sampling: Sampling = "poisson",
    relation: Relation = "add-remove",
) -> float:
    run = [SampledGaussian(sigma, q, steps, sampling)]
    if accountant == "RDP":
        return rdp.epsilon(run, delta, relation).epsilon
    return best(run, delta, relation=relation).epsilon


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 20), st.floats(1e-3, 1), st.integers(1, 10**5), st.floats(1e-10, 1e-3))
def test_noise_multiplier_by_rdp(target: float, q: float, steps: int, delta: float) -> None:
    sigma = calibrate.noise_multiplier(target, delta, sample_rate=q, steps=steps)
    assert spent("RDP", sigma, q, steps, delta) <= target
    assert spent("RDP", 0.99 * sigma, q, steps, delta) > target


CASES: list[tuple[float, float, int, Sampling, Relation]] = [
    (1.0, 0.01, 1000, "poisson", "add-remove"),
    (8.0, 0.128, 100, "poisson", "add-remove"),
    (3.0, 0.05, 200, "poisson", "replace-one"),
    (2.0, 0.01, 500, "without_replacement", "replace-one"),
    (2.0, 0.1, 50, "shuffled", "add-remove"),
    (0.5, 1.0, 10, "full_batch", "replace-one"),
]


@pytest.mark.parametrize("accountant", ["RDP", "tightest"])
@pytest.mark.parametrize(("target", "q", "steps", "sampling", "relation"), CASES)
def test_noise_multiplier_for_every_scheme(
    accountant: Accountant,
    target: float,
    q: float,
    steps: int,
    sampling: Sampling,
    relation: Relation,
) -> None:
    sigma = calibrate.noise_multiplier(
        target, 1e-5, sample_rate=q, steps=steps, sampling=sampling, relation=relation,
        accountant=accountant,
    )  # fmt: skip
    assert spent(accountant, sigma, q, steps, 1e-5, sampling, relation) <= target
    assert spent(accountant, 0.99 * sigma, q, steps, 1e-5, sampling, relation) > target


@pytest.mark.parametrize("accountant", ["RDP", "tightest"])
def test_sample_rate_steps_and_delta(accountant: Accountant) -> None:
    target, sigma, q, steps, delta = 2.0, 1.2, 0.02, 400, 1e-5
    rate = calibrate.sample_rate(
        target, delta, noise_multiplier=sigma, steps=steps, accountant=accountant
    )
    assert spent(accountant, sigma, rate, steps, delta) <= target
    assert spent(accountant, sigma, 1.01 * rate, steps, delta) > target
    most = calibrate.steps(
        target, delta, noise_multiplier=sigma, sample_rate=q, accountant=accountant
    )
    assert spent(accountant, sigma, q, most, delta) <= target
    assert spent(accountant, sigma, q, most + max(most // 100, 1), delta) > target
    least = calibrate.delta(
        target, noise_multiplier=sigma, sample_rate=q, steps=steps, accountant=accountant
    )
    assert spent(accountant, sigma, q, steps, least) <= target
    assert spent(accountant, sigma, q, steps, 0.99 * least) > target


def test_a_small_target_over_many_steps_is_found() -> None:
    """Where trainers say that the budget is too low: ε = 0.1, q = 0.01, 10,000 steps."""
    sigma = calibrate.noise_multiplier(0.1, 1e-5, sample_rate=0.01, steps=10_000)
    assert 30 < sigma < 40


def test_the_exact_gaussian() -> None:
    sigma = calibrate.noise_multiplier(
        1.0, 1e-5, sample_rate=1.0, steps=1, sampling="full_batch", accountant="tightest"
    )
    assert sigma == pytest.approx(1 / convert.gdp_mu(1.0, 1e-5), rel=2e-4)


def test_it_does_not_overshoot_as_opacus_did() -> None:
    """opacus issue 346: the σ found there gave more than the target of 8."""
    sigma = calibrate.noise_multiplier(8.0, 1e-5, sample_rate=0.2, steps=100)
    assert 8 * 0.999 < spent("RDP", sigma, 0.2, 100, 1e-5) <= 8


def test_bad_targets() -> None:
    for target in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon: must be positive and finite"):
            calibrate.noise_multiplier(target, 1e-5, sample_rate=0.1, steps=10)
    with pytest.raises(ValueError, match="delta"):
        calibrate.noise_multiplier(1.0, 1.0, sample_rate=0.1, steps=10)
    with pytest.raises(ValueError, match="one step alone costs more"):
        calibrate.steps(0.01, 1e-5, noise_multiplier=0.5, sample_rate=1.0)
    with pytest.raises(ValueError, match="no noise multiplier"):
        calibrate.noise_multiplier(1e-9, 1e-12, sample_rate=1.0, steps=10**6)


def test_no_steps_and_a_generous_target() -> None:
    assert calibrate.noise_multiplier(1.0, 1e-5, sample_rate=0.1, steps=0) <= 0.01 * 1.001
    assert calibrate.sample_rate(50.0, 1e-5, noise_multiplier=20.0, steps=1) == 1.0
    assert calibrate.steps(1e6, 0.5, noise_multiplier=1e5, sample_rate=1e-6) == 10**12


def test_it_is_quick() -> None:
    start = time.process_time()
    for target in (0.1, 1.0, 8.0):
        calibrate.noise_multiplier(target, 1e-5, sample_rate=0.01, steps=10_000)
    assert time.process_time() - start < 1
