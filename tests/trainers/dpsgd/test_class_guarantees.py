"""The distances stated, and the RDP of a change that leaves the record in the batch."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from audit.accounting import rdp
from trainers.dpsgd.class_guarantees import (
    Guarantee,
    SensitivityClasses,
    Visibility,
    field_rdp,
    state_guarantees,
)

CLASSES = SensitivityClasses(("low", "medium", "high"), (1.0, 0.5, 0.1))
ORDERED = Visibility(CLASSES.names, ((1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 1.0)))
ALONE = Visibility(CLASSES.names, ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
ORDERS = np.array([1.001, 1.1, 1.5, 2, 3, 4, 8, 16, 32, 64, 512])


def change(distance, noise_multiplier, sensitivity=1.0):
    return Guarantee("high fields", "replace", distance, sensitivity, noise_multiplier, "")


def stated(visibility):
    found = state_guarantees(CLASSES, 0.8, visibility)
    return {
        (g.unit.split()[0], g.relation.split("(")[-1].rstrip(")")): (
            g.distance,
            g.effective_noise_multiplier,
        )
        for g in found
    }


def test_without_a_check_only_the_record_has_a_guarantee():
    record = {("record", "add-remove"): (1.6, 0.8), ("record", "replace-one"): (3.2, 0.4)}
    assert stated(None) == {k: pytest.approx(v) for k, v in record.items()}
    leaky = Visibility(CLASSES.names, ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1e-9, 0.0, 1.0)))
    assert stated(leaky) == stated(None)


def test_a_class_that_no_other_sees_moves_by_its_own_norm():
    found = stated(ALONE)
    for name, c in zip(CLASSES.names, CLASSES.clipping_norms, strict=True):
        assert found[name, "erase"] == pytest.approx((c, 0.8 * 1.6 / c))
        assert found[name, "replace"] == pytest.approx((2 * c, 0.8 * 1.6 / (2 * c)))


def test_more_sensitive_classes_that_see_a_class_count_twice():
    found = stated(ORDERED)
    assert found["high", "erase"][0] == pytest.approx(0.1)
    assert found["medium", "erase"][0] == pytest.approx(0.5 + 2 * 0.1)
    assert found["medium", "replace"][0] == pytest.approx(2 * 0.5 + 2 * 0.1)
    assert ("low", "erase") not in found  # all others see it


def test_a_guarantee_says_unit_relation_and_condition():
    text = str(state_guarantees(CLASSES, 0.8, ORDERED)[-1])
    for part in ("high fields of a record", "(replace)", "at most 0.2", "public", "low, medium"):
        assert part in text


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("q", [1e-4, 0.05, 0.7, 1.0])
def test_rdp_of_replacing_a_record_is_that_of_the_account(noise_multiplier, q):
    wanted = rdp.sampled_gaussian(q, noise_multiplier, ORDERS, "poisson replace-one")
    found = field_rdp(change(2.0, noise_multiplier), q, ORDERS)
    assert found == pytest.approx(wanted, rel=1e-10)


def test_on_all_records_a_class_is_a_gaussian_of_the_effective_multiplier():
    high = state_guarantees(CLASSES, 0.8, ORDERED)[-2]
    wanted = rdp.rdp([rdp.Gaussian(0.8 * 1.6 / 0.1)], ORDERS)
    assert field_rdp(high, 1.0, ORDERS) == pytest.approx(wanted, rel=1e-10)


def profile(q, u, v, epsilon):
    """δ(ε) of (1 − q)N(0) + qN(u) against (1 − q)N(0) + qN(v), v < u: P > e^ε Q from some x on."""
    low, high = -60.0, 60.0

    def ahead(x):
        p, r = (np.logaddexp(math.log1p(-q) - x**2 / 2, math.log(q) - (x - m) ** 2 / 2)
                for m in (u, v))  # fmt: skip
        return p - r > epsilon

    if not ahead(high):
        return 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if ahead(middle) else (middle, high)
    common = (1 - q) * norm.sf(high) * (1 - math.exp(epsilon))
    return common + q * (norm.sf(high - u) - math.exp(epsilon) * norm.sf(high - v))


def test_no_pair_of_gradients_in_the_plane_is_worse_than_the_pair_on_the_line():
    """Random records' sums u and v, at most ΣC long and d apart, against the claimed worst case."""
    rng = np.random.default_rng(0)
    axis = np.linspace(-9, 9, 301)
    cell = (axis[1] - axis[0]) ** 2

    def density(q, mean):
        rest, moved = (np.outer(*(norm.pdf(axis - m) for m in at)) for at in (np.zeros(2), mean))
        return (1 - q) * rest + q * moved

    orders = np.array([1.5, 2.0, 4.0])
    for _ in range(40):
        q, total = rng.uniform(0.02, 0.9), rng.uniform(0.3, 2.5)
        d = total * rng.uniform(0.05, 1.9)
        u = rng.normal(size=2)
        u *= total * rng.uniform(0, 1) ** 0.3 / np.linalg.norm(u)
        step = rng.normal(size=2)
        v = u + step * d * rng.uniform(0, 1) ** 0.3 / np.linalg.norm(step)
        v *= min(1.0, total / np.linalg.norm(v))  # a projection: it brings v no farther from u
        if np.linalg.norm(u - v) > d:
            continue
        p, r = density(q, u), density(q, v)
        for epsilon in (0.0, 0.1, 0.5, 1.5):
            found = np.maximum(p - math.exp(epsilon) * r, 0).sum() * cell
            assert found <= profile(q, total, total - d, epsilon) + 1e-6
        bound = field_rdp(change(d, 1 / total, total), q, orders)
        for order, at_most in zip(orders, bound, strict=True):
            found = math.log((p**order * r ** (1 - order)).sum() * cell) / (order - 1)
            assert found <= at_most + 1e-6


