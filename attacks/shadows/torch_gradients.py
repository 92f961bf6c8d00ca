"""The gradients of many models at once, each record's clipped first where the recipe is private.

A function of this module takes the stacked weights of M models and one minibatch for each, and
returns for every weight the sum over the minibatch of share · clip(gradient of the record's
cross-entropy). Share is 0 for the rows that only fill a minibatch up.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

Tensors = dict[str, torch.Tensor]


class Gradients(Protocol):
    """What both kinds of gradient function look like."""

    def __call__(
        self,
        weights: Tensors,
        fixed: Tensors,
        X: torch.Tensor,
        y: torch.Tensor,
        share: torch.Tensor,
        clip: float | None,
    ) -> Tensors:
        """Gradients (M, ...) like the weights, from X (M, B, ...), y and share (M, B)."""


def gradients_for(module: nn.Module, record: torch.Tensor) -> Gradients:
    """The fastest way that suits this architecture; ``record`` (1, ...) is one of its inputs."""
    if is_linear_stack(module, record):
        return _LinearStack(module)
    return _AnyModule(module)


def is_linear_stack(module: nn.Module, record: torch.Tensor) -> bool:
    """Whether the module is a chain whose only weights are linear layers of flat records."""
    layers = list(module.children())
    if not isinstance(module, nn.Sequential) or len(layers) != len(module):
        return False  # a layer that stands twice shares its weights
    if not all(p.requires_grad for p in module.parameters()):
        return False
    h = record.clone()
    with torch.no_grad():
        for layer in layers:
            untouched = h._version
            if type(layer) is nn.Linear:
                if h.dim() != 2:
                    return False  # one record's gradient is then a sum of outer products
            elif next(layer.parameters(), None) is not None:
                return False
            after = layer(h)
            if h._version != untouched:
                return False  # in place: it overwrites what the gradients are taken from
            h = after
    return True


class _LinearStack:
    """Batched matrix products, with the norm of each record's gradient in closed form.

    A record's gradient in a linear layer is the outer product of the layer's input h and the
    gradient δ of its output, so its squared norm is ‖δ‖² (‖h‖² + 1), bias included (Goodfellow
    2015), and clipping costs next to nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = list(module.named_children())

    def __call__(
        self,
        weights: Tensors,
        fixed: Tensors,
        X: torch.Tensor,
        y: torch.Tensor,
        share: torch.Tensor,
        clip: float | None,
    ) -> Tensors:
        models, size = y.shape
        inputs: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []
        names = []
        h = X.flatten(0, 1)
        for name, layer in self._layers:
            if type(layer) is not nn.Linear:
                h = layer(h)
                continue
            h = h.reshape(models, size, -1)
            weight = weights[f"{name}.weight"].detach().transpose(1, 2)
            bias = weights.get(f"{name}.bias")
            z = h @ weight if bias is None else torch.baddbmm(bias.detach()[:, None], h, weight)
            if not z.requires_grad:
                z.requires_grad_()
            inputs.append(h.detach())
            outputs.append(z)
            names.append(name)
            h = z.flatten(0, 1)
        # without clipping a record's share can go in at the end of the chain, once for all layers
        slope = _slope(h.detach(), y.flatten())
        if clip is None:
            slope *= share.reshape(-1, 1)
        deltas = torch.autograd.grad(h, outputs, slope)
        if clip is not None:
            squares = torch.zeros_like(share)
            for name, h, delta in zip(names, inputs, deltas, strict=True):
                ones = 1.0 if f"{name}.bias" in weights else 0.0
                squares += delta.square().sum(2) * (h.square().sum(2) + ones)
            share = share * _factor(squares, clip)
            deltas = tuple(delta * share[:, :, None] for delta in deltas)
        found = {}
        for name, h, delta in zip(names, inputs, deltas, strict=True):
            found[f"{name}.weight"] = delta.transpose(1, 2) @ h
            if f"{name}.bias" in weights:
                found[f"{name}.bias"] = delta.sum(1)
        return found


class _AnyModule:
    """``torch.func`` over any module; clipping holds every record's gradient in memory."""

    def __init__(self, module: nn.Module) -> None:
        def shared(
            weights: Tensors, fixed: Tensors, X: torch.Tensor, y: torch.Tensor, share: torch.Tensor
        ) -> torch.Tensor:
            logits = functional_call(module, weights | fixed, (X,))
            return (cross_entropy(logits, y, reduction="none") * share).sum()

        def single(
            weights: Tensors, fixed: Tensors, x: torch.Tensor, label: torch.Tensor
        ) -> torch.Tensor:
            return cross_entropy(functional_call(module, weights | fixed, (x[None],)), label[None])

        of_batch = vmap(grad(shared), randomness="different")
        of_record = vmap(grad(single), in_dims=(None, None, 0, 0), randomness="different")
        self._of_batch, self._of_records = of_batch, vmap(of_record, randomness="different")

    def __call__(
        self,
        weights: Tensors,
        fixed: Tensors,
        X: torch.Tensor,
        y: torch.Tensor,
        share: torch.Tensor,
        clip: float | None,
    ) -> Tensors:
        detached = {name: weight.detach() for name, weight in weights.items()}
        if clip is None:
            found: Tensors = self._of_batch(detached, fixed, X, y, share)
            return found
        each = self._of_records(detached, fixed, X, y)
        squares = sum(g.flatten(2).square().sum(2) for g in each.values())
        share = share * _factor(squares, clip)
        return {name: torch.einsum("mb,mb...->m...", share, g) for name, g in each.items()}


def _slope(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The derivative of each row's cross-entropy: its softmax, less one at the true class.

    Written out, since torch's softmax over a handful of columns takes five times as long.
    """
    slope = (logits - logits.amax(1, keepdim=True)).exp_()
    slope /= slope.sum(1, keepdim=True)
    slope[torch.arange(len(y), device=y.device), y] -= 1
    return slope


def _factor(squares: torch.Tensor, clip: float) -> torch.Tensor:
    """What each record's gradient is multiplied by so that its norm is at most ``clip``."""
    return (clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)
