"""Synthetic records that are copies of training records, and how many would be by chance.

Chance makes copies too, most of all where few values are possible. Holdout records were never
seen, so what is copied of them is chance. The count is of real records: under no leak it is a coin
that decided on which side each of them stands, however often the generator repeated itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from attacks.attribute.result import shared_confidence
from attacks.metrics import Figure, advantage, clopper_pearson
from attacks.synthetic.distances import METRIC, Points, Rows, between, nearest, points
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.rows import Hashes, cell_hashes, find, row_hashes
from attacks.synthetic.tables import Tables

LEAST = 20  # synthetic and holdout records for a distance that chance does not reach
KINDS = ("exact", "edited", "near")


@dataclass(frozen=True, eq=False)
class Matches:
    """What of one real table stands in the synthetic one, with few cells edited.

    Attributes:
        rows: for each synthetic record (n,) the first real record that it copies; -1 is none.
        edits: how many cells differ (n,); meaningless where there is no such record.
        copied: for each real record (m,) the fewest cells that a synthetic one has edited; -1 none.
    """

    rows: Rows
    edits: NDArray[np.int64]
    copied: NDArray[np.int64]


def attack(
    tables: Tables, *, seed: int = 0, confidence: float = 0.95, edits: int | None = None
) -> SyntheticResult:
    """Exact copies, copies with at most ``edits`` cells changed, and copies moved by a little.

    ``edits`` is by default 1, but 0 below 4 columns and 2 from 12 to 32. Exact and edited ones are
    found by joining hashes of records with that many columns left out. Moved ones lie nearer to a
    training record than chance reaches: as far below the least distance to the holdout as that lies
    below the median one, in powers, and below a quarter of it. Where distances follow a power law
    of exponent k near 0, as k continuous columns make them, a clean table has a false flag with a
    chance of 4^-k or less, and of about 1 / n for n records.

    Each excess is the share of training records copied minus that of holdout records (Newcombe
    1998; all three pay for one another). Evidence has one row for each synthetic record that
    copies: the training record nearest to it, and whether a holdout record is as near (chance).

    Raises:
        ValueError: if ``edits`` is negative or not below the number of columns.
    """
    started = time.monotonic()
    columns = len(tables.names)
    if edits is None:
        edits = 0 if columns < 4 else 2 if 12 <= columns <= 32 else 1
    if not 0 <= edits < columns:
        raise ValueError(f"edits: {edits}; must be at least 0 and below the {columns} columns")
    hashes = {name: cell_hashes(t.numbers, t.codes) for name, t in tables.tables.items()}
    train, holdout = (match(hashes["synthetic"], hashes[n], edits) for n in ("train", "holdout"))
    places = points(tables)
    moved = _moved(places)
    rows = np.where(train.rows >= 0, train.rows, np.where(moved.flagged, moved.rows, -1))
    found = np.flatnonzero(rows >= 0)
    edited = train.rows[found] >= 0
    as_near = (holdout.rows[found] >= 0) & (holdout.edits[found] <= train.edits[found])
    cells = hashes["synthetic"][found] != hashes["train"][rows[found]]
    return SyntheticResult(
        "copies",
        "Copies of training records",
        "samples",
        _figures(train, holdout, moved, rows >= 0, shared_confidence(confidence, len(KINDS))),
        {
            "synthetic_row": found,
            "train_row": rows[found],
            "kind": np.array(KINDS)[np.where(edited, np.minimum(train.edits[found], 1), 2)],
            "cells_that_differ": cells.sum(axis=1),
            "distance": between(places["synthetic"].take(found), places["train"].take(rows[found])),
            "by_chance": edited & as_near,
        },
        (
            f"edited: at most {edits} of {columns} cells differ; near: "
            + (moved.why or f"distance below {moved.limit:.3g}"),
            "by_chance: a holdout record, which nobody copied, is as near",
            METRIC,
        ),
        "join of hashes: Zobrist 1970; differences of shares: Newcombe 1998",
        seed,
        time.monotonic() - started,
    )


def _figures(
    train: Matches,
    holdout: Matches,
    moved: _Moved,
    listed: NDArray[np.bool_],
    confidence: float,
) -> tuple[Figure, ...]:
    def excess(kind: str, inside: NDArray[np.bool_], outside: NDArray[np.bool_]) -> Figure:
        hits, chance = inside.astype(np.float64), outside.astype(np.float64)
        return Figure(f"excess:{kind}", advantage(hits, chance, 0.5, confidence))

    def share(side: str, hits: NDArray[np.bool_]) -> Figure:
        return Figure(f"copied:{side}", clopper_pearson(int(hits.sum()), len(hits), confidence))

    near = train.copied == 0
    near[moved.rows[moved.flagged]] = True
    any_holdout = holdout.copied >= 0
    return (
        excess("exact", train.copied == 0, holdout.copied == 0),
        excess("edited", train.copied >= 0, any_holdout),
        Figure("excess:near", unmeasured=moved.why)
        if moved.why
        else excess("near", near, holdout.copied == 0),
        share("train", (train.copied >= 0) | near),
        share("holdout", any_holdout),
        share("synthetic", listed),
    )


def match(synthetic: Hashes, real: Hashes, edits: int) -> Matches:
    """Real records that agree with a synthetic one in all but at most ``edits`` cells.

    Args:
        synthetic: a number for each cell (n, columns), as of ``cell_hashes``.
        real: the same of the real records (m, columns).
        edits: how many cells may differ.
    """
    rows = np.full(len(synthetic), -1, dtype=np.int64)
    fewest = np.zeros(len(synthetic), dtype=np.int64)
    copied = np.full(len(real), -1, dtype=np.int64)
    pairs = zip(_left_out(synthetic, edits), _left_out(real, edits), strict=True)
    for (count, mine), (_, theirs) in pairs:  # fewest columns left out first
        open_ = np.flatnonzero(rows < 0)
        found = find(mine[open_], theirs)
        rows[open_], fewest[open_] = found, count
        fresh = np.flatnonzero(copied < 0)
        copied[fresh[find(theirs[fresh], mine) >= 0]] = count
    return Matches(rows, fewest, copied)


def _left_out(cells: Hashes, edits: int) -> Iterator[tuple[int, Hashes]]:
    """Every way to leave out at most ``edits`` columns: how many, and the records' numbers."""
    total = row_hashes(cells)
    for count in range(edits + 1):
        for dropped in combinations(range(cells.shape[1]), count):
            yield count, total - cells[:, list(dropped)].sum(axis=1, dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class _Moved:
    """Synthetic records within ``limit`` of a training record; ``why`` there may be no limit."""

    rows: Rows
    flagged: NDArray[np.bool_]
    limit: float
    why: str = ""


def _moved(places: dict[str, Points]) -> _Moved:
    synthetic = places["synthetic"]
    none = np.zeros(len(synthetic), dtype=np.bool_)
    rows = np.full(len(synthetic), -1, dtype=np.int64)
    if min(len(synthetic), len(places["holdout"])) < LEAST:
        return _Moved(rows, none, 0.0, f"fewer than {LEAST} synthetic or holdout records")
    chance = nearest(synthetic, places["holdout"])[0][:, 0]
    if chance.min() == 0:
        return _Moved(rows, none, 0.0, "a holdout record is copied by chance, at distance 0")
    limit = float(min(chance.min() / np.median(chance), 0.25) * chance.min())
    distances, rows_ = nearest(synthetic, places["train"])
    return _Moved(rows_[:, 0], distances[:, 0] < limit, limit)
