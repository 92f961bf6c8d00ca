"""Attacks that ask the target once and train nothing (Yeom et al. 2018)."""

from __future__ import annotations

import numpy as np

from attacks.membership.signals import CONFIDENCE, observe
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Target


def loss_threshold(
    target: Target, pool: Pool, shadows: Shadows | None, seed: int, progress: Progress
) -> Scored:
    """The lower the loss, the likelier a member. The score is the true class' logit.

    It falls as the loss rises, so it ranks records as the loss does, and keeps apart the confident
    records whose losses round to zero.
    """
    return Scored(observe(target, pool.features, pool.labels)[:, CONFIDENCE])


def label_gap(
    target: Target, pool: Pool, shadows: Shadows | None, seed: int, progress: Progress
) -> Scored:
    """A member if and only if the target gives the right label: what the accuracy gap leaks."""
    right = target.predict_labels(pool.features) == pool.labels
    return Scored(np.asarray(right, dtype=np.float64))
