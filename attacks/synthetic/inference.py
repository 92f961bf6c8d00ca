"""Inference: a secret column read off the synthetic record that is nearest in all other columns.

The nearest record, and no model trained on the release: a model learns what holds for many, which
the holdout's people share, and smooths away the single records that a generator has memorised.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import fisher_exact

from attacks.attribute.result import shared_confidence
from attacks.metrics import Figure, tpr_at_fpr
from attacks.synthetic.distances import METRIC, Points, nearest, points
from attacks.synthetic.rates import Hits, named, rates, unmeasured
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.sides import Rows, at_least_one, draw, three, values
from attacks.synthetic.tables import Coded, Tables
from attacks.targets import Floats

FPR = 0.01
TOLERANCE = 0.05  # interquartile ranges by which a guessed number may be off


def attack(
    tables: Tables,
    *,
    secrets: Sequence[str] = (),
    attacks: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> SyntheticResult:
    """How often each secret is guessed from all other columns and the release.

    A category is guessed if it is the same (plain accuracy), a number or date if it is off by at
    most 5 % of the interquartile range of train and holdout together; where that is zero, only the
    value itself will do. The control guesses holdout records, the baseline the value that is right
    for most of the release, for everybody. ``tpr_at_fpr_0.01`` is the share of people in train, of
    all there, guessed rightly among those nearest to their synthetic record: down to where 1 % of
    the holdout's are guessed rightly. Records whose secret is missing are left out.

    ``rows`` have a line for each secret: p of more right guesses on train than on holdout (Fisher's
    exact test, one-sided) and the same after Holm's correction (1979). The excess risks' intervals
    hold together (Bonferroni).

    Args:
        secrets: names of columns; all of them without.
        attacks: records of each side; fewer where it has no more.

    Raises:
        ValueError: if a table is missing, has one column only, a secret is unknown or named twice,
            or ``attacks`` is below one.
    """
    started = time.monotonic()
    at_least_one(attacks)
    train, holdout, synthetic = three(tables)
    columns = _columns(tables, secrets)
    rng = np.random.default_rng(seed)
    scale = points(tables)
    mixed = draw(synthetic, len(synthetic), rng)  # of equal records the first one answers
    release = _Side(synthetic.take(mixed), scale["synthetic"].take(mixed))
    sides = []
    for name, table in (("train", train), ("holdout", holdout)):
        drawn = draw(table, attacks, rng)
        sides.append(_Side(table.take(drawn), scale[name].take(drawn)))
    each = shared_confidence(confidence, len(columns))
    figures: list[Figure] = []
    p = np.full(len(columns), np.nan)
    for number, column in enumerate(columns):
        name = tables.names[column]
        found = _guess(column, sides, release, _tolerance(column, train, holdout))
        if isinstance(found, str):
            figures += unmeasured(name, found)
            continue
        inside, outside, baseline = found
        hits = [scores > -np.inf for scores in (inside, outside)]
        figures += rates(
            name, hits[0], hits[1], baseline, confidence=confidence, excess_confidence=each
        )
        figures.append(named(tpr_at_fpr(inside, outside, FPR, each), name))
        p[number] = fisher_exact([[s.sum(), (~s).sum()] for s in hits], "greater").pvalue
    smaller = min(len(side.table) for side in sides)
    return SyntheticResult(
        "inference",
        "Inference",
        "samples",
        tuple(figures),
        rows={
            "secret": np.array([tables.names[column] for column in columns]),
            "p": p,
            "p_holm": holm(p),
        },
        notes=(
            METRIC + ".",
            *(
                [f"{attacks} attacks were asked for; the smaller side has {smaller} records."]
                if smaller < attacks
                else []
            ),
        ),
        source="Article 29 Working Party, Opinion 05/2014, section 2",
        seed=seed,
        seconds=time.monotonic() - started,
    )


def holm(p: Floats) -> Floats:
    """Holm's step-down adjustment (1979) of p values (s,); NaN were not tested and stay so."""
    adjusted = np.full(len(p), np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    raised = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return adjusted


@dataclass(frozen=True, eq=False)
class _Side:
    """Records as they are, and in the metric's scale."""

    table: Coded
    points: Points

    def secret(self, column: int) -> Floats:
        """The column's values, NaN where missing (n,)."""
        return values(self.table, column)

    def others(self, column: int, rows: Rows) -> Points:
        """These records without the column."""
        numeric = self.table.numbers.shape[1]
        units, codes = self.points.units[rows], self.points.codes[rows]
        if column < numeric:
            return Points(np.delete(units, column, axis=1), codes)
        return Points(units, np.delete(codes, column - numeric, axis=1))


def _guess(
    column: int, sides: list[_Side], release: _Side, tolerance: float
) -> tuple[Floats, Floats, Hits] | str:
    """Scores in train and in the holdout, and whom the baseline guesses rightly in train.

    A score is minus the distance to the synthetic record where the guess is right, else minus
    infinity. The reason instead, if nobody has the secret.
    """
    known = [np.flatnonzero(~np.isnan(side.secret(column))) for side in (*sides, release)]
    for name, rows in zip(("train", "holdout", "synthetic"), known, strict=True):
        if not len(rows):
            return f"{name}: the column is missing in all records"
    answers = release.secret(column)[known[2]]
    reference = release.others(column, known[2])
    scores = []
    for side, rows in zip(sides, known, strict=False):
        truth = side.secret(column)[rows]
        distance, row = nearest(side.others(column, rows), reference)
        right = np.abs(answers[row[:, 0]] - truth) <= tolerance
        scores.append(np.where(right, -distance[:, 0], -np.inf))
    common = _commonest(answers, tolerance)
    baseline = np.abs(sides[0].secret(column)[known[0]] - common) <= tolerance
    return scores[0], scores[1], baseline


def _commonest(values: Floats, tolerance: float) -> float:
    """The value that is within the tolerance of most of them."""
    ordered = np.sort(values)
    reach = np.searchsorted(ordered, ordered + tolerance, side="right") - np.searchsorted(
        ordered, ordered - tolerance, side="left"
    )
    return float(ordered[reach.argmax()])


def _tolerance(column: int, train: Coded, holdout: Coded) -> float:
    if column >= train.numbers.shape[1]:
        return 0.0
    numbers = np.concatenate([values(table, column) for table in (train, holdout)])
    if np.isnan(numbers).all():
        return 0.0
    low, high = np.nanquantile(numbers, [0.25, 0.75])
    return float(TOLERANCE * (high - low))


def _columns(tables: Tables, secrets: Sequence[str]) -> list[int]:
    if len(tables.names) < 2:
        raise ValueError("tables: one column; inference needs another to guess it from")
    for k, name in enumerate(secrets):
        if name not in tables.names:
            raise ValueError(f"secrets: no column is called {name!r}")
        if name in secrets[:k]:
            raise ValueError(f"secrets: {name!r} is named twice")
    return [tables.names.index(name) for name in secrets or tables.names]
