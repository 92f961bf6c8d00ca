"""Gaussian noise for the clipped sum: a keyed stream, added in float64, rounded to one fixed grid.

Secure and seeded noise are one code. The stream is the AES-256 counter mode keystream; only the
key's origin differs: the operating system, or a seed that anybody may know.

What plain float32 noise gives away. x plus a float32 draw is one of few floats, and which ones
depends on x, so that a single output can prove that x was not another value (Mironov 2012, "On
significance of the least significant bits for differential privacy"). Here x plus a float64 draw is
rounded to multiples of a power of two g that follows from the standard deviation s alone. Rounding,
to g and after it to float32, is post-processing: it weakens nothing. The draws stand in for a real
Gaussian as long as they lie far denser than g, whatever x is. With s/2048 < g <= s/1024:

- against float64: x + z is off by at most 2^-53 (|x| + 10 s), far below g while |x| < 2^30 s;
- against the stream: radii of Box-Muller lie at most 2^-52 s apart and angles 2^-22, so that every
  g by g cell can be reached in over 2^40 ways, out to 9.34 s where the draws end; a Gaussian pair
  has a larger radius once in 2^63;
- against float32: multiples of g up to 2^24 g >= 8192 s are float32 values as they stand;
- against s: rounding adds at most g²/12, which is 8e-8 of the variance.

Logarithms, sines and cosines are float32's, which a CPU works out in half the time: they are off by
2^-22 of themselves, whatever x is. What that leaves coarse, the radii, is dithered.

It is not an exact discrete Gaussian. What remains: the end of the tail (2^-63 in total variation
for every pair and step), the unevenness of draws within cells, and what the time of a draw shows.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Literal

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

# Values shaped at once, with 42 bytes of scratch each: few enough for a processor's cache, enough
# to be worth the calls of two dozen operations.
BLOCK = 262144


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
        self._scratch: _Scratch | None = None

    @property
    def source(self) -> Literal["secure", "seeded"]:
        """Where the key came from, for the ledger."""
        return self._stream.source

    def add(self, flat: torch.Tensor, standard_deviation: float) -> None:
        """Add noise of that standard deviation in place, and count one step.

        The noise is made on the CPU by torch's own threads (others would have to share the cores
        with torch's, which go on spinning for a while after each operation); the result does not
        depend on how many there are. A tensor of another device is copied to the CPU and back.

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
        if self._scratch is None:
            self._scratch = _Scratch()
        host = flat.detach().cpu()
        for start in range(0, len(host), BLOCK):
            keystream = self._stream.open(step, start)
            self._scratch.add(keystream, host[start : start + BLOCK], standard_deviation)
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
    """The buffers of one block, made once and used for every block."""

    def __init__(self) -> None:
        # a cipher may want one block more than it fills; torch's memory is aligned, always alike
        self._bytes = torch.empty(8 * BLOCK + 16, dtype=torch.uint8, device="cpu")
        self._memory = self._bytes.numpy().data
        self._zeros = memoryview(bytes(8 * BLOCK))
        self._floats = torch.empty(3 * BLOCK // 2, dtype=torch.float32, device="cpu")
        self._noise, self._total = torch.empty(2, BLOCK, dtype=torch.float64, device="cpu")
        self._radius = torch.empty(BLOCK // 2, dtype=torch.float64, device="cpu")

    @torch.no_grad()
    def add(self, keystream: CipherContext, values: torch.Tensor, scale: float) -> None:
        """Add noise to at most ``BLOCK`` float32 values in place, one word of the stream each."""
        size = len(values) + len(values) % 2
        keystream.update_into(self._zeros[: 8 * size], self._memory)
        noise, total, radius = self._noise[:size], self._total[:size], self._radius[: size // 2]
        _gaussian(self._bytes[: 8 * size], self._floats[: 3 * size // 2], radius, scale, out=noise)
        total = total[: len(values)].copy_(values).add_(noise[: len(values)])
        # next to 1.5 * 2^52 g, float64 values are the multiples of g: adding it rounds to them
        shift = 1.5 * 2.0**52 * grid(scale)
        values.copy_(total.add_(shift).sub_(shift))


def _gaussian(
    words: torch.Tensor, floats: torch.Tensor, radius: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    """Box and Muller's (1958) pairs: all first values, then all second ones, float64, into ``out``.

    Of n pairs' words (16 n bytes), the first half are radii of 64 bits, a quarter are angles of 32
    and a quarter is dither. ``floats`` (3 n) and ``radius`` (n) are scratch. Nothing branches on
    the values, and nothing is allocated.
    """
    uniform, angle, other = floats.view(3, -1)
    pairs = len(radius)
    angles, dither = words[8 * pairs :].view(torch.int32).view(2, -1)
    first, second = out.view(2, -1)
    # Exponential, from a uniform of (0, 1] whose steps are 2^-24 next to 1: so the smallest radii
    # would lie far apart, and a dither of half a step to either side is what fills the gaps.
    uniform.copy_(words[: 8 * pairs].view(torch.int64)).abs_().mul_(2.0**-63)
    uniform.clamp_(min=2.0**-64).log_()
    other.copy_(dither)
    uniform.add_(other, alpha=2.0**-25 / 2**31).abs_().sqrt_()
    # Larger ones are up to 2^-21 apart, as float32 goes; float64 has room for a dither of that too.
    radius.copy_(uniform)
    first.copy_(other)
    radius.add_(first, alpha=2.0**-22 / 2**31).mul_(math.sqrt(2) * scale)
    angle.copy_(angles).mul_(math.pi / 2**31)
    torch.cos(angle, out=other)
    angle.sin_()
    first.copy_(other).mul_(radius)
    second.copy_(angle).mul_(radius)
