"""Formulas from RDP or log moments to (ε, δ): proved ones, and those that a Gaussian disproves.

A conversion is valid if no mechanism has a larger δ(ε) than it says. The Gaussian mechanism's δ(ε)
is known exactly, so that one σ and one ε where a formula falls below it refute the formula.
"""

from __future__ import annotations

import numpy as np

from audit.accounting.convert import gdp_to_delta, rdp_to_delta
from audit.claims.context import Context
from audit.claims.schema import Conversion
from audit.claims.verdicts import computed, finding
from reports.record import ClaimState, Finding

ORDERS = np.concatenate([np.arange(1.25, 64, 0.25), np.arange(64, 513)])
MOMENTS = np.arange(1, 513)
SIGMAS = (0.5, 1.0, 1.41, 2.0, 4.0, 8.0)
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

NAMES = {"renyi_divergence": "Rényi divergence", "log_moment": "log moment"}

# (formula, what λ is) -> whose proof it is
PROVED = {
    ("moments", "log_moment"): "Abadi et al. 2016, theorem 2.2",
    ("renyi", "renyi_divergence"): "Mironov 2017, proposition 3",
    ("mironov", "renyi_divergence"): "Mironov 2017, proposition 3",
    ("tight", "renyi_divergence"): "Canonne, Kamath, Steinke 2020, proposition 12",
}


def stated_delta(formula: str, lambda_is: str, sigma: float, epsilon: float) -> float:
    """The δ that a formula says a Gaussian release with noise σ has at ε, at its best order.

    The Gaussian's Rényi divergence is α/(2σ²), its log moment α(α+1)/(2σ²).
    """
    alpha = MOMENTS.astype(float) if formula == "moments" else ORDERS
    if lambda_is == "log_moment":
        value = alpha * (alpha + 1) / (2 * sigma**2)
    else:
        value = alpha / (2 * sigma**2)
    if formula == "tight":
        return float(rdp_to_delta(alpha, value, epsilon).min())
    exponent = value - alpha * epsilon if formula == "moments" else (alpha - 1) * (value - epsilon)
    return float(np.exp(np.minimum(exponent, 0.0)).min())


def check(claim: Conversion, context: Context) -> Finding:
    """Supported where it is proved, refuted by a Gaussian that breaks it, else open."""
    readings = (
        ("renyi_divergence", "log_moment") if claim.lambda_is == "unstated" else (claim.lambda_is,)
    )
    broken = {r: w for r in readings if (w := _worst(claim.formula, r)) is not None}
    proved = [r for r in readings if (claim.formula, r) in PROVED]
    state: ClaimState
    if len(broken) == len(readings):
        state, reason = "refuted", "refuted"
    elif len(proved) == len(readings):
        state, reason = "supported", "supported"
    elif claim.lambda_is == "unstated":
        state, reason = "not checkable", "unstated"
    else:
        state, reason = "inconclusive", "inconclusive"
    sigma, epsilon, said, true = next(iter(broken.values()), (None, None, None, None))
    figures = {}
    if said is not None and true is not None:
        figures["delta"] = computed(true, "Gaussian, exact", 1)
        figures["stated_delta"] = computed(said, claim.formula, 1)
    return finding(
        claim,
        state,
        reason,
        {
            "sigma": sigma,
            "epsilon": epsilon,
            "said": said,
            "true": true,
            "proof": PROVED.get((claim.formula, proved[0])) if proved else None,
            "valid": NAMES[proved[0]] if proved else None,
            "invalid": NAMES[next(iter(broken))] if broken else None,
        },
        figure="delta",
        claimed=said,
        figures=figures,
        power=f"{len(SIGMAS) * len(EPSILONS)} Gaussian mechanisms tried",
    )


def _worst(formula: str, lambda_is: str) -> tuple[float, float, float, float] | None:
    """(σ, ε, stated δ, true δ) where the formula is furthest below the truth; None if nowhere."""
    worst = None
    for sigma in SIGMAS:
        for epsilon in EPSILONS:
            true = float(gdp_to_delta(1 / sigma, epsilon))
            said = stated_delta(formula, lambda_is, sigma, epsilon)
            if true < 1e-12 or said >= true:
                continue
            if worst is None or true - said > worst[3] - worst[2]:
                worst = (sigma, epsilon, said, true)
    return worst
