"""The game of a private critic and a generator that never sees a record.

The critic is trained by DP-SGD. Each real record is judged beside partners: generated records that
its number and the step alone pick from a pool. So its loss depends on no other record, and taking
it out of a batch moves the clipped sum by its own clipped gradient, C at most, and nothing else.

The generator learns from the critic's weights, which were released under the ledger's account, and
from random numbers. Each step seeds its own: a stream that ran on from step to step would stand
where the secret batch sizes had left it. (Xie et al. 2018; more critic steps for each of the
generator's: Bie, Kamath and Zhang 2023.)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import softplus

from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.noise import KeyedStream
from trainers.dpsgd.plan import Plan
from trainers.dpsgd.training import PrivateTraining
from trainers.tabular.domain import Domain
from trainers.tabular.gan_networks import Critic, Generator
from trainers.tabular.risk import UniquenessRisk


@dataclass(frozen=True)
class GanConfig:
    """The networks and the game; the defaults suit small tables.

    Attributes:
        steps: of the critic; each spends budget.
        batch_size: the expected number of real records in a critic step; None for a sixth of all,
            1,024 at most.
        critic_steps: for each generator step.
        partners: generated records beside each real one.
        pool: how many generated records partners are picked from in a step.
        crowd: records that a generated record's uniqueness is judged among.
        latent: Gaussians that a record is generated from.
        generator_hidden, critic_hidden: widths of hidden layers.
        cosines: waves by which the critic sees a number.
        products: for each column, by which the critic sees two columns together.
        weight_bound: of the critic's weights.
        generator_rate, critic_rate: Adam's learning rates.
        clipping_norm: C, of a record's gradient in a critic step.
        averaging: of the released generator's weights, the share that a step keeps.

    Raises:
        ValueError: if a number is out of range.
    """

    steps: int = 1500
    batch_size: int | None = None
    critic_steps: int = 5
    partners: int = 4
    pool: int = 256
    crowd: int = 1024
    latent: int = 16
    generator_hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] = (64,)
    cosines: int = 4
    products: int = 16
    weight_bound: float = 0.05
    generator_rate: float = 2e-3
    critic_rate: float = 1e-2
    clipping_norm: float = 1.0
    averaging: float = 0.98

    def __post_init__(self) -> None:
        for name in (
            "steps", "batch_size", "critic_steps", "partners", "pool", "crowd", "latent",
        ):  # fmt: skip
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("generator_hidden", "critic_hidden"):
            if any(units < 1 for units in getattr(self, name)):
                raise ValueError(f"{name}: must be at least 1 each, got {getattr(self, name)}")
        for name in ("weight_bound", "generator_rate", "critic_rate", "clipping_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be positive, got {getattr(self, name)}")
        for name in ("cosines", "products"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging: must be from 0 to below 1, got {self.averaging}")


class Game:
    """Both networks, their optimizers and their random numbers.

    Args:
        domain: the public domain.
        features: the records' (n, width), as the domain codes them.
        config: networks and game.
        spending: how many critic steps there are, and with how much noise.
        source: of the noise, the batches and the partners.
        risk: what the generator is penalised by, and how much; None for nothing.
        record: called before each critic update with the batch's size and C: the ledger.
        seed: of the first weights, and of everything in a ``seeded`` run.
    """

    def __init__(
        self,
        domain: Domain,
        features: torch.Tensor,
        config: GanConfig,
        spending: Plan,
        *,
        source: Literal["secure", "seeded"],
        record: Callable[[int, float], None] = lambda size, clipping_norm: None,
        risk: UniquenessRisk | None = None,
        risk_weight: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._features, self._config = features, config
        self._risk, self._risk_weight = risk, risk_weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.generator = Generator(domain.spans, config.latent, config.generator_hidden)
            self.critic = Critic(
                domain.spans,
                config.critic_hidden,
                config.cosines,
                config.products,
                config.weight_bound,
            )
        self.average = deepcopy(self.generator)
        self._generator_optimizer = torch.optim.Adam(
            self.generator.parameters(), config.generator_rate, betas=(0.5, 0.9)
        )
        self._critic_optimizer = torch.optim.Adam(
            self.critic.parameters(), config.critic_rate, betas=(0.5, 0.9)
        )
        self.training = PrivateTraining(
            self.critic, self._critic_optimizer, spending,
            clipping=Flat(config.clipping_norm), source=source, seed=seed, record=record,
        )  # fmt: skip
        secure = source == "secure"
        self._partner_stream, self._latent_stream = (
            KeyedStream.secure(purpose) if secure else KeyedStream.seeded(seed, purpose)
            for purpose in ("partners", "latents")
        )

    def play(self, after_step: Callable[[], None] = lambda: None) -> None:
        """The critic steps that are left, with the generator's among them."""
        for batch in self.training:
            self.critic_step(batch)
            if self.training.steps % self._config.critic_steps == 0:
                self.generator_step()
            after_step()
        self.training.release()

    def critic_step(self, batch: torch.Tensor) -> None:
        """One step of DP-SGD on a batch of record numbers."""
        self.critic.train()
        draw = _draw(self._partner_stream, self.training.steps)
        with torch.no_grad():
            pool = self.generator(self._config.pool, draw)
        first = torch.randint(len(pool), (len(self._features), 1), generator=draw)
        picked = (first + torch.arange(self._config.partners)) % len(pool)

        def losses(rows: torch.Tensor) -> torch.Tensor:
            beside = torch.cat([self._features[rows, None], pool[picked[rows]]], 1)
            score = self.critic(beside)
            return softplus(-score[:, 0]) + softplus(score[:, 1:]).mean(1)

        self.training.step(batch, losses)
        self.critic.project()

    def generator_step(self) -> None:
        """One step towards what the critic takes for real and what is not unique."""
        self.critic.eval()  # the engine's hooks watch a critic in training mode alone
        draw = _draw(self._latent_stream, self.training.steps)
        rows = self.generator(self._config.pool, draw)
        loss = softplus(-self.critic(rows)).mean()
        if self._risk is not None and self._risk_weight:
            with torch.no_grad():
                crowd = self.generator(self._config.crowd, draw)
            # the critic's scores, and their slopes, are as large as its weights may be
            unit = self._config.weight_bound
            loss = loss + self._risk_weight * unit * self._risk(rows, crowd).mean()
        weights = list(self.generator.parameters())
        for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = slope
        self._generator_optimizer.step()
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), weights, strict=True):
                kept.lerp_(new, 1 - self._config.averaging)

    @property
    def networks(self) -> nn.ModuleDict:
        """All weights, for a checkpoint."""
        return nn.ModuleDict(
            {"generator": self.generator, "average": self.average, "critic": self.critic}
        )

    @property
    def optimizers(self) -> Optimizers:
        """Both optimizers, for a checkpoint."""
        return Optimizers(self._generator_optimizer, self._critic_optimizer)


@dataclass(frozen=True)
class Optimizers:
    """Two optimizers whose states are saved as one."""

    generator: torch.optim.Optimizer
    critic: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """Both states."""
        return {"generator": self.generator.state_dict(), "critic": self.critic.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put both back."""
        self.generator.load_state_dict(state["generator"])
        self.critic.load_state_dict(state["critic"])


def _draw(stream: KeyedStream, step: int) -> torch.Generator:
    word = stream.open(step, 0).update(bytes(8))
    return torch.Generator().manual_seed(int.from_bytes(word, "little") >> 1)
