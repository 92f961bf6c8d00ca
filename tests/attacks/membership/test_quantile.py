"""One regression finds what is usual for a record, and how far a usual score may stray."""

import numpy as np
import pytest
from scipy.stats import norm

from attacks import registry
from attacks.metrics import auc
from attacks.records import Membership, Records
from attacks.targets import from_callable

LEAK = 2.0  # standard deviations


def planted(auxiliary, n=600, seed=0):
    """Scores of others are Gaussian around 4x with deviation exp(z); members lie 2 of those above.

    Who knows x and z gets an AUC of Φ(2 / √2) = 0.921.
    """
    rng = np.random.default_rng(seed)
    sizes = (n, n, auxiliary)
    ids = np.split(np.arange(sum(sizes)), (n, 2 * n))
    sides = [
        Records(rng.uniform(-1, 1, (size, 3)), rng.integers(0, 2, size), names)
        for size, names in zip(sizes, ids, strict=True)
        if size
    ]
    told = {}
    for i, side in enumerate(sides):
        x, z = side.features[:, 0], 2 * side.features[:, 1]
        logits = 4 * x + np.exp(z) * (rng.normal(size=len(side)) + LEAK * (i == 0))
        for row, logit, y in zip(side.features, logits, side.labels, strict=True):
            told[row.tobytes()] = (logit, y)

    def answer(rows):
        logit, labels = np.array([told[row.tobytes()] for row in rows]).T
        return np.where(np.eye(2)[labels.astype(int)] > 0, logit[:, None], 0.0)

    target = from_callable(answer, [0, 1], "logits", gives="logits")
    extra = sides[2] if auxiliary else None
    return target, Membership(*sides[:2], np.array([0, 1]), auxiliary=extra)


def area(name, target, records):
    result = registry.run(name, target, records)
    return auc(result.member_scores, result.non_member_scores), result


def test_records_of_unequal_spread_are_judged_each_by_its_own():
    """With 4,000 auxiliary records it comes within 0.03 of the optimum, far above the loss."""
    target, records = planted(4000)
    found, result = area("quantile", target, records)
    optimum = norm.cdf(LEAK / np.sqrt(2))
    assert found.high > optimum - 0.03
    assert found.low > area("loss_threshold", target, records)[0].high + 0.1
    assert result.notes == ()
    assert result.queries == 5200


def test_without_auxiliary_records_it_learns_on_the_pool_and_says_so():
    target, records = planted(0)
    found, result = area("quantile", target, records)
    assert found.low > area("loss_threshold", target, records)[0].high
    assert found.value < area("quantile", *planted(4000))[0].value
    assert "learned on the audited records themselves" in result.notes[0]


@pytest.mark.parametrize("auxiliary", [0, 40])
@pytest.mark.parametrize("kind", ["images", "texts", "mixed"])
def test_records_of_any_kind(kind, auxiliary):
    """Members get 0.9, others 0.6: what a record is tells nothing, so the score alone must."""
    rng = np.random.default_rng(0)
    n = 80 + auxiliary
    if kind == "images":
        X = rng.normal(size=(n, 2, 8, 8)).astype(np.float32)  # wide enough for components
    elif kind == "texts":
        X = np.array([" ".join(rng.choice(list("abcdefgh"), 6)) + f" {i}" for i in range(n)])
    else:
        X = np.empty((n, 3), dtype=object)
        X[:, 0], X[:, 1] = rng.normal(size=n).tolist(), rng.choice(["u", "v"], n)
        X[:, 2] = rng.integers(0, 90, n).tolist()
    side = lambda at: Records(X[at], np.arange(n)[at] % 2, np.arange(n)[at])  # noqa: E731
    key = lambda row: repr(np.asarray(row).tolist())  # noqa: E731
    told = {key(X[i]): (0.9 if i < 40 else 0.6, i % 2) for i in range(n)}

    def answer(rows):
        p, y = np.array([told[key(row)] for row in rows]).T
        return np.where(np.eye(2)[y.astype(int)] > 0, p[:, None], 1 - p[:, None])

    target = from_callable(answer, [0, 1], "scores")
    extra = side(slice(80, None)) if auxiliary else None
    records = Membership(side(slice(40)), side(slice(40, 80)), np.array([0, 1]), auxiliary=extra)
    assert area("quantile", target, records)[0].low > 0.9


def test_a_persons_records_are_predicted_without_each_other():
    """Twins tell all about one another: judged apart, neither gives the other's score away."""
    from attacks.membership.quantile import _folds

    users = np.arange(60) // 2
    folds = _folds(60, users, seed=0)
    assert (folds[::2] == folds[1::2]).all()
    assert np.bincount(folds).tolist() == [12, 12, 12, 12, 12]
    assert np.array_equal(_folds(60, None, seed=0), np.random.default_rng(0).permutation(60) % 5)
