"""Gaussian measurements of all records, each one in the ledger before its noise is drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.dpsgd.noise import Noise
from trainers.ledger import LedgerWriter

Floats = NDArray[np.float64]
MOST_RECORDS = 2**24  # whole numbers up to here are exact in float32, which noise is added to


class Measurements:
    """Adds noise to what is measured, and counts it.

    In a ledger of Poisson batches a measurement is a step that draws every record; the settings of
    the steps after it have to be announced anew (``LedgerWriter.change``).

    Attributes:
        spent: μ² so far.
    """

    def __init__(self, ledger: LedgerWriter, noise: Noise, records: int) -> None:
        if records > MOST_RECORDS:
            raise ValueError(f"records: {records} are more than {MOST_RECORDS}; take a sample")
        self.spent = 0.0
        self._ledger, self._noise, self._records = ledger, noise, records

    def release(self, values: Floats, sensitivity: float, mu: float, what: str) -> Floats:
        """The values with noise of standard deviation ``sensitivity / mu`` each.

        Args:
            values: (k,) whole numbers below 2^24 in size, so that float32 holds them exactly.
            sensitivity: how far one record more moves them at most, in the L2 norm.
            mu: what this one measurement spends.
            what: for people who read the ledger.
        """
        flat = torch.from_numpy(values.astype(np.float32))
        setting: dict[str, Any] = {
            "expected_batch_size": self._records,
            "noise_multiplier": 1 / mu,
            "clipping_norm": sensitivity,
        }
        self._ledger.change(**setting, reason=what)
        self._ledger.step(batch_size=self._records, **setting)
        self._ledger.sync()
        self._noise.add(flat, sensitivity / mu)
        self.spent += mu**2
        return flat.numpy().astype(np.float64)

    def tables(self, tables: list[Floats], mu: float, what: str) -> tuple[list[Floats], float]:
        """Noisy tables of counts and their cells' standard deviation.

        One record is in one cell of each of k tables: it moves all of them by √k.
        """
        sensitivity = math.sqrt(len(tables))
        noisy = self.release(np.concatenate([t.ravel() for t in tables]), sensitivity, mu, what)
        ends = np.cumsum([t.size for t in tables])[:-1]
        parts = zip(np.split(noisy, ends), tables, strict=True)
        return [part.reshape(table.shape) for part, table in parts], sensitivity / mu


def counts(codes: NDArray[np.integer], sizes: tuple[int, ...]) -> Floats:
    """The contingency table of shape ``sizes`` of code columns (n, len(sizes))."""
    flat = np.ravel_multi_index(tuple(codes.T), sizes)
    return np.bincount(flat, minlength=math.prod(sizes)).reshape(sizes).astype(np.float64)
