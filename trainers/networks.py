"""The classifiers that `dpassay train` can build: small networks of tables and images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn


class Rescale(nn.Module):
    """Maps features from [low, high] to [-1, 1]; the bounds are no weights and are not trained."""

    middle: torch.Tensor
    reach: torch.Tensor

    def __init__(self, low: float | Sequence[float], high: float | Sequence[float]) -> None:
        super().__init__()
        low_, high_ = torch.tensor(low, dtype=torch.float), torch.tensor(high, dtype=torch.float)
        if not torch.all(high_ > low_):
            raise ValueError("low, high: every upper bound must lie above its lower bound")
        self.register_buffer("middle", (high_ + low_) / 2, persistent=False)
        self.register_buffer("reach", (high_ - low_) / 2, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled features, of the same shape."""
        scaled: torch.Tensor = (x - self.middle) / self.reach
        return scaled


def build(
    architecture: str,
    inputs: int | Sequence[int],
    classes: int,
    hidden: Sequence[int],
    low: float | Sequence[float] = -1.0,
    high: float | Sequence[float] = 1.0,
) -> nn.Module:
    """A fresh classifier: raw features in, logits out.

    Args:
        architecture: ``mlp`` or ``cnn``.
        inputs: how many features, or (channels, height, width) for a ``cnn``.
        classes: how many logits.
        hidden: widths of the hidden layers, or channels of the convolutions.
        low, high: bounds of the features, scaled to [-1, 1].

    Raises:
        ValueError: if the architecture is unknown, or inputs or bounds do not suit it.
    """
    for bounds in (low, high):
        if isinstance(bounds, Sequence) and len(bounds) != inputs:
            raise ValueError(f"low, high: {len(bounds)} bounds for {inputs} features; one fits all")
    layers: list[nn.Module] = [Rescale(low, high)]
    if architecture == "mlp":
        width = inputs if isinstance(inputs, int) else int(np.prod(inputs))
        layers.append(nn.Flatten())
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
    elif architecture == "cnn":
        if isinstance(inputs, int) or len(inputs) != 3:
            raise ValueError(f"inputs: a cnn needs (channels, height, width), got {inputs}")
        channels, height, width_ = inputs
        for filters in hidden:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels, height, width_ = filters, height // 2, width_ // 2
        if height * width_ == 0:
            raise ValueError(f"hidden: too many convolutions for inputs of {tuple(inputs)}")
        layers.append(nn.Flatten())
        width = channels * height * width_
    else:
        raise ValueError(f"architecture: {architecture!r} is none of mlp, cnn")
    return nn.Sequential(*layers, nn.Linear(width, classes))
