"""Amplification by subsampling: ε of a mechanism that sees a secret random share of the records."""

from __future__ import annotations

from audit.accounting.amplification import subsampled
from audit.claims.context import Context
from audit.claims.schema import Amplification
from audit.claims.verdicts import at_most, computed, finding
from reports.record import ClaimState, Finding


def check(claim: Amplification, context: Context) -> Finding:
    """The verdict on the formula with its conditions, and on its value where one is claimed.

    Conditions: the sample is secret and random; Poisson under add-remove, or fixed size without
    replacement under replace-one. Batches of a shuffled epoch are neither.
    """
    proved = {("poisson", "add-remove"), ("without_replacement", "replace-one")}
    base, rate = claim.base_epsilon, claim.sample_rate
    value = None if base is None or rate is None else subsampled(base, 0.0, rate)[0]
    said = claim.epsilon
    if said is None and claim.formula == "q*eps" and base is not None and rate is not None:
        said = rate * base
    state: ClaimState
    if not claim.secret_sample or claim.sampling == "full_batch":
        state, reason = "refuted", "not_secret"
    elif claim.relation == "unstated" or (claim.sampling, claim.relation) not in proved:
        state, reason = "not checkable", "conditions"
    elif claim.formula == "q*eps" and rate != 1:
        state, reason = "refuted", "too_small"
    elif value is None:
        formula_holds = claim.formula == "log(1+q(e^eps-1))"
        state = "supported" if formula_holds else "refuted"
        reason = "formula" if formula_holds else "too_small"
        if said is not None:
            state, reason = "not checkable", "incomplete"
    elif said is None:
        state, reason = "supported", "formula"
    else:
        state = at_most(said, value, value)
        reason = {"supported": "value", "refuted": "value_refuted"}.get(state, "rounded")
    return finding(
        claim,
        state,
        reason,
        {
            "value": value,
            "base": base,
            "rate": rate,
            "sampling": claim.sampling.replace("_", " "),
            "relation": claim.relation,
        },
        figure="epsilon",
        claimed=said,
        figures={} if value is None else {"epsilon": computed(value, "subsampling", 1)},
    )
