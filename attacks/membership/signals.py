"""What a membership attack reads off a model's answer about one record."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logsumexp

from attacks.targets import Array, Floats, Target, allows, positions

CONFIDENCE, TOP = 0, slice(1, 4)  # columns of an observation
WIDTH = 4
TINY = 1e-30  # the least probability that is told from 0
EXTREME = -float(np.log(TINY))  # the logit of a probability of 1, and minus that of 0


def observe(target: Target, X: Array, y: Array) -> Floats:
    """One row (n, 4) for each record: the true class' logit, then the three largest probabilities.

    The logit log(p / (1 - p)) is taken from the logits where the access allows. From scores,
    1 - p is the sum of the other probabilities: p itself rounds to 1 long before they round to 0
    (Carlini et al. 2022 do the same). A probability below 1e-30 counts as 0, and a class that the
    model has never seen has p = 0. Three probabilities suffice (Salem et al. 2019); with two
    classes the third is 0.
    """
    known = np.isin(y, target.classes)
    at = np.zeros(len(y), dtype=np.int64)
    at[known] = positions(y[known], target.classes)
    rows = np.arange(len(y))
    if allows(target.access, "logits"):
        logits = target.logits(X)
        scores = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
        others = logits.copy()
        others[rows, at] = -np.inf
        confidence = logits[rows, at] - logsumexp(others, axis=1)
    else:
        scores = target.scores(X)
        p = scores[rows, at]
        others = scores.copy()
        others[rows, at] = 0.0
        rest = others.sum(axis=1)
        rest = np.where(rest > 0, rest, 1 - p)  # scores that were rounded may not sum to 1
        confidence = np.log(np.maximum(p, TINY)) - np.log(np.maximum(rest, TINY))
    out = np.zeros((len(y), WIDTH))
    out[:, CONFIDENCE] = np.where(known, confidence, -EXTREME)
    top = -np.sort(-scores, axis=1)[:, :3]
    out[:, 1 : 1 + top.shape[1]] = top
    return out


def probability(confidence: Array) -> Floats:
    """The true class' probability behind its logit."""
    return np.asarray(expit(np.asarray(confidence, dtype=np.float64)))


def reach(logits: Array) -> float:
    """How far from zero a logit can lie beside these without being an artefact.

    A probability of exactly 0 or 1 has no logit. It is put half as far from 0 or 1 as the nearest
    probability that is neither (half a tree's vote for a forest), else the few records that reach
    it would dwarf the variance of all others. Logits that a model gave itself are no artefacts,
    however large.
    """
    proper = np.abs(logits)[np.abs(np.abs(logits) - EXTREME) > 0.01]
    return float(proper.max(initial=0.0)) + float(np.log(2))
