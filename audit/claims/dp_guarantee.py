"""A claimed (ε, δ): judged on the ledger of the run, or on the mechanism that the claim states.

The ledger says what ran, so it goes before what a claim states. An upper bound supports a claim, a
lower bound refutes it; an attack that found nothing does neither.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Set as AbstractSet
from pathlib import Path

from audit.accounting.events import MechanismEvent, SampledGaussian, UnsupportedEvent
from audit.claims.account import Account, account
from audit.claims.context import Context
from audit.claims.schema import DpGuarantee
from audit.claims.search import Fillings, search
from audit.claims.verdicts import at_most, finding, rounding
from reports.record import ClaimState, Evidence, Finding, Interval, Relation, Value


def check(claim: DpGuarantee, context: Context) -> Finding:
    """The verdict on one guarantee."""
    if claim.noise_seed_published:
        nothing = Interval(math.inf, math.inf, math.inf, 1.0, "published noise seed", 0)
        return _finding(claim, "refuted", "seed_published", {"epsilon": nothing})
    if claim.limit is not None and claim.epsilon > claim.limit:
        return _finding(claim, "refuted", "over_limit", {}, limit=claim.limit)
    for name, bound in context.epsilon_lower.items():
        if bound.low > (claim.epsilon + rounding(claim.epsilon)):
            figures = {"epsilon_lower_bound": bound}
            return _finding(claim, "refuted", "attacked", figures, attack=name, low=bound.low)
    if context.ledger_problem:
        return _finding(
            claim, "not checkable", "ledger_problem", {}, context.evidence,
            problem=context.ledger_problem,
        )  # fmt: skip
    missing = _missing(claim, context)
    if "noise_multiplier" in missing or "records_per_user" in missing:
        return _finding(claim, "not checkable", "missing", {}, missing=", ".join(missing))
    if missing and context.events is None:
        return _searched(claim, search(claim, claim.epsilon), missing)
    if missing:
        return _finding(claim, "not checkable", "missing", {}, context.evidence,
                        missing=", ".join(missing))  # fmt: skip
    few, many = _events(claim, context)
    return _allowed(claim, context, _recomputed(claim, context, few, many))


def _allowed(claim: DpGuarantee, context: Context, found: Finding) -> Finding:
    """What stands in the way of "supported" although the account keeps within the claim."""
    if found.state != "supported":
        return found
    values = dict(found.values)
    state: ClaimState = "supported"
    if context.events is not None and (differs := _other_run(claim, context)):
        values["differs"] = differs
        state, reason = "not checkable", "other_run"
    elif context.seeded_noise:
        state, reason = "inconclusive", "seeded_noise"
    else:
        records = context.records if context.events is not None else claim.records
        assert claim.delta is not None
        if records is None or claim.delta < 1 / records:
            return found
        values["records"] = records
        reason = "supported_large_delta"
    message = f"claims.dp_guarantee.{reason}"
    return dataclasses.replace(found, state=state, message=message, values=values)


def _other_run(claim: DpGuarantee, context: Context) -> str:
    """What the claim says of the run and the ledger does not; "" if they agree."""
    events = [e for e in context.events or () if isinstance(e, SampledGaussian)]
    rate = claim.rate()
    records = set() if context.records is None else {context.records}
    pairs: dict[str, tuple[float | None, AbstractSet[float]]] = {
        "noise_multiplier": (claim.noise_multiplier, {e.noise_multiplier for e in events}),
        "sample_rate": (rate, {e.sample_rate for e in events}),
        "steps": (claim.steps, {sum(e.steps for e in events)}),
        "records": (claim.records, records),
    }
    for name, (said, shown) in pairs.items():
        agrees = said is None or any(math.isclose(said, s, rel_tol=1e-3) for s in shown)
        if said is not None and shown and not agrees:
            return f"{name} {said:g} / {', '.join(f'{s:g}' for s in sorted(shown))}"
    if claim.sampling != "poisson" and any(e.sampling != claim.sampling for e in events):
        return f"sampling {claim.sampling} / {events[0].sampling}"
    named = {claim.release, Path(claim.release).name}
    if claim.release and not named & set(context.released):
        return f"release {claim.release} / {', '.join(context.released[::2]) or '–'}"
    return ""


def _missing(claim: DpGuarantee, context: Context) -> list[str]:
    absent = ["delta"] if claim.delta is None else []
    if context.events is None:
        absent += claim.missing()
    if claim.unit == "user" and claim.records_per_user is None and context.group_size == 1:
        absent.append("records_per_user")
    return absent


Events = tuple[MechanismEvent, ...]


def _events(claim: DpGuarantee, context: Context) -> tuple[Events, Events]:
    if context.events is not None:
        return context.events, context.events
    few, many = claim.events()
    return (few,), (many,)


def _recomputed(claim: DpGuarantee, context: Context, few: Events, many: Events) -> Finding:
    assert claim.delta is not None
    relations: tuple[Relation, ...] = (
        ("add-remove", "replace-one") if claim.relation == "unstated" else (claim.relation,)
    )
    size = 1
    if claim.unit == "user":
        size = max(claim.records_per_user or 1, context.group_size)
    accounts: list[Account] = []
    try:
        for relation in relations:
            most = account(many, claim.delta, relation=relation, group_size=size)
            least = most.low
            if few != many:
                least = account(few, claim.delta, relation=relation, group_size=size).low
            accounts.append(dataclasses.replace(most, low=least))
    except (UnsupportedEvent, ArithmeticError, MemoryError) as error:
        return _finding(  # beyond floating point, where a person has a million records
            claim, "not checkable", "unsupported", {}, context.evidence, problem=str(error)
        )
    states = {at_most(claim.epsilon, a.low, a.high) for a in accounts}
    worst = max(accounts, key=lambda a: a.high)
    state: ClaimState = states.pop() if len(states) == 1 else "not checkable"
    reason = "relation_unstated" if state == "not checkable" else state
    figures = {"epsilon": worst.interval(), **{f"epsilon_{k}": v for k, v in worst.by.items()}}
    return _finding(
        claim,
        state,
        reason,
        figures,
        context.evidence if context.events is not None else (),
        epsilon=worst.high,
        low=min(a.low for a in accounts),
        accountant=worst.accountant,
        basis="ledger"
        if context.events is not None
        else f"stated mechanism, {claim.sampling.replace('_', ' ')} sampling",
    )


def _searched(claim: DpGuarantee, found: Fillings, missing: list[str]) -> Finding:
    """Say which fillings of what is missing could give the claimed ε, if any."""
    state: ClaimState = "not checkable"
    reason = "fillings_some"
    if found.refuted == found.tried:
        state, reason = "refuted", "fillings_none"
    elif found.supported == found.tried:
        reason = "fillings_all"  # those that were tried: no proof for the others
    return _finding(
        claim,
        state,
        reason,
        {"epsilon": found.interval()},
        missing=", ".join(missing),
        tried=found.tried,
        possible=found.tried - found.refuted,
        range=found.range,
        frontier=found.frontier,
        least=found.least,
        least_at=found.least_at,
    )


def _finding(
    claim: DpGuarantee,
    state: ClaimState,
    reason: str,
    figures: dict[str, Interval],
    evidence: tuple[Evidence, ...] = (),
    **values: Value,
) -> Finding:
    relation = "add-remove and replace-one" if claim.relation == "unstated" else claim.relation
    return finding(
        claim, state, reason,
        {"delta": claim.delta, "unit": claim.unit, "relation": relation, **values},
        figure="epsilon", claimed=claim.epsilon, figures=figures, evidence=evidence,
    )  # fmt: skip