@pytest.mark.parametrize("q", [0.01, 0.3])
@pytest.mark.parametrize("d", [0.1, 0.8, 1.7])
def test_the_bound_is_at_most_twice_what_a_pair_attains(q, d):
    x = np.linspace(-12, 14, 20001)
    p, r = ((1 - q) * norm.pdf(x) + q * norm.pdf(x - m) for m in (1.0, 1.0 - d))
    orders = np.array([1.5, 2.0, 6.0])
    each = [
        [(a**order * b ** (1 - order)).sum() * (x[1] - x[0]) - 1 for order in orders]
        for a, b in ((p, r), (r, p))
    ]
    excess = np.expm1(field_rdp(change(d, 1.0), q, orders) * (orders - 1))
    attained = np.max(each, axis=0)
    assert np.all(excess >= attained * (1 - 1e-6))
    assert np.all(excess <= 2 * attained * (1 + 1e-6))


@pytest.mark.parametrize("q", [0.01, 0.128])
def test_a_sampled_gaussian_of_the_effective_multiplier_promises_too_much(q):
    """Gradients in line with one another attain more, so the account must not use it."""
    high = change(0.1, 1.0, 1.6)
    naive = rdp.sampled_gaussian(q, high.effective_noise_multiplier, ORDERS)
    sound = field_rdp(high, q, ORDERS)
    assert np.all(sound[:-1] > 1.1 * naive[:-1])
    shift = 1 / high.effective_noise_multiplier
    attained = profile(q, 1.0, 1.0 - shift, 0.01)
    promised = profile(q, shift, 0.0, 0.01)
    assert attained > 1.5 * promised


def test_the_bound_lies_between_a_gaussian_and_its_share_of_batches():
    high = change(0.2, 1.0, 1.6)
    full = ORDERS * (0.2 / 1.6) ** 2 / 2
    found = field_rdp(high, 0.05, ORDERS)
    convex = np.log1p(0.05 * np.expm1(((ORDERS - 1) * full)[:-1])) / (ORDERS - 1)[:-1]
    assert np.all(found <= full)
    assert np.all(found[:-1] <= convex * (1 + 1e-9))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SensitivityClasses((), ()), "names"),
        (lambda: SensitivityClasses(("a", "a"), (1.0, 1.0)), "names"),
        (lambda: SensitivityClasses(("a",), (1.0, 1.0)), "clipping_norms"),
        (lambda: SensitivityClasses(("a",), (0.0,)), r"clipping_norms\[a\]"),
        (lambda: state_guarantees(CLASSES, 0.0), "noise_multiplier"),
        (lambda: state_guarantees(CLASSES, 1.0, Visibility(("a",), ((1.0,),))), "visibility"),
        (lambda: field_rdp(state_guarantees(CLASSES, 1.0)[0], 0.1, [2.0]), "adding a record"),
        (lambda: field_rdp(change(1.0, 1.0), 0.0, [2.0]), "sample_rate"),
        (lambda: field_rdp(change(1.0, 1.0), 0.5, [1.0]), "orders"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
