"""The tables that an attack on a release compares: who was in, who was not, and the release."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attacks.synthetic.tables import Coded, Tables
from attacks.targets import Floats

Rows = NDArray[np.int64]


def three(tables: Tables) -> tuple[Coded, Coded, Coded]:
    """Train, holdout and synthetic.

    Raises:
        ValueError: naming the table that is missing.
    """
    for name in ("train", "holdout", "synthetic"):
        if name not in tables.tables:
            raise ValueError(f"{name}: the table is missing; give train, holdout and synthetic")
    return tables["train"], tables["holdout"], tables["synthetic"]


def draw(table: Coded, count: int, rng: np.random.Generator) -> Rows:
    """``count`` records of the table, each at most once, in random order (count,)."""
    return rng.permutation(len(table))[:count]


def equally_many(train: Coded, holdout: Coded) -> tuple[int, tuple[str, ...]]:
    """How many records both sides have, and a note where one of them has more.

    Whether a record is alone depends on how many others there are, so both sides must be equal.
    """
    count = min(len(train), len(holdout))
    if len(train) == len(holdout):
        return count, ()
    larger = "train" if len(train) > count else "holdout"
    return count, (
        f"{larger} has {max(len(train), len(holdout))} records; {count} of them, drawn at random, "
        "were compared with the other side's.",
    )


def at_least_one(attacks: int) -> None:
    """Refuse a number of attacks below one."""
    if attacks < 1:
        raise ValueError(f"attacks: must be 1 or more, got {attacks}")


def values(table: Coded, column: int) -> Floats:
    """One column, numbered as in ``Tables.names``; a category by its codes, NaN missing (n,)."""
    numeric = table.numbers.shape[1]
    if column < numeric:
        return table.numbers[:, column]
    codes = table.codes[:, column - numeric].astype(np.float64)
    return np.where(codes < 0, np.nan, codes)
