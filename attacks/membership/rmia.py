"""Robust membership inference (Zarifzadeh, Liu and Shokri 2024): the target against the average.

A record's ratio is the probability that the target gives its label, over the mean probability that
reference models give it. The paper's score is the share of population records whose ratio it
exceeds γ times. That share only rises with the ratio, so the logarithm of the ratio ranks records
the same way; it is kept as the score, since the share ties all records above the population's
largest ratio, and those are the ones that count at a low false positive rate.
"""

from __future__ import annotations

import numpy as np

from attacks.membership.signals import CONFIDENCE, TINY, observe, probability
from attacks.metrics import auc
from attacks.records import Bools, Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Observations, Shadows
from attacks.targets import Floats, Target

SLOPES = tuple(round(0.1 * k, 1) for k in range(11))
STAND_INS = 4  # shadow models that play the target while the slope is chosen


def rmia(target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress) -> Scored:
    """Online: the mean is over all shadow models, half of which were trained on the record."""
    seen = shadows.observations(pool, progress)
    if not seen.inside[:, seen.judged].any():
        raise ValueError(
            "rmia: online needs shadow models trained on the audited records; with auxiliary "
            "records use rmia_offline"
        )
    mean = probability(seen.values[:, seen.judged, CONFIDENCE]).mean(axis=0)
    return Scored(_log_ratio(_asked(target, pool), mean))


def rmia_offline(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Offline: only models without the record; the mean with it is ((1 + a) p + 1 - a) / 2.

    The slope a is the one that works best when shadow models, whose members are known, stand in
    for the target; the target's own members play no part.
    """
    seen = shadows.observations(pool, progress)
    slope = _slope(seen)
    outside = ~seen.inside[:, seen.judged]
    mean = _mean(probability(seen.values[:, seen.judged, CONFIDENCE]), outside)
    scores = _log_ratio(_asked(target, pool), _extended(mean, slope))
    return Scored(scores, (f"slope a = {slope}, chosen on shadow models",))


def _slope(seen: Observations) -> float:
    """The slope with the best mean AUC over a few shadow models that play the target."""
    inside = seen.inside[:, seen.learned]
    given = probability(seen.values[:, seen.learned, CONFIDENCE])
    models = np.arange(len(inside))
    merit = np.zeros(len(SLOPES))
    for k in range(min(STAND_INS, len(models))):
        others = (models != k)[:, None] & ~inside
        rows = others.any(axis=0)  # with two models, half of the records have none left
        truth = inside[k, rows]
        if truth.all() or not truth.any():
            continue
        mean = _mean(given[:, rows], others[:, rows])
        for i, slope in enumerate(SLOPES):
            scores = _log_ratio(given[k, rows], _extended(mean, slope))
            merit[i] += auc(scores[truth], scores[~truth]).value
    return SLOPES[int(np.argmax(merit))] if merit.any() else 0.3


def _asked(target: Target, pool: Pool) -> Floats:
    return probability(observe(target, pool.features, pool.labels)[:, CONFIDENCE])


def _mean(given: Floats, chosen: Bools) -> Floats:
    return np.asarray(np.where(chosen, given, 0.0).sum(axis=0) / chosen.sum(axis=0))


def _extended(mean: Floats, slope: float) -> Floats:
    return ((1 + slope) * mean + (1 - slope)) / 2


def _log_ratio(p: Floats, mean: Floats) -> Floats:
    return np.log(np.maximum(p, TINY)) - np.log(np.maximum(mean, TINY))
