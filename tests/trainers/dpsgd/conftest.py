"""The slow truth for all tests here: each record's gradient by torch.func, clipped, added up."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.engine import ClippedSum


def clipped_sum(model, losses, inputs, clipping_norm, by="vmap"):
    """By name, Σ min(1, C / ‖g‖) g over records, and ‖g‖ (B,); ``losses(model, *rows)`` is (B,).

    ``by`` vmap, or in turns: autograd once a record, for models that vmap cannot trace.
    """
    weights = {k: p for k, p in model.named_parameters() if p.requires_grad}
    if by == "vmap":
        detached = {k: p.detach() for k, p in weights.items()}

        def one(weights, *rows):
            def call(*args):
                return functional_call(model, weights, args)

            return losses(call, *(row[None] for row in rows))[0]

        each = vmap(grad(one), in_dims=(None, *(0 for _ in inputs)))(detached, *inputs)
    else:
        rows = []
        for k in range(len(inputs[0])):
            loss = losses(model, *(x[k : k + 1] for x in inputs))[0]
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            rows.append([torch.zeros_like(p) if g is None else g
                         for g, p in zip(found, weights.values(), strict=True)])  # fmt: skip
        each = {k: torch.stack(g) for k, g in zip(weights, zip(*rows, strict=True), strict=True)}
    norms = sum(g.flatten(1).square().sum(1) for g in each.values()).sqrt()
    factors = (clipping_norm / norms).clamp(max=1.0)
    return {k: torch.einsum("b,b...->...", factors, g) for k, g in each.items()}, norms


def assert_equal(model, losses, inputs, by="vmap", tolerance=1e-5, plain=None):
    """The engine's sums and norms are the reference's, in the checked first batch and after it.

    ``plain`` is a model of the same weights that the reference is taken of instead.
    """
    plain = plain or model
    model.train()
    _, norms = clipped_sum(plain, losses, inputs, 1.0, by)
    clipping_norm = float(norms.median()) * 1.01  # some records are clipped, some are not
    wanted, norms = clipped_sum(plain, losses, inputs, clipping_norm, by)
    engine = ClippedSum(model, Flat(clipping_norm))
    for _ in range(3):
        engine.clear()
        found = engine.add(losses(model, *inputs))
        assert torch.allclose(found, norms, rtol=tolerance, atol=1e-7)
        scale = torch.stack([w.norm() for w in wanted.values()]).norm()
        for name, truth in wanted.items():
            gap = (engine.sums[name] - truth).norm()
            assert gap <= tolerance * max(truth.norm(), 0.01 * scale), name
    engine.release()


@pytest.fixture(scope="session")
def same_as_reference():
    """``assert_equal``: tests here cannot import from one another."""
    return assert_equal
