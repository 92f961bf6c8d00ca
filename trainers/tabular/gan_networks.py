"""The generator's and the critic's networks; both know the domain's layout and nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import nn

from trainers.tabular.domain import Span

TEMPERATURE = 0.5  # of the Gumbel softmax, whose gradient stands in for a drawn level's
SCALE = 0.25  # of products: single columns are learnt first, or a few kinds of records win


class Generator(nn.Module):
    """Draws records as ``Domain.features`` codes them, from latent Gaussians.

    Levels and missing indicators come out as zeros and ones, and what would be a gradient of the
    draw is that of a Gumbel softmax (Jang et al. 2017, straight-through), so that the critic
    cannot tell records by values between levels. A missing number is 0, as in the coding.

    Args:
        spans: the layout of the features.
        latent: how many Gaussians a record is drawn from.
        hidden: widths of the hidden layers.
    """

    def __init__(self, spans: Sequence[Span], latent: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.latent = latent
        self._spans = tuple(spans)
        width, layers = latent, []
        for units in hidden:
            layers += [nn.Linear(width, units), nn.LayerNorm(units), nn.ReLU()]
            width = units
        self.body = nn.Sequential(*layers, nn.Linear(width, self._spans[-1].stop))

    def forward(self, records: int, draw: torch.Generator) -> torch.Tensor:
        """Features (records, width)."""
        out = self.body(torch.randn(records, self.latent, generator=draw))
        uniform = torch.rand(out.shape, generator=draw).clamp(1e-6, 1 - 1e-6)
        parts: list[torch.Tensor] = []
        for span in self._spans:
            own, chance = out[:, span.start : span.stop], uniform[:, span.start : span.stop]
            if span.role == "number":
                parts.append(torch.tanh(own))
            elif span.role == "levels":
                soft = torch.softmax((own - torch.log(-torch.log(chance))) / TEMPERATURE, 1)
                hard = torch.zeros_like(soft).scatter_(1, soft.argmax(1, keepdim=True), 1.0)
                parts.append(hard - soft.detach() + soft)
            else:  # a missing indicator stands right behind its number
                soft = torch.sigmoid((own + torch.logit(chance)) / TEMPERATURE)
                gone = (soft > 0.5).float() - soft.detach() + soft
                parts[-1] = parts[-1] * (1 - gone)
                parts.append(gone)
        return torch.cat(parts, 1)


class Critic(nn.Module):
    """Scores features (..., width): higher is more like a real record; (...,).

    Each number x is seen as cos(kπ(x + 1)/2), k = 1 to ``cosines``, besides x itself: records may
    fill a small part of their public bounds, where x alone would hardly move a clipped gradient.
    What two columns have to do with one another is seen by hidden layers, and by a linear layer on
    products of what is seen of either, picked at random once and for all: few weights, on which
    the noise weighs less. No layer mixes records, and no weight is beyond ±``bound`` after
    ``project`` (Arjovsky et al. 2017): a constraint on weights that were released already.

    Args:
        spans: the layout of the features.
        hidden: widths of the hidden layers.
        cosines: how many for each number.
        products: how many for each column.
        bound: of the weights.
    """

    numbers: torch.Tensor
    waves: torch.Tensor
    pairs: torch.Tensor

    def __init__(
        self,
        spans: Sequence[Span],
        hidden: Sequence[int],
        cosines: int,
        products: int,
        bound: float,
    ) -> None:
        super().__init__()
        self.bound = bound
        numbers = [span.start for span in spans if span.role == "number"]
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.long), persistent=False)
        waves = torch.arange(1, cosines + 1) * (math.pi / 2)
        self.register_buffer("waves", waves, persistent=False)
        pairs = _pairs(spans, cosines, products)
        self.register_buffer("pairs", pairs, persistent=False)
        self.joint = nn.Linear(len(pairs), 1) if len(pairs) else None
        width, layers = spans[-1].stop + len(numbers) * cosines, []
        for units in hidden:
            layers += [nn.Linear(width, units), nn.LeakyReLU(0.2)]
            width = units
        self.body = nn.Sequential(*layers, nn.Linear(width, 1))
        self.project()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """One score for each record."""
        x = features[..., self.numbers, None]
        seen = torch.cat([features, torch.cos((x + 1) * self.waves).flatten(-2)], -1)
        score: torch.Tensor = self.body(seen)
        if self.joint is not None:
            score = score + self.joint(SCALE * seen[..., self.pairs].prod(-1))
        return score.squeeze(-1)

    @torch.no_grad()
    def project(self) -> None:
        """Bring every weight back into its bound."""
        for weight in self.parameters():
            weight.clamp_(-self.bound, self.bound)


def _pairs(spans: Sequence[Span], cosines: int, products: int) -> torch.Tensor:
    """Places (pairs, 2), of two columns each, in features followed by cosines."""
    places: dict[str, list[int]] = {}
    end = spans[-1].stop
    for span in spans:
        own = places.setdefault(span.column, [])
        own += range(span.start, span.stop)
        if span.role == "number":
            own += range(end, end + cosines)
            end += cosines
    draw = random.Random(0)
    columns = list(places) if len(places) > 1 else []
    picked = [draw.sample(columns, 2) for _ in range(products * len(columns))]
    pairs = [[draw.choice(places[a]), draw.choice(places[b])] for a, b in picked]
    return torch.tensor(pairs, dtype=torch.long).view(-1, 2)
