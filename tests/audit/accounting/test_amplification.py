"""Amplification by subsampling against the mechanism that attains it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.accounting.amplification import subsampled


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 20), st.floats(1e-6, 1))
def test_randomised_response_attains_it(eps: float, q: float) -> None:
    """With the record the answer is yes at p, without it at 1 − p; only a share q is asked."""
    p = 1 / (1 + math.exp(-eps))
    asked = q * p + (1 - q) * (1 - p)
    amplified, delta = subsampled(eps, 0.0, q)
    assert amplified == pytest.approx(math.log(asked / (1 - p)), rel=1e-6, abs=1e-12)
    assert delta == 0.0
    assert amplified <= eps * (1 + 1e-9)


def test_published_figures() -> None:
    """Halving the batch size takes 0.32 to 0.22 where it was 0.32 at the larger one."""
    whole = math.log1p(math.expm1(0.32) / 0.5)  # so that q = 0.5 gives 0.32
    assert subsampled(whole, 1e-5, 0.5)[0] == pytest.approx(0.32)
    assert subsampled(1.0, 2e-5, 0.1) == pytest.approx((0.1585, 2e-6), abs=1e-4)


def test_large_epsilon_does_not_overflow() -> None:
    assert subsampled(5000.0, 0.0, 0.01)[0] == pytest.approx(5000 + math.log(0.01))
    assert subsampled(31.0, 0.0, 1.0)[0] == pytest.approx(31.0)
    assert subsampled(30.0, 0.0, 0.3)[0] == pytest.approx(subsampled(30 + 1e-9, 0.0, 0.3)[0])


@pytest.mark.parametrize(
    ("eps", "delta", "q"),
    [(-1.0, 0.0, 0.5), (math.nan, 0.0, 0.5), (1.0, 1.0, 0.5), (1.0, 0.0, 0.0), (1.0, 0.0, 1.1)],
)
def test_bad_input(eps: float, delta: float, q: float) -> None:
    with pytest.raises(ValueError, match="must"):
        subsampled(eps, delta, q)
