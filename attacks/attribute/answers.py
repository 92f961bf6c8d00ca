"""Completes records by every value they might have, and asks the target about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.targets import Array, Floats, Target, positions

BATCH = 2**16  # completed records in one call of the target


@dataclass(frozen=True, eq=False)
class Answers:
    """What the target said about n records, completed by V values and K look-alikes each.

    ``labels`` (n,) is where the true labels stand among the classes, ``predicted`` (n, V, K) where
    the answers do. With access to scores, ``likelihood`` (n, V, K) is the probability of the true
    label and ``confidence`` (n, V, K) that of the predicted one.
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    likelihood: Floats | None = None
    confidence: Floats | None = None


def ask(
    target: Target,
    features: Array,
    labels: NDArray[np.int64],
    *,
    at: int,
    candidates: Array,
    known: list[int],
    others: Array,
    scores: bool,
    progress: Callable[[int], None],
) -> Answers:
    """The target's answers, V * K of them for each record, in few calls.

    Args:
        target: the classifier.
        features: the records (n, d).
        labels: where their labels stand among the target's classes (n,).
        at: the column to complete.
        candidates: the values to complete it by (V,).
        known: the columns that are the record's own.
        others: the records (n, K, d) that all other columns are taken from.
        scores: whether to ask for scores, or for labels only.
        progress: called with how many of the n records are done.
    """
    shape = (len(features), len(candidates), others.shape[1])
    predicted = np.empty(shape, dtype=np.int64)
    likelihood, confidence = (np.empty(shape if scores else (0, 0, 0)) for _ in range(2))
    size = max(1, BATCH // (shape[1] * shape[2]))
    for start in range(0, len(features), size):
        rows = slice(start, start + size)
        completed = np.repeat(others[rows][:, None], shape[1], axis=1)
        completed[..., known] = features[rows][:, None, None, known]
        completed[..., at] = candidates[None, :, None]
        asked, kept = completed.reshape(-1, features.shape[1]), completed.shape[:3]
        if scores:
            answer = target.scores(asked).reshape(*kept, -1)
            predicted[rows] = answer.argmax(axis=3)
            confidence[rows] = answer.max(axis=3)
            truth = labels[rows, None, None, None]
            likelihood[rows] = np.take_along_axis(answer, truth, axis=3)[..., 0]
        else:
            said = target.predict_labels(asked)
            predicted[rows] = positions(said, target.classes).reshape(kept)
        progress(min(start + size, len(features)))
    if not scores:
        return Answers(labels, predicted)
    return Answers(labels, predicted, likelihood, confidence)
