"""Robust membership inference (Zarifzadeh, Liu and Shokri 2024): the target against the average.

A record's ratio is the probability that the target gives its label, over the mean probability that
reference models give it. The paper's score is the share of population records whose ratio it
exceeds γ times. That share only rises with the ratio, so the logarithm of the ratio ranks records
the same way; it is kept as the score, since the share ties all records above the population's
largest ratio, and those are the ones that count at a low false positive rate.
"""

from __future__ import annotations

import numpy as np

from attacks.membership.comparison import Comparison, stand_ins, with_target
from attacks.membership.signals import TINY, probability
from attacks.metrics import auc
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Observations, Shadows
from attacks.targets import Floats, Target

SLOPES = tuple(round(0.1 * k, 1) for k in range(11))
STAND_INS = 4  # shadow models that play the target while the slope is chosen


def rmia(target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress) -> Scored:
    """Online: the mean is over all shadow models, half of which were trained on the record."""
    return Scored(log_ratio_to_all(with_target(target, pool, shadows, progress)))


def rmia_offline(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Offline: only models without the record; the mean with it is ((1 + a) p + 1 - a) / 2.

    The slope a is the one that works best when shadow models, whose members are known, stand in
    for the target; the target's own members play no part.
    """
    slope = best_slope(shadows.observations(pool, progress))
    scores = log_ratio_to_outside(with_target(target, pool, shadows, progress), slope)
    return Scored(scores, (f"slope a = {slope}, chosen on shadow models",))


def log_ratio_to_all(seen: Comparison) -> Floats:
    """The online score (n,).

    Raises:
        ValueError: if no shadow model was trained on any of the records.
    """
    if not seen.inside.any():
        raise ValueError(
            "rmia: online needs shadow models trained on the audited records; with auxiliary "
            "records use rmia_offline"
        )
    return _log_ratio(seen, probability(seen.logits).mean(axis=0))


def log_ratio_to_outside(seen: Comparison, slope: float) -> Floats:
    """The offline score (n,) with this slope a."""
    return _log_ratio(seen, _extended(_mean_outside(seen), slope))


def best_slope(seen: Observations) -> float:
    """The slope with the best mean AUC over a few shadow models that play the target.

    With two shadow models none can, and the slope is 0.3.
    """
    merit = np.zeros(len(SLOPES))
    for played, truth in stand_ins(seen, STAND_INS):
        mean = _mean_outside(played)
        for i, slope in enumerate(SLOPES):
            scores = _log_ratio(played, _extended(mean, slope))
            merit[i] += auc(scores[truth], scores[~truth]).value
    return SLOPES[int(np.argmax(merit))] if merit.any() else 0.3


def _mean_outside(seen: Comparison) -> Floats:
    """The mean probability that models without the record give it (n,)."""
    given = np.where(seen.inside, 0.0, probability(seen.logits))
    return np.asarray(given.sum(axis=0) / (~seen.inside).sum(axis=0))


def _extended(mean: Floats, slope: float) -> Floats:
    return ((1 + slope) * mean + (1 - slope)) / 2


def _log_ratio(seen: Comparison, mean: Floats) -> Floats:
    p = probability(seen.asked)
    return np.log(np.maximum(p, TINY)) - np.log(np.maximum(mean, TINY))
