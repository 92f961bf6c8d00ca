"""How specific generated records are: the chance to be the only one with its quasi-identifiers.

Everything here is computed from generated records and the public domain. No count, bound or level
is read from real ones, so that the penalty costs no privacy; the rarity of a combination is what
the generator itself gives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trainers.tabular.columns import CategoryColumn, DateColumn, IntegerColumn
from trainers.tabular.domain import Domain

SOFTNESS = 0.25  # of a bin's edge, in widths of the narrowest bin


class UniquenessRisk:
    """Scores features by the chance that nobody else shares their quasi-identifiers.

    Two records share them if they have the same level, or lie in the same bin of the domain, in
    every such column; missing is a level. With a share p of a crowd of generated records in a
    record's cell, it is the only one among ``released`` with probability (1 - p)^(released - 1),
    whose mean is the expected share of unique records (their number in a multinomial sample: e.g.
    Skinner and Elliot 2002). Gradients pass through soft bins and levels; the values are the hard
    ones.

    Args:
        domain: the public domain.
        quasi_identifiers: the columns that a stranger may know of a person.
        released: how many records are generated for release.

    Raises:
        ValueError: if a column is not in the domain, or named twice.
    """

    def __init__(self, domain: Domain, quasi_identifiers: Sequence[str], released: int) -> None:
        check(domain, quasi_identifiers)
        self.released = released
        self._cells = [_Cells(domain, name) for name in quasi_identifiers]

    def __call__(self, features: torch.Tensor, crowd: torch.Tensor) -> torch.Tensor:
        """The score (n,) of each record, in [0, 1].

        A share of the crowd cannot be told from 0 below one over its size, so a crowd that is
        smaller than ``released`` is taken for the whole release: the score is then too high.

        Args:
            features: (n, width), with gradient.
            crowd: (m, width), other records of the same generator.
        """
        shared = torch.ones(len(features), len(crowd))
        for cells in self._cells:
            shared = shared * (cells(features) @ cells(crowd).T)
        others = min(self.released - 1, len(crowd))
        return (1 - shared.mean(1).clamp(0, 1)) ** others


def check(domain: Domain, quasi_identifiers: Sequence[str]) -> None:
    """Refuse columns that cannot be quasi-identifiers.

    Raises:
        ValueError: if a column is not in the domain, or named twice.
    """
    for k, name in enumerate(quasi_identifiers):
        if name not in domain.columns:
            raise ValueError(f"quasi_identifiers: {name!r} is no column of the domain")
        if name in quasi_identifiers[:k]:
            raise ValueError(f"quasi_identifiers: {name!r} is named twice; keep one")


class _Cells:
    """One column's levels or bins as memberships (n, cells): ones and zeros, soft backwards."""

    def __init__(self, domain: Domain, name: str) -> None:
        column = domain.columns[name]
        own = [span for span in domain.spans if span.column == name]
        self._place = slice(own[0].start, own[0].stop)
        self._missing = own[1].start if len(own) > 1 else None
        self._edges: torch.Tensor | None = None
        if not isinstance(column, CategoryColumn):
            low, high = column.span
            # whole numbers are rounded: from a half below an edge on they count as the edge
            half = 0.5 if isinstance(column, IntegerColumn | DateColumn) else 0.0
            inner = (column.edges[1:-1] - half - low) / ((high - low) or 1.0)
            edges = torch.tensor(2 * inner - 1, dtype=torch.float32)
            widths = np.diff(column.edges) * 2 / ((high - low) or 1.0)
            self._edges, self._softness = edges, SOFTNESS * float(widths.min())

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        own = features[:, self._place]
        if self._edges is None:
            return own
        soft = _between(torch.sigmoid((own - self._edges) / self._softness))
        hard = _between((own.detach() >= self._edges).float())
        cells = hard - soft.detach() + soft
        if self._missing is None:
            return cells
        gone = features[:, self._missing : self._missing + 1]
        return torch.cat([cells * (1 - gone), gone], 1)


def _between(above: torch.Tensor) -> torch.Tensor:
    """From how far each inner edge is passed (n, edges), the share of each bin (n, edges + 1)."""
    ends = above.new_ones(len(above), 1)
    return torch.cat([ends, above], 1) - torch.cat([above, 0 * ends], 1)
