"""How much noise does a training step really add?

For any DP trainer: all that is asked of it is what one of its steps releases, again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2

from audit.probes.clipping import Release
from reports.record import Interval


def noise_deviation(
    release: Release, batch: Sequence[int], draws: int, *, confidence: float = 0.999
) -> Interval:
    """The standard deviation of the noise in each released value, as an exact χ² interval.

    The trainer's claim σ·C is refuted by an interval that lies below it. The interval takes values
    to be independent and normal, all of one variance; values that repeat one another, within a step
    or between steps, make it too narrow. Draws cost a step each; d values and m draws give an
    interval of about ±2.3 / √((m - 1)·d), relative, at the default confidence.

    Args:
        release: one step on the batch from the same weights, noise and all. Give it few records
            (none is best): clipping need not be sound for this.
        batch: of record numbers; may be empty.
        draws: how many steps to take; two at least.

    Raises:
        ValueError: if there are too few draws, no values, or values that are not finite.
    """
    if draws < 2:
        raise ValueError(f"draws: must be at least 2, got {draws}")
    released = np.stack(
        [np.asarray(release(batch), dtype=np.float64).ravel() for _ in range(draws)]
    )
    if not released.size or not np.isfinite(released).all():
        raise ValueError("release: must give one or more values, all finite")
    squares = float(np.square(released - released.mean(0)).sum())
    freedom = (draws - 1) * released.shape[1]
    low, high = chi2.ppf([(1 + confidence) / 2, (1 - confidence) / 2], freedom)
    return Interval(
        low=float(np.sqrt(squares / low)),
        value=float(np.sqrt(squares / freedom)),
        high=float(np.sqrt(squares / high)),
        confidence=confidence,
        method="chi-squared",
        n=freedom,
    )
