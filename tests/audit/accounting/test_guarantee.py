"""The front door: published figures, schemes told apart, bounds in order, curves to read."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from audit.accounting import convert, rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    Relation,
    SampledGaussian,
    UnsupportedEvent,
    ZeroConcentratedDP,
)
from audit.accounting.guarantee import PrivacyGuarantee, best, guarantees


def by_name(
    events: list[MechanismEvent], delta: float, relation: Relation = "add-remove"
) -> dict[str, PrivacyGuarantee]:
    return {g.accountant: g for g in guarantees(events, delta, relation=relation)}


# σ, q, steps, δ, ε by RDP, ε by PLD, to the digits published, and where from
PUBLISHED = [
    (1.41, 0.128, 100, 1e-5, 5.626, 5.086, "a paper's 0.982"),
    (1.41, 0.128, 391, 1e-5, 11.7, 10.8, "the same, 50 epochs"),
    (0.7, 8 / 900, 338, 1e-5, 3.66, 2.90, "900 records, three epochs of batches of 8"),
    (3.0, 0.2, 50, 1 / 48_000, 2.169, 1.961, "opacus issue 643"),
    (1.54, 1024 / 50_000, 1464, 1e-5, 2.608, 2.386, "opacus issue 186"),
    (1.0, 0.2, 500, 1e-5, 40.94, 38.17, "prv_accountant issue 42"),
]


@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "by_rdp", "by_pld", "_"), PUBLISHED)
def test_published_figures(
    sigma: float, q: float, steps: int, delta: float, by_rdp: float, by_pld: float, _: str
) -> None:
    found = by_name([SampledGaussian(sigma, q, steps)], delta)
    digits = 5e-4 if by_rdp < 10 else 6e-2
    digits = 6e-3 if by_pld == 2.90 else digits
    assert found["RDP"].epsilon == pytest.approx(by_rdp, abs=digits * 2.1)
    assert found["PLD"].epsilon == pytest.approx(by_pld, abs=digits * 2.1)


def test_the_textbook_conversions_that_trackers_show() -> None:
    run = [SampledGaussian(1.54, 1024 / 50_000, 1464)]
    orders = np.arange(11.0, 64)
    values = rdp.rdp(run, orders)
    textbook = convert.rdp_to_epsilon(orders, values, 1e-5, textbook=True).min()
    assert textbook == pytest.approx(3.157, abs=5e-4)  # opacus issue 186
    assert convert.rdp_to_epsilon(orders, values, 1e-5).min() == pytest.approx(2.822, abs=5e-4)
    orders = np.arange(2.0, 65)
    for steps, known in ((10_000, 1.259), (40_000, 2.576)):  # tensorflow/privacy issue 85
        values = rdp.rdp([SampledGaussian(4.0, 0.01, steps)], orders)
        textbook = convert.rdp_to_epsilon(orders, values, 1e-5, textbook=True).min()
        assert textbook == pytest.approx(known, abs=5e-4)


def test_replace_one_without_sampling_keeps_the_factor_two() -> None:
    """google/differential-privacy issue 378: 14.13 there, 33.10 exact."""
    run: list[MechanismEvent] = [SampledGaussian(4.0, 1.0, 100, "full_batch")]
    assert best(run, 1e-5, relation="replace-one").epsilon == pytest.approx(33.10, abs=5e-3)
    mu = math.sqrt(100) * 2 / 4
    assert best(run, 1e-5, relation="replace-one").epsilon == pytest.approx(
        convert.gdp_to_epsilon(mu, 1e-5), rel=1e-9
    )


def test_two_releases_of_known_mechanisms_beat_the_sum() -> None:
    parts: list[MechanismEvent] = [
        SampledGaussian(2.0, 0.02, 500),
        SampledGaussian(3.0, 0.05, 300),
    ]
    together = best(parts, 1e-5).epsilon
    assert together < sum(best([part], 5e-6).epsilon for part in parts)
    assert together > max(best([part], 1e-5).epsilon for part in parts)


def test_shuffling_is_not_poisson_and_both_figures_are_given() -> None:
    found = guarantees([SampledGaussian(4.0, 0.1, 50, "shuffled")], 1e-5)
    assert [g.guaranteed for g in found] == [True, True, False]
    safe, poisson = found[0], found[-1]
    mu = math.sqrt(5) / 4  # five epochs, each a Gaussian release
    assert safe.epsilon == pytest.approx(convert.gdp_to_epsilon(mu, 1e-5), rel=1e-9)
    assert poisson.accountant == "PLD as if Poisson"
    assert poisson.epsilon == best([SampledGaussian(4.0, 0.1, 50)], 1e-5).epsilon
    assert "shuffled" in poisson.notes[0]
    assert safe.epsilon > 1.5 * poisson.epsilon
    assert any("without amplification" in note for note in safe.notes)


def test_without_replacement_is_refused_where_nothing_is_known() -> None:
    run = [SampledGaussian(1.0, 0.01, 10, "without_replacement")]
    with pytest.raises(UnsupportedEvent, match="without_replacement"):
        guarantees(run, 1e-5)
    found = guarantees(run, 1e-5, relation="replace-one")
    assert {g.accountant for g in found if g.guaranteed} == {"PLD", "RDP"}


def test_the_limit_theorem_is_never_a_guarantee_nor_first() -> None:
    found = guarantees([SampledGaussian(1.0, 0.01, 10_000)], 1e-5)
    assert [g.accountant for g in found] == ["PLD", "RDP", "GDP (limit)"]
    limit = found[-1]
    assert not limit.guaranteed
    assert limit.epsilon < found[0].lower  # below what the mechanism itself spends


def test_a_release_without_noise_is_no_dp() -> None:
    (only,) = guarantees([SampledGaussian(1.0, 0.1, 5), ApproximateDP(math.inf)], 1e-5)
    assert math.isinf(only.epsilon)
    assert only.tpr_at(0.01) == 1.0


def test_bare_guarantees_name_their_composition() -> None:
    found = by_name([ApproximateDP(0.1, 1e-8, 40)], 1e-5)
    assert set(found) == {"PLD", "RDP", "basic composition", "advanced composition"}
    assert found["basic composition"].epsilon == pytest.approx(4.0)
    assert found["PLD"].epsilon <= found["advanced composition"].epsilon <= 4.0
    with pytest.raises(ValueError, match="delta"):
        guarantees([ApproximateDP(0.1)], 0.0)


MIXED: list[list[MechanismEvent]] = [
    [Gaussian(2.0), Laplace(5.0, 3)],
    [GNMax(40.0, 100)],
    [ZeroConcentratedDP(0.1)],
    [SampledGaussian(1.0, 0.05, 100), ApproximateDP(0.1, 1e-8), Laplace(10.0)],
    [SampledGaussian(1.0, 1.0, 3), Gaussian(5.0)],
    [],
]


@pytest.mark.parametrize("events", MIXED, ids=str)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_every_accountant_contains_the_lower_bound(
    events: list[MechanismEvent], relation: Relation
) -> None:
    found = [g for g in guarantees(events, 1e-5, relation=relation) if g.guaranteed]
    assert found == sorted(found, key=lambda g: g.epsilon)
    for g in found:
        assert 0 <= g.lower <= g.epsilon < math.inf
        assert (g.delta, g.relation, g.unit) == (1e-5, relation, "record")


def test_groups_cost_more_and_say_whom_they_protect() -> None:
    run = [SampledGaussian(2.0, 0.02, 300)]
    costs = [best(run, 1e-5, unit="user", group_size=k).epsilon for k in (1, 2, 4)]
    assert costs[0] == best(run, 1e-5).epsilon
    assert costs[0] < costs[1] < costs[2]
    user = best(run, 1e-5, unit="user", group_size=4)
    assert (user.unit, user.group_size) == ("user", 4)
    for size in (0, 2):
        with pytest.raises(ValueError, match="group_size"):
            best(run, 1e-5, group_size=size)


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0, 5.0])
def test_what_an_attacker_catches_of_a_gaussian(mu: float) -> None:
    """1 − Φ(Φ⁻¹(1 − FPR) − μ) is the truth; the curve's points stay above it, and near."""
    found = best([Gaussian(1 / mu)], 1e-5)
    for fpr in (1e-3, 0.01, 0.1, 0.5):
        truth = float(convert.gdp_trade_off(mu, fpr))
        assert truth <= found.tpr_at(fpr) <= truth * 1.01
    fprs, tprs = found.trade_off
    assert np.all(np.diff(tprs) >= 0)
    assert np.all(tprs >= fprs)


