"""Reads from Python source what it does to a gradient: by ``ast``, the code is never run.

A reading says what is released: what was clipped, and how its noise compares with the clipping
norm. Where the source does anything that is not understood on that way, the reading is None.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from audit.claims.code_reader import Reader
from audit.claims.code_values import BATCH, Gradient, Product, Released, Value
from audit.yaml_file import InputError

Clipping = Literal["per_record", "aggregate", "none"]
NoiseOn = Literal["sum", "mean", "none"]
LARGEST_SOURCE = 200_000  # bytes: a snippet, not a program
SIGMA = ("noise", "sigma", "σ")
STEP_SIZE = {"lr", "learning_rate", "eta", "step_size"}


@dataclass(frozen=True)
class Reading:
    """What the source does; None where it does not show it.

    ``sigma`` is the noise multiplier where the source gives it as a number; ``seeded`` that it
    fixes the seed of the noise.
    """

    clipping: Clipping | None = None
    noise_on: NoiseOn | None = None
    noise_divided_by_batch: bool | None = None
    masked_after_clipping: bool = False
    sigma: float | None = None
    seeded: bool = False


def read_source(path: Path) -> Reading:
    """What a Python file does to gradients.

    Raises:
        InputError: if the file cannot be read, is too long for a snippet, or is not Python.
    """
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST_SOURCE + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; correct the path") from None
    except ValueError:
        raise InputError(f"{path}: is no file's name; correct the path") from None
    if len(source) > LARGEST_SOURCE:
        raise InputError(
            f"{path}: is longer than {LARGEST_SOURCE} bytes; cut out the training step"
        )
    reader = Reader()
    try:
        tree = ast.parse(source)
        reader.read(tree)
    except (RecursionError, MemoryError):
        raise InputError(f"{path}: is nested too deeply; cut out the training step") from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f":{line}" if line else ""
        raise InputError(f"{path}{where}: is not valid Python; correct the snippet") from None
    return _reading(reader.released, reader.library, reader.seeded)


def _reading(released: Sequence[Value], library: bool, seeded: bool) -> Reading:
    """What holds for everything that is released; where that differs, nothing is known."""
    signals = [v.signal if isinstance(v, Released) else v for v in released]
    gradients = [s for s in signals if isinstance(s, Gradient)]
    known = gradients and len(gradients) == len(signals)
    if library or not known or len({g.origin for g in gradients}) > 1:  # two sums move together
        return Reading(seeded=seeded)
    clippings = {_clipping(g) for g in gradients}
    clipping = clippings.pop() if len(clippings) == 1 else None
    if "none" in clippings and None not in clippings:
        clipping = "none"
    masked = any(g.masked for g in gradients)
    bare = [v for v in released if not isinstance(v, Released)]
    if bare:
        return Reading(clipping, "none", None, masked, seeded=seeded)
    noises = {_noise(v) for v in released if isinstance(v, Released)}
    draws = {v.noise.origin for v in released if isinstance(v, Released)}
    found = noises.pop() if len(noises) == len(draws) == 1 else None
    if found is None:
        return Reading(clipping, None, None, masked, seeded=seeded)
    return Reading(clipping, found[0], found[1], masked, found[2], seeded)


def _clipping(gradient: Gradient) -> Clipping | None:
    """How each record is bounded, if nothing lengthens the clipped gradient afterwards."""
    if gradient.of != "sum":
        return None
    if gradient.clipped is None:
        return "none"
    scale = gradient.scale
    shrinks = all(
        (name == BATCH and power < 0) or name.rpartition(".")[2] in STEP_SIZE
        for name, power in scale.powers
    )
    if abs(scale.coefficient) > 1 or not shrinks:
        return None
    return gradient.clipped


def _noise(released: Released) -> tuple[NoiseOn, bool, float | None] | None:
    """Where the noise is, if it is divided by the batch, and σ where it is a number.

    Noise over what one record moves must be σ, times a power of the batch size, and nothing else.
    """
    signal, scale = released.signal, released.noise.scale
    if scale is None:
        return None
    ratio: Product | None = scale
    for part in (signal.scale, signal.bound):
        ratio = ratio.times(part, -1) if ratio else None
    if ratio is None or signal.clipped is None:
        return ("sum", False, None) if signal.clipped is None else None
    batch = ratio.power(BATCH)
    rest = [(name, power) for name, power in ratio.powers if name != BATCH]
    mean = signal.scale.power(BATCH) == -1
    kinds: dict[tuple[bool, float], bool] = {(False, 0): False, (False, -1): True, (True, 1): False,
                                             (True, 0): True}  # fmt: skip
    if signal.clipped == "aggregate":  # what is clipped has the norm C, mean or sum
        kinds = {(False, 0): False, (False, -1): True, (True, 0): False, (True, -1): True}
    divided = kinds.get((mean, batch))
    if divided is None:
        return None
    on: NoiseOn = "mean" if mean else "sum"
    size = abs(ratio.coefficient)
    if not rest:
        return on, divided, size
    [(name, power), *more] = rest
    last = name.rpartition(".")[2].lower()
    named = any(word in last for word in SIGMA) or last in {"z", "nm"}
    if more or power != 1 or not named or not math.isclose(size, 1):
        return None
    return on, divided, None
