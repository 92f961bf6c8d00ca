"""The white-box signal is the gradient's norm, not the loss."""

import numpy as np
import pytest

from attacks import registry
from attacks.membership.gradient import gradient_norm
from attacks.metrics import auc
from attacks.records import Membership, Pool, Records
from attacks.targets import from_callable, from_torch

X = np.random.default_rng(0).normal(size=(50, 3))
Y = np.arange(50) % 2


def scores(target, labels, classes):
    pool = Pool(X, labels, np.asarray(classes))
    return gradient_norm(target, pool, None, 0, lambda done, total: None).scores


def test_softmax_regression_in_closed_form():
    """The gradient is (p - onehot) times (x, 1)."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    target = from_torch(torch.nn.Linear(3, 2), "gradients", 2, device="cpu")
    error = np.linalg.norm(target.scores(X) - np.eye(2)[Y], axis=1)
    closed = -np.log(error * np.sqrt(1 + (X**2).sum(axis=1)))
    assert np.allclose(scores(target, Y, [0, 1]), closed, atol=1e-5)


def test_a_leak_that_the_loss_does_not_show():
    members, others = Records(X, Y), Records(X + 10, Y, np.arange(50, 100))
    known = {row.tobytes() for row in X}

    def norms(rows, at):
        return np.array([0.1 if row.tobytes() in known else 0.2 for row in rows])

    target = from_callable(
        lambda rows: np.zeros((len(rows), 2)), [0, 1], "gradients", "logits", norms
    )
    records = Membership(members, others, np.array([0, 1]))
    result = registry.run("gradient_norm", target, records)
    assert auc(result.member_scores, result.non_member_scores).value == 1
    assert result.access == "gradients"
    assert result.queries == 100


def test_no_gradient_at_all_and_a_class_never_seen():
    labels = np.where(np.arange(50) < 5, 2, Y)
    target = from_callable(
        lambda rows: np.zeros((len(rows), 2)), [0, 1], "gradients", "logits",
        lambda rows, at: np.zeros(len(rows)),
    )  # fmt: skip
    found = scores(target, labels, [0, 1, 2])
    assert np.isfinite(found).all()
    assert found[:5].max() < found[5:].min()