def test_an_attacker_on_one_sampled_step_with_hardly_any_noise() -> None:
    """Whoever was drawn is seen: TPR = FPR + q·(1 − FPR)."""
    found = best([SampledGaussian(0.01, 0.01, 1)], 1e-5)
    assert found.tpr_at(0.01) == pytest.approx(0.01 + 0.01 * 0.99, rel=0.02)


def test_curves_hold_point_by_point() -> None:
    for g in guarantees([SampledGaussian(1.0, 0.02, 500)], 1e-5):
        deltas, epsilons = g.curve
        assert len(deltas) > 40
        assert np.all(np.diff(deltas) >= 0)
        assert np.all(np.diff(epsilons) <= 1e-9)
        for i in range(0, len(deltas), 12):
            again = g.epsilon_at(float(deltas[i]) * (1 + 1e-6))
            assert again == pytest.approx(epsilons[i], rel=1e-3, abs=1e-3)


def test_extreme_input_is_answered_quickly() -> None:
    start = time.process_time()
    billion = guarantees([SampledGaussian(1.0, 0.01, 10**9)], 1e-5)
    assert time.process_time() - start < 2
    assert billion[0].epsilon < 86_000
    tiny = guarantees([SampledGaussian(0.01, 0.01, 1)], 1e-5)
    assert tiny[0].lower <= tiny[0].epsilon <= 5561
    assert tiny[0].epsilon > 5300
    smallest = guarantees([SampledGaussian(1.0, 0.01, 1000)], 1e-300)
    assert smallest[0].accountant == "RDP"
    assert math.isfinite(smallest[0].epsilon)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-5, math.nan])
def test_delta_must_lie_inside_zero_to_one(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        guarantees([Gaussian(1.0)], delta)


@pytest.mark.parametrize("steps", [1, 100])
def test_poisson_is_never_above_the_full_batch(steps: int) -> None:
    for sigma in (0.5, 2.0, 8.0):
        full = best([SampledGaussian(sigma, 1.0, steps)], 1e-5).epsilon
        assert best([SampledGaussian(sigma, 0.99, steps)], 1e-5).epsilon <= full * 1.001
        assert best([SampledGaussian(sigma, 0.3, steps)], 1e-5).epsilon < full
