"""What language models need to be trained record by record: a loss for each text, a soft prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

IGNORED = -100


def token_losses(logits: torch.Tensor, labels: torch.Tensor, *, shift: bool = True) -> torch.Tensor:
    """Each text's loss (B,): the mean cross-entropy over its own tokens.

    The mean is taken within a text, so that a long one does not outweigh a short one and no text's
    loss depends on what else is in the batch. A text without a token to predict has loss 0.

    Args:
        logits: (B, T, V).
        labels: (B, T); -100 where nothing is to be predicted (padding).
        shift: whether place t predicts the token at t + 1, as in causal models.
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = F.cross_entropy(
        logits.flatten(0, 1), labels.reshape(-1), ignore_index=IGNORED, reduction="none"
    )
    real = labels != IGNORED
    return each.view(labels.shape).sum(1) / real.sum(1).clamp(min=1)


class SoftPrompt(nn.Module):
    """A frozen transformers model behind a trained prompt of ``length`` vectors.

    The prompt is looked up once for each record, so that each has a gradient of its own. (Where one
    prompt is looked up once and repeated, clipping sees the sum over the batch, not the records.)
    Logits of the prompt's own places are left out of the answer.

    Raises:
        ValueError: if the length is less than one.
    """

    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"length: must be at least 1, got {length}")
        self.model = model.requires_grad_(False)
        words = model.get_input_embeddings().weight
        self.prompt = nn.Embedding(length, words.shape[1], dtype=words.dtype, device=words.device)
        self.length = length

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        """The model's answer, with logits (B, T, V) for the given ids (B, T)."""
        size = len(input_ids)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        places = torch.arange(self.length, device=input_ids.device).expand(size, -1)
        words = self.model.get_input_embeddings()(input_ids)
        answer = self.model(
            inputs_embeds=torch.cat([self.prompt(places), words], 1),
            attention_mask=torch.cat([torch.ones_like(places), attention_mask], 1),
        )
        answer.logits = answer.logits[:, self.length :]
        return answer
