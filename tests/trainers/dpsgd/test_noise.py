"""Noise follows its law, whatever it is added to, and its key stays where it is."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from trainers.dpsgd import noise as module
from trainers.dpsgd.noise import BLOCK, KeyedStream, Noise, grid, secure_noise, seeded_noise

FALSE_ALARM = 1e-6  # of each test, also of those that cannot be seeded
SOURCES = pytest.mark.parametrize(
    "source", [seeded_noise(1), secure_noise()], ids=lambda n: n.source
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(source: Noise, count: int, standard_deviation: float = 1.0, at: float = 0.0) -> np.ndarray:
    flat = torch.full((count,), at)
    source.add(flat, standard_deviation)
    return flat.numpy().astype(float)


def test_the_stream_and_the_formula_are_as_documented() -> None:
    deviation, step, count = 0.7, 5, 2 * BLOCK + 7
    start = np.random.default_rng(0).normal(size=count).astype(np.float32)
    source = seeded_noise(17, rank=3)
    source.restore({"step": step})
    flat = torch.from_numpy(start.copy())
    source.add(flat, deviation)

    key = hashlib.sha256(b'["noise", 3]' + b"17").digest()
    counter = modes.CTR(step.to_bytes(8, "big") + bytes(8))
    keystream = Cipher(algorithms.AES(key), counter).encryptor().update(bytes(8 * (count + 1)))
    expected = []
    for first in range(0, 8 * (count + 1), 8 * BLOCK):
        radii, angles = np.array_split(np.frombuffer(keystream[first : first + 8 * BLOCK], "u1"), 2)
        angles, dither = angles.view("<i4").astype(float).reshape(2, -1)
        uniform = np.abs(radii.view("<i8").astype(np.float32)) * 2.0**-63
        square = -2 * np.log(uniform.astype(float)) + dither * 2.0**-55
        radius = deviation * np.sqrt(np.abs(square)) + deviation * dither * 2.0**-52.5
        angle = angles * math.pi / 2**31
        expected += [radius * np.cos(angle), radius * np.sin(angle)]
    total = start + np.concatenate(expected)[:count]
    unit = 2.0**-11  # the greatest power of two that is at most 0.7 / 1024
    assert grid(deviation) == unit
    off = np.abs(flat.numpy() - (np.rint(total / unit) * unit).astype(np.float32))
    # sums that float32's logarithms and sines, 2^-22 off, have put on the other side of a half
    assert set(np.unique(off)) <= {0, unit}
    assert np.mean(off > 0) < 2 * deviation * 2.0**-22 / unit


@SOURCES
@pytest.mark.parametrize("at", [0.0, 0.3, 1000.1])
def test_values_are_normal(source: Noise, at: float) -> None:
    count, deviation = 1_000_000, 3.0
    values = (draw(source, count, deviation, at) - np.float32(at)) / deviation
    assert abs(values.mean()) * math.sqrt(count) < stats.norm.isf(FALSE_ALARM / 2)
    square = stats.chi2(count).cdf((values**2).sum())
    assert FALSE_ALARM / 2 < square < 1 - FALSE_ALARM / 2
    # the grid moves the distribution function by 2e-4 at most, a tenth of what this can see
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    # exactly: each cell between half grid points has the Gaussian's mass
    unit = grid(deviation)
    steps = np.floor(np.linspace(-4.5, 4.5, 200) * deviation / unit)
    edges = np.concatenate([[-np.inf], (steps + 0.5) * unit, [np.inf]])
    offset = np.float32(at) - np.rint(np.float32(at) / unit) * unit
    mass = np.diff(stats.norm.cdf((edges - offset) / deviation))
    whole = values * deviation + offset
    seen = np.histogram(whole, edges)[0]
    assert stats.chisquare(seen, mass * count).pvalue > FALSE_ALARM


def test_tails_are_gaussian_to_five_standard_deviations() -> None:
    count = 5_300_000
    values = np.abs(draw(seeded_noise(2), count))
    for sigmas in (1, 2, 3, 4, 5):
        beyond = sigmas + grid(1.0) / 2
        p = 2 * stats.norm.sf(beyond)
        assert stats.binomtest(int((values > beyond).sum()), count, p).pvalue > FALSE_ALARM / 5


def independent(a: np.ndarray, b: np.ndarray) -> None:
    """Neither the values nor their sizes nor their signs go together."""
    bound = stats.norm.isf(FALSE_ALARM / 6)
    for f, scale in ((lambda z: z, 1.0), (lambda z: z**2 - 1, 2.0), (np.sign, 1.0)):
        assert abs((f(a) * f(b)).sum() / (scale * math.sqrt(len(a)))) < bound


@SOURCES
def test_steps_blocks_and_neighbours_are_independent(source: Noise) -> None:
    first, second = draw(source, 8 * BLOCK), draw(source, 8 * BLOCK)
    independent(first, second)
    independent(first[:-1], first[1:])
    independent(first[:-BLOCK], first[BLOCK:])
    cosines, sines = first.reshape(8, 2, -1).swapaxes(0, 1)
    independent(cosines.ravel(), sines.ravel())
    independent(cosines[:, :-1].ravel(), sines[:, 1:].ravel())


def test_ranks_and_seeds_are_independent() -> None:
    first = draw(seeded_noise(4), 500_000)
    independent(first, draw(seeded_noise(4, rank=1), 500_000))
    independent(first, draw(seeded_noise(5), 500_000))
    independent(draw(secure_noise(), 500_000), draw(secure_noise(), 500_000))


def test_low_bits_tell_plain_float32_sums_apart_but_not_these() -> None:
    """Mironov (2012): which floats can come out depends on what the noise was added to."""
    count, sums = 400_000, (0.0, 1.0)
    torch_noise = torch.Generator().manual_seed(0)
    told = []
    for x in sums:
        plain = (torch.randn(count, generator=torch_noise) + x).numpy().astype(float)
        near = plain[np.abs(plain) < 0.4]
        told.append(np.mean(near % 2.0**-24 == 0))
    # near 0, 1 + z is as coarse as a z beyond 0.5; z alone is finer, so a few values tell the two
    assert told[1] == 1
    assert told[0] < 0.7

    for x, other in ((0.0, 1.0), (0.0, 0.3), (0.0, 2.0**-30), (1000.1, 1000.2)):
        low = []
        for at, seed in ((x, 6), (other, 7)):
            whole = draw(seeded_noise(seed), count, at=at) / grid(1.0)
            assert np.all(whole == np.rint(whole))
            low.append(np.bincount(whole.astype(int) % 16, minlength=16))
            assert stats.chisquare(low[-1]).pvalue > FALSE_ALARM
        assert stats.chi2_contingency(low).pvalue > FALSE_ALARM


@pytest.mark.parametrize("deviation", [2.0**-100, 1e-8, 0.9999, 1.0, 1024.5, 2.0**100])
def test_the_grid_is_a_power_of_two_next_to_the_deviation(deviation: float) -> None:
    unit = grid(deviation)
    assert math.frexp(unit)[0] == 0.5
    assert deviation / 2048 < unit <= deviation / 1024
    values = draw(seeded_noise(3), 10_000, deviation)
    assert np.all(values % unit == 0)
    assert FALSE_ALARM < stats.chi2(10_000).cdf(((values / deviation) ** 2).sum()) < 1 - FALSE_ALARM


@pytest.mark.parametrize("radius", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("angle", [0, 1, 2**30, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("dither", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_extreme_words_give_finite_noise(radius: int, angle: int, dither: int) -> None:
    bits = radius.to_bytes(8, "little") + angle.to_bytes(4, "little") + dither.to_bytes(4, "little")
    pair, words = torch.empty(2, dtype=torch.float64), torch.tensor(list(bits), dtype=torch.uint8)
    module._gaussian(words, torch.empty(3), torch.empty(1, dtype=torch.float64), 1.0, out=pair)
    length = np.hypot(*pair.tolist())
    longest = math.sqrt(2 * 63 * math.log(2))
    assert length <= longest + 0.08
    if radius == 0:
        assert length > longest
    elif radius in (2**63 - 1, 2**63):
        # next to no radius at all, yet not the same for every dither
        assert length == pytest.approx(math.sqrt(2 * dither_of(dither)), rel=1e-2, abs=3e-7)


def dither_of(word: int) -> float:
    signed = word - 2**32 if word >= 2**31 else word
    return abs(signed) * 2.0**-56


def test_the_smallest_radii_are_as_dense_as_the_law_has_them() -> None:
    """P(r² / 2 <= e) is 1 - exp(-e), also where a uniform number of float32 has no more steps."""
    source, count = seeded_noise(15), 100 * BLOCK
    scratch, step = module._Scratch(), 0
    squares = []
    for start in range(0, count, BLOCK):
        zero = torch.zeros(BLOCK)
        scratch.add(source._stream.open(step, start), zero, 1.0)
        cosines, sines = scratch._noise.view(2, -1).numpy()
        squares.append((cosines**2 + sines**2) / 2)
    exponential = np.concatenate(squares)
    assert stats.kstest(exponential, "expon").pvalue > FALSE_ALARM
    small = exponential[exponential < 2.0**-18]  # 64 steps of the uniform number; 25 expected
    assert stats.binomtest(len(small), len(exponential), -math.expm1(-(2.0**-18))).pvalue > 1e-6
    assert len(np.unique(small)) == len(small)


@pytest.mark.parametrize("count", [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
def test_threads_change_nothing(count: int) -> None:
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(draw(seeded_noise(8), count))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    assert np.all(np.abs(results[0]) < 9.4)
    assert count < 100 or np.mean(results[0] == 0) < 0.01


def test_a_seeded_run_goes_on_where_it_stopped() -> None:
    run = seeded_noise(9)
    for _ in range(3):
        draw(run, 100)
    state = json.loads(json.dumps(run.state()))
    resumed = seeded_noise(9)
    resumed.restore(state)
    assert np.array_equal(draw(run, 100), draw(resumed, 100))
    assert run.state() == resumed.state() == {"step": 4}


def test_a_secure_run_never_repeats_itself() -> None:
    run = secure_noise()
    state = run.state()
    first = draw(run, 100)
    run.restore(state)
    assert not np.array_equal(first, draw(run, 100))
    assert run.state() == {"step": 1}
    assert not np.array_equal(first, draw(secure_noise(), 100))
    assert (run.source, seeded_noise(0).source) == ("secure", "seeded")


def test_seed_and_rank_decide_seeded_noise() -> None:
    first = draw(seeded_noise(9), 100)
    assert np.array_equal(first, draw(seeded_noise(9), 100))
    assert not np.array_equal(first, draw(seeded_noise(-9), 100))
    assert not np.array_equal(first, draw(seeded_noise(9, rank=1), 100))


def test_no_noise_is_a_step_too() -> None:
    source = seeded_noise(10)
    flat = torch.tensor([0.1, 1e-30, 3.0])
    source.add(flat, 0.0)
    assert torch.equal(flat, torch.tensor([0.1, 1e-30, 3.0]))
    source.add(torch.empty(0), 1.0)
    assert source.state() == {"step": 2}


@pytest.mark.parametrize("deviation", [-1.0, math.nan, math.inf, 2.0**-101, 2.0**101])
def test_what_is_no_standard_deviation_is_refused(deviation: float) -> None:
    source, flat = seeded_noise(11), torch.zeros(3)
    with pytest.raises(ValueError, match="standard_deviation: must be 0 or from"):
        source.add(flat, deviation)
    assert source.state() == {"step": 0}
    assert not flat.any()


@pytest.mark.parametrize(
    "flat",
    [torch.zeros(3).double(), torch.zeros(3).half(), torch.zeros(2, 2), torch.zeros(4)[::2]],
)
def test_what_is_no_flat_sum_is_refused(flat: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="flat: must be contiguous float32 of one dimension"):
        seeded_noise(12).add(flat, 1.0)


@pytest.mark.parametrize("state", [{}, {"step": -1}, {"step": 1.5}, {"step": 2**64}])
def test_what_is_no_state_is_refused(state: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="step: must be a whole number"):
        seeded_noise(13).restore(state)


def test_the_key_is_not_copied_out() -> None:
    source = secure_noise()
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="its key is never copied"):
            way(source._stream)
        with pytest.raises(TypeError):
            way(source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_does_not_repeat_its_parent() -> None:
    stream = KeyedStream.secure("noise")
    child = os.fork()
    if not child:
        try:
            stream.next_step()
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.gpu
def test_a_sum_on_the_gpu_gets_the_same_noise() -> None:
    flat = torch.full((100_000,), 0.3, device="cuda")
    seeded_noise(14).add(flat, 1.0)
    assert np.array_equal(flat.cpu().numpy(), draw(seeded_noise(14), 100_000, at=0.3))
