"""Label-only attack (Choquette-Choo et al. 2021): how much change does a record's label survive?

A model that learned a record by heart is right about it and about all that is near it. So each
record is asked about as it is, and again after small random changes at several scales; what is
counted is how often the label is still right. It is a stand-in for the distance to the decision
boundary that takes far fewer questions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Array, Target

SCALES = (0.05, 0.1, 0.2, 0.4)
COPIES = 8  # at each scale
FEW = 10  # a column of numbers with no more distinct values than this is one of categories

CELLS = 2_000_000  # values changed at once: bounds the memory

Change = Callable[[slice, float, np.random.Generator], Array]


def label_only(
    target: Target, pool: Pool, shadows: Shadows | None, seed: int, progress: Progress
) -> Scored:
    """The share of right labels, averaged over the scales; the unchanged record is one of them.

    Numbers get Gaussian noise of ``scale`` times their column's standard deviation in the pool.
    Words and categories are exchanged, with probability ``scale``, for another record's in the same
    column. In texts each word is dropped with probability ``scale``.
    """
    X, y = pool.features, pool.labels
    change = _texts(X) if X.ndim == 1 and X.dtype.kind not in "biuf" else _columns(X)
    rng = np.random.default_rng(seed)
    size = max(1, CELLS * len(X) // X.size)
    batches = [slice(start, start + size) for start in range(0, len(X), size)]
    right = (target.predict_labels(X) == y).astype(np.float64)
    for scale in SCALES:
        for rows in batches * COPIES:
            answers = target.predict_labels(change(rows, scale, rng))
            right[rows] += (answers == y[rows]) / COPIES
    return Scored(right / (1 + len(SCALES)))


def _columns(features: Array) -> Change:
    """Changed copies of a table of numbers, words or both, of any shape (n, ...)."""
    table = features.reshape(len(features), -1)
    measured = np.array([_is_measured(column) for column in table.T])
    values = table[:, measured].astype(np.float64)
    whole = (values == np.rint(values)).all(axis=0)
    spread, low, high = values.std(axis=0), values.min(axis=0), values.max(axis=0)
    names = table[:, ~measured]

    def change(rows: slice, scale: float, rng: np.random.Generator) -> Array:
        moved = values[rows] + scale * spread * rng.standard_normal(values[rows].shape)
        moved = np.where(whole, np.rint(moved), moved)
        own = names[rows]
        others = names[rng.integers(len(names), size=own.shape), np.arange(own.shape[1])]
        copy = table[rows].copy()
        copy[:, measured] = np.clip(moved, low, high)  # a model may refuse what cannot be
        copy[:, ~measured] = np.where(rng.random(own.shape) < scale, others, own)
        return copy.reshape(-1, *features.shape[1:])

    return change


def _is_measured(column: Array) -> bool:
    """Whether noise makes sense in this column: numbers with more than a few distinct values."""
    if column.dtype.kind == "O" and all(isinstance(value, int | float) for value in column):
        column = column.astype(np.float64)
    if column.dtype.kind not in "iuf" or not np.isfinite(column).all():
        return False
    return len(np.unique(column)) > FEW


def _texts(texts: Array) -> Change:
    """Copies of texts (n,) with words missing, one word at least left."""

    def shorten(text: str, scale: float, rng: np.random.Generator) -> str:
        words = text.split()
        kept = rng.random(len(words)) >= scale
        if words and not kept.any():
            kept[rng.integers(len(words))] = True
        return " ".join(word for word, keep in zip(words, kept, strict=True) if keep)

    def change(rows: slice, scale: float, rng: np.random.Generator) -> Array:
        copies = [shorten(str(text), scale, rng) for text in texts[rows]]
        return np.array(copies, dtype=texts.dtype)

    return change
