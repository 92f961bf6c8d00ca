"""Opacus' hooks behind the engine's own interface: another implementation of the same sum."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from trainers.dpsgd.capture import Unsupported
from trainers.dpsgd.clipping import Clipping


class OpacusSum:
    """As ``engine.ClippedSum``, with each record's gradients instantiated by Opacus 1.6.

    It takes what Opacus takes: no weights shared between modules, no positions looked up once for
    a batch. What it refuses, it refuses in Opacus' words.

    Raises:
        Unsupported: if Opacus cannot take the model.
    """

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        self.clipping = clipping
        self.weights: Mapping[str, nn.Parameter] = {
            name: p for name, p in model.named_parameters() if p.requires_grad
        }
        try:
            self._wrapped = GradSampleModule(model, loss_reduction="sum", strict=True)
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(f"model: {error}") from None
        sizes = [p.numel() for p in self.weights.values()]
        place = next(iter(self.weights.values())).device
        self.flat = torch.zeros(sum(sizes), dtype=torch.float32, device=place)
        parts = torch.split(self.flat, sizes)
        self.sums: Mapping[str, torch.Tensor] = {
            name: part.view(p.shape)
            for (name, p), part in zip(self.weights.items(), parts, strict=True)
        }
        self.unusable = 0

    def clear(self) -> None:
        """Begin a new logical batch."""
        self.flat.zero_()
        self.unusable = 0

    def release(self) -> None:
        """Leave the model as it was before."""
        self._wrapped.to_standard_module()

    def add(self, losses: torch.Tensor) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch; returns each record's gradient norm (B,).

        Raises:
            Unsupported: if the losses are no vector, or a weight has no gradient for each record.
        """
        if losses.dim() != 1:
            raise Unsupported(f"losses: shape {tuple(losses.shape)}; give each record's own loss")
        with warnings.catch_warnings():
            # Opacus hooks every layer, and the first one's input needs no gradient: nothing is lost
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            torch.autograd.backward(losses.sum())
        each = {}
        for name, p in self.weights.items():
            found = getattr(p, "grad_sample", None)
            p.grad = None
            setattr(p, "grad_sample", None)  # noqa: B010 - no attribute that types know
            if found is None:
                continue
            if isinstance(found, list) or len(found) != len(losses):
                raise Unsupported(f"{name}: Opacus has no gradient of it for each record")
            each[name] = found.flatten(1).float()
        squares = {name: rows.square().sum(1) for name, rows in each.items()}
        norms = torch.stack(list(squares.values())).sum(0).sqrt()
        bad = ~torch.isfinite(norms)
        if bad.any():
            self.unusable += int(bad.sum())
            each = {name: rows.masked_fill(bad[:, None], 0.0) for name, rows in each.items()}
            squares = {name: square.masked_fill(bad, 0.0) for name, square in squares.items()}
        for name, factor in self.clipping.factors(squares).items():
            self.sums[name] += (factor @ each[name]).view(self.sums[name].shape)
        return norms
