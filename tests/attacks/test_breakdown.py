"""Groups are judged on their own, together at the stated confidence; the exposed come by id."""

import numpy as np
import pytest

from attacks.breakdown import by_group, most_exposed
from attacks.metrics import auc
from attacks.result import AttackResult


def result(members, others):
    return AttackResult(
        "a", "An attack", "scores", members, others,
        [f"m{i:04d}" for i in range(len(members))], [f"n{i:04d}" for i in range(len(others))],
    )  # fmt: skip


def test_a_leak_in_one_group_is_found_there():
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b"], 300)
    scores = rng.normal(size=600) + 2 * (groups == "b")
    figures = {
        g.name: {f.name: f.estimate for f in g.figures}["auc"]
        for g in by_group(result(scores, rng.normal(size=600)), groups, groups)
    }
    assert figures["a"].low < 0.5 < figures["a"].high
    assert figures["b"].low > 0.85
    assert figures["a"].confidence == pytest.approx(0.975)


def test_groups_hold_together_at_their_confidence():
    """Twenty null groups: without the correction 64 % of such reports would name one of them."""
    rng = np.random.default_rng(1)
    groups, alarms = np.repeat(np.arange(20), 40), 0
    for _ in range(60):
        both = result(rng.normal(size=800), rng.normal(size=800))
        areas = [next(f.estimate for f in g.figures if f.name == "auc")
                 for g in by_group(both, groups, groups)]  # fmt: skip
        alarms += any(not area.low <= 0.5 <= area.high for area in areas)
    assert alarms <= 10  # Binomial(60, 0.05): more than 10 in 1 of 4000 such tests


def test_a_group_on_one_side_only_says_so():
    groups = by_group(result([1, 2, 3], [1, 2]), [0, 0, 1], [0, 0])
    assert groups[0].unmeasured == ""
    assert groups[1].unmeasured == "the group is empty on one side"
    assert (groups[1].members, groups[1].non_members) == (1, 0)
    with pytest.raises(ValueError, match="non-member groups"):
        by_group(result([1, 2, 3], [1, 2]), [0, 0, 1], [0])


def test_the_most_exposed_are_the_same_whatever_the_rows_order():
    both = result([1.0, 5.0, 5.0, 0.0], [5.0, 0.0, 0.0, 0.0])
    order = [2, 0, 3, 1]
    shuffled = AttackResult(
        "a", "An attack", "scores", both.member_scores[order], both.non_member_scores,
        both.member_ids[order], both.non_member_ids,
    )  # fmt: skip
    assert most_exposed(both, 3) == most_exposed(shuffled, 3)
    first, second, third = most_exposed(both, 3)
    assert [e.id for e in (first, second, third)] == ["m0001", "m0002", "m0000"]
    assert first.false_positives.value == 0.25  # the tie counts against the claim
    assert first.false_positives.low < 0.25 < first.false_positives.high


def test_groups_sum_to_the_whole():
    rng = np.random.default_rng(2)
    members, others = rng.normal(1, 1, 50), rng.normal(size=60)
    (whole,) = by_group(result(members, others), np.zeros(50), np.zeros(60))
    assert whole.figures[0].estimate == auc(members, others)
