"""Poisson sampling: every record enters every batch with the same probability, independently.

Amplification by sampling holds for exactly this and for batches that nobody else can foretell, so
the words that decide come from a keyed stream of their own, never from the noise's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from trainers.dpsgd.noise import KeyedStream

_CHUNK = 1 << 17  # records that are decided at once
_ZEROS = bytes(8 * _CHUNK)


def poisson_batch(stream: KeyedStream, records: int, rate: float) -> np.ndarray:
    """The indices of one Poisson batch, int64, ascending, maybe none; takes one step of the stream.

    A record is in if its 64-bit word lies below ``rate`` times 2^64, rounded down: the chance is
    never above ``rate``, and less than 2^-64 below it.

    Raises:
        ValueError: if ``records`` is negative, or ``rate`` is neither 0 nor from 2^-64 to 1.
    """
    _check(records, rate)
    step = stream.next_step()
    threshold = int(Fraction(float(rate)) * 2**64)
    if not threshold or not records:
        return np.empty(0, np.int64)
    last = np.uint64(threshold - 1)
    keystream = stream.open(step, 0)
    buffer = bytearray(8 * min(_CHUNK, records) + 16)
    chosen = []
    for start in range(0, records, _CHUNK):
        count = min(_CHUNK, records - start)
        keystream.update_into(_ZEROS[: 8 * count], buffer)
        chosen.append(start + np.flatnonzero(np.frombuffer(buffer, "<u8", count) <= last))
    return np.concatenate(chosen).astype(np.int64, copy=False)


class PoissonSampler:
    """Draws logical batches; make one with ``secure_sampler`` or ``seeded_sampler``.

    With several ranks each draws from its own shard: together that is Poisson sampling over all
    records, because every record is still decided alone. Indices count over all records.
    """

    def __init__(
        self, records: int, rate: float, stream: KeyedStream, rank: int = 0, world: int = 1
    ) -> None:
        _check(records, rate)
        self.shard = shard(records, rank, world)
        self.rate = rate
        self._stream = stream

    @property
    def source(self) -> Literal["secure", "seeded"]:
        """Where the key came from, for the ledger."""
        return self._stream.source

    def draw(self) -> np.ndarray:
        """The next batch's indices, int64 and ascending. An empty batch is a step like any other.

        The batch's size is as secret as its members.
        """
        return self.shard.start + poisson_batch(self._stream, len(self.shard), self.rate)

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            yield self.draw()

    def state(self) -> dict[str, int]:
        """The step counter, for a checkpoint; nothing that tells the batches."""
        return self._stream.state()

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on after that step: exactly if seeded, with a fresh key if secure.

        Raises:
            ValueError: if the state holds no step counter.
        """
        self._stream.restore(state)


def secure_sampler(records: int, rate: float, *, rank: int = 0, world: int = 1) -> PoissonSampler:
    """Batches for a guarantee; every sampler has a key of its own from the operating system."""
    return PoissonSampler(records, rate, KeyedStream.secure("sampling", rank), rank, world)


def seeded_sampler(
    records: int, rate: float, seed: int, *, rank: int = 0, world: int = 1
) -> PoissonSampler:
    """Repeatable batches for tests and experiments; no guarantee."""
    return PoissonSampler(records, rate, KeyedStream.seeded(seed, "sampling", rank), rank, world)


def shard(records: int, rank: int, world: int) -> range:
    """The records of one rank. Shards are disjoint, cover all, and differ by one in size at most.

    Raises:
        ValueError: if the rank is not from 0 to ``world`` - 1.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank: must lie between 0 and {world - 1}, got {rank}")
    return range(records * rank // world, records * (rank + 1) // world)


def micro_batches(indices: np.ndarray, size: int) -> list[np.ndarray]:
    """A logical batch in pieces of at most ``size``; none for an empty batch.

    Raises:
        ValueError: if ``size`` is below 1.
    """
    if size < 1:
        raise ValueError(f"size: must be at least 1, got {size}")
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _check(records: int, rate: float) -> None:
    if records < 0:
        raise ValueError(f"records: must be at least 0, got {records}")
    if rate != 0 and not 2.0**-64 <= rate <= 1:
        raise ValueError(f"rate: must be 0 or from 2^-64 to 1, got {rate}")
