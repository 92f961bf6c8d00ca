"""What holds for every registered attack. A new line in the registry is tested here by itself."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from attacks import registry
from attacks.metrics import auc, measure
from attacks.records import Membership, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import AccessDenied, Target, from_callable

NAMES = sorted(registry.entries())
SHADOWS = 8


def draw(n, seed, classes=2, ids="r"):
    """Records whose labels are noise: only a model that saw a record can know its label."""
    rng = np.random.default_rng(seed)
    return Records(
        rng.normal(size=(n, 4)),
        rng.integers(0, classes, n),
        np.array([f"{ids}{i}" for i in range(n)]),
    )


def split(members=81, others=72, seed=0, classes=2):
    return Membership(
        draw(members, 2 * seed, classes, "m"),
        draw(others, 2 * seed + 1, classes, "n"),
        np.arange(classes),
    )


def memoriser(X, y, seed):
    """1-nearest neighbour, softened so that a record's own vote is 0.9 and torch is not needed."""
    model = KNeighborsClassifier(1).fit(X, y)
    C = len(model.classes_)
    return answers(lambda rows: 0.8 * model.predict_proba(rows) + 0.2 / C, model.classes_)


def answers(scores, classes):
    """A target at the highest level; its only parameters are biases, one for each logit."""

    def gradient_norms(rows, at):
        return np.linalg.norm(scores(rows) - np.eye(len(classes))[at], axis=1)

    return from_callable(
        lambda rows: np.log(scores(rows)), classes, "gradients", "logits", gradient_norms
    )


def attack(name, target, records, seed=0, shadows=None):
    shadows = shadows or Shadows(memoriser, SHADOWS, seed)
    return registry.run(name, target, records, shadows=shadows, seed=seed)


def by_id(result):
    ids = [*result.member_ids, *result.non_member_ids]
    return dict(zip(ids, [*result.member_scores, *result.non_member_scores], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_memoriser_leaks_in_the_direction_fixed_beforehand(name):
    records = split()
    target = memoriser(records.members.features, records.members.labels, 0)
    result = attack(name, target, records)
    assert auc(result.member_scores, result.non_member_scores).low > 0.5
    assert len(result.member_scores) == 81
    assert len(result.non_member_scores) == 72
    assert (result.member_ids == records.members.ids).all()
    assert result.queries >= 153
    assert result.models_trained == (SHADOWS if registry.find(name).needs_shadows else 0)
    assert result.source


@pytest.mark.parametrize("name", NAMES)
def test_a_target_that_saw_neither_side_is_at_chance(name):
    misses = 0
    for seed in range(1, 9):
        records = split(seed=seed)
        other = draw(80, 1000 + seed)
        result = attack(name, memoriser(other.features, other.labels, 0), records)
        area = auc(result.member_scores, result.non_member_scores)
        misses += not area.low <= 0.5 <= area.high
    # 5 % each; more misses than chance brings in 1 of 1000 such tests fail
    assert misses <= binom.ppf(0.999, 8, 0.05)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_scores(name):
    records = split()
    target = memoriser(records.members.features, records.members.labels, 0)
    one, two = (attack(name, target, records, seed=5) for _ in range(2))
    assert np.array_equal(one.member_scores, two.member_scores)
    assert np.array_equal(one.non_member_scores, two.non_member_scores)


@pytest.mark.parametrize("name", NAMES)
def test_scores_know_nothing_of_the_truth_or_the_rows_order(name):
    """The two sides exchanged and shuffled: each record keeps its score."""
    records = split()
    target = memoriser(records.members.features, records.members.labels, 0)
    rng = np.random.default_rng(1)
    swapped = Membership(
        records.non_members.take(rng.permutation(72)),
        records.members.take(rng.permutation(81)),
        records.classes,
    )
    assert by_id(attack(name, target, records)) == by_id(attack(name, target, swapped))


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_target_tells_nothing(name):
    records = split()
    target = answers(lambda rows: np.full((len(rows), 2), 0.5), [0, 1])
    same = Shadows(lambda X, y, seed: target, SHADOWS)
    result = attack(name, target, records, shadows=same)
    figures = {f.name: f.estimate for f in measure(result.member_scores, result.non_member_scores)}
    # the label of a tie is the first class: right or wrong by the record's label, not by membership
    if registry.find(name).access != "label":
        assert figures["auc"].value == 0.5
        assert figures["tpr_at_fpr_0.1"].value == 0


@pytest.mark.parametrize("name", NAMES)
def test_shadow_models_that_miss_a_class_are_no_accident(name):
    """A rare class: some shadow halves hold none of it, and the target's columns differ."""
    members, others = draw(41, 1, 2, "m"), draw(40, 2, 2, "n")
    members.labels[:1], others.labels[:1] = 2, 2
    records = Membership(members, others, np.array([0, 1, 2]))
    target = memoriser(members.features, members.labels, 0)
    result = attack(name, target, records)
    assert np.isfinite([*by_id(result).values()]).all()


@pytest.mark.parametrize("name", NAMES)
def test_less_access_than_needed_is_refused(name):
    needed = registry.find(name).access
    lower = {"label": None, "scores": "label", "logits": "scores", "gradients": "logits"}[needed]
    if lower is None:
        return
    target = Target(lambda rows: rows[:, :2], gives="logits", access=lower, classes=[0, 1])
    with pytest.raises(AccessDenied, match=f"{name} needs {needed}"):
        registry.run(name, target, split())


@pytest.mark.parametrize("name", [n for n in NAMES if registry.find(n).needs_shadows])
def test_shadow_attacks_need_a_fit(name):
    target = answers(lambda rows: np.full((len(rows), 2), 0.5), [0, 1])
    with pytest.raises(ValueError, match=f"{name} trains shadow models and nobody said how"):
        registry.run(name, target, split())


@pytest.mark.parametrize("name", NAMES)
def test_models_sure_of_everything_give_finite_scores(name):
    def tree(X, y, seed):
        model = DecisionTreeClassifier(random_state=seed).fit(X, y)
        scores = model.predict_proba
        return from_callable(scores, model.classes_, "scores")

    if registry.find(name).access not in ("label", "scores"):
        return
    records = split(classes=3)
    target = tree(records.members.features, records.members.labels, 0)
    result = attack(name, target, records, shadows=Shadows(tree, SHADOWS))
    assert np.isfinite([*by_id(result).values()]).all()
    assert auc(result.member_scores, result.non_member_scores).low > 0.5


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match=r"'lirra' is none of .*loss_threshold"):
        registry.find("lirra")


def test_the_note_on_removed_overlap_reaches_the_result():
    members = draw(30, 1, ids="m")
    extra = Records(
        np.concatenate([draw(20, 2).features, members.features[:2]]),
        np.concatenate([draw(20, 2).labels, members.labels[:2]]),
    )
    records = Membership.of(members, extra)
    target = memoriser(members.features, members.labels, 0)
    assert (
        "2 members and 2 non-members have exact copies"
        in attack("loss_threshold", target, records).notes[0]
    )


def test_the_manual_lists_every_attack_as_it_is():
    manual = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
    for entry in (registry.find(name) for name in NAMES):
        trains = "shadow models" if entry.needs_shadows else "nothing"
        row = f"| {entry.name} | {entry.title} | {entry.access} | {trains} | {entry.source} |"
        assert row in manual
        assert f"**{entry.name}**" in manual
