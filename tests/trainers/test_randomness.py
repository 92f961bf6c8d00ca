"""Noise and batches follow their laws, and the two sources keep their promises."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trainers.randomness import Randomness, secure, seeded

SOURCES = pytest.mark.parametrize("source", [seeded(1), secure()], ids=["seeded", "secure"])
FALSE_ALARM = 1e-6  # of each test, also of those that cannot be seeded


@SOURCES
def test_gaussian_noise_is_standard_normal(source: Randomness) -> None:
    noise = source.gaussian(200_000)
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM
    signs = int((noise[:-1] * noise[1:] > 0).sum())
    assert stats.binomtest(signs, len(noise) - 1).pvalue > FALSE_ALARM


@SOURCES
def test_batches_are_poisson_samples(source: Randomness) -> None:
    records, rate, draws = 200, 0.1, 5000
    drawn = np.zeros((draws, records), bool)
    for row in drawn:
        row[source.poisson_batch(records, rate)] = True
    each = stats.binom(draws, rate)
    p_values = 2 * np.minimum(each.cdf(drawn.sum(0)), each.sf(drawn.sum(0) - 1))
    assert p_values.min() > FALSE_ALARM / records
    sizes = drawn.sum(1)
    spread = ((sizes - records * rate) ** 2).sum() / (records * rate * (1 - rate))
    assert FALSE_ALARM < stats.chi2(draws).cdf(spread) < 1 - FALSE_ALARM
    pairs = int((drawn[:, :-1] & drawn[:, 1:]).sum())  # neighbours are drawn independently
    assert stats.binomtest(pairs, draws * (records - 1), rate**2).pvalue > FALSE_ALARM


def test_rates_at_the_ends() -> None:
    assert len(secure().poisson_batch(1000, 1.0)) == 1000
    assert len(secure().poisson_batch(1000, 0.0)) == 0


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_extremes_of_the_generator_give_finite_noise(
    monkeypatch: pytest.MonkeyPatch, word: int
) -> None:
    monkeypatch.setattr("os.urandom", lambda n: word.to_bytes(8, "little") * (n // 8))
    source = secure()
    assert 0 < source.uniform(1)[0] < 1
    assert 8 < abs(source.gaussian(1)[0]) < 9


def test_a_seed_repeats_and_the_secure_source_does_not() -> None:
    assert np.array_equal(seeded(5).gaussian(10), seeded(5).gaussian(10))
    assert not np.array_equal(seeded(5).gaussian(10), seeded([5, 3]).gaussian(10))
    assert not np.array_equal(secure().gaussian(10), secure().gaussian(10))
    assert (seeded(5).source, secure().source) == ("seeded", "secure")
