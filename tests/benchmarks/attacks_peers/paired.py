"""How far one attack is above another on the same records, with a bootstrap interval."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

RESAMPLES, FPR = 400, 0.01


class Difference(NamedTuple):
    """What the first attack has more than the second, and the 95 % interval of it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def differences(one: Any, other: Any, member: Any) -> tuple[Difference, Difference]:
    """Of the AUC and of the TPR at 1 % FPR; both attacks are judged on the same resamples.

    Members and non-members are drawn anew, each side for itself (Efron 1979, percentiles).
    """
    rng = np.random.default_rng(0)
    weights = [np.ones(len(member))]
    for _ in range(RESAMPLES):
        weight = np.empty(len(member))
        for side in (member, ~member):
            n = int(side.sum())
            weight[side] = rng.multinomial(n, np.full(n, 1 / n))
        weights.append(weight)
    gains = _figures(one, member, weights) - _figures(other, member, weights)
    low, high = np.quantile(gains[1:], (0.025, 0.975), axis=0)
    area, rate = (Difference(*map(float, row)) for row in zip(gains[0], low, high, strict=True))
    return area, rate


def _figures(scores: Any, member: Any, weights: list[Any]) -> Any:
    """AUC and TPR (len(weights), 2), the records counted as often as their weight says."""
    found = np.unique(-scores, return_inverse=True)[1]
    out = []
    for weight in weights:
        tpr, fpr = (
            np.r_[0, np.cumsum(np.bincount(found[side], weight[side], found.max() + 1))]
            for side in (member, ~member)
        )
        tpr, fpr = tpr / tpr[-1], fpr / fpr[-1]
        last = np.searchsorted(fpr, FPR + 1e-12, side="right") - 1
        out.append((np.trapezoid(tpr, fpr), tpr[last]))
    return np.array(out)
