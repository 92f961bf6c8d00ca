"""Difficulty calibration takes away what a record's loss is on any model."""

import numpy as np
import pytest

from attacks import registry
from attacks.membership.calibration import loss_below_usual
from attacks.membership.comparison import Comparison
from attacks.metrics import auc
from attacks.records import Membership, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import from_callable


def split(n=300, extra=None):
    """Records whose first column is how easy they are."""
    rng = np.random.default_rng(0)
    sides = [Records(rng.normal(size=(n, 2)), rng.integers(0, 2, n), np.arange(n) + n * i)
             for i in range(3)]  # fmt: skip
    return Membership(*sides[:2], np.array([0, 1]), auxiliary=sides[2] if extra else None)


def fit(X, y, seed):
    """The true class' logit is 3 times the record's ease, plus 1 if it was trained on."""
    known, rng = {row.tobytes() for row in X}, np.random.default_rng(seed)
    records = split(extra=True)
    sides = (records.members, records.non_members, records.auxiliary)
    label_of = {
        row.tobytes(): y for s in sides for row, y in zip(s.features, s.labels, strict=True)
    }

    def answer(rows):
        inside = np.array([row.tobytes() in known for row in rows])
        logit = 3 * rows[:, 0] + inside + rng.normal(scale=0.3, size=len(rows))
        labels = np.array([label_of[row.tobytes()] for row in rows])
        return np.where(np.eye(2)[labels] > 0, logit[:, None], 0.0)

    return from_callable(answer, [0, 1], "logits", gives="logits")


def test_the_score_is_the_loss_less_its_mean_over_models_without_the_record():
    p, given = np.array([0.9, 0.2]), np.array([[0.5, 0.6], [0.8, 0.7], [0.4, 0.1]])
    inside = np.array([[False, True], [True, False], [False, False]])
    logit = lambda x: np.log(x / (1 - x))  # noqa: E731
    seen = Comparison(np.c_[logit(p), np.zeros((2, 3))], logit(given), inside)
    usual = [(np.log(0.5) + np.log(0.4)) / 2, (np.log(0.7) + np.log(0.1)) / 2]
    assert loss_below_usual(seen) == pytest.approx(np.log(p) - usual)


@pytest.mark.parametrize("auxiliary", [False, True])
def test_hard_non_members_are_not_taken_for_less_of_a_member_than_easy_ones(auxiliary):
    records = split(extra=auxiliary)
    target = fit(records.members.features, records.members.labels, 99)
    found = {
        name: registry.run(name, target, records, shadows=Shadows(fit, 8))
        for name in ("calibrated", "loss_threshold")
    }
    hard = records.non_members.features[:, 0] < 0
    plain, fair = (found[n].non_member_scores for n in ("loss_threshold", "calibrated"))
    assert auc(plain[~hard], plain[hard]).value > 0.95
    between = auc(fair[~hard], fair[hard])
    assert between.low <= 0.5 <= between.high
    whole = {n: auc(r.member_scores, r.non_member_scores) for n, r in found.items()}
    assert whole["calibrated"].low > whole["loss_threshold"].high
