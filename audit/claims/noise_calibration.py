"""Noise for one or more Gaussian releases: is σ what the formula gives, and does it suffice?"""

from __future__ import annotations

import dataclasses
import math

from audit.accounting.convert import gdp_mu, gdp_to_epsilon
from audit.claims.context import Context
from audit.claims.schema import NoiseCalibration
from audit.claims.verdicts import at_most, computed, equals, finding
from reports.record import ClaimState, Finding


def classical_noise(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """σ = C·√(2·ln(1.25/δ))/ε: one release, proved for ε < 1 (Dwork and Roth 2014, theorem A.1)."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def exact_noise(epsilon: float, delta: float, sensitivity: float, releases: int) -> float:
    """The smallest σ for ``releases`` of one Gaussian each (Balle and Wang 2018, theorem 8)."""
    return sensitivity * math.sqrt(releases) / gdp_mu(epsilon, delta)


def check(claim: NoiseCalibration, context: Context) -> Finding:
    """The verdict: first on the formula's value, if one is named, then on what the noise gives.

    Releases of one Gaussian each compose to one with σ/√k, so that ε is exact on both sides. The
    sensitivity is that under add-remove, as a clipping norm is; under replace-one it is double.
    """
    if claim.relation == "unstated":
        one, two = (
            check(claim.model_copy(update={"relation": r}), context)
            for r in ("add-remove", "replace-one")
        )
        if one.state == two.state:
            return one
        return dataclasses.replace(
            one, state="not checkable", message="claims.noise_calibration.relation_unstated"
        )
    sensitivity = claim.sensitivity * (2 if claim.relation == "replace-one" else 1)
    mu = math.sqrt(claim.releases) * sensitivity / claim.noise
    epsilon = gdp_to_epsilon(mu, claim.delta)
    exact = exact_noise(claim.epsilon, claim.delta, sensitivity, claim.releases)
    figures = {
        "epsilon": computed(epsilon, "Gaussian, exact", claim.releases),
        "noise": computed(exact, "Gaussian, exact", claim.releases),
    }
    classical = classical_noise(claim.epsilon, claim.delta, sensitivity)
    formula = {"classical": classical, "exact": exact}.get(claim.formula or "")
    state: ClaimState
    if formula is not None:
        figures["formula"] = computed(formula, f"{claim.formula} formula", 1)
    if formula is not None and not equals(claim.noise, formula):
        state, reason = "refuted", "formula"
    else:
        state = at_most(claim.epsilon, epsilon, epsilon)
        reason = state
    return finding(
        claim,
        state,
        reason,
        {
            "target": claim.epsilon,
            "delta": claim.delta,
            "epsilon": epsilon,
            "exact": exact,
            "formula": formula,
            "releases": claim.releases,
        },
        figure="noise",
        claimed=claim.noise,
        figures=figures,
    )
