"""How a GAN's budget is spent: maybe one measurement of the domain first, then critic steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from opacus.accountants.analysis.rdp import get_privacy_spent
from scipy.optimize import brentq

from trainers.dpsgd.plan import ORDERS, Plan, plan
from trainers.tabular.gan_training import GanConfig
from trainers.tabular.privacy import Privacy

PARTS, MOST = 6, 1024  # a batch that is not given: one part of the records, but not more


@dataclass(frozen=True)
class Budget:
    """What the run's steps cost, by Opacus' RDP accountant; make one with ``budget``.

    Attributes:
        plan: the critic's steps; a measurement before them counts as the first step.
        first_mu: what that measurement spends (sensitivity over standard deviation); 0 for none.
        clipping_norm: C of the critic's steps.
    """

    plan: Plan
    first_mu: float
    clipping_norm: float

    @property
    def first_steps(self) -> int:
        """How many steps come before the critic's."""
        return int(self.first_mu > 0)

    @property
    def setting(self) -> dict[str, Any]:
        """What the ledger says of each critic step."""
        return {
            "expected_batch_size": self.plan.batch_size,
            "noise_multiplier": self.plan.noise_multiplier,
            "clipping_norm": self.clipping_norm,
        }

    def epsilon(self, steps: int) -> float:
        """ε after that many steps, the measurement's included: the trainer's own figure."""
        orders = np.array(ORDERS)
        rdp = orders * self.first_mu**2 / 2
        rdp += np.array(self.plan.step_rdp(ORDERS)) * max(steps - self.first_steps, 0)
        with _quiet():
            return float(get_privacy_spent(orders=ORDERS, rdp=rdp, delta=self.plan.delta)[0])


def budget(privacy: Privacy, records: int, config: GanConfig, first_mu: float = 0.0) -> Budget:
    """The noise with which the whole run, ``first_mu`` included, ends at the promised ε.

    Raises:
        ValueError: if the batch size is above the number of records.
    """
    size = config.batch_size or min(MOST, -(-records // PARTS))
    if size > records:
        raise ValueError(f"batch_size: {size} is more than {records} records")
    with _quiet():
        alone = plan(
            records, size, steps=config.steps, epsilon=privacy.epsilon, delta=privacy.delta
        )
    if not first_mu:
        return Budget(alone, 0.0, config.clipping_norm)

    def with_noise(factor: float) -> Budget:
        noisier = replace(
            alone, steps=config.steps + 1, noise_multiplier=alone.noise_multiplier * factor
        )
        return Budget(noisier, first_mu, config.clipping_norm)

    def excess(factor: float) -> float:
        return with_noise(factor).epsilon(config.steps + 1) - privacy.epsilon

    return with_noise(float(brentq(excess, 1.0, 100.0, xtol=1e-9)) * (1 + 1e-6))


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # where the best order lies beyond the grid ε is too high, not wrong
        warnings.filterwarnings("ignore", message="Optimal order is the")
        yield
