"""Several processes that train one model: what they agree on first, and tell each other each step.

Every rank draws from its own records, clips them, and adds noise of its own. What leaves it is that
noisy sum, the size of its batch and what its account adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch import nn

from trainers.dpsgd.capture import Unsupported

_OK, _FAILED = 0.0, 1.0


class RankFailed(RuntimeError):
    """Another process of the run failed, or is at another step."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; ``ranks_here`` makes one.

    A process that dies or hangs makes the others' next call here fail, at the latest after the
    timeout that ``torch.distributed.init_process_group`` was given.
    """

    rank: int
    world: int
    device: torch.device

    def add_up(self, values: torch.Tensor) -> None:
        """Put the sum over ranks in place of each rank's values: the same bits everywhere."""
        if self.world > 1:
            dist.all_reduce(values)

    def report(self, row: Sequence[float], same: Sequence[float] = ()) -> list[list[float]]:
        """Every rank's row of float64, by rank; all rows have one length.

        Args:
            same: what must be the same on every rank.

        Raises:
            RankFailed: if it is not, or a rank called ``report_failure`` instead.
        """
        rows = self._gather([_OK, *same, *row])
        for rank, (state, *found) in enumerate(rows):
            if state != _OK:
                raise RankFailed(f"rank {rank}: failed in this step; its own output says why")
            if found[: len(same)] != rows[0][1 : 1 + len(same)]:
                raise RankFailed(f"rank {rank}: is not where rank 0 is in this run")
        return [found[1 + len(same) :] for found in rows]

    def report_failure(self, length: int) -> None:
        """Make the others' ``report`` of that many numbers fail, so that they do not wait."""
        with suppress(RuntimeError):  # one of them may be gone: our own error says more
            self._gather([_FAILED, *[0.0] * length])

    def texts(self, text: str) -> list[str]:
        """Every rank's text, by rank."""
        if self.world == 1:
            return [text]
        own = text.encode()
        sizes = [int(row[0]) for row in self._gather([len(own)])]
        sent = torch.zeros(max(sizes), dtype=torch.uint8)
        sent[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        sent = sent.to(self.device)
        found = [torch.empty_like(sent) for _ in range(self.world)]
        dist.all_gather(found, sent)
        return [bytes(x[:n].cpu().numpy()).decode() for x, n in zip(found, sizes, strict=True)]

    def _gather(self, row: Sequence[float]) -> list[list[float]]:
        if self.world == 1:
            return [list(row)]
        sent = torch.tensor(row, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(sent) for _ in range(self.world)]
        dist.all_gather(found, sent)
        return [[float(value) for value in x.tolist()] for x in found]


def ranks_here(device: torch.device) -> Ranks:
    """The ranks of ``torch.distributed`` where it is initialised; else this process alone."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), device)
    return Ranks(0, 1, device)


def begin_together(ranks: Ranks, model: nn.Module, **settings: object) -> None:
    """Refuse ranks that differ in model or settings; then give all of them rank 0's weights.

    Args:
        settings: what must be the same everywhere, by name; compared as it is printed.

    Raises:
        ValueError: on every rank, if one differs from rank 0.
        Unsupported: if the model is wrapped in something that adds up gradients by itself.
    """
    for module in model.modules():
        kind = type(module).__name__
        if kind in {"DistributedDataParallel", "FullyShardedDataParallel"}:
            raise Unsupported(
                f"model: {kind} adds up gradients that are not clipped; give the model inside it, "
                "or shard its weights with torch.distributed.fsdp.fully_shard"
            )
    if ranks.world == 1:
        return
    lines = [f"{name}: {value}" for name, value in settings.items()]
    every = [text.split("\n") for text in ranks.texts("\n".join([*lines, *_described(model)]))]
    for rank, found in enumerate(every):
        for here, first in zip(found, every[0], strict=False):
            if here != first:
                raise ValueError(f"rank {rank}: has {here}, where rank 0 has {first}")
        if len(found) != len(every[0]):
            raise ValueError(f"rank {rank}: its model has other weights or buffers than rank 0's")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if not is_sharded(tensor):  # shards are parts of one model already
                _give(tensor)


def is_sharded(weight: torch.Tensor) -> bool:
    """Whether this rank holds only a part of it (``fully_shard``)."""
    return hasattr(weight, "device_mesh")


def _described(model: nn.Module) -> Iterator[str]:
    for name, p in model.named_parameters():
        trained = "trained" if p.requires_grad else "frozen"
        yield f"weight {name}: {tuple(p.shape)} {p.dtype} {trained}"
    for name, b in model.named_buffers():
        yield f"buffer {name}: {tuple(b.shape)} {b.dtype}"


def _give(tensor: torch.Tensor) -> None:
    """Rank 0's values, as bytes: backends do not know every kind of number."""
    if not tensor.numel():
        return
    whole = tensor.detach().contiguous().clone()
    dist.broadcast(whole.flatten().view(torch.uint8), 0)
    tensor.copy_(whole)
