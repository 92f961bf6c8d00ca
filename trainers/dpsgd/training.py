"""DP-SGD around a training loop: draws batches, clips, adds noise, updates and counts.

training = PrivateTraining(model, optimizer, plan(len(x), 64, epochs=10, epsilon=3))
for batch in training:
    training.step(batch, lambda rows: cross_entropy(model(x[rows]), y[rows], reduction="none"))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

from trainers.dpsgd.adaptive import AdaptiveNorm
from trainers.dpsgd.capture import Unsupported
from trainers.dpsgd.checks import (
    refuse_foreign_weights,
    refuse_mixed_values,
    refuse_strange_batch,
)
from trainers.dpsgd.clipping import Clipping, Flat
from trainers.dpsgd.distributed import Ranks, begin_together, is_sharded, ranks_here
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.noise import secure_noise, seeded_noise
from trainers.dpsgd.plan import Plan
from trainers.dpsgd.sampling import micro_batches, secure_sampler, seeded_sampler

if TYPE_CHECKING:
    from trainers.dpsgd.sharded import ShardedSum

Losses = Callable[[torch.Tensor], torch.Tensor]
"""From the numbers of a few records (b,) to each one's own loss (b,)."""
LEDGER_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)


class Sum(Protocol):
    """What adds up clipped gradients: ``ClippedSum``, or ``OpacusSum``."""

    clipping: Clipping
    flat: torch.Tensor
    sums: Mapping[str, torch.Tensor]
    unusable: int

    @property
    def weights(self) -> Mapping[str, nn.Parameter]:
        """The weights that are trained, by name."""

    def add(self, losses: torch.Tensor) -> torch.Tensor:
        """Add a micro-batch; each record's gradient norm."""

    def clear(self) -> None:
        """Begin a new logical batch."""

    def release(self) -> None:
        """Leave the model as it was before."""


