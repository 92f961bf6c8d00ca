"""Uniqueness: who is alone with a few of his values, and whether the release repeats them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from attacks.attribute.result import shared_confidence
from attacks.metrics import Figure, clopper_pearson
from attacks.synthetic.classes import among, class_sizes, classes, l_diversity, t_closeness
from attacks.synthetic.rates import Hits, named, rates, unmeasured
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.rows import Hashes, cell_hashes
from attacks.synthetic.sides import draw, equally_many, three, values
from attacks.synthetic.tables import Coded, Tables
from attacks.targets import Floats

SIZES = {"single": 1, "pair": 2, "triple": 3}
Columns = tuple[int, ...]


def attack(
    tables: Tables,
    *,
    columns: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    limit: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> SyntheticResult:
    """Equivalence classes of train by every column, pair and triple, and what the release repeats.

    Figures for each size: ``unique_records``, the share of train's records that are alone with some
    combination of that size; ``attack_rate``, the share of them whose values the release has too,
    each by one of its combinations drawn at random; ``control_rate``, the same of as many records
    of the holdout, alone among themselves. The excess risks' intervals hold together.

    ``rows`` have a line for each combination: the share of train that is unique, the smallest class
    (k), the shares of the unique that reappear from train and from the holdout, and for each
    sensitive column distinct l-diversity and t-closeness of train's classes.

    Args:
        columns: quasi-identifiers, what an attacker may know; without them all columns.
        sensitive: columns for l and t. A number's values are ordered (missing is the least), a
            category's equally far apart. NaN for combinations that hold the column.
        limit: combinations of each size; where there are more, so many are drawn at random.

    Raises:
        ValueError: if a table is missing, a column is unknown or named twice, or ``limit`` is below
            one.
    """
    started = time.monotonic()
    if limit < 1:
        raise ValueError(f"limit: must be 1 or more, got {limit}")
    train, holdout, synthetic = three(tables)
    known = _numbered(tables, "columns", columns or tables.names)
    secrets = _numbered(tables, "sensitive", sensitive)
    rng = np.random.default_rng(seed)
    n, notes = equally_many(train, holdout)
    asked = [  # train or a part of it, and as many of the holdout
        _Side(_cells(table.take(np.sort(draw(table, n, rng)))), rng) for table in (train, holdout)
    ]
    whole, release = _cells(train), _cells(synthetic)
    codes = {column: _ordered(values(train, column)) for column in secrets}
    sizes = {name: size for name, size in SIZES.items() if size <= len(known)}
    each = shared_confidence(confidence, len(sizes))
    figures: list[Figure] = []
    lines: list[dict[str, float | str]] = []
    for name, size in sizes.items():
        tried = _combinations(known, size, limit, rng)
        if len(tried) < (many := comb(len(known), size)):
            notes += (f"{name}s: {len(tried)} of {many} combinations, drawn at random.",)
        alone = np.zeros(len(train), dtype=np.bool_)
        for combination in tried:
            keys = _keys(whole, combination)
            class_size = class_sizes(keys)
            alone |= class_size == 1
            target = _keys(release, combination)
            line: dict[str, float | str] = {
                "columns": ", ".join(tables.names[column] for column in combination),
                "size": size,
                "unique": float((class_size == 1).mean()),
                "k": int(class_size.min()),
                "reappear": asked[0].look_up(combination, target),
                "reappear_holdout": asked[1].look_up(combination, target),
            }
            lines.append(line | _given_away(tables, keys, codes, combination))
        unique = clopper_pearson(int(alone.sum()), len(alone), confidence)
        figures.append(named(Figure("unique_records", unique), name))
        inside, outside = (side.answers() for side in asked)
        if len(inside) and len(outside):
            figures += rates(name, inside, outside, confidence=confidence, excess_confidence=each)
        else:
            lacking = "holdout" if len(inside) else "train"
            figures += unmeasured(name, f"{lacking}: no record is unique", baseline=False)
    return SyntheticResult(
        "uniqueness",
        "Uniqueness and re-identification",
        "samples",
        tuple(figures),
        rows={key: np.array([line[key] for line in lines]) for key in lines[0]},
        notes=(
            f"Unique among the {len(train)} records of train is not unique in the population: "
            "others who share the values may not be in the table.",
            "Values are compared as they are; of a number with many digits almost all are unique.",
            *notes,
        ),
        source="Sweeney 2002 (k), Machanavajjhala et al. 2007 (l), Li et al. 2007 (t)",
        seed=seed,
        seconds=time.monotonic() - started,
    )


class _Side:
    """Records, and for each whether one of its unique combinations, at random, reappears.

    One combination a record, so that what is counted are records and not what hangs together.
    """

    def __init__(self, cells: Hashes, rng: np.random.Generator) -> None:
        self.cells, self.rng = cells, rng
        self.tried = np.zeros(cells.shape[1], dtype=np.int64)
        self.hit = np.zeros(cells.shape[1], dtype=np.bool_)

    def look_up(self, combination: Columns, release: Hashes) -> float:
        """Look for each unique record among the release's keys; the share found, NaN of none."""
        keys = _keys(self.cells, combination)
        unique = np.flatnonzero(class_sizes(keys) == 1)
        if not len(unique):
            return np.nan
        found = among(keys[unique], release)
        self.tried[unique] += 1
        # the m-th combination takes the place of the one kept before with chance 1/m
        taken = self.rng.random(len(unique)) * self.tried[unique] < 1
        self.hit[unique[taken]] = found[taken]
        return float(found.mean())

    def answers(self) -> Hits:
        """Of every record that was unique, whether it was found (u,); and begin anew."""
        told: Hits = self.hit[self.tried > 0]
        self.tried[:], self.hit = 0, np.zeros_like(self.hit)
        return told


