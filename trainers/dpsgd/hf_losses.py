"""The loss of each record that goes with a transformers model's head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.auto import modeling_auto as auto

from trainers.dpsgd.language import token_losses


def _class_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels.dim() != 1 or labels.is_floating_point() or logits.shape[-1] < 2:
        raise ValueError("labels: one class a record is known here; override record_losses")
    return F.cross_entropy(logits, labels, reduction="none")


def _aligned_token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return token_losses(logits, labels, shift=False)


def loss_of(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss per record that goes with the model's head, by its class' name or a parent's."""
    base = getattr(model, "get_base_model", lambda: model)()  # what peft has wrapped
    names = {kind.__name__ for kind in type(base).__mro__}
    for known, loss in (
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, token_losses),
        (auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, _class_losses),
        (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, _aligned_token_losses),
        (auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, _aligned_token_losses),
    ):
        if names & set(known.values()):
            return loss
    raise ValueError(f"{type(base).__name__}: no loss per record is known; override record_losses")
