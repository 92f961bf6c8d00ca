"""Watches a model's forward and backward pass and keeps what its weights' gradients are made of.

During the pass weights need no gradients, so backward computes those of activations only; the
weights' own gradients are made afterwards, once it is known how much of each record counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainers.dpsgd.layers import Parts, by_vmap, rule_for


class Unsupported(ValueError):
    """The model does something that clipping per record cannot be sound for."""


@dataclass(eq=False)
class Use:
    """One call of a module that has weights: its input, and its output's gradient once known."""

    name: str
    module: nn.Module
    input: torch.Tensor
    version: int
    slope: torch.Tensor | None = None

    def parts(self) -> Parts:
        """What each of the module's own weights gets from each record."""
        if self.input._version != self.version:
            raise Unsupported(
                f"{self.name}: its input was changed in place afterwards; "
                "write x = x + y for x += y"
            )
        assert self.slope is not None
        rule = rule_for(self.module)
        try:
            if rule is None:
                return by_vmap(self.module, self.input, self.slope)
            return rule(self.module, self.input, self.slope)
        except ValueError as error:
            raise Unsupported(f"{self.name}: {error}") from None


class Capture:
    """Hooks on every module with trainable weights of its own; ``release`` takes them away.

    Args:
        model: in training mode when it is to be watched; evaluation is left alone.
        warn: called once for each kind of module that no rule knows.

    Attributes:
        weights: the trainable weights by name.
        freezes: whether the forward pass takes place with weights that need no gradient.
        uses: what the last forward pass called.
        look: where set, it is shown each call's name and its output's gradient, which is not kept.

    Raises:
        Unsupported: if a module mixes the records of a batch.
    """

    def __init__(self, model: nn.Module, warn: Callable[[str], None]) -> None:
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.weights:
            raise Unsupported("model: has no weight that requires a gradient; nothing to train")
        self.freezes = self._paused = False
        self.rows: int | None = None
        self.uses: list[Use] = []
        self.look: Callable[[str, torch.Tensor], None] | None = None
        self.model, self._hooks = model, []
        self._versions: dict[str, int] = {}
        self._anchor = torch.zeros((), requires_grad=True)
        unknown = set()
        for name, module in model.named_modules():
            _refuse_mixing(name, module)
            if hasattr(module, "_orig_mod"):
                raise Unsupported(
                    f"{name or 'model'}: was compiled, and hooks see nothing of what it calls; "
                    "give the model as it was before torch.compile"
                )
            if not _own(module):
                continue
            if rule_for(module) is None:
                unknown.add(type(module).__name__)
            called = name or type(module).__name__
            self._hooks.append(module.register_forward_pre_hook(self._expand))
            self._hooks.append(module.register_forward_hook(self._keep(called), with_kwargs=True))
        self._hooks.append(
            model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)
        )
        for kind in sorted(unknown):
            warn(
                f"{kind}: no rule of its own; its gradients are computed record by record (slower)"
            )

    def release(self) -> None:
        """Take the hooks away and let weights require gradients again."""
        for hook in self._hooks:
            hook.remove()
        self.freeze(False)

    def freeze(self, frozen: bool) -> None:
        """Whether backward skips the weights' own gradients."""
        for p in self.weights.values():
            p.requires_grad_(not frozen)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Calls of the model's modules in this block are none of the forward pass."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def take(self) -> list[Use]:
        """The uses that backward reached, and a clean slate."""
        uses, self.uses, self.rows = self.uses, [], None
        return [use for use in uses if use.slope is not None]

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._watching():
            return
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim()]
        self.rows = len(tensors[0]) if tensors else None
        self.uses = []
        if not self.freezes:
            self._versions = self._versions_now()
        self.freeze(self.freezes)

    def refuse_changes(self) -> None:
        """Raise ``Unsupported`` if the forward pass has changed a weight or a buffer of numbers."""
        for name, version in self._versions_now().items():
            if self._versions.get(name, version) != version:
                raise Unsupported(
                    f"{name}: is changed by the forward pass, and would carry records out of the "
                    "run without noise; freeze it in its module (momentum=0, max_norm=None)"
                )

    def _versions_now(self) -> dict[str, int]:
        held = (*self.model.named_parameters(), *self.model.named_buffers())
        return {name: x._version for name, x in held if x.is_floating_point()}

    def _watching(self) -> bool:
        return self.model.training and torch.is_grad_enabled() and not self._paused

    def _expand(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Positions are often looked up once for all records: give each record its own."""
        if not isinstance(module, nn.Embedding) or not self._watching() or not args:
            return None
        ids = args[0]
        if self.rows is None or ids.dim() < 2 or len(ids) != 1 or self.rows == 1:
            return None
        return (ids.expand(self.rows, *ids.shape[1:]), *args[1:])

    def _keep(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if not self._watching():
                return None
            given = args[0] if args else next(iter(kwargs.values()), None)
            if not isinstance(given, torch.Tensor) or not isinstance(output, torch.Tensor):
                raise Unsupported(
                    f"{name}: takes or returns something other than one tensor; put its weights "
                    "into modules of one tensor each"
                )
            if len(args) + len(kwargs) > 1 and rule_for(module) is None:
                raise Unsupported(f"{name}: takes more than one argument and no rule knows it")
            result = None
            if not output.requires_grad:  # the first layer: nothing before it needs a gradient
                result = output = _Root.apply(output, self._anchor)  # type: ignore[no-untyped-call]
            use = Use(name, module, given.detach(), given._version)
            self.uses.append(use)

            def slope(gradient: torch.Tensor) -> None:
                if self.look is not None:
                    return self.look(name, gradient)
                use.slope = gradient if use.slope is None else use.slope + gradient

            output.register_hook(slope)
            return result

        return hook


class _Root(torch.autograd.Function):
    """Makes a tensor need a gradient and no leaf: a leaf could not be changed in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        return None, None


def _own(module: nn.Module) -> bool:
    """Whether a module has trainable weights that none of its children has as well."""
    inner = {id(p) for child in module.children() for p in child.parameters()}
    own = module.parameters(recurse=False)
    return any(p.requires_grad and id(p) not in inner for p in own)


def _refuse_mixing(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        raise Unsupported(
            f"{name}: {type(module).__name__} mixes the records of a batch; use nn.GroupNorm"
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        raise Unsupported(f"{name}: keeps running averages over records; track_running_stats=False")
    if isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
        raise Unsupported(
            f"{name}: {type(module).__name__} uses its weights inside one fused call; "
            "opacus.validators.ModuleValidator.fix puts a module of single layers in its place"
        )