def _given_away(
    tables: Tables, keys: Hashes, codes: dict[int, NDArray[np.int64]], combination: Columns
) -> dict[str, float | str]:
    """l and t of each sensitive column in the classes of these keys."""
    if not codes:
        return {}
    of = classes(keys)
    told: dict[str, float | str] = {}
    for column, secret in codes.items():
        name, inside = tables.names[column], column in combination
        ordered = column < len(tables.numeric)
        told[f"l:{name}"] = np.nan if inside else l_diversity(of, secret)
        told[f"t:{name}"] = np.nan if inside else t_closeness(of, secret, ordered)
    return told


def _combinations(
    columns: Columns, size: int, limit: int, rng: np.random.Generator
) -> list[Columns]:
    """All combinations of this size in order, or ``limit`` different ones at random."""
    if comb(len(columns), size) <= limit:
        return list(combinations(columns, size))
    drawn: set[Columns] = set()
    while len(drawn) < limit:
        drawn.add(tuple(sorted(rng.choice(columns, size, replace=False).tolist())))
    return sorted(drawn)


def _cells(table: Coded) -> Hashes:
    """A number for each cell, column by column (columns, n)."""
    return np.ascontiguousarray(cell_hashes(table.numbers, table.codes).T)


def _keys(cells: Hashes, combination: Columns) -> Hashes:
    """A number for each record (n,), equal where these columns are."""
    keys: Hashes = cells[list(combination)].sum(axis=0, dtype=np.uint64)
    return keys


def _ordered(column: Floats) -> NDArray[np.int64]:
    """Codes in the order of the values, missing the least (n,)."""
    filled = np.where(np.isnan(column), -np.inf, column)
    return np.unique(filled, return_inverse=True)[1].astype(np.int64)


def _numbered(tables: Tables, field: str, names: Sequence[str]) -> Columns:
    for k, name in enumerate(names):
        if name not in tables.names:
            raise ValueError(f"{field}: no column is called {name!r}")
        if name in names[:k]:
            raise ValueError(f"{field}: {name!r} is named twice")
    return tuple(tables.names.index(name) for name in names)
