"""DP-SGD for any torch model: clipped sums over records from one forward and one backward pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import nn

from trainers.dpsgd.capture import Capture, Unsupported
from trainers.dpsgd.clipping import Clipping
from trainers.dpsgd.layers import Part
from trainers.dpsgd.records import WeightGradients

log = logging.getLogger("dpassay.trainers")
TOLERANCE = 1e-3  # relative, of a float32 sum against autograd's
HALF_TOLERANCE = 0.05  # where weights are bfloat16 or float16, autograd itself rounds this much


class ClippedSum:
    """Adds up records' clipped gradients over the micro-batches of one logical batch.

    Call the model in training mode, take a loss for each record, and give it to ``add``; the sums
    lie in ``sums`` until ``clear``. The first batch is checked against plain autograd: a weight
    that is used where no hook sees it, or a model that mixes records, is refused there.

    Args:
        model: its weights that require a gradient are trained.
        clipping: what one record may add.

    Attributes:
        sums: by weight, the sum over records of clipped gradients, in float32.
        records: how many were added since ``clear``.
        unusable: how many of these had a gradient that is not finite; they counted as zero.

    Raises:
        Unsupported: if the model cannot be trained soundly.
    """

    looks_again = True  # at passes 1, 2, 4, 8 and so on

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        self.clipping = clipping
        self._capture = Capture(model, log.warning)
        self._checked, self._passes = False, 0
        weights = self._capture.weights
        sizes = [p.numel() for p in weights.values()]
        place = next(iter(weights.values())).device
        self.flat = torch.zeros(sum(sizes), dtype=torch.float32, device=place)
        parts = torch.split(self.flat, sizes)
        self.sums: Mapping[str, torch.Tensor] = {
            name: part.view(p.shape) for (name, p), part in zip(weights.items(), parts, strict=True)
        }
        self.records = self.unusable = 0

    @property
    def weights(self) -> Mapping[str, nn.Parameter]:
        """The weights that are trained, by name."""
        return self._capture.weights

    def clear(self) -> None:
        """Begin a new logical batch."""
        self.flat.zero_()
        self.records = self.unusable = 0

    def release(self) -> None:
        """Leave the model as it was before."""
        self._capture.release()

    def add(self, losses: torch.Tensor) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch; returns each record's gradient norm (B,).

        ``losses`` (B,) holds each record's own loss: no mean over the batch.

        Raises:
            Unsupported: if the losses are no vector of one loss a record, or the model does what
                clipping per record cannot be sound for.
        """
        if losses.dim() != 1:
            raise Unsupported(
                f"losses: shape {tuple(losses.shape)}; give each record's own loss, (B,), "
                "reduction='none' and no mean over the batch"
            )
        if not self._capture.model.training:
            raise Unsupported("model: is in evaluation mode; call model.train()")
        # under autocast, products that norms are made of would be rounded to half precision
        with torch.autocast(self.flat.device.type, enabled=False):
            if self._capture.freezes:
                torch.autograd.backward(losses.sum())
                norms = self._sum_up(self._gradients(len(losses)), len(losses))
            else:
                norms = self._add_and_check(losses)
        self._passes += 1
        # a head of zeros hides what is before it, and a model may change: look again now and then
        again = (self._passes + 1).bit_count() == 1 and self.looks_again
        self._capture.freezes = self._checked and not again
        return norms

    def _sum_up(self, gradients: dict[str, WeightGradients], size: int) -> torch.Tensor:
        squares = {name: found.squared_norms() for name, found in gradients.items()}
        norms = torch.stack(list(squares.values())).sum(0).sqrt()
        bad = ~torch.isfinite(norms)
        if unusable := int(bad.sum()):
            log.warning("%d of %d records have a gradient that is not finite: 0", unusable, size)
            self.unusable += unusable
            for name, found in gradients.items():
                found.zero(bad)
                squares[name] = squares[name].masked_fill(bad, 0.0)
        for name, factor in self.clipping.factors(squares).items():
            gradients[name].weighted_sum(factor, self.sums[name])
        self.records += size
        return norms

    def _gradients(self, size: int) -> dict[str, WeightGradients]:
        names = {id(p): name for name, p in self.weights.items()}
        parts: dict[str, list[Part]] = {}
        self._capture.freeze(False)
        for use in self._capture.take():
            if len(use.input) != size or use.slope is None or len(use.slope) != size:
                raise Unsupported(
                    f"{use.name}: sees {len(use.input)} rows where there are {size} losses; "
                    "the batch must be the first dimension everywhere"
                )
            with self._capture.unseen():  # a module that no rule knows is called again
                found = use.parts()
            for own, p in use.module.named_parameters(recurse=False):
                if id(p) in names:
                    if own not in found:
                        raise Unsupported(
                            f"{use.name}: its weight {own} has no rule; torch.nn.utils."
                            "parametrizations are refused as well: train the plain weight"
                        )
                    parts.setdefault(names[id(p)], []).append(found[own])
        return {
            name: WeightGradients(found, self.weights[name].shape) for name, found in parts.items()
        }

    def _add_and_check(self, losses: torch.Tensor) -> torch.Tensor:
        """Compare the sum over records with autograd's own, and look for records that mix."""
        before = {name: p.grad for name, p in self.weights.items()}
        self._capture.refuse_changes()
        draw = torch.Generator().manual_seed(self._passes)
        some = torch.rand(len(losses), generator=draw).argsort().argsort() < len(losses) // 2
        some = some.to(losses.device)
        try:
            for part in (some, ~some) if len(losses) > 1 else ():
                self._refuse_mixing(losses, part)
            self._forget()
            torch.autograd.backward(losses.sum())
            wanted = {name: p.grad for name, p in self.weights.items()}
            slopes = [use.slope for use in self._capture.uses if use.slope is not None]
            exact = all(slope.dtype == torch.float32 for slope in slopes)
        finally:
            for name, p in self.weights.items():
                p.grad = before[name]
        gradients = self._gradients(len(losses))
        ones = torch.ones(len(losses), dtype=torch.float32, device=self.flat.device)
        allowed = TOLERANCE if exact else HALF_TOLERANCE
        for name, truth in wanted.items():
            found = torch.zeros_like(self.sums[name])
            if name in gradients:
                gradients[name].weighted_sum(ones, found)
            refuse_difference(name, found, truth, allowed)
        # a single record shows no mixing: look again at the next batch
        self._checked = self._checked or len(losses) > 1
        return self._sum_up(gradients, len(losses))

    def _forget(self) -> None:
        for p in self.weights.values():
            p.grad = None

    def _refuse_mixing(self, losses: torch.Tensor, some: torch.Tensor) -> None:
        """Of these records' losses (B,), no other record's activation may get a gradient."""
        mixed: list[str] = []

        def look(name: str, slope: torch.Tensor) -> None:
            if len(slope) != len(some):
                return  # no batch first: refused later, by its number of rows
            # 0 times what is not finite is NaN, and no gradient
            if slope[~some].nan_to_num(0.0, 0.0, 0.0).any():
                mixed.append(name)

        self._forget()  # weights' gradients may be the very sums: nothing may be added to them
        # all activations are still there: gradients beside them would be the step's peak of memory
        self._capture.look = look
        try:
            torch.autograd.backward(losses[some].sum(), retain_graph=True)
        finally:
            self._capture.look = None
        if mixed:
            raise Unsupported(
                f"{mixed[-1]}: one record's loss depends on another record; the batch must be "
                "the first dimension, and nothing may mix its records"
            )


def refuse_difference(
    name: str, found: torch.Tensor, truth: torch.Tensor | None, allowed: float
) -> None:
    """Raise ``Unsupported`` unless a weight's sum over records is autograd's own (None: zero)."""
    if truth is None:
        truth = torch.zeros_like(found)
    gap, scale = (found - truth.float()).norm(), truth.float().norm()
    if not torch.isfinite(scale) or gap <= allowed * scale + 1e-6:
        return
    raise Unsupported(
        f"{name}: its gradient is not what its modules' calls add up to (off by "
        f"{float(gap / scale) if scale else float('inf'):.2g} of its norm); it is used outside a "
        "module's call, or a call's input or output is changed in place (nn.ReLU(inplace=True))"
    )
