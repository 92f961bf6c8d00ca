"""One training step of each trainer: ``MAKERS[name](problem)`` gives a function ``step(noise)``.

Everybody clips to norm 1 (fastDP: its automatic clipping), adds noise of multiplier 1, divides by
the batch size and lets the same fused AdamW step.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample.utils import wrap_model
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from problems import Problem
from torch import nn

from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.noise import Noise, secure_noise, seeded_noise

Step = Callable[[bool], None]


def plain(problem: Problem) -> Step:
    """Without privacy: the mean loss of the batch."""
    model, inputs = problem.make().train(), problem.inputs()
    optimizer = adam(model)

    def step(noise: bool) -> None:
        optimizer.zero_grad()
        problem.losses(model, *inputs).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def ours(problem: Problem, noise: Noise | None = None) -> Step:
    model, inputs = problem.make().train(), problem.inputs()
    optimizer = adam(model)
    engine = ClippedSum(model, Flat(1.0))
    source = noise or secure_noise()
    for name, p in engine.weights.items():
        p.grad = engine.sums[name]

    def step(noise: bool) -> None:
        engine.clear()
        engine.add(problem.losses(model, *inputs))
        if noise:
            source.add(engine.flat, 1.0)
        engine.flat.div_(len(inputs[0]))
        optimizer.step()

    return step


def ours_seeded(problem: Problem) -> Step:
    return ours(problem, seeded_noise(0))


def opacus(mode: str) -> Callable[[Problem], Step]:
    """Opacus' modules and optimizer, as its ``make_private`` would put them together."""

    def make(problem: Problem) -> Step:
        inner, inputs = problem.as_peers_need_it(problem.make().train()), problem.inputs()
        warnings.simplefilter("ignore")
        size = len(inputs[0])
        ghost = mode == "ghost"
        more = {"max_grad_norm": 1.0, "use_ghost_clipping": True} if ghost else {}
        model: Any = wrap_model(inner, mode, loss_reduction="mean", strict=False, **more)
        kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
        optimizer: Any = kind(
            adam(inner), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=size
        )

        def step(noise: bool) -> None:
            optimizer.noise_multiplier = float(noise)
            optimizer.zero_grad()
            losses = problem.losses(model, *inputs)
            if ghost:
                DPTensorFastGradientClipping(model, optimizer, losses, "mean").backward()
            else:
                losses.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    return make


def fastdp(problem: Problem) -> Step:
    """fastDP's book-keeping with its "origin" trick: only the first layer's weights need gradients.

    Automatic clipping is its default, and its layers' cheaper form of norms.
    """
    import fastDP

    model, inputs = problem.as_peers_need_it(problem.make().train()), problem.inputs()
    size = len(inputs[0])
    optimizer: Any = adam(model)
    weights = [name for name, p in model.named_parameters() if p.requires_grad]
    embeddings = [name for name in weights if name.endswith(("wte.weight", "wpe.weight"))]
    with contextlib.redirect_stdout(io.StringIO()):  # it tells its settings
        engine = fastDP.PrivacyEngine(
            model, batch_size=size, sample_size=100 * size, num_steps=1000, noise_multiplier=1.0,
            max_grad_norm=1.0, clipping_mode="MixOpt", origin_params=embeddings or weights[:1],
        )  # fmt: skip
        engine.attach(optimizer)

    def step(noise: bool) -> None:
        for p in model.parameters():
            p.noise = float(noise)  # type: ignore[attr-defined]
        optimizer.zero_grad()
        problem.losses(model, *inputs).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        left = [name for name, p in engine.named_params if p.grad is None]
        if left or len(engine.named_params) < len(weights):
            raise RuntimeError("trains only a part of the weights")

    return step


def adam(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(weights, 1e-4, fused=True)


MAKERS: dict[str, Callable[[Problem], Step]] = {
    "plain": plain,
    "ours": ours,
    "ours, seeded": ours_seeded,
    "Opacus hooks": opacus("hooks"),
    "Opacus ghost": opacus("ghost"),
    "Opacus functorch": opacus("functorch"),
    "fastDP": fastdp,
}
