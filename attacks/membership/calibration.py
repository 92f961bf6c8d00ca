"""Difficulty calibration (Watson et al. 2022): the target's loss less what the record's loss is.

Some records have a low loss on any model. What speaks of membership is how much lower it is on the
target than on models of the same kind that were not trained on the record.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_expit

from attacks.membership.comparison import Comparison, with_target
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Floats, Target


def calibrated(
    target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress
) -> Scored:
    """The calibrated loss, with its sign turned, of each record."""
    return Scored(loss_below_usual(with_target(target, pool, shadows, progress)))


def loss_below_usual(seen: Comparison) -> Floats:
    """How far (n,) the cross-entropy lies below its mean over the models without the record."""
    asked, logits = seen.within_reach()
    usual = np.where(seen.inside, 0.0, log_expit(logits)).sum(axis=0) / (~seen.inside).sum(axis=0)
    return np.asarray(log_expit(asked) - usual, dtype=np.float64)
