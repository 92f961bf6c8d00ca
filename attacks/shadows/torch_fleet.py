"""Many small torch models of one architecture, trained together as one batched model.

The parameters of M models are stacked, so that each layer is one batched matrix product instead of
M small ones. Every model has its own records, minibatches, noise and initial weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from attacks.targets import (
    AccessLevel,
    Array,
    Target,
    from_torch,
    one_line_error,
    positions,
    torch_device,
    torch_records,
)

_BUILDING = threading.Lock()  # initial weights come from torch's one generator


@dataclass(frozen=True)
class PrivateTraining:
    """What makes the recipe DP-SGD (Abadi et al. 2016, algorithm 1).

    Poisson minibatches, each record's gradient clipped to L2 norm ``clipping_norm``, Gaussian noise
    of ``noise_multiplier`` times that on their sum, division by the expected batch size. The noise
    is seeded: shadow models protect nobody, and must be repeatable. A function gives the multiplier
    of a model by the number of its records, where the recipe aims at an ε.

    Raises:
        ValueError: if a number is negative, or the clipping norm zero.
    """

    noise_multiplier: float | Callable[[int], float]
    clipping_norm: float = 1.0

    def __post_init__(self) -> None:
        fixed = 0.0 if callable(self.noise_multiplier) else self.noise_multiplier
        if not 0 <= fixed < math.inf or not 0 < self.clipping_norm < math.inf:
            raise ValueError("noise_multiplier, clipping_norm: must be positive and finite")

    def multiplier(self, records: int) -> float:
        """The noise multiplier of a model of so many records."""
        given = self.noise_multiplier
        return given(records) if callable(given) else given


@dataclass(frozen=True)
class TorchTraining:
    """How one such model is trained; as ``fit_many`` of ``Shadows`` it trains a whole fleet.

    A model depends on its own records and seed, not on those trained beside it (but for rounding).
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
            processor's caches, and more is lost when the fleet is interrupted. Those of unequally
            many steps are trained apart, and those with dropout, which draws from torch's one
            generator, one by one.
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
        """One target for each row of ``inside`` (M, n), trained on that row's records.

        Raises:
            ValueError: if the module has batch normalisation or cannot take the records, or there
                are fewer of them than a private batch has.
        """
        place = torch_device(self.device)
        with _BUILDING:
            module, _ = self._new(0)
        records = torch_records(module, X, place)
        labels = torch.as_tensor(positions(y, np.asarray(self.classes)), device=place)
        draws = _draws(module, records[:2].cpu())
        workers = 1 if draws or records.device.type != "cpu" else self.workers or cpu_count()
        sizes = [int(size) for size in inside.sum(axis=1)]
        sigmas = [self.private.multiplier(size) if self.private else 0.0 for size in sizes]
        together = 1 if draws else min(self.together, math.ceil(len(inside) / workers))
        groups = self._groups(sizes, together)
        stop = threading.Event()
        with _one_thread(), ThreadPoolExecutor(workers) as pool:
            trained: dict[int, tuple[Future[list[torch.nn.Module]], int]] = {}
            for rows in groups:
                own = ([seeds[k] for k in rows], [sigmas[k] for k in rows])
                group = pool.submit(self._train, records, labels, inside[rows], *own, stop)
                trained |= {k: (group, place_in) for place_in, k in enumerate(rows)}
            try:
                for k in range(len(inside)):
                    group, place_in = trained[k]
                    module = group.result()[place_in]
                    yield from_torch(module, self.access, self.classes, self.device)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _groups(self, sizes: list[int], together: int) -> list[list[int]]:
        """Which models are trained as one: of equally many steps, in the order of the first."""
        alike: dict[int, list[int]] = {}
        for k, size in enumerate(sizes):
            alike.setdefault(self._steps(size), []).append(k)
        return sorted(
            rows[start : start + together]
            for rows in alike.values()
            for start in range(0, len(rows), together)
        )

    def _steps(self, records: int) -> int:
        if self.private:
            return max(1, round(self.epochs * records / self.batch_size))
        return self.epochs * math.ceil(records / self.batch_size)

    def _train(
        self,
        X: torch.Tensor,
        y: torch.Tensor,
        inside: Bools,
        seeds: list[int],
        sigmas: list[float],
        stop: threading.Event,
    ) -> list[torch.nn.Module]:
        with _BUILDING:
            modules, coins = zip(*(self._new(seed) for seed in seeds), strict=True)
            torch.manual_seed(seeds[0])  # for dropout, whose models come here alone
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
                self._add_noise(found, sigmas, coins)
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

        Drawn one by one if private, else cut from each epoch's order. All models have equally many
        steps (see ``_groups``).
        """
        lengths = torch.tensor([len(rows) for rows in members])
        most, least = int(lengths.max()), int(lengths.min())
        if self.private:
            if self.batch_size > least:
                raise ValueError(f"batch_size: {self.batch_size} is more than the {least} records")
            for _ in range(self._steps(most)):
                drawn = [
                    rows[torch.rand(len(rows), generator=coin) < self.batch_size / len(rows)]
                    for rows, coin in zip(members, coins, strict=True)
                ]
                rows = pad_sequence(drawn, batch_first=True)
                if not rows.shape[1]:  # nobody was drawn: the step is noise alone
                    rows = torch.zeros(len(drawn), 1, dtype=torch.int64)
                real = torch.arange(rows.shape[1]) < torch.tensor([[len(d)] for d in drawn])
                yield rows, real / self.batch_size
            return
        count = math.ceil(most / self.batch_size)
        start = torch.arange(count)[:, None] * self.batch_size
        size = (lengths - start).clamp(max=self.batch_size)[:, :, None]
        place = torch.arange(min(most, self.batch_size))
        share = (place < size) / size
        at = (start + place).clamp(max=most - 1).flatten()
        for _ in range(self.epochs):
            orders = [
                rows[torch.randperm(len(rows), generator=coin)]
                for rows, coin in zip(members, coins, strict=True)
            ]
            rows = pad_sequence(orders, batch_first=True)[:, at]
            yield from zip(
                rows.view(len(members), count, -1).transpose(0, 1).contiguous(), share, strict=True
            )

    def _add_noise(
        self, found: Tensors, sigmas: list[float], coins: Sequence[torch.Generator]
    ) -> None:
        assert self.private is not None
        scale = torch.tensor(sigmas)[:, None] * self.private.clipping_norm / self.batch_size
        sizes = [gradient[0].numel() for gradient in found.values()]
        noise = torch.stack([torch.randn(sum(sizes), generator=coin) for coin in coins]) * scale
        for gradient, part in zip(found.values(), torch.split(noise, sizes, dim=1), strict=True):
            gradient += part.view_as(gradient).to(gradient.device)


def _draws(module: torch.nn.Module, records: torch.Tensor) -> bool:
    """Whether an answer in training is drawn, as dropout's is; ValueError if there is none."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        with one_line_error("build: its module cannot take these records"):
            module(records.clone())
        return not torch.equal(before, torch.get_rng_state())


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # also of the threads that start from here on
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)
