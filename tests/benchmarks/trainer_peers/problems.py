"""What is trained in the trainer's benchmark: a model, one batch, and a loss for each record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import peft
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from trainers.dpsgd.language import SoftPrompt, token_losses

WORDS, PLACES, TEXTS, IMAGES = 8192, 128, 16, 256
PROMPT = 16  # places; the texts keep theirs
RANK = 8


@dataclass(frozen=True)
class Problem:
    """A model and its batch.

    Attributes:
        title: for people.
        make: the model, the same weights each time.
        inputs: the batch, records first; the last tensor holds the answers.
        losses: from the model and the batch to one loss a record, (B,).
        as_peers_need_it: the same model with what Opacus and fastDP want done by the caller.
        bar: of our step with noise, against the step without privacy; None if none is set.
    """

    title: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    losses: Callable[..., torch.Tensor]
    as_peers_need_it: Callable[[nn.Module], nn.Module]
    bar: float | None = None
    memory_bar: float | None = None


class OwnPositions(nn.Module):
    """A causal model that gives each text position ids of its own; answers with logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1]).repeat(len(ids), 1)
        logits: torch.Tensor = self.model(input_ids=ids, position_ids=places).logits
        return logits


def gpt2(*, tied: bool = True, places: int = PLACES) -> Any:
    """GPT-2's architecture with 4 layers of 256, no dropout, random weights."""
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4, n_positions=places,
            tie_word_embeddings=tied, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def lora() -> Any:
    config = peft.LoraConfig(r=RANK, target_modules=["c_attn", "c_proj", "c_fc"],
                             lora_dropout=0.0, fan_in_fan_out=True)  # fmt: skip
    return peft.get_peft_model(gpt2(), config)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def opacus_cnn() -> nn.Module:
    """The network of Opacus' MNIST example."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def texts() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    return (torch.randint(0, WORDS, (TEXTS, PLACES)),)


def vectors(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    def inputs() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(1)
        return torch.randn(IMAGES, *shape), torch.randint(0, 10, (IMAGES,))

    return inputs


def next_words(model: Any, ids: torch.Tensor) -> torch.Tensor:
    answer = model(ids)
    return token_losses(getattr(answer, "logits", answer), ids)


def classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def as_it_is(model: nn.Module) -> nn.Module:
    return model


PROBLEMS = {
    "gpt2": Problem("GPT-2, tied", gpt2, texts, next_words, OwnPositions, 1.25, 1.1),
    "gpt2-untied": Problem(
        "GPT-2, untied", lambda: gpt2(tied=False), texts, next_words, OwnPositions
    ),
    "lora": Problem("LoRA on GPT-2", lora, texts, next_words, OwnPositions, 1.1),
    "soft-prompt": Problem(
        "soft prompt on GPT-2",
        lambda: SoftPrompt(gpt2(places=PLACES + PROMPT), PROMPT),
        texts,
        next_words,
        as_it_is,
        1.1,
    ),
    "mlp": Problem("MLP 784-512-512-10", mlp, vectors(784), classes, as_it_is, 1.6),
    "cnn-opacus": Problem(
        "CNN of Opacus' example", opacus_cnn, vectors(1, 28, 28), classes, as_it_is, 1.6
    ),
    "cnn": Problem("CNN 32-64, 3x3", cnn, vectors(1, 28, 28), classes, as_it_is, 1.6),
}
