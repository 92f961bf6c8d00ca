"""A clipping norm that follows a quantile of the records' gradient norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from trainers.dpsgd.clipping import Flat


class AdaptiveNorm:
    """Moves C so that a share ``quantile`` of the records has a gradient norm below it.

    Each step also releases, with noise, how many of the batch's records were below C. That has a
    price: with count noise s (on records counted as ±1/2) and gradient noise multiplier z, the step
    acts as one Gaussian of multiplier σ where 1/σ² = 1/z² + 1/(2s)² (theorem 1 there). The
    account is of σ, so the gradient gets ``gradient_multiplier(σ)``, a little more noise.

    Args:
        start: C of the first step.
        quantile: γ, the share that shall lie below.
        rate: η, of the geometric steps that C takes.
        count_noise: s; a twentieth of the batch size where None (as the paper suggests).

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        start: float,
        *,
        quantile: float = 0.5,
        rate: float = 0.2,
        count_noise: float | None = None,
    ) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"quantile: must lie between 0 and 1, got {quantile}")
        if not 0 < rate < math.inf:
            raise ValueError(f"rate: must be positive and finite, got {rate}")
        if count_noise is not None and not 0 < count_noise < math.inf:
            raise ValueError(f"count_noise: must be positive and finite, got {count_noise}")
        self.clipping = Flat(start)
        self._quantile, self._rate, self._count_noise = quantile, rate, count_noise
        self._above_half = 0.0

    def count_noise(self, batch_size: int) -> float:
        """The standard deviation s of the noise on the count."""
        return batch_size / 20 if self._count_noise is None else self._count_noise

    def gradient_multiplier(self, noise_multiplier: float, batch_size: int) -> float:
        """z, so that gradient and count together cost what σ costs.

        Raises:
            ValueError: if the count's noise alone spends more than σ allows.
        """
        left = noise_multiplier**-2 - (2 * self.count_noise(batch_size)) ** -2
        if left <= 0:
            raise ValueError(
                f"count_noise: {self.count_noise(batch_size):.3g} spends more than the noise "
                f"multiplier allows; it must exceed {noise_multiplier / 2:.3g}"
            )
        return float(left**-0.5)

    def see(self, norms: torch.Tensor) -> None:
        """Count a micro-batch's records below C; a norm that is not finite is not below."""
        below = float((norms <= self.clipping.clipping_norm).sum())
        self._above_half += below - len(norms) / 2

    def clear(self) -> None:
        """Forget what was counted: a step that failed counts for nothing."""
        self._above_half = 0.0

    def take_count(self) -> float:
        """The sum over records of +1/2 (below) and -1/2 (above), and a new count."""
        count, self._above_half = self._above_half, 0.0
        return count

    def move(self, noisy_count: float, batch_size: int) -> None:
        """Move C by the noisy count (of ±1/2) over the expected batch size."""
        share = noisy_count / batch_size + 0.5
        factor = math.exp(-self._rate * (min(max(share, 0.0), 1.0) - self._quantile))
        self.clipping = Flat(self.clipping.clipping_norm * factor)

    def state(self) -> dict[str, float]:
        """C, for a checkpoint."""
        return {"clipping_norm": self.clipping.clipping_norm}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with that C."""
        self.clipping = Flat(float(state["clipping_norm"]))
