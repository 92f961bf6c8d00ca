"""A tree of columns, each drawn given another one and the label: what is stored, and sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from trainers.tabular.domain import Domain
from trainers.tabular.groups import Groups

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Node:
    """One column's law, in groups.

    Attributes:
        column: its number.
        parent: the number of the column that it depends on, besides the label; None if on none.
        table: (labels, parent's groups, own groups), summing to 1; one label where there is none.
    """

    column: int
    parent: int | None
    table: Floats


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes with parents before children; the label's node, if there is one, is the first."""

    nodes: tuple[Node, ...]
    groups: tuple[Groups, ...]
    label: int | None = None

    def sample(self, domain: Domain, records: int, rng: np.random.Generator) -> pd.DataFrame:
        """That many records, drawn independently."""
        drawn = np.zeros((records, len(self.groups)), dtype=np.int64)
        codes = np.empty_like(drawn)
        for node in self.nodes:
            row = np.zeros(records, dtype=np.int64)
            if self.label is not None and node.column != self.label:
                row = drawn[:, self.label] * node.table.shape[1]
            if node.parent is not None:
                row = row + drawn[:, node.parent]
            own = _drawn(node.table, row, rng.random(records))
            drawn[:, node.column] = own
            codes[:, node.column] = self.groups[node.column].codes(own, rng.random(records))
        return domain.decode(codes, rng)

    def stored(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The network as JSON settings and arrays."""
        arrays: dict[str, NDArray[Any]] = {}
        for node in self.nodes:
            arrays[f"{node.column}.table"] = node.table
            arrays[f"{node.column}.of_code"] = self.groups[node.column].of_code
            arrays[f"{node.column}.within"] = self.groups[node.column].within
        order = [{"column": node.column, "parent": node.parent} for node in self.nodes]
        return {"order": order, "label": self.label}, arrays


def restored(settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Network:
    """The network that ``stored`` wrote."""
    order = settings["order"]
    nodes = [Node(o["column"], o["parent"], arrays[f"{o['column']}.table"]) for o in order]
    groups = [Groups(arrays[f"{k}.of_code"], arrays[f"{k}.within"]) for k in range(len(order))]
    return Network(tuple(nodes), tuple(groups), settings["label"])


def forest(scores: Floats) -> list[tuple[int, int | None]]:
    """Every column with its parent, parents first, along the forest with the largest scores.

    ``scores`` (d, d) is symmetric; only pairs above 0 are joined.
    """
    upper = csr_array(np.triu(np.where(scores > 0, -scores, 0.0), 1))
    tree = minimum_spanning_tree(upper)
    order: list[tuple[int, int | None]] = []
    seen: set[int] = set()
    for root in range(len(scores)):
        if root not in seen:
            found, before = breadth_first_order(tree, root, directed=False)
            order += [(int(k), None if k == root else int(before[k])) for k in found]
            seen.update(int(k) for k in found)
    return order


def _drawn(table: Floats, row: NDArray[np.int64], uniform: Floats) -> NDArray[np.int64]:
    """A group for each record, from the conditional law in its row of the table."""
    rows = table.reshape(-1, table.shape[-1])
    sums = rows.sum(axis=1, keepdims=True)
    even = np.broadcast_to(rows.sum(axis=0) / max(rows.sum(), 1e-300), rows.shape)
    law = np.where(sums > 0, rows / np.where(sums > 0, sums, 1), even)
    ends = np.cumsum(law, axis=1)
    ends[:, -1] = 1.0
    ends = (ends + np.arange(len(ends))[:, None]).ravel()
    at = np.searchsorted(ends, row + uniform, side="right") - row * table.shape[-1]
    groups: NDArray[np.int64] = np.clip(at, 0, table.shape[-1] - 1)
    return groups
