"""Shadow models teach an attack model what members look like (Shokri et al. 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.membership.signals import CONFIDENCE, observe
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Array, Floats, Target

LEAST = 50  # observations on each side below which a class has no attack model of its own
MOST = 200_000  # observations that an attack model learns from: more only cost time


def shadow_per_class(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """One attack model per class, learned from the shadow models' own members and non-members.

    It sees the three largest probabilities and the true class' logit (the loss) and gives the
    probability of membership. A class with fewer than 50 observations of either kind is judged by
    the model that learned from all classes together.
    """
    seen = shadows.observations(pool, progress)
    asked = observe(target, pool.features, pool.labels).astype(np.float32)
    values, inside = seen.values[:, seen.learned], seen.inside[:, seen.learned]
    labels = seen.labels[seen.learned]
    rng = np.random.default_rng(seed)
    scores = np.empty(len(pool))
    poor: list[Any] = []
    for label in pool.classes:
        of_class, judged = labels == label, pool.labels == label
        truth = inside[:, of_class].ravel()
        if min(truth.sum(), (~truth).sum()) < LEAST:
            poor.append(label)
            continue
        if judged.any():
            rows = values[:, of_class].reshape(len(truth), -1)
            scores[judged] = _membership(rows, truth, asked[judged], rng)
    if poor:
        rest = np.isin(pool.labels, np.asarray(poor))
        rows = values.reshape(inside.size, -1)
        if rest.any():
            scores[rest] = _membership(rows, inside.ravel(), asked[rest], rng)
    names = ", ".join(map(str, poor))
    notes = (f"too few records of class {names}: judged by the model of all classes",)
    return Scored(scores, notes if poor else ())


def _membership(
    rows: NDArray[np.float32], truth: Array, asked: NDArray[np.float32], rng: np.random.Generator
) -> Floats:
    """The probability of membership, learned from ``rows``, of the records in ``asked``."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    if len(rows) > MOST:
        some = rng.choice(len(rows), MOST, replace=False)
        rows, truth = rows[some], truth[some]
    model = HistGradientBoostingClassifier(
        max_iter=60,
        max_leaf_nodes=8,
        min_samples_leaf=20,
        early_stopping=False,
        random_state=int(rng.integers(2**31)),
    )
    model.fit(rows, truth)
    learned = model.predict_proba(asked)[:, 1]
    # trees give equal probabilities to whole regions; within one, the loss decides
    finest = np.unique(asked[:, CONFIDENCE], return_inverse=True)[1]  # equal losses stay equal
    return np.asarray(learned + 1e-9 * finest / len(finest), dtype=np.float64)
