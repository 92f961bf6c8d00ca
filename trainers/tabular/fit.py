"""Learns a tree of columns from noisy marginals: select, measure, generate.

After MST (McKenna, Miklau and Sheldon 2021, "Winning the NIST contest"): noisy one-way marginals,
then a spanning tree of pairs that the one-way marginals explain worst, then those pairs. Three
things differ. Pairs are chosen by noisy scores, all in one Gaussian release, and not by the
exponential mechanism: so that the account is one of Gaussians alone, which is exact. A pair is
joined only if its score exceeds what noise would cost (the penalty of AIM, McKenna et al. 2022,
section 4.1). And where a label is named, every column is also measured with it, and pairs are
joined given the label.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trainers.tabular.domain import Domain
from trainers.tabular.groups import MOST, Groups, grouped
from trainers.tabular.measure import Floats, Measurements, counts
from trainers.tabular.network import Network, Node, forest
from trainers.tabular.project import nonnegative, raked, shrunk

LEAST = 3.0  # standard deviations that a group of codes must hold
# shares of μ²: one-way marginals, pairs with the label, scores, joined pairs
WITHOUT_LABEL = (1 / 3, 0.0, 1 / 3, 1 / 3)
WITH_LABEL = (0.4, 0.4, 0.1, 0.1)


def fit(
    domain: Domain,
    codes: NDArray[np.integer],
    measurements: Measurements,
    mu: float,
    label: int | None = None,
) -> Network:
    """A network learnt with μ; it depends on the records through the measurements alone.

    Args:
        codes: (n, columns), as ``Domain.encode`` gives them.
        label: the number of the column that all others are measured with.

    Raises:
        ValueError: if the label has more than 100 codes.
    """
    sizes = domain.sizes
    if label is not None and sizes[label] > MOST:
        raise ValueError(f"label: has {sizes[label]} values, and {MOST} are the most; name none")
    shares = WITHOUT_LABEL if label is None else WITH_LABEL
    own, with_label, scoring, joining = (mu * math.sqrt(share) for share in shares)
    noisy, deviation = measurements.tables(
        [counts(codes[:, [k]], (size,)) for k, size in enumerate(sizes)], own, "one-way marginals"
    )
    total = _total(noisy)
    groups = [
        _each(heights.size) if k == label else grouped(column, heights, total, LEAST * deviation)
        for k, (column, heights) in enumerate(zip(domain.columns.values(), noisy, strict=True))
    ]
    margins = [
        nonnegative(g.summed(heights), total) for g, heights in zip(groups, noisy, strict=True)
    ]
    table = np.column_stack([g.of_code[codes[:, k]] for k, g in enumerate(groups)])
    others = [k for k in range(len(sizes)) if k != label]
    # no label is a label with one value
    labels, joint = np.array([total]), dict[int, Floats]((k, margins[k][None]) for k in others)
    classes = np.zeros(len(codes), dtype=np.int64)
    nodes: list[Node] = []
    if label is not None:
        classes = table[:, label]
        labels, joint = _given_label(table, margins, label, deviation, measurements, with_label)
        nodes.append(Node(label, None, labels[None, None]))
    table = np.column_stack([classes, table[:, others]])
    laws = [joint[k] for k in others]
    for place, parent, law in _joined(table, labels, laws, measurements, scoring, joining):
        nodes.append(Node(others[place], None if parent is None else others[parent], law))
    return Network(tuple(nodes), tuple(groups), label)


def _given_label(
    table: NDArray[np.int64],
    margins: list[Floats],
    label: int,
    deviation: float,
    measurements: Measurements,
    mu: float,
) -> tuple[Floats, dict[int, Floats]]:
    """The label's counts (l,), and each other column's counts by label (l, c), all consistent."""
    total = margins[label].sum()
    others = [k for k in range(len(margins)) if k != label]
    if not others:
        return margins[label], {}
    exact = [counts(table[:, [label, k]], (len(margins[label]), len(margins[k]))) for k in others]
    noisy, own = measurements.tables(exact, mu, "pairs with the label")
    # every one of them tells the label's counts as well: the mean with weights of 1 / variance
    weights = np.array([1 / deviation**2] + [1 / (own**2 * t.shape[1]) for t in noisy])
    told = np.array([margins[label]] + [t.sum(axis=1) for t in noisy])
    labels = nonnegative(weights @ told / weights.sum(), total)
    joint = {}
    for k, found in zip(others, noisy, strict=True):
        independent = np.outer(labels, margins[k]) / total
        cells = nonnegative(shrunk(found, independent, own), total)
        joint[k] = raked(cells[None], labels[None], margins[k][None])[0]
    return labels, joint


def _joined(
    table: NDArray[np.int64],
    labels: Floats,
    laws: list[Floats],
    measurements: Measurements,
    scoring: float,
    joining: float,
) -> list[tuple[int, int | None, Floats]]:
    """Each column's place, its parent's, and its law (l, p, c); parents come first.

    ``table`` holds the label and then the columns; ``laws`` are their counts by label (l, c).
    """
    places = range(len(laws))
    scores = np.zeros((len(laws), len(laws)))
    if len(laws) > 1:
        whole_tree = math.sqrt(len(laws) - 1) / joining  # the deviation if all of it is measured
        found = _scores(table, labels, laws, measurements, scoring)
        for (i, j), score in zip(combinations(places, 2), found, strict=True):
            size = len(labels) * laws[i].shape[1] * laws[j].shape[1]
            scores[i, j] = scores[j, i] = score - math.sqrt(2 / math.pi) * whole_tree * size
    order = forest(scores)
    edges = [(child, parent) for child, parent in order if parent is not None]
    expected = [_independent(labels, laws[p], laws[c]) for c, p in edges]
    tables: dict[int, Floats] = {}
    if edges:
        exact = [
            counts(table[:, [0, p + 1, c + 1]], e.shape)
            for (c, p), e in zip(edges, expected, strict=True)
        ]
        noisy, deviation = measurements.tables(exact, joining, "joined pairs")
        for (child, parent), measured, e in zip(edges, noisy, expected, strict=True):
            cells = nonnegative(shrunk(measured, e, deviation), labels.sum())
            tables[child] = raked(cells, laws[parent], laws[child])
    return [(c, p, laws[c][:, None] if p is None else tables[c]) for c, p in order]


def _scores(
    table: NDArray[np.int64],
    labels: Floats,
    laws: list[Floats],
    measurements: Measurements,
    mu: float,
) -> Floats:
    """For each pair, how far its table lies from independence given the label (L1), with noise.

    What it is compared with comes from noisy tables, so that one record moves a score by 1 at most.
    Scores are rounded half up: what moves by 1 at most still does. They are first made smaller by
    more than a sum's floating-point error, so that this is exact.
    """
    found = []
    for i, j in combinations(range(len(laws)), 2):
        expected = _independent(labels, laws[i], laws[j])
        exact = counts(table[:, [0, i + 1, j + 1]], expected.shape)
        found.append(float(np.abs(exact - expected).sum()))
    rounded = np.floor(np.clip(found, 0, 2.0**24 - 1) * (1 - 1e-6) + 0.5)
    return measurements.release(rounded, math.sqrt(len(found)), mu, "scores of pairs")


def _independent(labels: Floats, first: Floats, second: Floats) -> Floats:
    safe = np.where(labels > 0, labels, 1)[:, None, None]
    return first[:, :, None] * second[:, None, :] / safe


def _total(noisy: list[Floats]) -> float:
    """The number of records that the one-way marginals tell, each by its precision."""
    weights = np.array([1 / heights.size for heights in noisy])
    told = np.array([heights.sum() for heights in noisy])
    return max(1.0, float(weights @ told / weights.sum()))


def _each(size: int) -> Groups:
    """Every code a group of its own."""
    return Groups(np.arange(size), np.ones(size))
