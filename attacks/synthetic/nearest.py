"""Do synthetic records lie nearer to training records than to holdout records of the same number?

Distance to the closest record and nearest-neighbour distance ratio, each beside the same of the
holdout. Both miss leaks: a generator may give records away without writing anything near them.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from attacks.attribute.result import shared_confidence
from attacks.metrics import Estimate, Figure
from attacks.synthetic.distances import METRIC, Rows, nearest, points
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.tables import Tables
from attacks.targets import Floats

QUANTILES = (0.05, 0.5)
LEAST = 20  # untied records, counted by the real ones nearest to them


def attack(tables: Tables, *, seed: int = 0, confidence: float = 0.95) -> SyntheticResult:
    """The share of synthetic records closer to train than to holdout, overall and one by one.

    Of the larger of train and holdout as many records are drawn as the smaller has. Ties count
    half. One half is no leak; ``share:lower_ratio`` compares distance ratios (first over second
    nearest different record) in the same way; the two intervals pay for one another.
    """
    started = time.monotonic()
    rng = np.random.default_rng(seed)
    places = points(tables)
    n = min(len(places["train"]), len(places["holdout"]))
    drawn, near, rows, ratio = {}, {}, {}, {}
    for side in ("train", "holdout"):
        drawn[side] = np.sort(rng.permutation(len(places[side]))[:n])
        found, which = nearest(places["synthetic"], places[side].take(drawn[side]), 2)
        near[side], rows[side] = found[:, 0], drawn[side][which[:, 0]]
        with np.errstate(invalid="ignore"):
            ratio[side] = np.where(np.isinf(found[:, 1]), np.nan, found[:, 0] / found[:, 1])
    each = shared_confidence(confidence, 2)
    names = {"distance": near, "ratio": ratio}
    quantiles = [
        Figure(f"quantile_{q:g}:{name}_{side}", quantile(of[side], q, confidence))
        if not np.isnan(of[side]).any()
        else Figure(f"quantile_{q:g}:{name}_{side}", unmeasured="all records are equal")
        for name, of in names.items()
        for side in ("train", "holdout")
        for q in QUANTILES
    ]
    figures = (
        closer("share:closer_to_train", near["train"], near["holdout"], rows, each),
        closer("share:lower_ratio", ratio["train"], ratio["holdout"], rows, each),
        *quantiles,
    )
    return SyntheticResult(
        "nearest",
        "Distance to the closest record",
        "samples",
        figures,
        {
            "synthetic_row": np.arange(len(places["synthetic"])),
            "train_row": rows["train"],
            "holdout_row": rows["holdout"],
            "distance_train": near["train"],
            "distance_holdout": near["holdout"],
            "ratio_train": ratio["train"],
            "ratio_holdout": ratio["holdout"],
            "closer_to_train": _lower(near["train"], near["holdout"]),
        },
        (
            "distances miss leaks: a share around one half is no sign of privacy",
            f"{n} records of train and {n} of holdout are compared",
            "synthetic records with one nearest real record count as one cluster: the interval "
            "is that of so many independent records as the clusters are worth",
            METRIC,
        ),
        "share with a holdout: Platzer and Reutterer 2021",
        seed,
        time.monotonic() - started,
    )


def closer(
    name: str, train: Floats, holdout: Floats, rows: dict[str, Rows], confidence: float
) -> Figure:
    """Share of records (n,) whose ``train`` is below their ``holdout``, ties half.

    Which real records there are is chance as well, and it decides at once about all synthetic
    records that have the same nearest one. So a cluster of w of them counts as one record w times:
    the interval is the normal one at the variance of a fair coin, 1/4, over n² / Σ w² records in
    the place of n (Kish 1965, section 8.2), at most n. Ties decide nothing and are in no cluster.
    """
    if np.isnan(train).any() or np.isnan(holdout).any():
        return Figure(name, unmeasured="all real records of a table are equal")
    lower, n = _lower(train, holdout), len(train)
    clusters = [
        np.unique(rows[side][lower == of], return_counts=True)[1]
        for side, of in (("train", 1), ("holdout", 0))
    ]
    squares = sum(float((size.astype(np.float64) ** 2).sum()) for size in clusters)
    worth = min(float(n), n * n / max(squares, 1.0))
    if worth < LEAST:
        return Figure(
            name, unmeasured=f"worth {worth:.0f} independent records, need {LEAST} or more"
        )
    value, reach = float(lower.mean()), float(norm.ppf(0.5 + confidence / 2)) / (2 * worth**0.5)
    method = f"normal, {worth:.0f} effective records"
    low, high = max(value - reach, 0.0), min(value + reach, 1.0)
    return Figure(name, Estimate(low, value, high, confidence, method, n))


def quantile(values: Floats, q: float, confidence: float = 0.95) -> Estimate:
    """A quantile with the interval that order statistics give, whatever the distribution.

    The ends are order statistics whose ranks are binomial quantiles (David and Nagaraja 2003,
    section 7.1), or the extremes where the sample is too small.
    """
    ordered = np.sort(values)
    n, tail = len(ordered), (1 - confidence) / 2
    low, high = binom.ppf(tail, n, q), binom.ppf(1 - tail, n, q) + 1
    ends = (int(np.clip(rank - 1, 0, n - 1)) for rank in (low, high))
    value = ordered[int(np.clip(np.ceil(q * n) - 1, 0, n - 1))]
    first, last = (float(ordered[end]) for end in ends)
    return Estimate(first, float(value), last, confidence, "order statistics", n)


def _lower(train: Floats, holdout: Floats) -> NDArray[np.float64]:
    return (1 + np.sign(holdout - train)) / 2
