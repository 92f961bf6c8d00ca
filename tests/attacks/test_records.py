"""Bad splits are named, overlaps are put on record, and order tells nothing."""

import numpy as np
import pytest
from scipy.stats import binom

from attacks.metrics import auc
from attacks.records import Membership, Records


def side(n, seed, ids="r"):
    rng = np.random.default_rng(seed)
    return Records(
        rng.normal(size=(n, 3)), np.arange(n) % 2, np.array([f"{ids}{i}" for i in range(n)])
    )


def test_empty_side_is_refused():
    with pytest.raises(ValueError, match="records: there are none"):
        Records(np.empty((0, 3)), np.empty(0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_unusable_numbers_name_their_record(value):
    features = np.zeros((4, 2))
    features[2, 1] = value
    with pytest.raises(ValueError, match="features: NaN or infinite in record c"):
        Records(features, [0, 1, 0, 1], np.array(list("abcd")))


def test_lengths_and_ids_must_agree():
    with pytest.raises(ValueError, match="labels: shape"):
        Records(np.zeros((4, 2)), [0, 1, 0])
    with pytest.raises(ValueError, match="ids: they repeat"):
        Records(np.zeros((2, 2)), [0, 1], np.array(["a", "a"]))


def test_one_class_side_is_refused():
    one = Records(np.random.default_rng(0).normal(size=(4, 3)), np.ones(4, dtype=int))
    with pytest.raises(ValueError, match="non-members: all records have label 1"):
        Membership.of(side(10, 1), one)


def test_label_outside_the_classes_is_named():
    with pytest.raises(ValueError, match=r"members: labels: 1 is none of the classes \[0, 2\]"):
        Membership.of(side(10, 1), side(10, 2), classes=[0, 2])


def test_different_columns_are_refused():
    other = Records(np.zeros((4, 5)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"shape \(5,\), members have \(3,\)"):
        Membership.of(side(10, 1), other)


def test_overlap_is_removed_from_both_sides_and_noted():
    members, others = side(20, 1), side(20, 2, "n")
    others.features[3], others.labels[3] = members.features[5], members.labels[5]
    records = Membership.of(members, others)
    assert "r5" not in records.members.ids
    assert "n3" not in records.non_members.ids
    assert (len(records.members), len(records.non_members)) == (19, 19)
    assert records.notes[0].startswith("1 members and 1 non-members have exact copies")
    with pytest.raises(ValueError, match="1 records are members too"):
        Membership(members, others, np.array([0, 1]))


def test_overlap_sees_through_dtype_and_negative_zero():
    features = np.array([[0.1, 0.0], [0.2, 1.0], [0.3, 2.0], [0.4, 1.0]])
    members = Records(features, [0, 1, 0, 1])
    others = Records(
        np.array([[0.1, -0.0], [9, 9], [8, 8], [7, 7]], dtype=np.float32), [0.0, 1.0, 0.0, 1.0]
    )
    assert len(Membership.of(members, others).non_members) == 3


def test_same_features_with_another_label_are_no_copy_but_near():
    members, others = side(20, 1), side(20, 2)
    others.features[3], others.labels[3] = members.features[5], 1 - members.labels[5]
    records = Membership.of(members, others)
    assert len(records.non_members) == 20
    assert "1 of 20 non-members compared are near copies" in records.notes[0]


def test_whole_overlap_is_refused():
    with pytest.raises(ValueError, match="members: every one has an exact copy among the records"):
        Membership.of(side(10, 1), side(10, 1))


def test_texts_are_compared_exactly_and_loosely():
    members = Records(np.array(["A cat", "a dog", "a cow", "an owl"]), [0, 1, 0, 1])
    others = Records(np.array(["a  CAT", "a dog", "a hen"]), [1, 1, 0])
    records = Membership.of(members, others)
    assert records.non_members.features.tolist() == ["a  CAT", "a hen"]
    assert len(records.notes) == 2


def test_pool_order_depends_on_content_alone():
    members, others = side(15, 1, "m"), side(12, 2, "n")
    straight = Membership.of(members, others)
    swapped = Membership.of(others.take(np.arange(12)[::-1]), members.take(np.arange(15)[::-1]))
    one, order = straight.pool()
    other, _ = swapped.pool()
    assert np.array_equal(one.features, other.features)
    assert np.array_equal(one.labels, other.labels)
    stacked = np.concatenate([members.features, others.features])
    assert np.array_equal(stacked[order], one.features)


def test_persons_on_both_sides_are_refused():
    members, others = side(10, 1, "m"), side(10, 2, "n")
    members = Records(members.features, members.labels, members.ids, np.arange(10) // 2)
    others = Records(others.features, others.labels, others.ids, np.arange(10) // 2 + 4)
    with pytest.raises(ValueError, match="persons: 1 have records on both sides, such as 4; draw"):
        Membership.of(members, others)
    apart = others.take(others.users > 4)
    assert Membership.of(members, apart).of_persons


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_removing_copies_leaves_the_sides_alike(share):
    """Few common kinds, many rare ones, and a score of the content alone: it must tell nothing.

    Of copies on one side alone k stay with the k-th power of the side's share: left in, 200 of 200
    intervals missed 0.5 at 20 % members.
    """
    rng, misses = np.random.default_rng(0), 0
    chances = 1 / np.arange(1, 1501) ** 0.8
    for _ in range(200):
        kind = rng.choice(1500, size=2000, p=chances / chances.sum())
        table = np.stack([kind // 100, kind % 100], axis=1).astype(float)
        drawn = Records(table, kind % 2, np.arange(2000).astype(str))
        inside = rng.permutation(2000) < share * 2000
        kept = Membership.of(drawn.take(inside), drawn.take(~inside))
        scores = [-(s.features[:, 0] * 100 + s.features[:, 1]) for s in
                  (kept.members, kept.non_members)]  # fmt: skip
        area = auc(*scores)
        misses += not area.low <= 0.5 <= area.high
    # 5 % each; more misses than chance brings in 1 of 1,000 such tests fail
    assert misses <= binom.ppf(0.999, 200, 0.05)


def test_cells_do_not_run_together_and_numbers_are_told_by_value():
    def one(rows):
        return Records(np.array(rows, dtype=object), [0, 1], np.array(["a", "b"]))

    filler = ["z", 9]
    first = one([["ab", "c"], ["x", "y"]])
    other = one([["a", "bc"], filler])
    assert Membership.of(first, other).notes == ()
    whole, split = one([["ab", 37], ["x", 1]]), one([["ab", 37.0], ["y", 2]])
    with pytest.raises(ValueError, match="at least two classes"):  # one record is left on each side
        Membership.of(whole, split)


def test_auxiliary_records_stand_on_neither_side():
    members, others, extra = side(10, 1, "m"), side(10, 2, "n"), side(12, 3, "x")
    records = Membership.of(members, others, auxiliary=extra)
    assert records.pool()[0].auxiliary is extra
    for name, theirs in (("members", members), ("non-members", others)):
        with pytest.raises(ValueError, match=f"auxiliary: 3 of the records are {name} too"):
            Membership.of(members, others, auxiliary=theirs.take(slice(3)))
    wide = Records(np.zeros((4, 2)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"auxiliary: records of shape \(2,\)"):
        Membership.of(members, others, auxiliary=wide)
