"""What is read off an answer is the true class' logit, however sure the model is."""

import numpy as np
import pytest

from attacks import registry
from attacks.membership.signals import CONFIDENCE, EXTREME, observe
from attacks.metrics import auc
from attacks.records import Membership, Pool, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import from_callable


def told(scores, labels, classes=(0, 1, 2)):
    target = from_callable(lambda rows: np.asarray(scores), classes, "scores")
    return observe(target, np.zeros((len(labels), 1)), np.asarray(labels))


def test_scores_keep_as_much_as_logits():
    """p rounds to 1 from a logit of 37 on; the other classes' probabilities do not round to 0."""
    logits = np.random.default_rng(0).normal(scale=30, size=(500, 3))
    labels = np.arange(500) % 3
    at = (np.arange(500), labels)
    by_scores = from_callable(lambda rows: logits, [0, 1, 2], "scores", gives="logits")
    by_logits = from_callable(lambda rows: logits, [0, 1, 2], "logits", gives="logits")
    found, exact = (observe(t, np.zeros((500, 1)), labels) for t in (by_scores, by_logits))
    others = np.delete(logits.ravel(), np.ravel_multi_index(at, (500, 3))).reshape(500, 2)
    closed = logits[at] - np.logaddexp(*others.T)
    assert np.allclose(exact[:, CONFIDENCE], closed)
    within = np.abs(closed) < EXTREME - 1
    assert (np.abs(closed[within]) > 40).sum() > 50
    assert np.allclose(found[within, CONFIDENCE], closed[within])


def test_rounded_certain_and_unknown():
    seen = told([[0.9999, 0, 0], [1, 0, 0], [1, 0, 0], [0.2, 0.3, 0.5]], [0, 0, 1, 2])
    assert seen[:, CONFIDENCE] == pytest.approx([np.log(9999), EXTREME, -EXTREME, 0.0])
    assert seen[3, 1:].tolist() == [0.5, 0.3, 0.2]
    unknown = told([[0.4, 0.6]], [7], classes=(0, 1))
    assert unknown[0].tolist() == pytest.approx([-EXTREME, 0.6, 0.4, 0.0])


def test_large_logits_are_not_cut_off():
    """Members at logits near 60, others near 40: a cut anywhere below hides all of the leak."""
    rng = np.random.default_rng(0)
    sides = [Records(rng.normal(size=(60, 2)), np.arange(60) % 2, ids)
             for ids in (np.arange(60), np.arange(60, 120))]  # fmt: skip
    records = Membership(*sides, np.array([0, 1]))

    def fit(X, y, seed):
        known, noise = {row.tobytes() for row in X}, np.random.default_rng(seed)

        def answer(rows):
            sure = np.array([60.0 if row.tobytes() in known else 40.0 for row in rows])
            sure += noise.normal(size=len(rows))
            right = np.array([truth[row.tobytes()] for row in rows])
            return np.where(np.eye(2)[right] > 0, sure[:, None], 0.0)

        return from_callable(answer, [0, 1], "logits", gives="logits")

    truth = {
        row.tobytes(): int(y) for s in sides for row, y in zip(s.features, s.labels, strict=True)
    }
    for name in ("loss_threshold", "lira", "lira_fixed", "lira_offline", "lira_offline_fixed"):
        result = registry.run(
            name, fit(sides[0].features, sides[0].labels, 99), records, shadows=Shadows(fit, 8)
        )
        assert auc(result.member_scores, result.non_member_scores).value > 0.99


@pytest.mark.parametrize("name", sorted(registry.entries()))
@pytest.mark.parametrize(
    ("classes", "said"), [(["0", "1"], "different types"), ([1, 2], "0 is none of the classes")]
)
def test_labels_that_the_target_does_not_know_are_refused(name, classes, said):
    """Each record would count as of a class never seen: constant scores, and a wrong pass."""
    rng = np.random.default_rng(0)
    sides = [Records(rng.normal(size=(8, 2)), np.arange(8) % 2) for _ in range(2)]
    target = from_callable(
        lambda rows: np.zeros((len(rows), 2)), classes, "gradients", "logits",
        gradient_norms=lambda rows, at: np.ones(len(rows)),
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"members: .*{said}"):
        registry.run(
            name, target, Membership(*sides, [0, 1]), shadows=Shadows(lambda X, y, s: target, 2)
        )


def test_shadow_models_must_know_what_they_were_trained_on():
    stranger = from_callable(lambda rows: np.full((len(rows), 2), 0.5), [1, 2], "scores")
    pool = Pool(np.zeros((8, 2)), np.arange(8) % 2, np.array([0, 1]))
    with pytest.raises(ValueError, match="shadow model 0: labels: 0 is none of the classes"):
        Shadows(lambda X, y, s: stranger, 2).observations(pool)
