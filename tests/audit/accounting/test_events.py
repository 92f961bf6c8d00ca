"""Events say what they were given, and refuse what cannot be."""

from __future__ import annotations

import math

import pytest

from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    SampledGaussian,
    ZeroConcentratedDP,
    canonical,
    epochs,
    release_count,
)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_multiplier_must_be_positive_and_finite(sigma: float) -> None:
    for make in (lambda: SampledGaussian(sigma, 0.1, 1), lambda: Gaussian(sigma)):
        with pytest.raises(ValueError, match="noise_multiplier: must be positive and finite"):
            make()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, 2.56, math.nan, math.inf])
def test_a_sample_rate_lies_in_zero_to_one(rate: float) -> None:
    with pytest.raises(ValueError, match=r"sample_rate: must lie in \(0, 1\]"):
        SampledGaussian(1.0, rate, 1)


@pytest.mark.parametrize("steps", [-1, 1.5, True, math.nan])
def test_steps_are_a_whole_number(steps: float) -> None:
    with pytest.raises(ValueError, match="steps: must be a whole number of at least 0"):
        SampledGaussian(1.0, 0.1, steps)  # type: ignore[arg-type]


def test_a_full_batch_holds_everybody() -> None:
    with pytest.raises(ValueError, match="full_batch means 1"):
        SampledGaussian(1.0, 0.5, 1, "full_batch")


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-0.1, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -1e-9), (1.0, math.nan)]
)
def test_a_bare_guarantee_is_checked(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        ApproximateDP(epsilon, delta)


def test_equal_steps_are_merged_and_empty_ones_dropped() -> None:
    events: list[MechanismEvent] = [
        SampledGaussian(1.0, 0.1, 3),
        Laplace(2.0),
        SampledGaussian(1.0, 0.1, 4),
        SampledGaussian(9.0, 0.1, 0),
        ZeroConcentratedDP(0.1),
        ZeroConcentratedDP(0.1),
        GNMax(40.0, 5),
        GNMax(40.0, 6),
    ]
    assert canonical(events) == (
        SampledGaussian(1.0, 0.1, 7),
        Laplace(2.0),
        ZeroConcentratedDP(0.2),
        GNMax(40.0, 11),
    )
    assert sum(map(release_count, canonical(events))) == 7 + 1 + 1 + 11


def test_a_step_on_everybody_is_a_plain_gaussian_release() -> None:
    whole = [SampledGaussian(2.0, 1.0, 3, "full_batch"), SampledGaussian(2.0, 1.0, 4)]
    assert canonical(whole) == (Gaussian(2.0, 7),)


@pytest.mark.parametrize(
    ("rate", "steps", "passes"),
    [(0.1, 100, 10), (0.1, 101, 11), (0.1, 0, 0), (1 / 3, 6, 2), (1.0, 5, 5), (0.128, 8, 2)],
)
def test_shuffled_epochs_are_rounded_up(rate: float, steps: int, passes: int) -> None:
    event = SampledGaussian(1.5, rate, steps, "shuffled")
    assert epochs(event) == passes
    assert canonical([event]) == ((Gaussian(1.5, passes),) if passes else ())
