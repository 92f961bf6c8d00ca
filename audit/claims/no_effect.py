"""Changes that are said to lower ε and that the account does not see.

DP-SGD is accounted by noise multiplier, sample rate, steps, δ and relation. How many layers train,
how large the model is, or what is shown of the result does not enter: C bounds the whole record.
"""

from __future__ import annotations

from audit.accounting.events import UnsupportedEvent
from audit.claims.account import Account, account
from audit.claims.context import Context
from audit.claims.schema import NoEffect
from audit.claims.verdicts import at_most, finding
from reports.record import ClaimState, Finding


def check(claim: NoEffect, context: Context) -> Finding:
    """Refuted where ε is said to fall at equal noise, sample rate and steps."""
    cost = _account(claim)
    before = claim.epsilon_before
    state: ClaimState
    if before is not None and claim.epsilon < before:
        state, reason = "refuted", "refuted" if cost is None else "refuted_recomputed"
    elif cost is None:
        state, reason = "not checkable", "missing"
    else:
        state = at_most(claim.epsilon, cost.low, cost.high)
        reason = "refuted_recomputed" if state == "refuted" else state
    return finding(
        claim,
        state,
        reason.replace(" ", "_"),
        {
            "change": claim.change.replace("_", " "),
            "before": before,
            "epsilon": None if cost is None else cost.high,
            "low": None if cost is None else cost.low,
            "delta": claim.delta,
            "missing": ", ".join((*claim.missing(), *(() if claim.delta else ("delta",)))),
        },
        figure="epsilon",
        claimed=claim.epsilon,
        figures={} if cost is None else {"epsilon": cost.interval()},
    )


def _account(claim: NoEffect) -> Account | None:
    """The account of the stated mechanism, which is the same before and after the change."""
    if claim.missing() or claim.delta is None or claim.relation == "unstated":
        return None
    try:
        return account((claim.events()[1],), claim.delta, relation=claim.relation)
    except UnsupportedEvent:
        return None
