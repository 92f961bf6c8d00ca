"""Trains shadow generators, with and without each target, and keeps what their tables look like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks.files import whole_file
from attacks.records import Bools
from attacks.shadows.plan import halves
from attacks.shadows.workers import Workers, spread
from attacks.synthetic.summaries import NEAR, NEAREST, WHOLE, Summary
from attacks.synthetic.tables import Coded, Tables, code
from attacks.targets import Floats

Generator = Callable[[pd.DataFrame, int, int], pd.DataFrame]
"""(training records, number of records to make, seed) to a table of the same columns."""

Others = Literal["halves", "fixed"]
FORMAT = "1"  # of the files in the folder; part of every name


@dataclass(frozen=True, eq=False)
class Observations:
    """What R shadow generators' tables look like, and which of the K targets trained which.

    Attributes:
        inside: (R, K); runs 2i and 2i + 1 are a pair, one with a target and one without it.
        whole: (R, features) by family, of a table alone.
        near: (R, K, features) by family, of a table around each target.
        influence: (K, features) by family of ``whole``, see ``Summary.influence``.
    """

    inside: Bools
    whole: Mapping[str, Floats]
    near: Mapping[str, Floats]
    influence: Mapping[str, Floats]


@dataclass(eq=False)
class GeneratorFleet:
    """Shadow generators that serve all targets at once.

    Attributes:
        generator: the recipe under attack, as a function of the training table.
        records: how many each makes. With a release alone, as many as it has; with the generator
            at hand, as many as the attacker cares to draw: many releases are one large table.
        runs: how many generators are trained; even, they come in pairs.
        seed: of the plan, and of every generator's own seed.
        others: what the other records do. ``halves``: a random half of them trains each generator,
            the attacker knows their distribution. ``fixed``: all of them train every generator,
            the attacker knows everybody but the targets; the worst case of the DP definition.
        folder: keeps each finished run, so that an interrupted fleet resumes. Runs of another
            recipe, seed, plan or pool have another name and are never picked up.
        recipe: says what ``generator`` is; needed with a folder, where it is all that tells one
            generator from another.
        workers: see ``attacks.shadows.workers``; ``generator`` must then be picklable by
            cloudpickle.

    Raises:
        ValueError: if a folder comes without a recipe, or too few records are asked for.
    """

    generator: Generator
    records: int
    runs: int = 128
    seed: int = 0
    others: Others = "halves"
    folder: Path | None = None
    recipe: str = ""
    workers: Workers = 1
    _seen: dict[str, Observations] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.folder is not None and not self.recipe:
            raise ValueError("recipe: missing; a folder needs to know what the generator is")
        if self.records < 2 * NEAREST:
            raise ValueError(f"records: {self.records} are too few; ask for {2 * NEAREST} or more")
        if self.others not in ("halves", "fixed"):
            raise ValueError(f"others: {self.others!r} is neither halves nor fixed")

    def observations(
        self,
        pool: pd.DataFrame,
        targets: NDArray[np.int64],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Observations:
        """What every run's table looks like; trains those not yet trained.

        ``progress(done, total)`` is called after each.

        Raises:
            ValueError: if the plan cannot be made, or names the run whose generator failed or
                returned no such table.
        """
        known = code({"pool": pool})
        inside = plan(len(pool), targets, self.runs, self.seed, self.others)
        name = self._name(pool, known, inside, targets)
        if name not in self._seen:
            summary = Summary.of(known["pool"], targets)
            rows = np.stack(list(self._rows(name, pool, known, inside, summary, progress)))
            self._seen[name] = Observations(
                inside[:, targets],
                *_unpacked(rows, summary, known["pool"]),
                summary.influence(known["pool"], targets),
            )
        return self._seen[name]

    def _name(
        self, pool: pd.DataFrame, known: Tables, inside: Bools, targets: NDArray[np.int64]
    ) -> str:
        kinds = [[c.name, c.kind, c.levels] for c in known.numeric + known.categorical]
        types = [str(kind) for kind in pool.dtypes]
        parts = [FORMAT, self.recipe, self.seed, self.records, kinds, types, targets.tolist()]
        whole = hashlib.sha256(json.dumps(parts).encode())
        for array in (known["pool"].numbers, known["pool"].codes, np.packbits(inside, axis=1)):
            whole.update(np.ascontiguousarray(array).tobytes())
        return whole.hexdigest()[:16]

    def _rows(
        self,
        name: str,
        pool: pd.DataFrame,
        known: Tables,
        inside: Bools,
        summary: Summary,
        progress: Callable[[int, int], None],
    ) -> Iterator[Floats]:
        """Every run's features, packed into one row."""
        size = len(_packed(summary, known["pool"]))
        rows = {k: row for k in range(self.runs) if (row := self._kept(name, k, size)) is not None}
        progress(len(rows), self.runs)
        work = [
            (self.generator, pool, known, inside, summary, self.records, [k], [_seed(self.seed, k)])
            for k in range(self.runs)
            if k not in rows
        ]
        for k, row in spread(_run, work, self.workers):
            if self.folder is not None:
                with whole_file(self._path(self.folder, name, k)) as temporary:
                    np.save(temporary, row, allow_pickle=False)
            rows[k] = row
            progress(len(rows), self.runs)
        return (rows[k] for k in range(self.runs))

    def _kept(self, name: str, k: int, size: int) -> Floats | None:
        """An earlier run's features; None if there are none, or not whole ones."""
        if self.folder is None or not (path := self._path(self.folder, name, k)).exists():
            return None
        try:
            row = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError):
            return None
        whole = row.shape == (size,) and row.dtype == np.float64 and np.isfinite(row).all()
        return row if whole else None

    @staticmethod
    def _path(folder: Path, name: str, k: int) -> Path:
        return folder / f"generator-{name}.{k:05d}.npy"


