"""Where noise and batches come from: a cryptographic source, or a seed for tests.

Both decide what a guarantee is worth: who can predict the noise can take it away, and who knows
which records were drawn gains nothing from amplification by sampling.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri


@dataclass(frozen=True)
class Randomness:
    """A source of noise and of batches; make one with ``secure`` or ``seeded``.

    ``uniform`` returns that many float64 values strictly between 0 and 1, on a grid of 2^-52.
    """

    source: Literal["secure", "seeded"]
    uniform: Callable[[int], np.ndarray]

    def gaussian(self, count: int) -> np.ndarray:
        """Standard normal float64 values, by the inverse distribution function."""
        values: np.ndarray = ndtri(self.uniform(count))
        return values

    def poisson_batch(self, records: int, rate: float) -> np.ndarray:
        """The indices of one Poisson batch: each record with probability ``rate``; maybe none."""
        return np.flatnonzero(self.uniform(records) < rate)


def secure() -> Randomness:
    """Randomness from the operating system's cryptographic generator. It cannot be repeated."""
    return Randomness("secure", lambda count: _grid(np.frombuffer(os.urandom(8 * count), "<u8")))


def seeded(seed: int | Sequence[int]) -> Randomness:
    """Repeatable randomness for tests and experiments; it carries no guarantee."""
    rng = np.random.default_rng(seed)
    return Randomness("seeded", lambda count: _grid(rng.integers(2**64, size=count, dtype="<u8")))


def _grid(words: np.ndarray) -> np.ndarray:
    # 52 bits and a half: with 53 bits the largest value would round to 1, whose inverse is infinite
    values: np.ndarray = ((words >> np.uint64(12)) + 0.5) * 2.0**-52
    return values
