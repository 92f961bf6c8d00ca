"""The trainer on a CUDA device: ``pytest -m gpu tests/gpu -s``; skipped where there is none."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.language import token_losses
from trainers.dpsgd.plan import plan
from trainers.dpsgd.training import PrivateTraining

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PLACES = 128


def gpt2(dtype: torch.dtype = torch.float32, **sizes: int) -> nn.Module:
    """With tied weights and no dropout; 124 million weights unless told."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes)
    return transformers.GPT2LMHeadModel(config).to(dtype).train()


SMALL = {"vocab_size": 211, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": PLACES}


def texts(count: int, words: int) -> torch.Tensor:
    return torch.randint(0, words, (count, PLACES), generator=torch.Generator().manual_seed(1))


def clipped(
    model: nn.Module, ids: torch.Tensor, norm: float = 1.0
) -> tuple[ClippedSum, torch.Tensor]:
    engine = ClippedSum(model, Flat(norm))
    norms = engine.add(token_losses(model(input_ids=ids).logits, ids))
    engine.release()
    return engine, norms


def test_the_clipped_sum_is_the_cpus() -> None:
    ids = texts(6, 211)
    here, norms = clipped(gpt2(**SMALL), ids, 0.5)
    there, far_norms = clipped(gpt2(**SMALL).cuda(), ids.cuda(), 0.5)
    assert torch.allclose(norms, far_norms.cpu(), rtol=1e-4)
    assert (here.flat - there.flat.cpu()).norm() <= 1e-4 * here.flat.norm()


def test_a_whole_run_keeps_to_its_plan() -> None:
    x = torch.randn(400, 10, device="cuda")
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    training = PrivateTraining(model, optimizer, plan(400, 50, epochs=10, epsilon=8.0))
    for batch in training:
        training.step(
            batch, lambda rows: F.cross_entropy(model(x[rows]), y[rows], reduction="none")
        )
    assert training.steps == training.plan.steps
    assert training.epsilon <= 8.0
    assert (model(x).argmax(1) == y).float().mean() > 0.8


def test_half_precision_clips_in_single_precision() -> None:
    """bfloat16 gradients, float32 sums: each record's part has norm C to float32's own rounding."""
    ids = texts(1, 211).cuda()
    engine, norms = clipped(gpt2(torch.bfloat16, **SMALL).cuda(), ids, 1e-3)
    assert engine.flat.dtype == torch.float32
    assert norms > 1e-3
    assert engine.flat.norm() <= 1e-3 * (1 + 1e-4)


def measured(private: bool) -> tuple[float, float]:
    """Seconds of a step of GPT-2 with 124 million weights in bfloat16, and its peak of memory."""
    torch.cuda.empty_cache()
    ids, model = texts(16, 50257).cuda(), gpt2(torch.bfloat16).cuda()
    engine = ClippedSum(model, Flat(1.0)) if private else None

    def step() -> None:
        losses = token_losses(model(input_ids=ids).logits, ids)
        if engine is None:
            model.zero_grad()
            torch.autograd.backward(losses.mean())
        else:
            engine.clear()
            engine.add(losses)

    step()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    took = (time.perf_counter() - start) / 10
    if engine is not None:
        assert engine.flat.isfinite().all()
        assert engine.flat.norm() <= len(ids) * (1 + 1e-3)
    return took, torch.cuda.max_memory_allocated()


def test_gpt2_of_124_million_weights_in_half_precision(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints a private step's time and memory against a plain step's; asserts what must hold."""
    plain, plain_memory = measured(private=False)
    private, memory = measured(private=True)
    with capsys.disabled():
        print(
            f"\nGPT-2 124M, bf16, 16 x {PLACES}: plain {plain * 1e3:.1f} ms, private "
            f"{private / plain:.2f} times that (no noise), memory {memory / plain_memory:.2f} times"
        )
