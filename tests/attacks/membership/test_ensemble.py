"""The ensemble learns from shadow models which attack to believe, and on whom."""

import numpy as np
import pytest

from attacks import registry
from attacks.metrics import auc
from attacks.records import Membership, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import from_callable

PARTS = ("lira", "lira_fixed", "lira_offline", "rmia", "rmia_offline", "calibrated",
         "loss_threshold")  # fmt: skip


def split(n=250, auxiliary=False):
    rng = np.random.default_rng(0)
    sides = [Records(rng.normal(size=(n, 2)), rng.integers(0, 3, n), np.arange(n) + n * i)
             for i in range(3)]  # fmt: skip
    return Membership(*sides[:2], np.arange(3), auxiliary=sides[2] if auxiliary else None)


def fit(X, y, seed):
    """Half of the records leak through the true class' logit, half through the other two classes.

    A logit attack is at chance on the second half; the largest probabilities say little of the
    first, where records differ far more than members do from others.
    """
    records = split(auxiliary=True)
    everyone = (records.members, records.non_members, records.auxiliary)
    label_of = {
        row.tobytes(): y for s in everyone for row, y in zip(s.features, s.labels, strict=True)
    }
    known, rng = {row.tobytes() for row in X}, np.random.default_rng(seed)

    def answer(rows):
        inside = np.array([row.tobytes() in known for row in rows])
        through_logit = rows[:, 0] > 0
        noise = rng.normal(size=(2, len(rows)))
        own = np.where(through_logit, rows[:, 1] + 1.5 * inside, -3.0) + 0.5 * noise[0]
        ratio = np.where(through_logit, 0, 2.5 * inside) + 0.5 * noise[1]
        at = np.array([label_of[row.tobytes()] for row in rows])
        every = np.arange(len(rows))
        logits = np.empty((len(rows), 3))
        others = np.stack([ratio / 2, -ratio / 2])
        others -= np.logaddexp(*others)
        logits[every, at] = own
        logits[every, (at + 1) % 3], logits[every, (at + 2) % 3] = others
        return logits

    return from_callable(answer, np.arange(3), "logits", gives="logits")


def areas(names, records, models=8):
    target = fit(records.members.features, records.members.labels, 99)
    shadows = Shadows(fit, models)
    results = {name: registry.run(name, target, records, shadows=shadows) for name in names}
    return {name: auc(r.member_scores, r.non_member_scores) for name, r in results.items()}


def test_it_beats_each_of_its_parts_where_no_part_sees_every_leak():
    found = areas(("ensemble", *PARTS), split())
    best = max(found[name].high for name in PARTS)
    assert found["ensemble"].low > best


def test_with_auxiliary_records_it_learns_on_those():
    parts = [name for name in PARTS if name not in ("lira", "lira_fixed", "rmia")]
    found = areas(("ensemble", *parts), split(auxiliary=True))
    assert found["ensemble"].low > max(found[name].high for name in parts)


def test_four_models_suffice_and_two_do_not():
    assert areas(("ensemble",), split(), 4)["ensemble"].low > 0.6
    with pytest.raises(ValueError, match="needs 4 shadow models or more, got 2"):
        areas(("ensemble",), split(), 2)
