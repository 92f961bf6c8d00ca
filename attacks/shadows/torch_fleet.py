"""Many small torch models of one architecture, trained together as one batched model.

The parameters of M models are stacked, so that each layer is one batched matrix product instead of
M small ones. Every model has its own records, minibatches, noise and initial weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from joblib import cpu_count
from torch.func import stack_module_state
from torch.nn.utils.rnn import pad_sequence

from attacks.records import Bools
from attacks.shadows.torch_gradients import Tensors, gradients_for
from attacks.targets import AccessLevel, Array, Target, from_torch, positions, torch_device

_BUILDING = threading.Lock()  # initial weights come from torch's one generator


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
        together: how many models are trained as one, at most: beyond some 16 the weights leave the
            processor's caches, and more is lost when the fleet is interrupted.
        workers: how many such groups are trained side by side on a CPU, each in a thread of its
            own; None for one a core. More cores for one group's small products lose more by waiting
            than they gain, ten times as much on a busy machine.

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
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "together", "workers"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name}: must be positive, got {value}")

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
        workers = self._side_by_side(records)
        size = min(self.together, math.ceil(len(inside) / workers))
        groups = [slice(start, start + size) for start in range(0, len(inside), size)]
        stop = threading.Event()
        with _one_thread(), ThreadPoolExecutor(workers) as pool:
            trained = [
                pool.submit(self._train, records, labels, inside[some], seeds[some], stop)
                for some in groups
            ]
            try:
                for group in trained:
                    for module in group.result():
                        yield from_torch(module, self.access, self.classes, self.device)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _side_by_side(self, records: torch.Tensor) -> int:
        """How many groups to train at a time: one where they would share a device or dropout."""
        if records.device.type != "cpu":
            return 1
        with torch.random.fork_rng(devices=[]):
            module = self.build().train()
            before = torch.get_rng_state()
            module(records[:2])
            draws = not torch.equal(before, torch.get_rng_state())
        return 1 if draws else self.workers or cpu_count()

    def _train(
        self,
        X: torch.Tensor,
        y: torch.Tensor,
        inside: Bools,
        seeds: list[int],
        stop: threading.Event,
    ) -> list[torch.nn.Module]:
        with _BUILDING:
            modules, coins = zip(*(self._new(seed) for seed in seeds), strict=True)
            torch.manual_seed(seeds[0])  # for dropout
        modules = tuple(module.to(X.device) for module in modules)
        stacked, fixed = stack_module_state(list(modules))
        weights = {name: value for name, value in stacked.items() if value.requires_grad}
        fixed = fixed | {name: value for name, value in stacked.items() if name not in weights}
        optimiser = self._optimiser(weights)
        gradients = gradients_for(modules[0], X[:1])
        members = [torch.from_numpy(np.flatnonzero(row)) for row in inside]
        clip = self.private.clipping_norm if self.private else None
        for rows, share in self._batches(members, coins):
            if stop.is_set():
                break
            rows, share = rows.to(X.device), share.to(X.device)
            records = X.index_select(0, rows.flatten()).view(*rows.shape, *X.shape[1:])
            found = gradients(weights, fixed, records, y.take(rows), share, clip)
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
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every step's rows (M, B), and the share of the gradient that each has: 0 for padding.

        Drawn one by one if private, else cut from each epoch's order. Models of unequal size take
        equally many steps: whose records give fewer minibatches than the largest model's is cut
        into equal, smaller ones.
        """
        most, least = max(map(len, members)), min(map(len, members))
        if self.private:
            if self.batch_size > least:
                raise ValueError(f"batch_size: {self.batch_size} is more than the {least} records")
            for _ in range(max(1, round(self.epochs * most / self.batch_size))):
                drawn = [
                    rows[torch.rand(len(rows), generator=coin) < self.batch_size / len(rows)]
                    for rows, coin in zip(members, coins, strict=True)
                ]
                real = torch.arange(max(map(len, drawn))) < torch.tensor([[len(d)] for d in drawn])
                yield pad_sequence(drawn, batch_first=True), real / self.batch_size
            return
        count = math.ceil(most / self.batch_size)
        starts, sizes = zip(*(self._cuts(len(rows), count) for rows in members), strict=True)
        start, size = torch.stack(starts)[:, :, None], torch.stack(sizes)[:, :, None]
        place = torch.arange(int(size.max()))
        share = ((place < size) / size.clamp(min=1)).transpose(0, 1)
        at = (start + place).clamp(max=most - 1).flatten(1)
        for _ in range(self.epochs):
            orders = [
                rows[torch.randperm(len(rows), generator=coin)]
                for rows, coin in zip(members, coins, strict=True)
            ]
            rows = pad_sequence(orders, batch_first=True).gather(1, at)
            yield from zip(
                rows.view(len(members), count, -1).transpose(0, 1).contiguous(), share, strict=True
            )

    def _cuts(self, records: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each of ``count`` minibatches starts, and how large it is."""
        if records > (count - 1) * self.batch_size:
            ends = (torch.arange(1, count + 1) * self.batch_size).clamp(max=records)
        else:
            ends = (torch.arange(1, count + 1) * records) // count
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
        return starts, ends - starts

    def _add_noise(self, found: Tensors, coins: Sequence[torch.Generator]) -> None:
        assert self.private is not None
        scale = self.private.noise_multiplier * self.private.clipping_norm / self.batch_size
        sizes = [gradient[0].numel() for gradient in found.values()]
        noise = torch.stack([torch.randn(sum(sizes), generator=coin) for coin in coins])
        for gradient, part in zip(found.values(), torch.split(noise, sizes, dim=1), strict=True):
            gradient += scale * part.view_as(gradient).to(gradient.device)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # also of the threads that start from here on
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)
