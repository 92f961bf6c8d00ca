"""How much of each record's gradient counts, by its norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

SLACK = 1e-6  # of the norm, relative: float32 rounds, and no record may count for more than C


@dataclass(frozen=True)
class Flat:
    """Each record's whole gradient to L2 norm C: times min(1, C / norm) (Abadi et al. 2016).

    Raises:
        ValueError: if C is not positive and finite.
    """

    clipping_norm: float

    def __post_init__(self) -> None:
        _positive(clipping_norm=self.clipping_norm)

    @property
    def sensitivity(self) -> float:
        """How far one record can move the sum, in L2 norm."""
        return self.clipping_norm

    def factors(self, squares: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """For each weight, each record's factor (B,), from its squared norms by weight (B,)."""
        factor = _at_most(_norm(squares.values()), self.clipping_norm)
        return dict.fromkeys(squares, factor)


@dataclass(frozen=True)
class Automatic:
    """Each record's gradient to almost exactly norm C: times C / (norm + γ) (Bu et al. 2022).

    Raises:
        ValueError: if C or γ is not positive and finite.
    """

    clipping_norm: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _positive(clipping_norm=self.clipping_norm, gamma=self.gamma)

    @property
    def sensitivity(self) -> float:
        """How far one record can move the sum, in L2 norm."""
        return self.clipping_norm

    def factors(self, squares: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """For each weight, each record's factor (B,), from its squared norms by weight (B,)."""
        norm = _norm(squares.values()) * (1 + SLACK)
        return dict.fromkeys(squares, self.clipping_norm / (norm + self.gamma))


@dataclass(frozen=True)
class Groups:
    """Each group of weights to a norm of its own.

    Attributes:
        clipping_norms: C of each group. One record moves the sum by √(ΣC²) at most.
        group_of: the group of each weight by name.

    Raises:
        ValueError: if a weight's group has no norm, or a norm is not positive and finite.
    """

    clipping_norms: Mapping[str, float]
    group_of: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        _positive(**{f"clipping_norms[{k}]": v for k, v in self.clipping_norms.items()})
        if strange := sorted(set(self.group_of.values()) - set(self.clipping_norms)):
            raise ValueError(f"clipping_norms: none for the group {strange[0]!r}")

    @property
    def sensitivity(self) -> float:
        """How far one record can move the sum, in L2 norm."""
        return math.hypot(*self.clipping_norms.values())

    def factors(self, squares: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """For each weight, each record's factor (B,), from its squared norms by weight (B,)."""
        factors: dict[str, torch.Tensor] = {}
        if strange := [name for name in squares if name not in self.group_of]:
            raise ValueError(f"group_of: has no group for the weight {strange[0]!r}")
        for group, clipping_norm in self.clipping_norms.items():
            names = [name for name in squares if self.group_of[name] == group]
            if names:
                factor = _at_most(_norm(squares[name] for name in names), clipping_norm)
                factors |= dict.fromkeys(names, factor)
        return factors


Clipping = Flat | Automatic | Groups


def per_layer(weights: Mapping[str, torch.Tensor], clipping_norm: float) -> Groups:
    """A group for each module's own weights; all of them together move the sum by ``C``."""
    group_of = {name: name.rpartition(".")[0] for name in weights}
    names = sorted(set(group_of.values()))
    return Groups(dict.fromkeys(names, clipping_norm / math.sqrt(len(names))), group_of)


def _norm(squares: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(squares)).sum(0).sqrt()


def _at_most(norm: torch.Tensor, clipping_norm: float) -> torch.Tensor:
    return (clipping_norm / (norm * (1 + SLACK)).clamp(min=1e-30)).clamp(max=1.0)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: must be positive and finite, got {value}")
