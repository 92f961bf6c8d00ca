"""Batches are Poisson samples: at every rate, over every shard, and independent of the noise."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from trainers.dpsgd.noise import KeyedStream, seeded_noise
from trainers.dpsgd.sampling import (
    PoissonSampler,
    micro_batches,
    poisson_batch,
    secure_sampler,
    seeded_sampler,
    shard,
)

FALSE_ALARM = 1e-6  # of each test, also of those that cannot be seeded
RECORDS, RATE, DRAWS = 200, 0.1, 5000


def words(stream: KeyedStream, step: int, count: int) -> np.ndarray:
    return np.frombuffer(stream.open(step, 0).update(bytes(8 * count)), "<u8")


def membership(samplers: list[PoissonSampler], draws: int, records: int) -> np.ndarray:
    """(draws, records): which records are in the batch that all ranks draw together."""
    drawn = np.zeros((draws, records), bool)
    for row in drawn:
        for sampler in samplers:
            row[sampler.draw()] = True
    return drawn


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_records_are_drawn_alone_and_all_alike(source: str, world: int) -> None:
    samplers = [
        secure_sampler(RECORDS, RATE, rank=rank, world=world)
        if source == "secure"
        else seeded_sampler(RECORDS, RATE, 1, rank=rank, world=world)
        for rank in range(world)
    ]
    assert {sampler.source for sampler in samplers} == {source}
    drawn = membership(samplers, DRAWS, RECORDS)

    def p_values(counts: np.ndarray, draws: int, rate: float) -> np.ndarray:
        law = stats.binom(draws, rate)
        return np.asarray(2 * np.minimum(law.cdf(counts), law.sf(counts - 1)))

    assert p_values(drawn.sum(0), DRAWS, RATE).min() > FALSE_ALARM / RECORDS
    together = (drawn.T.astype(int) @ drawn)[np.triu_indices(RECORDS, 1)]
    assert p_values(together, DRAWS, RATE**2).min() > FALSE_ALARM / len(together)
    again = (drawn[1:] & drawn[:-1]).sum()  # one record in two batches
    assert p_values(again, (DRAWS - 1) * RECORDS, RATE**2) > FALSE_ALARM
    sizes = drawn.sum(1)
    assert stats.binomtest(int(sizes.sum()), DRAWS * RECORDS, RATE).pvalue > FALSE_ALARM
    spread = ((sizes - RECORDS * RATE) ** 2).sum() / (RECORDS * RATE * (1 - RATE))
    assert FALSE_ALARM < stats.chi2(DRAWS).cdf(spread) < 1 - FALSE_ALARM


def test_empty_batches_come_as_often_as_they_should() -> None:
    sampler = seeded_sampler(20, RATE, 2)
    empty = sum(not len(batch) for batch in itertools.islice(sampler, DRAWS))
    assert stats.binomtest(empty, DRAWS, (1 - RATE) ** 20).pvalue > FALSE_ALARM
    assert sampler.state() == {"step": DRAWS}


def test_the_threshold_is_exact() -> None:
    records = 300_000
    drawn = words(KeyedStream.seeded(3, "sampling"), 0, records)
    least = int(drawn.min())
    assert least < 2**53  # so that the rates below are float64 values
    for rate, expected in ((least / 2**64, []), ((least + 1) / 2**64, [int(drawn.argmin())])):
        assert poisson_batch(KeyedStream.seeded(3, "sampling"), records, rate).tolist() == expected
    for rate in (0.37, 1 / 3, 1 - 2.0**-53):
        batch = poisson_batch(KeyedStream.seeded(3, "sampling"), records, rate)
        threshold = int(math.ldexp(rate, 64))
        assert batch.tolist() == [i for i, word in enumerate(drawn.tolist()) if word < threshold]


def test_rates_at_the_ends() -> None:
    stream = KeyedStream.secure("sampling")
    assert poisson_batch(stream, 1000, 1.0).tolist() == list(range(1000))
    assert len(poisson_batch(stream, 1000, 0.0)) == 0
    assert len(poisson_batch(stream, 0, 0.5)) == 0
    # a million records at 2^-40: one draw in a million finds one
    batch = poisson_batch(KeyedStream.seeded(4, "sampling"), 1_000_000, 2.0**-40)
    assert len(batch) == 0
    assert batch.dtype == np.int64


@pytest.mark.parametrize("records", [0, 1, 7, 100, 101])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_shards_are_disjoint_and_cover_all(records: int, world: int) -> None:
    shards = [shard(records, rank, world) for rank in range(world)]
    assert list(itertools.chain(*shards)) == list(range(records))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    drawn = [seeded_sampler(records, 1.0, 5, rank=r, world=world).draw() for r in range(world)]
    assert np.concatenate(drawn).tolist() == list(range(records))


def test_a_seeded_run_goes_on_where_it_stopped() -> None:
    run = seeded_sampler(1000, RATE, 6)
    for _ in range(3):
        run.draw()
    resumed = seeded_sampler(1000, RATE, 6)
    resumed.restore(json.loads(json.dumps(run.state())))
    for _ in range(3):
        assert np.array_equal(run.draw(), resumed.draw())


def test_a_secure_run_never_repeats_itself() -> None:
    run = secure_sampler(1000, RATE)
    state = run.state()
    first = run.draw()
    run.restore(state)
    assert not np.array_equal(first, run.draw())
    assert not np.array_equal(first, secure_sampler(1000, RATE).draw())


def test_batches_and_noise_share_no_words() -> None:
    """64-bit words of one seed that repeat by chance: fewer than once in 10^7 runs of this test."""
    streams = [
        source._stream
        for rank in range(2)
        for source in (seeded_noise(7, rank), seeded_sampler(9, RATE, 7, rank=rank, world=2))
    ]
    drawn = [words(stream, step, 50_000) for stream in streams for step in range(5)]
    assert len(np.unique(np.concatenate(drawn))) == 4 * 5 * 50_000


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_micro_batches_are_the_batch_in_pieces(count: int) -> None:
    indices = np.arange(count) * 3
    pieces = micro_batches(indices, 4)
    assert [len(piece) for piece in pieces] == {0: [], 1: [1], 7: [4, 3], 8: [4, 4], 9: [4, 4, 1]}[
        count
    ]
    assert list(itertools.chain(*pieces)) == indices.tolist()


def test_what_cannot_be_drawn_is_refused() -> None:
    stream = KeyedStream.seeded(8, "sampling")
    for rate in (-0.1, 1.1, math.nan, 2.0**-65):
        with pytest.raises(ValueError, match=r"rate: must be 0 or from 2\^-64 to 1"):
            poisson_batch(stream, 10, rate)
        with pytest.raises(ValueError, match="rate: must be"):
            seeded_sampler(10, rate, 0)
    with pytest.raises(ValueError, match="records: must be at least 0"):
        secure_sampler(-1, 0.5)
    with pytest.raises(ValueError, match="rank: must lie between 0 and 1"):
        secure_sampler(10, 0.5, rank=2, world=2)
    with pytest.raises(ValueError, match="size: must be at least 1"):
        micro_batches(np.arange(3), 0)
    assert stream.state() == {"step": 0}
