"""Several parts and what they cost together: on the same people, or on disjoint ones."""

from __future__ import annotations

import dataclasses
import math

from audit.accounting.convert import gdp_mu, gdp_to_epsilon
from audit.accounting.events import UnsupportedEvent
from audit.claims.account import Account, Spent, compose, released_gaussian
from audit.claims.context import Context
from audit.claims.schema import Composition, Part
from audit.claims.verdicts import at_most, computed, finding
from reports.record import ClaimState, Finding, Interval, Relation, Value


def check(claim: Composition, context: Context) -> Finding:
    """The verdict on the total: at a limit by arithmetic alone, else by composing the parts."""
    figures: dict[str, Interval] = {}
    tight = _if_gaussian(claim.parts) if claim.people == "same" else None
    if tight is not None:
        figures["epsilon_if_gaussian"] = computed(tight, "Gaussian DP", len(claim.parts))
    if claim.limit is not None and claim.epsilon > claim.limit:
        return _finding(claim, "refuted", "over_limit", figures, limit=claim.limit, tight=tight)
    known = any(p.epsilon is None for p in claim.parts)
    if claim.unit == "user" and known:
        return _finding(claim, "not checkable", "missing", figures, missing="records_per_user")
    if claim.relation == "unstated" and known:
        return _finding(claim, "not checkable", "missing", figures, missing="relation")
    if claim.delta is None and (known or claim.gaussian or any(p.delta for p in claim.parts)):
        return _finding(claim, "not checkable", "missing", figures, missing="delta")
    relation: Relation = "add-remove" if claim.relation == "unstated" else claim.relation
    try:
        cost = _total(claim, claim.delta or 0.0, relation)
    except UnsupportedEvent as error:
        return _finding(claim, "not checkable", "unsupported", figures, problem=str(error))
    if cost.accountant == "δ exceeded":
        total = math.fsum(p.delta for p in claim.parts)
        return _finding(claim, "inconclusive", "over_delta", figures, total=total, tight=tight)
    state = at_most(claim.epsilon, cost.low, cost.high)
    figures["epsilon"] = cost.interval()
    figures |= {f"epsilon_{name}": interval for name, interval in cost.by.items()}
    return _finding(
        claim,
        state,
        f"{state}_disjoint" if claim.people == "disjoint" else state,
        figures,
        epsilon=cost.high,
        low=cost.low,
        accountant=cost.accountant,
        tight=tight,
    )


def _total(claim: Composition, delta: float, relation: Relation) -> Account:
    spent = [_spent(part, claim.gaussian, relation) for part in claim.parts]
    if claim.people == "same":
        return compose(spent, delta, relation, delta)[0]
    each = [compose([s], delta, relation, delta)[0] for s in spent]
    low = max(a.low for a in each)
    return dataclasses.replace(max(each, key=lambda a: a.high), low=low, by={})


def _spent(part: Part, gaussian: bool, relation: Relation) -> Spent:
    if part.epsilon is None:
        return Spent((part.events()[1],))
    if gaussian and part.delta and part.epsilon:
        return Spent((released_gaussian(part.epsilon, part.delta, relation),))
    return Spent((), part.epsilon, part.delta)


def _if_gaussian(parts: list[Part]) -> float | None:
    """ε at the largest part's δ, were each (ε, δ) that of one Gaussian: how loose adding is."""
    if any(not p.epsilon or not p.delta for p in parts):
        return None
    mus = [gdp_mu(p.epsilon, p.delta) for p in parts if p.epsilon]
    return gdp_to_epsilon(math.hypot(*mus), max(p.delta for p in parts))


def _finding(
    claim: Composition,
    state: ClaimState,
    reason: str,
    figures: dict[str, Interval],
    **values: Value,
) -> Finding:
    return finding(
        claim, state, reason,
        {"delta": claim.delta, "parts": len(claim.parts), **values},
        figure="epsilon", claimed=claim.epsilon, figures=figures,
    )  # fmt: skip
