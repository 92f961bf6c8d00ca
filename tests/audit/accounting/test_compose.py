"""Composition of bare guarantees against the exact optimum."""

from __future__ import annotations

import math

import pytest

from audit.accounting import compose, pld
from audit.accounting.events import ApproximateDP


def test_basic_composition_adds_and_checks_delta() -> None:
    parts = [ApproximateDP(1.0, 1e-5), ApproximateDP(0.32, 1e-5)]
    assert compose.basic(parts, 2e-5) == pytest.approx(1.32)
    assert math.isinf(compose.basic(parts, 1e-5))
    assert compose.basic([], 1e-5) == 0.0


@pytest.mark.parametrize(("eps", "count"), [(0.01, 1000), (0.1, 100), (1.0, 3), (3.0, 2)])
def test_advanced_lies_between_the_optimum_and_the_sum(eps: float, count: int) -> None:
    part = [ApproximateDP(eps, 0.0, count)]
    advanced = compose.advanced(part, 1e-6)
    optimum = pld.compose(part).epsilon_lower(1e-6) or pld.compose(part).epsilon(1e-6) / 1.01
    assert optimum <= advanced <= count * eps


def test_advanced_with_delta_of_its_own() -> None:
    part = [ApproximateDP(0.01, 1e-9, 1000)]
    assert math.isinf(compose.advanced(part, 9e-7))
    assert compose.advanced(part, 1e-5) < 10
    assert compose.advanced(part, 1e-5) >= compose.advanced([ApproximateDP(0.01, 0.0, 1000)], 1e-5)


def test_disjoint_people_do_not_add() -> None:
    assert compose.parallel([0.5, 2.0, 1.0]) == 2.0
    assert compose.parallel([]) == 0.0


@pytest.mark.parametrize(("total", "count"), [(1.0, 100), (0.5, 1), (8.0, 7)])
def test_a_part_may_have_what_composes_to_the_total(total: float, count: int) -> None:
    part = compose.per_part_epsilon(total, 1e-5, count)
    assert compose.advanced([ApproximateDP(part, 0.0, count)], 1e-5) == pytest.approx(total)
    assert part >= total / count * (1 - 1e-9)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="delta"):
        compose.basic([], 0.0)
    with pytest.raises(ValueError, match="delta"):
        compose.advanced([], 1.0)
    with pytest.raises(ValueError, match="count"):
        compose.per_part_epsilon(1.0, 1e-5, 0)
    with pytest.raises(ValueError, match="epsilon"):
        compose.per_part_epsilon(-1.0, 1e-5, 3)
