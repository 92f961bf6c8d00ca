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

from attacks.membership.comparison import Comparison, with_target
from attacks.records import Bools, Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Floats, Target

PER_RECORD = 4.0  # how many models the mean variance counts for against a record's own
FIXED = np.inf
LEAST = 1e-4  # a smaller standard deviation of a logit is rounding: answers are kept in float32


def lira(target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress) -> Scored:
    """Online, each record with variances of its own, drawn towards the mean variance.

    A variance estimated from a handful of models is mostly noise, so it is averaged with the mean
    variance over all records, which counts for four models. With many models this is the paper's
    per-record variance, with few its fixed variance.
    """
    return Scored(log_likelihood_ratio(with_target(target, pool, shadows, progress), PER_RECORD))


def lira_fixed(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Online, one variance for all records: the paper's choice below 64 models."""
    return Scored(log_likelihood_ratio(with_target(target, pool, shadows, progress), FIXED))


def lira_offline(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Offline, with variances as in ``lira``."""
    return Scored(deviations_above(with_target(target, pool, shadows, progress), PER_RECORD))


def lira_offline_fixed(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """Offline, one variance for all records."""
    return Scored(deviations_above(with_target(target, pool, shadows, progress), FIXED))


def log_likelihood_ratio(seen: Comparison, prior: float) -> Floats:
    """The online score (n,); ``prior`` says how many models the mean variance counts for.

    Raises:
        ValueError: if no shadow model was trained on any of the records.
    """
    if not seen.inside.any():
        raise ValueError(
            "lira: online needs shadow models trained on the audited records; with auxiliary "
            "records use lira_offline"
        )
    asked, logits = seen.within_reach()
    within, without = _fit(logits, seen.inside, prior), _fit(logits, ~seen.inside, prior)
    return np.asarray(norm.logpdf(asked, *within) - norm.logpdf(asked, *without), dtype=np.float64)


def deviations_above(seen: Comparison, prior: float) -> Floats:
    """The offline score (n,): standard deviations above the models without the record."""
    asked, logits = seen.within_reach()
    without = _fit(logits, ~seen.inside, prior)
    return (asked - without.mean) / without.deviation


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
