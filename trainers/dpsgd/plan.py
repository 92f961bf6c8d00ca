"""What a DP-SGD run will spend: rate, steps and noise, and the trainer's own ε along the way."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from opacus.accountants.rdp import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier

# Opacus' own orders end at 63, where ε cannot fall below 0.1 at δ = 1e-5
ORDERS = (*RDPAccountant.DEFAULT_ALPHAS, *(64, 80, 96, 128, 192, 256, 384, 512, 768, 1024))


@dataclass(frozen=True)
class Plan:
    """A DP-SGD run of Poisson batches; make one with ``plan``.

    Attributes:
        records: how many there are; each is in a batch with probability ``batch_size / records``.
        batch_size: the expected size, by which the noisy sum is divided.
        steps: how many.
        noise_multiplier: σ, the noise's standard deviation over the sum's sensitivity.
        delta: at which ε is stated.
    """

    records: int
    batch_size: int
    steps: int
    noise_multiplier: float
    delta: float

    @property
    def sample_rate(self) -> float:
        """q, the probability of each record at each step."""
        return self.batch_size / self.records

    def step_rdp(self, orders: Sequence[float]) -> list[float]:
        """What one step adds at each Rényi order, by Opacus' accountant."""
        return list(_rdp(self.sample_rate, self.noise_multiplier, tuple(orders)))

    def epsilon(self, steps: int) -> float:
        """ε after that many steps at ``delta``, by Opacus' RDP accountant: an opinion."""
        rdp = np.array(_rdp(self.sample_rate, self.noise_multiplier, ORDERS)) * steps
        with warnings.catch_warnings():
            # after few steps the best order lies beyond Opacus' grid: ε is then too high, not wrong
            warnings.filterwarnings("ignore", message="Optimal order is the")
            return max(0.0, float(get_privacy_spent(orders=ORDERS, rdp=rdp, delta=self.delta)[0]))


def plan(
    records: int,
    batch_size: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
) -> Plan:
    """The run that ends at ``epsilon``, or that uses ``noise_multiplier``.

    Raises:
        ValueError: if not exactly one of ``epochs`` and ``steps``, and one of ``epsilon`` and
            ``noise_multiplier``, is given, or a number is out of range.
    """
    if (epochs is None) == (steps is None):
        raise ValueError("epochs, steps: give one of them")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("epsilon, noise_multiplier: give one of them")
    if not 1 <= batch_size <= records:
        raise ValueError(f"batch_size: must lie between 1 and the {records} records")
    if not 0 < delta < 1:
        raise ValueError(f"delta: must lie between 0 and 1, got {delta}")
    if steps is None:
        assert epochs is not None
        if not 0 < epochs < float("inf"):
            raise ValueError(f"epochs: must be positive and finite, got {epochs}")
        steps = max(1, round(epochs * records / batch_size))
    if steps < 1 or steps != int(steps):
        raise ValueError(f"steps: must be a whole number of at least 1, got {steps}")
    if noise_multiplier is None:
        assert epsilon is not None
        if not 0 < epsilon < float("inf"):
            raise ValueError(f"epsilon: must be positive and finite, got {epsilon}")
        try:
            noise_multiplier = _calibrated(epsilon, delta, batch_size / records, int(steps))
        except ValueError:  # Opacus' own words name no argument
            raise ValueError(
                f"epsilon: {epsilon} cannot be reached at delta {delta} in {steps} steps; "
                "raise one of the two"
            ) from None
    if not 1e-9 <= noise_multiplier <= 1e9:
        raise ValueError(f"noise_multiplier: must lie between 1e-9 and 1e9, got {noise_multiplier}")
    return Plan(records, batch_size, int(steps), noise_multiplier, delta)


@cache
def _calibrated(epsilon: float, delta: float, rate: float, steps: int) -> float:
    sigma = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=delta,
        sample_rate=rate,
        steps=steps,
        accountant="rdp",
        epsilon_tolerance=epsilon / 1000,
        alphas=ORDERS,
    )
    return float(sigma)


@cache
def _rdp(rate: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    rdp = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(orders))
    return tuple(float(r) for r in rdp)
