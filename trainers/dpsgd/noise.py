"""Gaussian noise for the clipped sum: a keyed stream, shaped in float64, rounded to one fixed grid.

Secure and seeded noise are one code. The stream is the AES-256 counter mode keystream; only the
key's origin differs: the operating system, or a seed that anybody may know.

What plain float32 noise gives away. x plus a float32 draw is one of few floats, and which ones
depends on x, so that a single output can prove that x was not another value (Mironov 2012, "On
significance of the least significant bits for differential privacy"). Here x plus a float64 draw is
rounded to multiples of a power of two g that follows from the standard deviation s alone. Rounding,
to g and after it to float32, is post-processing: it weakens nothing. The draws stand in for a real
Gaussian as long as they lie far denser than g, whatever x is. With s/2048 < g <= s/1024:

- against float64: x + z is off by at most 2^-53 (|x| + 10 s), far below g while |x| < 2^30 s;
- against the stream: radii of Box-Muller lie at most 2^-25 s apart and angles 2^-51, so that every
  g by g cell can be reached in thousands of ways, out to 9.34 s where the draws end; a Gaussian
  pair has a larger radius once in 2^63;
- against float32: multiples of g up to 2^24 g >= 8192 s are float32 values as they stand;
- against s: rounding adds at most g²/12, which is 8e-8 of the variance.

It is not an exact discrete Gaussian. What remains: the end of the tail (2^-63 in total variation
for every pair and step), the unevenness of draws within cells, and what the time of a draw shows.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

# Values shaped at once, with 12 bytes of scratch each. Threads pass the interpreter's lock on at
# every array operation: at a quarter of this, that costs what the second thread gains.
BLOCK = 65536
_ZEROS = memoryview(bytes(8 * BLOCK))
_LOWEST_22_BITS_FIRST = np.uint64(42)
_SIGN_AND_EXPONENT = np.uint64(12)
_EXPONENT_OF_2_TO_MINUS_63 = np.uint64((1023 - 63) << 52)


class KeyedStream:
    """Random 64-bit words by position (step, word); make one with ``secure`` or ``seeded``.

    Holds the secret key and the step counter. It can neither be pickled nor used after a fork:
    two processes with one key would draw the same words.
    """

    def __init__(
        self, source: Literal["secure", "seeded"], secret: bytes, purpose: str, rank: int
    ) -> None:
        self.source = source
        self._use = json.dumps([purpose, rank]).encode()
        self._key = self._derived(secret)
        self._step = 0
        self._process = os.getpid()

    @classmethod
    def secure(cls, purpose: str, rank: int = 0) -> KeyedStream:
        """A stream with a key from the operating system; nobody can repeat it."""
        return cls("secure", os.urandom(32), purpose, rank)

    @classmethod
    def seeded(cls, seed: int, purpose: str, rank: int = 0) -> KeyedStream:
        """A repeatable stream, another one for every seed, purpose and rank; no guarantee."""
        return cls("seeded", str(int(seed)).encode(), purpose, rank)

    def next_step(self) -> int:
        """The step to draw from. It is spent at once: no failure makes a step come twice."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "noise: a fork would repeat the numbers of its parent; make a new source in it"
            )
        self._step += 1
        return self._step - 1

    def open(self, step: int, word: int) -> CipherContext:
        """The keystream from that word (an even number) of that step on."""
        counter = (step << 64) + word // 2
        return Cipher(AES256(self._key), CTR(counter.to_bytes(16, "big"))).encryptor()

    def state(self) -> dict[str, int]:
        """How many steps were drawn, and nothing of the key."""
        return {"step": self._step}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on after that many steps. A secure stream takes a fresh key: no word comes twice.

        Raises:
            ValueError: if the state holds no step counter.
        """
        step = state.get("step")
        if not isinstance(step, int) or not 0 <= step < 2**63:
            raise ValueError(f"step: must be a whole number from 0 to 2^63 - 1, got {step!r}")
        self._step = step
        if self.source == "secure":
            self._key = self._derived(os.urandom(32))

    def __getstate__(self) -> object:
        raise TypeError("noise: its key is never copied or written; save state() instead")

    def _derived(self, secret: bytes) -> bytes:
        return hashlib.sha256(self._use + secret).digest()


class Noise:
    """Adds Gaussian noise to flat sums; make one with ``secure_noise`` or ``seeded_noise``."""

    def __init__(self, stream: KeyedStream) -> None:
        self._stream = stream
        self._scratch: SimpleQueue[_Scratch] = SimpleQueue()
        self._made = 0

    @property
    def source(self) -> Literal["secure", "seeded"]:
        """Where the key came from, for the ledger."""
        return self._stream.source

    def add(self, flat: torch.Tensor, standard_deviation: float) -> None:
        """Add noise of that standard deviation in place, and count one step.

        The noise is made on the CPU, by ``torch.get_num_threads()`` threads; the result does not
        depend on how many. A tensor of another device is copied to the CPU and back.

        Args:
            flat: float32, contiguous, one dimension, any device.
            standard_deviation: σ·C in the sum's own unit; 0 adds and rounds nothing.

        Raises:
            ValueError: if the tensor or the standard deviation is not of that kind.
        """
        if flat.dtype != torch.float32 or flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(
                f"flat: must be contiguous float32 of one dimension, got {flat.dtype} "
                f"of shape {tuple(flat.shape)}"
            )
        # within these bounds neither the noise nor its grid leaves the range of float32
        if standard_deviation != 0 and not 2.0**-100 <= standard_deviation <= 2.0**100:
            raise ValueError(
                f"standard_deviation: must be 0 or from 2^-100 to 2^100, got {standard_deviation}"
            )
        step = self._stream.next_step()
        if standard_deviation == 0 or not len(flat):
            return
        host = flat.detach().cpu()
        values = host.numpy()
        starts = range(0, len(values), BLOCK)
        threads = min(torch.get_num_threads(), len(starts))
        while self._made < threads:
            self._scratch.put(_Scratch())
            self._made += 1

        def block(start: int) -> None:
            scratch = self._scratch.get()
            try:
                keystream = self._stream.open(step, start)
                scratch.add(keystream, values[start : start + BLOCK], standard_deviation)
            finally:
                self._scratch.put(scratch)

        if threads == 1:
            for start in starts:
                block(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(block, starts))
        if host.data_ptr() != flat.data_ptr():
            flat.detach().copy_(host)

    def state(self) -> dict[str, int]:
        """The step counter, for a checkpoint; nothing that tells the noise."""
        return self._stream.state()

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on after that step: exactly if seeded, with a fresh key if secure.

        Raises:
            ValueError: if the state holds no step counter.
        """
        self._stream.restore(state)


