"""Likelihood-ratio attack (Carlini et al. 2022): a record's logit with and without training on it.

For each record the shadow models' logits log(p / (1 - p)) are taken for two Gaussians, of models
that were trained on it and of models that were not. Online, the score is the log-likelihood ratio
of the target's logit. Offline, only the models without the record are used, and the score says how
far above them the target lies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from attacks.membership.signals import CONFIDENCE, EXTREME, observe
from attacks.records import Bools, Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Floats, Target

PRIOR = 4.0  # how many models the mean variance counts for against a record's own
LEAST = 1e-4  # a smaller standard deviation of a logit is rounding: answers are kept in float32


def lira(target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress) -> Scored:
    """Online, each record with variances of its own, drawn towards the mean variance.

    A variance estimated from a handful of models is mostly noise, so it is averaged with the mean
    variance over all records, which counts for four models. With many models this is the paper's
    per-record variance, with few its fixed variance.
    """
    return _online(target, pool, shadows, progress, PRIOR)


def lira_fixed(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Online, one variance for all records: the paper's choice below 64 models."""
    return _online(target, pool, shadows, progress, np.inf)


def lira_offline(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Offline, with variances as in ``lira``."""
    return _offline(target, pool, shadows, progress, PRIOR)


def lira_offline_fixed(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Offline, one variance for all records."""
    return _offline(target, pool, shadows, progress, np.inf)


def _online(
    target: Target, pool: Pool, shadows: Shadows, progress: Progress, prior: float
) -> Scored:
    logits, inside, asked = _logits(target, pool, shadows, progress)
    if not inside.any():
        raise ValueError(
            "lira: online needs shadow models trained on the audited records; with auxiliary "
            "records use lira_offline"
        )
    within, without = _fit(logits, inside, prior), _fit(logits, ~inside, prior)
    ratio = norm.logpdf(asked, *within) - norm.logpdf(asked, *without)
    return Scored(np.asarray(ratio, dtype=np.float64))


def _offline(
    target: Target, pool: Pool, shadows: Shadows, progress: Progress, prior: float
) -> Scored:
    logits, inside, asked = _logits(target, pool, shadows, progress)
    without = _fit(logits, ~inside, prior)
    return Scored((asked - without.mean) / without.deviation)


class _Gaussians(NamedTuple):
    mean: Floats
    deviation: Floats


def _fit(logits: Floats, chosen: Bools, prior: float) -> _Gaussians:
    """Mean and standard deviation (n,) over the chosen models (m, n) for each record."""
    count = chosen.sum(axis=0)
    mean = np.where(chosen, logits, 0.0).sum(axis=0) / count
    squares = np.where(chosen, (logits - mean) ** 2, 0.0).sum(axis=0)
    freedom = count - 1
    if freedom.sum() > 0:
        common = float(squares.sum() / freedom.sum())
    else:  # one model for each record: their spread over the records is all there is
        common = float(logits[chosen].var())
    if np.isfinite(prior):
        variance = (squares + prior * common) / (freedom + prior)
    else:
        variance = np.full(len(mean), common)
    return _Gaussians(mean, np.maximum(np.sqrt(variance), LEAST))


def _logits(
    target: Target, pool: Pool, shadows: Shadows, progress: Progress
) -> tuple[Floats, Bools, Floats]:
    """The shadow models' logits (m, n), who was trained on whom, and the target's logits (n,).

    A probability of exactly 0 or 1 has no logit. It is put half as far from 0 or 1 as the nearest
    probability that any shadow model gives (half a tree's vote for a forest), else the few
    records that reach it would dwarf the variance of all others. Logits that a model gave itself
    are taken as they are, however large.
    """
    seen = shadows.observations(pool, progress)
    logits = seen.values[:, seen.judged, CONFIDENCE].astype(np.float64)
    asked = observe(target, pool.features, pool.labels)[:, CONFIDENCE]
    proper = np.abs(logits)[np.abs(np.abs(logits) - EXTREME) > 0.01]
    reach = float(proper.max(initial=0.0)) + np.log(2)
    return (
        np.clip(logits, -reach, reach),
        seen.inside[:, seen.judged],
        np.clip(asked, -reach, reach),
    )
