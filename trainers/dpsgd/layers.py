"""What a layer's weights get from each record, kept in the form that costs least.

A matrix's gradient for one record is a sum over places (tokens) of outer products, so its norm
follows from two small Gram matrices and the gradient itself need not exist (Goodfellow 2015; Li et
al. 2022 for sequences; Bu et al. 2023 for the single pass). Small weights are instantiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional as F

CACHE = 2**20  # bytes of windows at a time


@dataclass(frozen=True)
class Outer:
    """A record's gradient of a matrix (p, d), as the sum over T places of left ⊗ right.

    Attributes:
        left: (B, T, p), or (B, T) whole numbers where each left vector is a unit vector.
        right: (B, T, d).
    """

    left: torch.Tensor
    right: torch.Tensor

    @property
    def one_hot(self) -> bool:
        """Whether ``left`` names rows instead of holding vectors."""
        return self.left.dim() == 2


@dataclass(frozen=True)
class Each:
    """Every record's gradient of a weight, instantiated: (B, *shape)."""

    gradients: torch.Tensor


Part = Outer | Each
Parts = dict[str, Part]
Rule = Callable[[Any, torch.Tensor, torch.Tensor], Parts]
"""From a module, its input and its output's gradient, batch first, to each own weight's part."""


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for a module's own weights; None where ``by_vmap`` must serve."""
    for kind, rule in _RULES.items():
        if isinstance(module, kind):
            return rule
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return _transposed_linear
    if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        return _rms_norm
    return None


def by_vmap(module: nn.Module, a: torch.Tensor, g: torch.Tensor) -> Parts:
    """Any module that keeps records apart: its own forward, pulled back record by record."""
    weights = {name: p.detach() for name, p in module.named_parameters(recurse=False)}
    rest = {k: v for k, v in module.named_parameters() if k not in weights}
    fixed = {k: v.detach() for k, v in rest.items()} | dict(module.named_buffers())

    def pull(x: torch.Tensor, slope: torch.Tensor) -> dict[str, torch.Tensor]:
        def forward(own: dict[str, torch.Tensor]) -> torch.Tensor:
            out: torch.Tensor = functional_call(module, own | fixed, (x[None],))
            return out

        back: Any = vjp(forward, weights)[1]
        return dict(back(slope[None])[0])

    each = vmap(pull, randomness="different")(a, g)
    return {name: Each(gradient) for name, gradient in each.items()}


def _places(x: torch.Tensor) -> torch.Tensor:
    """(B, ..., d) as (B, T, d)."""
    return x.reshape(len(x), -1, x.shape[-1])


def _linear(module: nn.Linear, a: torch.Tensor, g: torch.Tensor) -> Parts:
    parts: Parts = {"weight": Outer(_places(g), _places(a))}
    if module.bias is not None:
        parts["bias"] = Each(_places(g).sum(1))
    return parts


def _transposed_linear(module: nn.Module, a: torch.Tensor, g: torch.Tensor) -> Parts:
    return {"weight": Outer(_places(a), _places(g)), "bias": Each(_places(g).sum(1))}


def _embedding(module: nn.Embedding, a: torch.Tensor, g: torch.Tensor) -> Parts:
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        raise ValueError(
            "max_norm, scale_grad_by_freq and sparse mix records or rewrite weights; leave them out"
        )
    ids, g = a.reshape(len(a), -1), _places(g)
    if module.padding_idx is not None:
        g = g * (ids != module.padding_idx)[:, :, None]
    return {"weight": Outer(ids, g)}


def _layer_norm(module: nn.LayerNorm, a: torch.Tensor, g: torch.Tensor) -> Parts:
    rows = (len(a), -1, *module.normalized_shape)
    standard = F.layer_norm(a, module.normalized_shape, eps=module.eps)
    parts: Parts = {"weight": Each((g * standard).reshape(rows).sum(1))}
    if module.bias is not None:
        parts["bias"] = Each(g.reshape(rows).sum(1))
    return parts


def _torch_rms_norm(module: nn.RMSNorm, a: torch.Tensor, g: torch.Tensor) -> Parts:
    standard = F.rms_norm(a, module.normalized_shape, eps=module.eps)
    return {"weight": Each((g * standard).reshape(len(a), -1, *module.normalized_shape).sum(1))}


def _rms_norm(module: Any, a: torch.Tensor, g: torch.Tensor) -> Parts:
    standard = F.rms_norm(a.float(), (a.shape[-1],), eps=module.variance_epsilon)
    return {"weight": Each((g.float() * standard).reshape(len(a), -1, a.shape[-1]).sum(1))}


def _group_norm(module: nn.GroupNorm, a: torch.Tensor, g: torch.Tensor) -> Parts:
    standard = F.group_norm(a, module.num_groups, eps=module.eps)
    return {
        "weight": Each((g * standard).flatten(2).sum(2) if g.dim() > 2 else g * standard),
        "bias": Each(g.flatten(2).sum(2) if g.dim() > 2 else g),
    }


def _convolution(module: Any, a: torch.Tensor, g: torch.Tensor) -> Parts:
    """Instantiated: kernels are small. A few records at a time, so that windows stay in the cache.

    (A convolution with one group for each record takes two to three times as long on a CPU.)
    """
    parts: Parts = {}
    if module.bias is not None:
        parts["bias"] = Each(g.flatten(2).sum(2))
    a = _padded(module, a)
    size, groups = len(a), module.groups
    outs, ins = module.out_channels // groups, module.in_channels // groups
    slopes = g.reshape(size, groups, outs, -1)
    found = a.new_empty(size, groups, outs, ins * math.prod(module.kernel_size))
    window = found[0, 0, 0].numel() * groups * slopes.shape[-1] * a.element_size()
    room = CACHE if a.device.type == "cpu" else 64 * CACHE
    step = max(1, room // window)
    for start in range(0, size, step):
        some = slice(start, start + step)
        windows = _windows(module, a[some])
        windows = windows.reshape(len(windows), groups, -1, slopes.shape[-1])
        torch.matmul(slopes[some], windows.transpose(2, 3), out=found[some])
    parts["weight"] = Each(found.reshape(size, *module.weight.shape))
    return parts


def _windows(module: Any, a: torch.Tensor) -> torch.Tensor:
    """What the kernel sees: (B, C, *kernel, *output), a view of the padded input."""
    d = a.dim() - 2
    for dim, (kernel, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
    ):
        a = a.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return a.permute(0, 1, *range(2 + d, 2 + 2 * d), *range(2, 2 + d))


def _padded(module: Any, a: torch.Tensor) -> torch.Tensor:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        return F.pad(a, module._reversed_padding_repeated_twice, mode=mode)
    both = [n for n in reversed(module.padding) for _ in range(2)]
    return F.pad(a, both) if any(both) else a


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _torch_rms_norm,
    nn.GroupNorm: _group_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
}
