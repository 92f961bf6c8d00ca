"""Can a classifier tell synthetic records from real ones?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from attacks.metrics import Estimate, auc, tpr_at_fpr
from attacks.synthetic.tables import Coded, Tables
from audit.quality.features import LEAST, Features
from audit.to_record import interval
from reports.record import Interval, Metric

Mask = NDArray[np.bool_]

FOLDS = 5
FPRS = (0.1, 0.01)


def detect(
    tables: Tables, real: str, synthetic: str, *, confidence: float = 0.95, seed: int = 0
) -> tuple[Metric, ...]:
    """``auc`` of a classifier, and the share of synthetic records found at 10 and 1 % of real ones.

    Boosted trees, cross-validated in five folds; every record is scored by the trees that did not
    see it, nor any exact copy of it: else a release that copies the real table would be called by
    the labels of the copies' twins. 0.5 is the best a generator can do.
    """
    sides = [tables[real], tables[synthetic]]
    figures = ("auc", *(f"tpr_at_fpr_{fpr:g}" for fpr in FPRS))
    for name, side in zip((real, synthetic), sides, strict=True):
        if len(side) < LEAST:
            reason = f"{name}: {len(side)} records; needs {LEAST} or more"
            return tuple(Metric(figure, unmeasured=reason) for figure in figures)
    features = Features.of(tables, (real, synthetic))
    matrix = np.concatenate([features.matrix(side) for side in sides])
    truth = np.repeat([False, True], [len(side) for side in sides])
    folds = _folds(sides, truth, np.random.default_rng(seed))
    scores = np.empty(len(matrix))
    for fold in range(FOLDS):
        judged = folds == fold
        if not judged.any():
            continue
        if len(np.unique(truth[~judged])) < 2:
            reason = "too few distinct records to set some aside"
            return tuple(Metric(figure, unmeasured=reason) for figure in figures)
        model = features.fit(matrix[~judged], truth[~judged], "classes", seed)
        scores[judged] = model.decision_function(matrix[judged])
    inside, outside = scores[truth], scores[~truth]
    found = [tpr_at_fpr(inside, outside, fpr, confidence) for fpr in FPRS]
    return (
        Metric("auc", _widened(auc(inside, outside, confidence))),
        *(
            Metric(f.name, interval(f.estimate) if f.estimate else None, f.unmeasured)
            for f in found
        ),
    )


def _widened(found: Estimate) -> Interval:
    """The interval for records that are judged by models which share most of their training.

    Nadeau and Bengio (2003): the variance of K folds' mean is 1 + K · (tested / trained) times as
    large as that of as many independent records; 2.25 for five. On the logit scale.
    """
    factor = math.sqrt(1 + FOLDS / (FOLDS - 1))
    low, high = found.low, found.high
    if 0 < found.value < 1:
        centre = logit(found.value)
        low, high = (float(expit(centre + factor * (logit(x) - centre))) for x in (low, high))
    method = f"{found.method}, widened for cross-validation"
    return Interval(low, found.value, high, found.confidence, method, found.n)


def _folds(sides: list[Coded], truth: Mask, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each record's fold (n,): one for all exact copies of a record, both tables in equal parts."""
    records = np.concatenate([np.hstack([side.numbers, side.codes]) for side in sides]) + 0.0
    records[np.isnan(records)] = np.nan  # one bit pattern for all
    whole = np.ascontiguousarray(records).view(np.dtype((np.void, records[0].nbytes))).ravel()
    groups = np.unique(whole, return_inverse=True)[1]
    share = np.bincount(groups, weights=truth) / np.bincount(groups)
    folds = np.empty(len(share), dtype=np.int64)
    folds[np.lexsort([rng.random(len(share)), share])] = np.arange(len(share)) % FOLDS
    return folds[groups]