class PrivateTraining:
    """A DP-SGD run (Abadi et al. 2016, algorithm 1) of any model that keeps records apart.

    At each step every record is drawn with probability q by itself. Each one's gradient is clipped,
    Gaussian noise of σ times the sum's sensitivity is added to their sum, and the result, divided
    by the expected batch size, is given to the optimizer. An empty batch is a step like any other.

    With several processes (``torchrun``; ``torch.distributed`` is initialised) each draws from its
    own share of the records and adds noise of its own key with standard deviation σ·C/√W, so
    that their sum has that of one process. A rank knows its own noise: against one that looks on,
    the multiplier is σ·√((W-1)/W). All begin with rank 0's weights, and fail together.

    Args:
        model: in training mode.
        optimizer: over the model's weights; anything that reads gradients.
        plan: how many records, steps, how much noise.
        clipping: what one record may add, or an ``AdaptiveNorm``.
        source: ``secure`` for a guarantee; ``seeded`` repeats a run and protects nobody.
        seed: of seeded batches and noise.
        micro_batch: records in one forward pass at most; changes memory and nothing else.
        record: called before each update with the whole batch's size and the clipping norm, on
            rank 0 alone: the ledger.
        orders: the Rényi orders of ``rdp``.
        engine: ``book-keeping`` (one pass), or ``opacus`` (hooks; slower, another implementation).

    Attributes:
        steps: how many were taken.
        rdp: for each rank what its own accountant adds for the last step, for the ledger.

    Raises:
        Unsupported: if the model cannot be trained soundly.
        ValueError: if the adaptive norm's count costs more than the plan's noise allows, or ranks
            differ in model or settings.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        *,
        clipping: Clipping | AdaptiveNorm | None = None,
        source: Literal["secure", "seeded"] = "secure",
        seed: int = 0,
        micro_batch: int | None = None,
        record: Callable[[int, float], None] = lambda size, clipping_norm: None,
        engine: Literal["book-keeping", "opacus"] = "book-keeping",
        orders: Sequence[float] = LEDGER_ORDERS,
    ) -> None:
        if source not in ("secure", "seeded"):
            raise ValueError(f"source: must be secure or seeded, got {source!r}")
        if engine not in ("book-keeping", "opacus"):
            raise ValueError(f"engine: must be book-keeping or opacus, got {engine!r}")
        self.plan, self.steps, self._looked = plan, 0, False
        self.rdp: list[list[float]] = []
        clipping = clipping or Flat(1.0)
        self._ranks = ranks_here(next(model.parameters()).device)
        begin_together(
            self._ranks, model, plan=plan, source=source, engine=engine, orders=tuple(orders),
            clipping=f"{type(clipping).__name__} {vars(clipping)}",
            optimizer=f"{type(optimizer).__name__} {_settings(optimizer)}",
        )  # fmt: skip
        rank, world = self._ranks.rank, self._ranks.world
        q, n = plan.sample_rate, plan.records
        if source == "secure":
            self._sampler = secure_sampler(n, q, rank=rank, world=world)
            self._noise = secure_noise(rank)
        else:
            self._sampler = seeded_sampler(n, q, seed, rank=rank, world=world)
            self._noise = seeded_noise(seed, rank)
        self._adaptive = clipping if isinstance(clipping, AdaptiveNorm) else None
        self._sigma = plan.noise_multiplier
        if isinstance(clipping, AdaptiveNorm):
            self._sigma = clipping.gradient_multiplier(self._sigma, plan.batch_size)
            clipping = clipping.clipping
        self._shards: ShardedSum | None = None
        if any(map(is_sharded, model.parameters())):
            self._shards = _sharded(engine, model, clipping, self._ranks, self._sampler.shard)
        self.sum: Sum = self._shards or _sum(engine, model, clipping)
        refuse_foreign_weights(optimizer, self.sum.weights)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise Unsupported(
                "optimizer: LBFGS asks for gradients again, which nobody accounts for"
            )
        self._optimizer, self._record, self._orders = optimizer, record, tuple(orders)
        self._micro_batch, self._model = micro_batch or plan.records, model

    @property
    def epsilon(self) -> float:
        """ε so far at the plan's δ: the trainer's own figure, by Opacus' accountant."""
        return self.plan.epsilon(self.steps)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """The logical batches of the steps that are left: record numbers (b,), maybe none."""
        while self.steps < self.plan.steps:
            yield torch.from_numpy(self._sampler.draw())

    def step(self, batch: torch.Tensor, losses: Losses) -> None:
        """One update from a logical batch of record numbers: one that iterating over this gave.

        Raises:
            ValueError: if all planned steps were taken, or the batch holds a number that is no
                record's, or one twice.
            Unsupported: if the losses are not one loss for each of these records, the model mixes
                records, or the optimizer holds weights that are not the model's.
            RankFailed: if another rank failed, or is at another step.
        """
        if self.steps >= self.plan.steps:
            raise ValueError(f"steps: all {self.plan.steps} of the plan were taken; plan for more")
        self.sum.clear()
        if self._adaptive is not None:
            self._adaptive.clear()
        try:
            batch = torch.as_tensor(batch, device="cpu")
            refuse_strange_batch(batch, self.plan.records)
            pieces = micro_batches(batch.numpy(), self._micro_batch)
            if pieces and self._shards is None and self._is_time_to_look():
                refuse_mixed_values(self._model, losses, torch.from_numpy(pieces[0]))
            idle = self._shards.idle_passes(len(pieces), losses) if self._shards else 0
            for rows in pieces:
                found = losses(torch.from_numpy(rows))
                if found.dim() == 1 and len(found) != len(rows):
                    raise Unsupported(
                        f"losses: {len(found)} for the {len(rows)} records asked for; give one for "
                        "each of the record numbers that the function is called with"
                    )
                norms = self.sum.add(found)
                if self._adaptive is not None:
                    self._adaptive.see(norms)
            for _ in range(idle):
                assert self._shards is not None
                self.sum.add(0 * losses(self._shards.spare[:1]))
        except BaseException:
            if self._shards is None:  # else the others wait elsewhere, in their forward pass
                self._ranks.report_failure(sum(map(len, self._report(0))))
            raise
        self.finish(len(batch))

    def finish(self, size: int) -> None:
        """The update itself, from what was added to ``sum`` since ``clear``.

        Raises:
            RankFailed: if another rank failed, or is at another step.
        """
        refuse_foreign_weights(self._optimizer, self.sum.weights)
        clipping = self.sum.clipping
        rows = self._ranks.report(*self._report(size))
        self.steps += 1
        self.rdp = [rdp for _, *rdp in rows]
        if self._ranks.rank == 0:
            # before any rank learns the sum: a step that cannot be written must not be released
            self._record(sum(int(row[0]) for row in rows), clipping.sensitivity)
        self._add_noise(self.sum.flat, self._sigma * clipping.sensitivity)
        count = self._noisy_count() if self._adaptive is not None else None
        self._ranks.add_up(self.sum.flat)
        self.sum.flat /= self.plan.batch_size
        for name, weight in self.sum.weights.items():
            whole = self.sum.sums[name].to(weight.dtype)
            weight.grad = self._shards.shard(name) if self._shards else whole
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._adaptive is not None and count is not None:
            self._adaptive.move(count, self.plan.batch_size)
            self.sum.clipping = self._adaptive.clipping

    def release(self) -> None:
        """Take the hooks off the model: it is an ordinary one again."""
        self.sum.release()

    def state(self) -> dict[str, Any]:
        """Where sampler, noise and clipping stand, for a checkpoint; nothing secret.

        With the model's and the optimizer's state, a seeded run that resumes is bit for bit the one
        that was not interrupted. A secure one draws fresh keys.
        """
        return {
            "steps": self.steps,
            "sampler": self._sampler.state(),
            "noise": self._noise.state(),
            "clipping": self._adaptive.state() if self._adaptive else {},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Steps that were taken after the state was saved are spent, and unknown here: who keeps a
        ledger counts them (``trainers.checkpoints``).
        """
        self.steps = int(state["steps"])
        self._sampler.restore(state["sampler"])
        self._noise.restore(state["noise"])
        if self._adaptive is not None:
            self._adaptive.restore(state["clipping"])
            self.sum.clipping = self._adaptive.clipping

    def _is_time_to_look(self) -> bool:
        """At the first batch, and at steps 2, 4, 8 and so on: models change."""
        first, self._looked = not self._looked, True
        return first or (self.steps + 1).bit_count() == 1

    def _report(self, size: int) -> tuple[list[float], list[float]]:
        """What the other ranks learn of this one's step, and what must be the same on all."""
        rdp = self.plan.step_rdp(self._orders)
        return [size, *rdp], [self.steps, self.sum.clipping.sensitivity]

    def _add_noise(self, values: torch.Tensor, standard_deviation: float) -> None:
        """This rank's part of the noise: variances add up, so W parts of 1/√W make the whole."""
        self._noise.add(values, standard_deviation / math.sqrt(self._ranks.world))

    def _noisy_count(self) -> float:
        assert self._adaptive is not None
        place = self.sum.flat.device
        count = torch.tensor([self._adaptive.take_count()], dtype=torch.float32, device=place)
        self._add_noise(count, self._adaptive.count_noise(self.plan.batch_size))
        self._ranks.add_up(count)
        return float(count)


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def _sum(engine: str, model: nn.Module, clipping: Clipping) -> Sum:
    if engine == "opacus":
        from trainers.dpsgd.opacus_engine import OpacusSum

        return OpacusSum(model, clipping)
    return ClippedSum(model, clipping)


def _sharded(
    engine: str, model: nn.Module, clipping: Clipping, ranks: Ranks, records: range
) -> ShardedSum:
    from trainers.dpsgd.sharded import ShardedSum

    if engine != "book-keeping":
        raise Unsupported(f"engine: {engine} takes no sharded model; use book-keeping")
    return ShardedSum(model, clipping, ranks, torch.tensor(records[:2]))
