"""Does one record move a training step by more than its clipping norm?

For any DP trainer: all that is asked of it is what one of its steps releases, with the noise off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Release = Callable[[Sequence[int]], npt.ArrayLike]
"""From a batch of record numbers, maybe none, to what the step on it releases, in any shape.

It is the sum over records: a step that divides by the expected batch size is multiplied by it.
"""
SLACK = 1e-4  # relative: what a float32 sum over a batch may be off by


@dataclass(frozen=True)
class Move:
    """The furthest that one record moved a step, of all neighbouring batches that were tried.

    Attributes:
        distance: in L2 norm, in the released sum's own unit.
        record: which one moved it.
        batch: the batch that it was taken from.
        pairs: how many pairs of neighbouring batches were tried.
    """

    distance: float
    record: int
    batch: tuple[int, ...]
    pairs: int

    def exceeds(self, clipping_norm: float) -> bool:
        """Whether the step is shown not to have that sensitivity. False shows nothing."""
        return not self.distance <= clipping_norm * (1 + SLACK)


def furthest_move(release: Release, batches: Iterable[Sequence[int]]) -> Move:
    """Take each record out of each batch in turn (add-remove neighbours) and see what moves.

    Choose records that pull apart: far larger gradients than C, in opposite directions. The cost
    is one step for each record of each batch. A distance that is not finite counts as infinite.

    Raises:
        ValueError: if there is no record to take out, releases differ in shape, or the step on one
            and the same batch differs from call to call.
    """
    worst: Move | None = None
    pairs = 0
    for given in batches:
        batch = tuple(given)
        whole = _vector(release(batch))
        if not np.array_equal(whole, _vector(release(batch)), equal_nan=True):
            raise ValueError(
                "release: gives two answers for one batch; turn the noise and dropout off, and "
                "start each step from the same weights"
            )
        for k, record in enumerate(batch):
            rest = _vector(release(batch[:k] + batch[k + 1 :]))
            if rest.shape != whole.shape:
                raise ValueError(
                    f"release: {len(whole)} values for {len(batch)} records and {len(rest)} for "
                    f"{len(batch) - 1}; it must give one value a weight"
                )
            pairs += 1
            distance = float(np.linalg.norm(whole - rest))
            distance = distance if np.isfinite(distance) else np.inf
            if worst is None or distance > worst.distance:
                worst = Move(distance, record, batch, pairs)
    if worst is None:
        raise ValueError("batches: hold no record; give at least one batch of one record")
    return Move(worst.distance, worst.record, worst.batch, pairs)


def _vector(released: npt.ArrayLike) -> np.ndarray:
    return np.asarray(released, dtype=np.float64).ravel()
