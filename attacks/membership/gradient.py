"""The norm of a record's own loss gradient (Nasr, Shokri and Houmansadr 2019)."""

from __future__ import annotations

import numpy as np

from attacks.membership.signals import EXTREME, TINY
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Target


def gradient_norm(
    target: Target, pool: Pool, shadows: Shadows | None, seed: int, progress: Progress
) -> Scored:
    """Training drives its records' gradients to zero: the smaller the norm, the likelier a member.

    The score is minus the logarithm of the norm over all parameters. A record of a class that the
    target has never seen has no loss; it is taken for a non-member.
    """
    known = np.isin(pool.labels, target.classes)
    scores = np.full(len(pool), -EXTREME)
    norms = target.gradient_norms(pool.features[known], pool.labels[known])
    scores[known] = -np.log(np.maximum(norms, TINY))
    return Scored(scores)
