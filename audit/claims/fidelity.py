"""Fidelity figures of synthetic data: does the evidence suffice to say that a limit is kept?"""

from __future__ import annotations

import math

from audit.claims.context import Context
from audit.claims.schema import Fidelity
from audit.claims.verdicts import at_most, finding
from reports.record import ClaimState, Finding, Interval, Value

CONFIDENCE = 0.95


def half_width(claim: Fidelity, real: float, synthetic: float) -> float:
    """How far the figure may lie from the truth, at 95 %, for so many records on either side.

    ``ks``: each empirical distribution lies within √(ln(2/β)/2n) of its own (Massart 1990), β half
    of 5 %. ``tv`` over k categories: √((k·ln 2 + ln(1/β))/2n) each (union bound over all 2^k events
    and Hoeffding 1963). ``auc_loss``: √(ln(2/β)/2m) for each AUC on m positives and m negatives
    (Hoeffding 1963, section 5b, on U-statistics of two samples).
    """
    beta = (1 - CONFIDENCE) / 2
    if claim.metric == "auc_loss":
        real, synthetic = real / 2, synthetic / 2  # half of each test set is positive
    if claim.metric in ("ks", "auc_loss"):
        log = math.log(2 / beta)
    else:
        log = (claim.categories or 2) * math.log(2) + math.log(1 / beta)
    return math.sqrt(log / (2 * real)) + math.sqrt(log / (2 * synthetic))


def check(claim: Fidelity, context: Context) -> Finding:
    """Supported or refuted where the whole interval lies on one side of the limit."""
    limit, value = claim.limit, claim.value
    needed = None if limit is None or limit == value else _needed(claim, abs(limit - value))
    common: dict[str, Value] = {"limit": limit, "needed": needed, "categories": claim.categories}
    unknown = claim.metric == "tv" and claim.categories is None
    if claim.n_real is None or claim.n_synthetic is None or unknown:
        reason = "without_categories" if unknown else "without_n"
        return finding(
            claim, "not checkable", reason, common, figure=claim.metric, claimed=value,
            power="n is not stated",
        )  # fmt: skip
    half = half_width(claim, claim.n_real, claim.n_synthetic)
    least = -1.0 if claim.metric == "auc_loss" else 0.0
    n = min(claim.n_real, claim.n_synthetic)
    interval = Interval(
        max(least, value - half), value, min(1.0, value + half), CONFIDENCE,
        {"ks": "Massart", "tv": "Hoeffding", "auc_loss": "Hoeffding"}[claim.metric], n,
    )  # fmt: skip
    state: ClaimState
    if limit is None:
        state, reason = "not checkable", "no_limit"
    else:
        state = at_most(limit, interval.low, interval.high)
        reason = state
    return finding(
        claim,
        state,
        reason,
        {**common, "low": interval.low, "high": interval.high, "n": n},
        figure=claim.metric,
        claimed=value,
        figures={claim.metric: interval},
        power=f"n = {claim.n_real} real and {claim.n_synthetic} synthetic records",
    )


def _needed(claim: Fidelity, gap: float) -> int:
    """From how many records on each side the interval keeps clear of the limit."""
    return math.ceil((half_width(claim, 1, 1) / gap) ** 2)
