"""The attack model: from what shadow generators' tables look like to scores of membership."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attacks.records import Bools
from attacks.synthetic.generator_fleet import Observations
from attacks.synthetic.summaries import WHOLE
from attacks.targets import Floats

Method = Literal["logistic", "forest", "lira"]
METHODS: tuple[Method, ...] = ("logistic", "forest", "lira")
DRAWN_TO_ALL = 20.0  # runs that the mean over targets counts for against a target's own
FARTHEST = 5.0  # standard deviations: what hardly moved in the runs learned from may jump in others
RIDGE = 1e-6  # of variances of about 1: features that say the same make no matrix singular


def sides(scores: Floats, inside: Bools, pairs: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Scores (pairs, K) of the runs with each target and of those without it."""
    first, second = scores[2 * pairs], scores[2 * pairs + 1]
    first_in = inside[2 * pairs]
    return np.where(first_in, first, second), np.where(first_in, second, first)


def score(
    seen: Observations,
    learned: NDArray[np.int64],
    families: Sequence[str],
    method: Method,
    seed: int,
) -> Floats:
    """Scores (R, K) of all runs, by an attack model that learned from the runs ``learned``."""
    parts = [
        _evidence(seen.whole[f], seen.influence[f], learned)[:, :, None]
        if f in WHOLE
        else seen.near[f]
        for f in families
    ]
    features = np.concatenate(parts, axis=2)
    centre, spread = features[learned].mean(axis=0), features[learned].std(axis=0)
    features = (features - centre) / np.where(spread > 1e-12, spread, np.inf)
    features = np.clip(features, -FARTHEST, FARTHEST)
    truth = seen.inside[learned]
    if method == "lira":
        return _likelihood_ratio(features, learned, truth)
    return _classified(features, learned, truth, method, seed)


def _evidence(values: Floats, influence: Floats, learned: NDArray[np.int64]) -> Floats:
    """What a table's own features say of each target (R, K), up to scale.

    The logarithm of the likelihood ratio of a Gaussian shift along the target's influence, with
    Ledoit and Wolf's (2004) covariance over the runs: a classifier with as many weights as there
    are features would need far more runs than anybody trains.
    """
    from sklearn.covariance import ledoit_wolf

    spread = values[learned].std(axis=0)
    moving = spread > 1e-12
    if not moving.any():
        return np.zeros((len(values), len(influence)))
    scaled = (values[:, moving] - values[learned][:, moving].mean(axis=0)) / spread[moving]
    scaled = np.clip(scaled, -FARTHEST, FARTHEST)
    covariance, _ = ledoit_wolf(scaled[learned], assume_centered=True)
    covariance += RIDGE * np.eye(len(covariance))
    direction = np.linalg.solve(covariance, (influence[:, moving] / spread[moving]).T)
    return np.asarray(scaled @ direction)


def _classified(
    features: Floats, learned: NDArray[np.int64], truth: Bools, method: Method, seed: int
) -> Floats:
    """Log odds of membership, learned from all targets together: features are standardised each."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    size = features.shape[2]
    model = (
        LogisticRegression(C=0.1, max_iter=1000)
        if method == "logistic"
        else RandomForestClassifier(100, min_samples_leaf=10, random_state=seed)
    )
    model.fit(features[learned].reshape(-1, size), truth.ravel())
    p = model.predict_proba(features.reshape(-1, size))[:, 1].reshape(features.shape[:2])
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p / (1 - p)))


def _likelihood_ratio(features: Floats, learned: NDArray[np.int64], truth: Bools) -> Floats:
    """Log ratio of two Gaussians for each target, in and out, with one covariance for all.

    Carlini et al. 2022 for vectors: a target's shift is its own, drawn towards the mean shift of
    all targets, which counts for 20 runs; the covariance is that within targets and sides.
    """
    from sklearn.covariance import ledoit_wolf

    known = features[learned]
    share = truth[:, :, None]
    with_, without = (
        np.where(side, known, 0.0).sum(axis=0) / np.maximum(side.sum(axis=0), 1)
        for side in (share, ~share)
    )
    own, runs = with_ - without, len(learned)
    shift = (runs * own + DRAWN_TO_ALL * own.mean(axis=0)) / (runs + DRAWN_TO_ALL)
    rest = (known - np.where(share, with_, without)).reshape(-1, features.shape[2])
    covariance, _ = ledoit_wolf(rest, assume_centered=True)
    covariance += RIDGE * np.eye(len(covariance))
    direction = np.linalg.solve(covariance, shift.T).T
    middle = (with_ + without) / 2
    return np.asarray(((features - middle) * direction).sum(axis=2))
