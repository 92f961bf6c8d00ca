"""What a step refuses before anything is released: foreign weights, strange batches, mixed records.

None of it is a proof. A loss whose records depend on one another in training mode alone, or now
and then, can pass; ``engine.ClippedSum`` looks at gradients as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainers.dpsgd.capture import Unsupported

TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2  # of a loss: sums of other shapes are rounded otherwise


def refuse_foreign_weights(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, nn.Parameter]
) -> None:
    """Refuse an optimizer that would update weights whose gradients nobody clips.

    Args:
        weights: those whose sums are clipped and noisy.

    Raises:
        Unsupported: if it holds another weight that takes gradients, or none of these.
    """
    managed = {id(p) for p in weights.values()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    for p in held:
        if id(p) not in managed and (p.requires_grad or p.grad is not None):
            raise Unsupported(
                f"optimizer: holds a weight of shape {tuple(p.shape)} that was no trainable weight "
                "of the model when training began; its gradient would be neither clipped nor "
                "noisy. Put it into the model, or freeze it, and begin anew"
            )
    if not any(id(p) in managed for p in held):
        raise Unsupported("optimizer: holds none of the model's trainable weights")


def refuse_strange_batch(batch: torch.Tensor, records: int) -> None:
    """Refuse record numbers that are out of range or come twice.

    Raises:
        ValueError: naming the fault.
    """
    if batch.dim() != 1 or batch.is_floating_point():
        raise ValueError(f"batch: must be record numbers (b,), got shape {tuple(batch.shape)}")
    if ((batch < 0) | (batch >= records)).any():
        raise ValueError(f"batch: record numbers must lie between 0 and {records - 1}")
    if len(set(batch.tolist())) != len(batch):
        raise ValueError("batch: a record comes twice, and would count twice")


def refuse_mixed_values(
    model: nn.Module, losses: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor
) -> None:
    """Refuse losses that differ when the same records come in two batches instead of one.

    It sees what gradients do not: batch statistics of inputs, weights counted in the batch, room
    that records compete for. The model is in evaluation mode meanwhile; losses that are random even
    then are not looked at.

    Raises:
        Unsupported: if one record's loss depends on another record.
    """
    if len(rows) < 2:
        return
    modes = [(module, module.training) for module in model.modules()]
    here = next(model.parameters()).device
    half = [p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()]

    def note_autocast(*_: object) -> None:
        half.append(torch.is_autocast_enabled(here.type))

    hook = model.register_forward_pre_hook(note_autocast)
    try:
        model.eval()
        with torch.random.fork_rng([here] if here.type == "cuda" else []), torch.no_grad():
            together, again = losses(rows), losses(rows)
            if together.shape != rows.shape or not torch.equal(together, again):
                return  # no loss for each record (refused elsewhere), or random ones
            apart = torch.cat([losses(rows[::2]), losses(rows[1::2])])
            if apart.shape != together.shape:
                return  # refused elsewhere
    finally:
        hook.remove()
        for module, training in modes:
            module.training = training
    order = torch.cat([torch.arange(len(rows))[::2], torch.arange(len(rows))[1::2]])
    wanted = together[order.to(together.device)]
    allowed = (HALF_TOLERANCE if any(half) else TOLERANCE) * (1 + wanted.abs())
    off = (apart - wanted).abs() > allowed  # not where a loss is NaN: it counts for nothing
    if off.any():
        raise Unsupported(
            "losses: one record's loss changes with the records beside it (by up to "
            f"{float((apart - wanted).abs()[off].max()):.2g}); each must depend on its record alone"
        )