def secure_noise(rank: int = 0) -> Noise:
    """Noise for a guarantee; every call draws a key of its own from the operating system."""
    return Noise(KeyedStream.secure("noise", rank))


def seeded_noise(seed: int, rank: int = 0) -> Noise:
    """Repeatable noise for tests and experiments, another one for every rank; no guarantee."""
    return Noise(KeyedStream.seeded(seed, "noise", rank))


def grid(standard_deviation: float) -> float:
    """The power of two that sums with noise are multiples of: 1/2048 to 1/1024 of the argument."""
    return math.ldexp(1.0, math.frexp(standard_deviation)[1] - 11)


class _Scratch:
    """One thread's buffers, made once and used for every block."""

    def __init__(self) -> None:
        self.bytes = bytearray(8 * BLOCK + 16)  # a cipher may want one block more than it fills
        self.words = np.frombuffer(self.bytes, "<u8", BLOCK)
        self.half = np.empty(BLOCK // 2)

    def add(self, keystream: CipherContext, values: np.ndarray, standard_deviation: float) -> None:
        """Add noise to at most ``BLOCK`` float32 values in place, one word of the stream each."""
        pairs = (len(values) + 1) // 2
        keystream.update_into(_ZEROS[: 16 * pairs], self.bytes)
        noise = _gaussian(self.words[: 2 * pairs], self.half[:pairs], standard_deviation)
        total = noise[: len(values)]
        np.add(total, values, total)
        # next to 1.5 * 2^52 g, float64 values are the multiples of g: adding it rounds to them
        shift = 1.5 * 2.0**52 * grid(standard_deviation)
        np.add(total, shift, total)
        np.subtract(total, shift, total)
        np.copyto(values, total, casting="same_kind")


def _gaussian(words: np.ndarray, half: np.ndarray, scale: float) -> np.ndarray:
    """Box and Muller's (1958) pairs of standard deviation ``scale``, in the words' own memory.

    The first half of the words gives radii. With t = tan(angle/2), cos = 2/(1 + t²) - 1 and
    sin = 2t/(1 + t²): one tangent costs numpy a tenth of a cosine and a sine. Nothing branches on
    the values, and nothing is allocated.
    """
    # The tail wants finer steps of u than 2^-63, and log wants no 0: ``half`` is 2^-63 times [1, 2)
    # whose leading bits are the lowest of the angle's word, which say next to nothing of the angle.
    fine = half.view("<u8")
    np.left_shift(words[len(half) :], _LOWEST_22_BITS_FIRST, fine)
    np.right_shift(fine, _SIGN_AND_EXPONENT, fine)
    np.bitwise_or(fine, _EXPONENT_OF_2_TO_MINUS_63, fine)
    noise = words.view("<f8")
    np.copyto(noise, words.view("<i8"))  # signed: numpy converts those several times as fast
    radius, tangent = noise.reshape(2, -1)
    np.abs(radius, radius)
    np.multiply(radius, 2.0**-63, radius)
    np.add(radius, half, radius)
    np.log(radius, radius)
    np.multiply(radius, -2 * scale**2, radius)
    np.sqrt(radius, radius)
    np.multiply(tangent, math.pi / 2**64, tangent)
    np.tan(tangent, tangent)
    np.multiply(tangent, tangent, half)
    np.add(half, 1.0, half)
    np.divide(radius, half, half)
    np.add(half, half, half)
    np.subtract(half, radius, radius)
    np.multiply(half, tangent, tangent)
    return noise
