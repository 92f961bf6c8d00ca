"""Quantile regression (Bertran et al. 2023): is the target surer of a record than of its like?

One regression learns, from features and label alone, what score the target gives to records that
it was not trained on: a Gaussian with a mean and a deviation for each record, one of the paper's
variants. What speaks of membership is how far the record's own score lies above. The whole target
is asked once; nothing like it is trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.encoding import beside, encode
from attacks.membership.signals import CONFIDENCE, observe, reach
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Array, Floats, Target, positions

FOLDS = 5
ROUNDS = 100  # of boosting, at most; how many is chosen on the folds
WIDE = 100  # columns of numbers; of more, as in images, the principal components are taken
COMPONENTS = 50
LEAST = 1e-4  # a smaller deviation is rounding: answers are often kept in float32


def quantile(
    target: Target, pool: Pool, shadows: Shadows | None, seed: int, progress: Progress
) -> Scored:
    """Deviations above the predicted mean, learned on the auxiliary records where there are any.

    Without them it learns on the pool itself, each fifth judged by a model of the other four, blind
    to the truth. Members are among what it learns from, so it expects a part of the leak. Where
    persons are named, all records of one are in the same fifth.
    """
    extra = pool.auxiliary
    features, labels = pool.features, pool.labels
    if extra is not None:
        features = np.concatenate([extra.features, features])
        labels = np.concatenate([extra.labels, labels])
    table, scores = _table(features, labels, pool.classes), _scores(target, features, labels)
    learned = slice(None) if extra is None else slice(0, len(extra))
    folds = _folds(len(scores[learned]), pool.users if extra is None else extra.users, seed)
    expected = _Regression(table[learned], scores[learned], folds, seed)
    residuals = scores[learned] - expected.out_of_fold
    # of a logarithm, so that one record far off does not widen its whole neighbourhood
    distance = np.log(np.maximum(np.abs(residuals), LEAST))
    spread = _Regression(table[learned], distance, folds, seed)
    if extra is None:
        note = "learned on the audited records themselves, members among them: weaker than it is"
        return Scored(residuals / np.exp(spread.out_of_fold), (f"{note} with auxiliary records",))
    judged = slice(len(extra), None)
    above = scores[judged] - expected.predict(table[judged])
    return Scored(above / np.exp(spread.predict(table[judged])))


class _Regression:
    """Boosted trees from a table (n, d) to values (n,), as many rounds as serve the folds best.

    Attributes:
        out_of_fold: what is predicted (n,) of each record by the trees that did not see it.
    """

    def __init__(
        self, table: NDArray[Any], values: Floats, folds: NDArray[np.int64], seed: int
    ) -> None:
        self._table, self._seed = table, seed
        # equal values are then exactly zero, and so is what the trees make of them
        self._middle = float(np.median(values))
        self._values = values - self._middle
        stages = np.empty((ROUNDS, len(values)))
        for fold in np.unique(folds):
            apart = folds == fold
            model = self._trees(ROUNDS).fit(table[~apart], self._values[~apart])
            for i, stage in enumerate(model.staged_predict(table[apart])):
                stages[i, apart] = stage
        best = int(np.argmin(((stages - self._values) ** 2).mean(axis=1)))
        self._rounds = best + 1
        self.out_of_fold: Floats = stages[best] + self._middle

    def predict(self, table: NDArray[Any]) -> Floats:
        """What trees of all records predict of others (m, d)."""
        model = self._trees(self._rounds).fit(self._table, self._values)
        return np.asarray(model.predict(table) + self._middle, dtype=np.float64)

    def _trees(self, rounds: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(
            learning_rate=0.1,
            max_iter=rounds,
            max_leaf_nodes=16,
            early_stopping=False,
            random_state=self._seed,
        )


def _folds(records: int, users: Array | None, seed: int) -> NDArray[np.int64]:
    """The fold (n,) of each record; records of one person share theirs."""
    whom = np.arange(records) if users is None else np.unique(users, return_inverse=True)[1]
    persons = int(whom.max()) + 1
    fold = np.random.default_rng(seed).permutation(persons) % min(FOLDS, persons)
    return np.asarray(fold[whom])


def _scores(target: Target, features: Array, labels: Array) -> Floats:
    logits = observe(target, features, labels)[:, CONFIDENCE]
    return np.asarray(np.clip(logits, -reach(logits), reach(logits)))


def _table(features: Array, labels: Array, classes: Array) -> NDArray[Any]:
    dense = encode(features)[1]
    if features.dtype.kind in "biuf" and min(dense.shape) > WIDE:
        from sklearn.decomposition import PCA

        # trees would take minutes over thousands of pixels, none of which says much by itself
        dense = PCA(COMPONENTS, svd_solver="randomized", random_state=0).fit_transform(dense)
    onehot = np.eye(len(classes))[positions(labels, classes)]
    return np.asarray(beside(dense, onehot))
