"""Axes of a chart: values to pixels, and ticks at round numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.sentence import figure


@dataclass(frozen=True)
class Axis:
    """Maps [low, high] to the pixels from ``start`` to ``end``; what lies beyond is clamped."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...] = ()

    def at(self, value: float) -> float:
        """The pixel of a value, to a tenth."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def holds(self, value: float) -> bool:
        """Whether the value lies on the axis."""
        return self.low <= value <= self.high


def linear(low: float, high: float, start: float, end: float) -> Axis:
    """A linear axis with three to seven ticks at round numbers."""
    span = (high - low) or 1
    magnitude = 10.0 ** math.floor(math.log10(span))
    step = next(s * magnitude for s in (0.1, 0.2, 0.5, 1, 2) if span / (s * magnitude) <= 6.5)
    first = math.ceil(low / step - 1e-9)
    values = [float(f"{(first + i) * step:.10g}") for i in range(8)]
    ticks = tuple((v, figure(v)) for v in values if low <= v <= high * (1 + 1e-9))
    return Axis(low, high, start, end, False, ticks)


def decades(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Ticks at the powers of ten, at most about six of them."""
    first = math.ceil(math.log10(low) - 1e-9)
    last = math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first) / 6))
    exponents = range(first, last + 1, step)
    plain = all(-2 <= e <= 3 for e in exponents)
    return tuple((10.0**e, figure(10.0**e) if plain or not e else _power(e)) for e in exponents)


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
