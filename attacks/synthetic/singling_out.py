"""Singling out: predicates learnt from a release that hold for exactly one real person."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks.attribute.result import shared_confidence
from attacks.metrics import Figure
from attacks.synthetic import conjunctions, univariate
from attacks.synthetic.rates import mean_share, rates, unmeasured
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.sides import at_least_one, draw, equally_many, three
from attacks.synthetic.tables import Coded, Tables

Counts = NDArray[np.int64]
MODES = {
    "values": "no value of any column is held by one record of the release alone",
    "ranges": "no number of any column is held by one record of the release alone",
    "conjunctions": "",
}


def attack(
    tables: Tables, *, attacks: int = 2000, seed: int = 0, confidence: float = 0.95
) -> SyntheticResult:
    """How many predicates, each true of one record of the release alone, single out a real one.

    Three modes: ``values`` (a value of one column), ``ranges`` (the surroundings of a number) and
    ``conjunctions`` (several columns, ``attacks.synthetic.conjunctions``). A predicate succeeds if
    it holds for exactly one record of train; the control asks the same predicates of as many
    holdout records, the baseline random predicates of train. ``weight`` is the share of holdout
    records that a predicate holds for. The excess risks' intervals hold together.

    Args:
        attacks: predicates in each mode; fewer where there are no more.

    Raises:
        ValueError: if a table is missing, or ``attacks`` below one.
    """
    started = time.monotonic()
    at_least_one(attacks)
    train, holdout, synthetic = three(tables)
    rng = np.random.default_rng(seed)
    n, notes = equally_many(train, holdout)
    train, holdout = (side.take(draw(side, n, rng)) for side in (train, holdout))
    each = shared_confidence(confidence, len(MODES))
    figures: list[Figure] = []
    for mode, found, control, baseline in _counts(tables, train, holdout, synthetic, attacks, rng):
        if not len(found):
            figures += unmeasured(mode, MODES[mode])
            continue
        if len(found) < attacks:
            notes += (f"{mode}: {len(found)} predicates exist, {attacks} were asked for.",)
        hits = (found == 1, control == 1, baseline == 1)
        figures += rates(mode, *hits, confidence=confidence, excess_confidence=each)
        figures.append(Figure(f"weight:{mode}", mean_share(control / n, n, confidence)))
    return SyntheticResult(
        "singling_out",
        "Singling out",
        "samples",
        tuple(figures),
        notes=(
            f"A predicate of weight near 1/{n} singles somebody out by chance in up to 37 % of "
            "all cases; the control's rate is this chance, the excess risk what lies beyond it.",
            *notes,
        ),
        source="Article 29 Working Party, Opinion 05/2014, section 2; predicates and their weight "
        "after Cohen and Nissim 2020",
        seed=seed,
        seconds=time.monotonic() - started,
    )


def _counts(
    tables: Tables,
    train: Coded,
    holdout: Coded,
    synthetic: Coded,
    attacks: int,
    rng: np.random.Generator,
) -> Iterator[tuple[str, Counts, Counts, Counts]]:
    """By mode: for how many records the predicates hold in train and holdout, random ones in train.

    Records that a release repeats count once: else what it repeats could not be singled out.
    """
    coding = conjunctions.coding(synthetic)
    codes = coding(synthetic)
    distinct = np.flatnonzero(~pd.DataFrame(codes.T).duplicated().to_numpy())
    codes, release = codes[:, distinct], synthetic.take(distinct)
    for mode, learn in (("values", univariate.rare_values), ("ranges", univariate.own_ranges)):
        ranges = univariate.evenly(learn(tables, release), attacks, rng)
        control = univariate.at_random(tables, release, ranges, rng)
        yield mode, ranges.count(train), ranges.count(holdout), control.count(train)
    grown = conjunctions.grow(codes, coding.exact, draw(release, attacks, rng), rng)
    mixed = conjunctions.mixed(grown, codes, rng)
    inside, outside = coding(train), coding(holdout)
    yield (
        "conjunctions",
        conjunctions.count(grown, inside),
        conjunctions.count(grown, outside),
        conjunctions.count(mixed, inside),
    )