def plan(
    records: int, targets: NDArray[np.int64], runs: int, seed: int, others: Others = "halves"
) -> Bools:
    """Which records (columns) train which run (rows), (runs, records).

    Each target is in one run of a pair by a coin of its own and out of the other, whatever the
    other records do: with and without it are neighbours in the sense of adding or removing one.

    Raises:
        ValueError: if targets repeat or are no rows of the pool, or as ``shadows.plan.halves``.
    """
    rows = np.asarray(targets)
    if not len(rows) or len(np.unique(rows)) < len(rows):
        raise ValueError("targets: name one or more rows of the pool, each once")
    if rows.min() < 0 or rows.max() >= records:
        raise ValueError(f"targets: row {rows.max()} is none of the pool's {records} (0 is first)")
    rest = np.setdiff1d(np.arange(records), rows)
    inside = np.ones((runs, records), dtype=np.bool_)
    split = halves(len(rest), runs, seed)
    if others == "halves":
        inside[:, rest] = split
    coins = np.random.default_rng([seed, 1]).random((runs // 2, len(rows))) < 0.5
    inside[0::2, rows], inside[1::2, rows] = coins, ~coins
    return inside


def coded_like(pool: pd.DataFrame, known: Tables, table: pd.DataFrame, name: str) -> Coded:
    """A synthetic table in the pool's coding; a level that the pool lacks is one past its last.

    Raises:
        ValueError: naming the table, if it is none or its columns are not the pool's.
    """
    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"{name}: is a {type(table).__name__}; return a pandas DataFrame")
    both = code({"pool": pool, name: table})
    kinds = {c.name: c.kind for c in both.numeric + both.categorical}
    for column in known.numeric + known.categorical:
        if kinds[column.name] != column.kind:
            raise ValueError(
                f"{name}: column {column.name!r} is a {kinds[column.name]}, in the pool a "
                f"{column.kind}; give both one type"
            )
    codes = both[name].codes.copy()
    for j, (own, common) in enumerate(zip(known.categorical, both.categorical, strict=True)):
        number = {level: i for i, level in enumerate(own.levels)}
        renamed = [number.get(level, len(number)) for level in common.levels]
        codes[:, j] = np.array([*renamed, -1], dtype=np.int32)[codes[:, j]]
    return Coded(both[name].numbers, codes)


def _seed(seed: int, k: int) -> int:
    return int(np.random.SeedSequence([seed, k]).generate_state(1)[0])


def _run(
    generator: Generator,
    pool: pd.DataFrame,
    known: Tables,
    inside: Bools,
    summary: Summary,
    records: int,
    runs: list[int],
    seeds: list[int],
) -> tuple[int, Floats]:
    """Train run k's generator and pack its table's features into one row."""
    (k,), (seed,) = runs, seeds
    try:
        table = generator(pool[inside[k]].reset_index(drop=True), records, seed)
        coded = coded_like(pool, known, table, "table")
        if len(coded) != records:
            raise ValueError(f"table: {len(coded)} records, asked for {records}")
    except ValueError as error:
        raise ValueError(f"shadow generator {k}: {error}") from error
    return k, _packed(summary, coded)


def _packed(summary: Summary, table: Coded) -> Floats:
    whole, near = summary.whole(table), summary.near(table)
    return np.concatenate([*(whole[f] for f in WHOLE), *(near[f].ravel() for f in NEAR)])


def _unpacked(
    rows: Floats, summary: Summary, pool: Coded
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The rows' features by family, with the shapes that the pool's own have."""
    parts: list[dict[str, Floats]] = []
    at = 0
    for shapes in (summary.whole(pool), summary.near(pool)):
        found = {}
        for family, like in shapes.items():
            found[family] = rows[:, at : at + like.size].reshape(len(rows), *like.shape)
            at += like.size
        parts.append(found)
    return parts[0], parts[1]
