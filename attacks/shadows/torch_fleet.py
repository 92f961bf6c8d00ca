"""Many small torch models of one architecture, trained together as one batched model.

The parameters of M models are stacked, so that each layer is one batched matrix product instead of
M small ones. Every model has its own records, minibatches, noise and initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.func import stack_module_state

from attacks.records import Bools
from attacks.shadows.torch_gradients import Tensors, gradients_for
from attacks.targets import AccessLevel, Array, Target, from_torch, positions, torch_device

Batch = list[torch.Tensor]
"""One minibatch for each model: the numbers of its rows."""


@dataclass(frozen=True)
class PrivateTraining:
    """What makes the recipe DP-SGD (Abadi et al. 2016, algorithm 1).

    Poisson minibatches, each record's gradient clipped to L2 norm ``clipping_norm``, Gaussian noise
    of ``noise_multiplier`` times that on their sum, division by the expected batch size. The noise
    is seeded: shadow models protect nobody, and must be repeatable.

    Raises:
        ValueError: if a number is negative, or the clipping norm zero.
    """

    noise_multiplier: float
    clipping_norm: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier < math.inf or not 0 < self.clipping_norm < math.inf:
            raise ValueError("noise_multiplier, clipping_norm: must be positive and finite")


@dataclass(frozen=True)
class TorchTraining:
    """How one such model is trained; as ``fit_many`` of ``Shadows`` it trains a whole fleet.

    It must say what the target's own training was: shadow models of another recipe behave
    otherwise, and what they teach the attack is then wrong.

    Attributes:
        build: a new module that maps (n, ...) to logits (n, C); its initial weights follow torch's
            seed. No batch normalisation: its running averages mix a batch's records.
        classes: the C labels.
        batch_size: an epoch is cut into minibatches of this size and a rest; with ``private``, the
            expected size.
        private: None for plain training.
        together: how many models are trained at once; less saves memory, and loses less when the
            fleet is interrupted.
        threads: of torch on a CPU. Small products lose more by waiting for the other thread than
            they gain by it, ten times as much on a busy machine.

    Raises:
        ValueError: if the module has batch normalisation, or a number is out of range.
    """

    build: Callable[[], torch.nn.Module]
    classes: Sequence[Any] | Array
    epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    private: PrivateTraining | None = None
    access: AccessLevel = "logits"
    device: str = "auto"
    together: int = 16
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "together", "threads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be positive, got {getattr(self, name)}")

    def fit(self, X: Array, y: Array, seed: int) -> Target:
        """One model on all records: the target that a fleet of this training imitates."""
        return next(self(X, y, np.ones((1, len(X)), dtype=np.bool_), [seed]))

    def __call__(self, X: Array, y: Array, inside: Bools, seeds: list[int]) -> Iterator[Target]:
        """One target for each row of ``inside`` (M, n), trained on that row's records."""
        place = torch_device(self.device)
        records = torch.as_tensor(np.ascontiguousarray(X), device=place)
        if records.is_floating_point():
            records = records.float()
        labels = torch.as_tensor(positions(y, np.asarray(self.classes)), device=place)
        for start in range(0, len(inside), self.together):
            some = slice(start, start + self.together)
            for module in self._train(records, labels, inside[some], seeds[some]):
                yield from_torch(module, self.access, self.classes, self.device)

    def _train(
        self, X: torch.Tensor, y: torch.Tensor, inside: Bools, seeds: list[int]
    ) -> list[torch.nn.Module]:
        modules, coins = zip(*(self._new(seed) for seed in seeds), strict=True)
        modules = tuple(module.to(X.device) for module in modules)
        stacked, fixed = stack_module_state(list(modules))
        weights = {name: value for name, value in stacked.items() if value.requires_grad}
        fixed = fixed | {name: value for name, value in stacked.items() if name not in weights}
        optimiser = self._optimiser(weights)
        gradients = gradients_for(modules[0], X[:1])
        members = [torch.from_numpy(np.flatnonzero(row)) for row in inside]
        clip = self.private.clipping_norm if self.private else None
        with torch.random.fork_rng(devices=[]), _threads(self.threads):
            torch.manual_seed(seeds[0])  # for dropout
            for batch in self._batches(members, coins):
                rows, share = _padded(batch, self.batch_size if self.private else None)
                rows, share = rows.to(X.device), share.to(X.device)
                found = gradients(weights, fixed, X[rows], y[rows], share, clip)
                if self.private:
                    self._add_noise(found, coins)
                for name, weight in weights.items():
                    weight.grad = found[name]
                optimiser.step()
        for k, module in enumerate(modules):
            state = {name: value[k].detach().clone() for name, value in (weights | fixed).items()}
            module.load_state_dict(state, strict=False)  # buffers that are not saved do not change
        return list(modules)

    def _new(self, seed: int) -> tuple[torch.nn.Module, torch.Generator]:
        """A module, and the generator that goes on where its initial weights left off."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build().train()
            coin = torch.Generator()
            coin.set_state(torch.get_rng_state())
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                raise ValueError("build: has batch normalisation; use GroupNorm or LayerNorm")
        return module, coin

    def _optimiser(self, weights: Tensors) -> torch.optim.Optimizer:
        # both work number by number, so the stacked models do not touch each other
        if self.optimiser == "adam":
            return torch.optim.Adam(
                weights.values(), self.learning_rate, weight_decay=self.weight_decay, fused=True
            )
        return torch.optim.SGD(
            weights.values(), self.learning_rate, self.momentum, weight_decay=self.weight_decay
        )

    def _batches(
        self, members: list[torch.Tensor], coins: Sequence[torch.Generator]
    ) -> Iterator[Batch]:
        """Every step's minibatches: drawn one by one if private, else cut from each epoch's order.

        Models of unequal size take equally many: whose records give fewer minibatches than the
        largest model's is cut into equal, smaller ones.
        """
        most, least = max(map(len, members)), min(map(len, members))
        if self.private:
            if self.batch_size > least:
                raise ValueError(f"batch_size: {self.batch_size} is more than the {least} records")
            for _ in range(max(1, round(self.epochs * most / self.batch_size))):
                yield [
                    rows[torch.rand(len(rows), generator=coin) < self.batch_size / len(rows)]
                    for rows, coin in zip(members, coins, strict=True)
                ]
            return
        count = math.ceil(most / self.batch_size)
        for _ in range(self.epochs):
            cuts = []
            for rows, coin in zip(members, coins, strict=True):
                order = rows[torch.randperm(len(rows), generator=coin)]
                regular = len(rows) > (count - 1) * self.batch_size
                cuts.append(
                    torch.split(order, self.batch_size) if regular else order.tensor_split(count)
                )
            yield from (list(batch) for batch in zip(*cuts, strict=True))

    def _add_noise(self, found: Tensors, coins: Sequence[torch.Generator]) -> None:
        assert self.private is not None
        scale = self.private.noise_multiplier * self.private.clipping_norm / self.batch_size
        sizes = [gradient[0].numel() for gradient in found.values()]
        noise = torch.stack([torch.randn(sum(sizes), generator=coin) for coin in coins])
        for gradient, part in zip(found.values(), torch.split(noise, sizes, dim=1), strict=True):
            gradient += scale * part.view_as(gradient).to(gradient.device)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _padded(batch: Batch, expected: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers (M, B) and each row's share of the gradient: 1 / ``expected``, or of the mean."""
    rows = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    sizes = torch.tensor([len(part) for part in batch])
    real = torch.arange(rows.shape[1]) < sizes[:, None]
    return rows, real / (expected or sizes.clamp(min=1)[:, None])
