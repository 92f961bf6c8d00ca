"""Linkability: does a release help to find out which two halves of records are one person's?

The attacker holds two lists of the same people, one with the columns of part A and one with those
of part B, in different orders. Nothing links them but the release, whose records have both parts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attacks.metrics import tpr_at_fpr
from attacks.synthetic.distances import METRIC, Points, nearest, points
from attacks.synthetic.rates import named, rates
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.sides import Rows, at_least_one, draw, three
from attacks.synthetic.tables import Tables
from attacks.targets import Floats

FPR = 0.01


def attack(
    tables: Tables,
    *,
    parts: tuple[Sequence[str], Sequence[str]] | None = None,
    attacks: int = 2000,
    bridges: int = 5,
    seed: int = 0,
    confidence: float = 0.95,
) -> SyntheticResult:
    """How many people's A and B parts are brought together by way of the release.

    Bridges are the synthetic records nearest to an A part. Each names the B part on the list that
    lies nearest to its own; the one with the least sum of squared distances, over A and over B, is
    the attacker's answer. He succeeds where it is the same person's; of equal B parts one is taken
    at random. The control does the same with as many people of the holdout, so what the columns of
    A tell about those of B anyway is in it; the baseline takes a random synthetic record as bridge.
    ``tpr_at_fpr_0.01`` is the share of right links in train, of all there, among those with the
    least distances: down to where links of 1 % of the holdout's people are right. ``rows`` name the
    records of train that were linked rightly, the least distance first.

    Args:
        parts: the columns of A and of B; without them the table's columns in turn.
        attacks: people on the lists; fewer where train or holdout has fewer.
        bridges: synthetic records tried for each.

    Raises:
        ValueError: if a table is missing, a side has fewer than two records, a part is empty, its
            columns are unknown or in both, or a number is below one.
    """
    started = time.monotonic()
    at_least_one(attacks)
    if bridges < 1:
        raise ValueError(f"bridges: must be 1 or more, got {bridges}")
    train, holdout, synthetic = three(tables)
    for name, side in (("train", train), ("holdout", holdout)):
        if len(side) < 2:
            raise ValueError(f"{name}: has one record; linking needs two or more to choose from")
    first, second = (_columns(tables, part) for part in parts or _in_turn(tables))
    if shared := set(first) & set(second):
        raise ValueError(f"parts: column {tables.names[min(shared)]!r} is in both; keep it in one")
    people = min(attacks, len(train), len(holdout))
    rng = np.random.default_rng(seed)
    scale = points(tables)

    def halves(name: str, rows: Rows) -> _Halves:
        records = scale[name].take(rows)
        return _Halves(_only(records, first), _only(records, second))

    release = halves("synthetic", draw(synthetic, len(synthetic), rng))
    chosen = draw(train, people, rng)
    insiders = halves("train", chosen)
    others = halves("holdout", draw(holdout, people, rng))
    inside, outside = (_link(side, release, bridges) for side in (insiders, others))
    by_chance = rng.integers(0, len(synthetic), people)
    _, guess = nearest(release.second.take(by_chance), insiders.second)
    called = [", ".join(tables.names[c] for c in part) for part in (first, second)]
    notes = [f"Part A: {called[0]}. Part B: {called[1]}.", METRIC + "."]
    if people < attacks:
        notes.append(f"{attacks} attacks were asked for; the smaller side has {people} records.")
    return SyntheticResult(
        "linkability",
        "Linkability",
        "samples",
        (
            *rates(
                "link",
                inside > -np.inf,
                outside > -np.inf,
                guess[:, 0] == np.arange(people),
                confidence=confidence,
                excess_confidence=confidence,
            ),
            named(tpr_at_fpr(inside, outside, FPR, confidence), "link"),
        ),
        rows=_linked(chosen, inside),
        notes=tuple(notes),
        source="Article 29 Working Party, Opinion 05/2014, section 2",
        seed=seed,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, eq=False)
class _Halves:
    """Records cut in two: their A parts and their B parts, in one order."""

    first: Points
    second: Points


def _link(people: _Halves, release: _Halves, bridges: int) -> Floats:
    """Minus the squared distance of each person's link if it is right, else minus infinity (n,)."""
    near, bridge = _bridges(people.first, release.first, bridges)
    used, place = np.unique(bridge, return_inverse=True)
    place = place.reshape(bridge.shape)
    onward, answer = nearest(release.second.take(used), people.second)
    length = near**2 + onward[place, 0] ** 2
    best = np.take_along_axis(place, length.argmin(axis=1)[:, None], axis=1)[:, 0]
    right = answer[best, 0] == np.arange(len(bridge))
    return np.where(right, -length.min(axis=1), -np.inf)


def _bridges(asked: Points, release: Points, count: int) -> tuple[Floats, Rows]:
    """The nearest records of the release (n, count), equal ones too, and their distances.

    ``nearest`` names the first of equal records alone; here the others follow it.
    """
    count = min(count, len(release))
    near, first = nearest(asked, release, count)
    _, same = nearest(release, release)
    members = np.argsort(same[:, 0], kind="stable")
    start = np.searchsorted(same[members, 0], first)
    size = np.where(first < 0, 0, np.bincount(same[:, 0], minlength=len(release))[first])
    ends = size.cumsum(axis=1)
    slots = np.arange(count)
    group = (ends[:, :, None] <= slots).sum(axis=1)  # of each slot
    begin = np.take_along_axis(ends - size, group, axis=1)
    rows = members[np.take_along_axis(start, group, axis=1) + slots - begin]
    return np.take_along_axis(near, group, axis=1), rows


def _linked(rows: Rows, scores: Floats) -> dict[str, Rows | Floats]:
    """Who was linked rightly, the nearest first."""
    order = np.argsort(-scores, kind="stable")[: int((scores > -np.inf).sum())]
    return {"train_row": rows[order], "distance": np.sqrt(-scores[order])}


def _in_turn(tables: Tables) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every second column: both parts get numbers and categories."""
    if len(tables.names) < 2:
        raise ValueError("tables: one column; linking needs two or more")
    return tables.names[::2], tables.names[1::2]


def _columns(tables: Tables, part: Sequence[str]) -> list[int]:
    if not part:
        raise ValueError("parts: one is empty; give each a column")
    for name in part:
        if name not in tables.names:
            raise ValueError(f"parts: no column is called {name!r}")
    return [tables.names.index(name) for name in part]


def _only(records: Points, columns: list[int]) -> Points:
    """These columns alone, numbered as in ``Tables.names``."""
    numeric = records.units.shape[1]
    numbers: Rows = np.array([c for c in columns if c < numeric], dtype=np.int64)
    categories: Rows = np.array([c - numeric for c in columns if c >= numeric], dtype=np.int64)
    return Points(records.units[:, numbers], records.codes[:, categories])
