"""Clipped sums of a model whose weights are spread over the ranks (``fully_shard``, FSDP2).

Weights and the optimizer's state are spread; the sum itself is whole on every rank (four bytes a
weight). Each forward pass gathers weights from all ranks, so all must take equally many: a rank
with fewer micro-batches than another passes a record of its own that counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from trainers.dpsgd.capture import Unsupported
from trainers.dpsgd.clipping import Clipping
from trainers.dpsgd.distributed import Ranks
from trainers.dpsgd.engine import TOLERANCE, ClippedSum, refuse_difference
from trainers.dpsgd.layers import rule_for


class ShardedSum(ClippedSum):
    """As ``ClippedSum``, where every rank calls the model and ``add`` equally often.

    Args:
        model: after ``fully_shard``.
        clipping: what one record may add.
        ranks: over which the model is spread.
        spare: numbers of two records of this rank's own, for passes that count for nothing.

    Raises:
        Unsupported: if the model cannot be trained soundly, is not spread over exactly these ranks,
            or has a layer whose gradients are made by calling it again.
    """

    looks_again = False  # all ranks would have to look at the same pass

    def __init__(
        self, model: nn.Module, clipping: Clipping, ranks: Ranks, spare: torch.Tensor
    ) -> None:
        if len(spare) < 2:
            raise Unsupported("records: a sharded model needs two of them on each rank at least")
        for name, weight in model.named_parameters():
            if not isinstance(weight, DTensor):
                raise Unsupported(f"{name}: is no shard; call fully_shard on the whole model too")
            if weight.device_mesh.ndim != 1 or weight.device_mesh.size() != ranks.world:
                raise Unsupported(
                    f"{name}: is spread over {tuple(weight.device_mesh.shape)} processes; "
                    f"give fully_shard a mesh of one dimension over all {ranks.world}"
                )
        for name, module in model.named_modules():
            if rule_for(module) is None and any(
                p.requires_grad for p in module.parameters(recurse=False)
            ):
                raise Unsupported(
                    f"{name or 'model'}: no rule for {type(module).__name__} in shards"
                )
        super().__init__(model, clipping)
        self.spare = spare
        self._ranks = ranks

    def add(self, losses: torch.Tensor) -> torch.Tensor:
        """As ``ClippedSum.add``, once ``idle_passes`` has checked the model.

        Raises:
            Unsupported: before that; ``PrivateTraining.step`` keeps ranks together, ``add`` alone
                does not.
        """
        if not self._checked:
            raise Unsupported("model: is sharded; train it by PrivateTraining.step")
        return super().add(losses)

    def idle_passes(self, own: int, losses: Callable[[torch.Tensor], torch.Tensor]) -> int:
        """How many passes that count for nothing this rank owes, with so many of its own.

        Every rank calls it before each logical batch. The first call checks the model, on the two
        spare records of each rank.

        Raises:
            Unsupported: as ``ClippedSum.add``.
        """
        if not self._checked:
            self._check(losses(self.spare))
        return int(max(row[0] for row in self._ranks.report([own]))) - own

    def shard(self, name: str) -> torch.Tensor:
        """This rank's part of a weight's sum, as the weight itself is spread."""
        weight = self.weights[name]
        assert isinstance(weight, DTensor)
        whole = self.sums[name].to(weight.dtype)
        every = DTensor.from_local(whole, weight.device_mesh, [Replicate()], run_check=False)
        return every.redistribute(placements=weight.placements)  # sends nothing

    def _check(self, losses: torch.Tensor) -> None:
        """As the engine's own; but autograd's gradients are means over ranks, in shards."""
        if losses.dim() != 1:
            raise Unsupported(f"losses: shape {tuple(losses.shape)}; give each record's own, (B,)")
        try:
            for some in torch.eye(len(losses), dtype=torch.bool, device=losses.device):
                self._refuse_mixing(losses, some)
            self._forget()
            torch.autograd.backward(losses.sum())
            wanted = {name: p.grad for name, p in self.weights.items()}
        finally:
            for p in self.weights.values():
                p.grad = None
        gradients = self._gradients(len(losses))
        ones = torch.ones_like(losses, dtype=torch.float32)
        for name, mean in wanted.items():
            found = torch.zeros_like(self.sums[name])
            if name in gradients:
                gradients[name].weighted_sum(ones, found)
            self._ranks.add_up(found)
            if mean is None:
                mean = torch.zeros_like(self.weights[name])
            assert isinstance(mean, DTensor)
            refuse_difference(name, found, mean.full_tensor() * self._ranks.world, TOLERANCE)
        self._checked = self._capture.freezes = True
