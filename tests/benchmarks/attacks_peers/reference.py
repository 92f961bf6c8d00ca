"""LiRA and RMIA as their papers write them down, without any care for speed or for few models.

They share no line with ``attacks``: probabilities in, scores out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

TINY = 1e-45  # LiRA's authors add it before they take a logarithm
VOTE = 1e-3  # about what suits a forest of 100 trees best, found by trying


def lira(given: Any, inside: Any, asked: Any, y: Any, tiny: float = TINY) -> Any:
    """Carlini et al. 2022, algorithm 1: a Gaussian each for the logits with and without a record.

    ``given`` (M, n, C) and ``asked`` (n, C) are probabilities, ``inside`` (M, n), ``y`` (n,).
    The paper does not say what the logit of 0 or 1 is: ``tiny`` is added to both probabilities.
    """
    rows = np.arange(len(y))

    def logit(p: Any) -> Any:
        right = p[..., rows, y]
        return np.log(right + tiny) - np.log(np.maximum(p.sum(axis=-1) - right, 0) + tiny)

    shadows, target = logit(given), logit(asked)
    scores = np.empty(len(y))
    for i in rows:
        within, without = shadows[inside[:, i], i], shadows[~inside[:, i], i]
        scores[i] = norm.logpdf(target[i], within.mean(), within.std() + 1e-30)
        scores[i] -= norm.logpdf(target[i], without.mean(), without.std() + 1e-30)
    return scores


def rmia(given: Any, asked: Any, y: Any, gamma: float) -> Any:
    """Zarifzadeh et al. 2024, equations 3 and 4 (online), with the pool as its population.

    The score is the share of records z whose ratio p(z | target) / p(z) the record's own is at
    least ``gamma`` times; p(z) is the mean over all shadow models.
    """
    rows = np.arange(len(y))
    ratio = asked[rows, y] / np.maximum(given[:, rows, y].mean(axis=0), TINY)
    return np.array([np.mean(own >= gamma * ratio) for own in ratio])
