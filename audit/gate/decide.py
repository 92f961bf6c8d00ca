"""The gate: (record, policy, baseline, today) -> verdict. Pure: no I/O and no clock of its own.

Whether a figure is bad is decided here and nowhere else. A limit passes only where every attack's
interval lies within it and at least one of them was shown, on a positive control, to see a breach
of that very limit: silence of an attack that cannot see is no evidence. Attacks on an attribute are
judged column by column; how much of one can leak depends on how it is spread, and for a rare value
is little, so there the control need only be shown to leak at all.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from audit.gate.policy import Limit, Policy, Waiver
from reports.record import (
    OUTCOMES,
    Attack,
    Decision,
    Finding,
    Interval,
    Outcome,
    Record,
    Value,
    Verdict,
)

# what a ledger need not have: one process has no ranks to compare, and few runs are signed
_OPTIONAL = ("ledger.ranks", "ledger.signature")
_CLAIM: dict[str, Outcome] = {"supported": "pass", "refuted": "fail", "error": "error"}


def decide(
    record: Record, policy: Policy, baseline: Record | None, today: datetime.date
) -> Verdict:
    """The verdict on a record under a policy: the worst decision decides.

    ``baseline`` is the record of an earlier release, for limits on how much worse a figure may
    become. A waiver stands beside the decision that it is about until its date; it changes nothing.
    """
    decisions = list(_decisions(record, policy, baseline))
    if not decisions:
        decisions = [Decision("nothing", "", "inconclusive", "gate.nothing.inconclusive")]
    waived = [_with_waiver(d, policy, today) for d in decisions]
    waived.sort(key=lambda d: -OUTCOMES.index(d.outcome))  # stable: worst first
    return Verdict(waived[0].outcome, tuple(waived))


def _decisions(record: Record, policy: Policy, baseline: Record | None) -> Iterator[Decision]:
    for finding in record.findings:
        if finding.state == "error" and not finding.claim:
            yield _decision("ran", finding, "error", "gate.not_run")
    if policy.claims:
        for finding in (f for f in record.findings if f.claim):
            yield _decision(
                "claims", finding, _CLAIM.get(finding.state, "inconclusive"), "gate.claim"
            )
    if policy.ledger:
        for finding in (f for f in record.findings if f.check.startswith("ledger.")):
            absent = finding.state == "not checkable" and finding.check in _OPTIONAL
            if finding.state != "error" and not absent:
                outcome = _CLAIM.get(finding.state, "inconclusive")
                yield _decision("ledger", finding, outcome, "gate.ledger")
    ran = {attack.name for attack in record.attacks if attack.subject == "target"}
    for name in policy.require:
        if name not in ran:
            yield Decision(
                "require", f"attack/{name}", "error", "gate.not_run.error", {"subject": name}
            )
    if ran:
        for limit in policy.limits:
            yield from _limited(record, limit, baseline)


def _decision(rule: str, finding: Finding, outcome: Outcome, message: str) -> Decision:
    subject = finding.claim or str(finding.values.get("subject", finding.id))
    values = {**finding.values, "subject": subject, "value": finding.meaning}
    return Decision(rule, finding.id, outcome, f"{message}.{outcome}", values)


def _limited(record: Record, limit: Limit, baseline: Record | None) -> Iterator[Decision]:
    groups = _measured(record, limit)
    if not groups:
        values = {"figure": limit.figure, "limit": limit.at_most, "subject": record.subject.name}
        rule = f"limit.{limit.figure}"
        yield Decision(rule, "", "inconclusive", "gate.not_tried.inconclusive", values)
    for group in groups:
        yield _within_limit(record, limit, group)
    if baseline is not None and limit.worse_than_baseline is not None:
        yield _no_worse(record, baseline, limit)


@dataclass(frozen=True)
class _Measured:
    """One attack's figure: each tail, and whether the control showed that it can see a breach."""

    finding: str
    subject: str
    access: str
    tails: tuple[Interval, ...]
    could_see: bool


def _measured(record: Record, limit: Limit) -> list[list[_Measured]]:
    """What is held against a limit, in groups that are judged together; none may be empty."""
    if limit.figure != "attribute_advantage":
        attacks = (a for a in record.attacks if a.subject == "target")
        return [[_membership(record, attack, limit) for attack in attacks]]
    columns: dict[Value, list[_Measured]] = {}
    for finding in record.findings:
        if finding.check == "attack.attribute" and "advantage" in finding.figures:
            columns.setdefault(finding.values.get("column"), []).append(_attribute(finding))
    return list(columns.values())


def _membership(record: Record, attack: Attack, limit: Limit) -> _Measured:
    could_see = any(
        (found := other.metric(limit.figure)) is not None and found.low > limit.at_most
        for other in record.attacks
        if other.subject == "positive control" and other.name == attack.name
    )
    tails = tuple(_tails(attack, limit.figure))
    return _Measured(f"attack/{attack.name}", attack.title, attack.access, tails, could_see)


def _attribute(finding: Finding) -> _Measured:
    """Guesses that are wrong on purpose give members away as well: the figure has two tails."""
    advantage = finding.figures["advantage"]
    control = finding.figures.get("positive_control_advantage")
    return _Measured(
        finding.id,
        str(finding.values.get("subject", finding.id)),
        str(finding.values.get("access", "none")),
        (advantage, _mirrored(advantage, 0.0)),
        control is not None and control.low > 0,
    )


def _within_limit(record: Record, limit: Limit, attacks: list[_Measured]) -> Decision:
    """Fail: some interval lies above the limit. Pass: all lie below, and one could have told."""
    rule = f"limit.{limit.figure}"
    void = {f.id for f in record.findings if f.state == "void"}
    measured = [(a, tail) for a in attacks for tail in a.tails]
    if not measured:
        values = {"figure": limit.figure, "limit": limit.at_most, "subject": attacks[0].subject}
        message = "gate.unmeasured.inconclusive"
        return Decision(rule, attacks[0].finding, "inconclusive", message, values)
    worst, figure = max(measured, key=lambda pair: (pair[1].low, pair[1].value))
    if figure.low <= limit.at_most:
        worst, figure = max(measured, key=lambda pair: (pair[1].high, pair[1].value))
    if worst.finding in void:
        return _limit_decision(rule, worst, figure, limit, "inconclusive", "gate.void")
    if figure.low > limit.at_most:
        return _limit_decision(rule, worst, figure, limit, "fail", "gate.attack")
    if figure.high > limit.at_most:
        return _limit_decision(rule, worst, figure, limit, "inconclusive", "gate.attack")
    if any(f.check == "records.split" and f.state != "supported" for f in record.findings):
        return _limit_decision(rule, worst, figure, limit, "inconclusive", "gate.split")
    if not any(attack.could_see for attack, _ in measured):
        return _limit_decision(rule, worst, figure, limit, "inconclusive", "gate.no_power")
    return _limit_decision(rule, worst, figure, limit, "pass", "gate.attack")


def _tails(attack: Attack, figure: str) -> list[Interval]:
    """The figure and its mirror image: an attack that is wrong on purpose leaks just as well."""
    upper = attack.metric(figure)
    if upper is None:
        return []
    if figure != "auc":  # each tail has thresholds of its own
        lower = attack.metric(f"lower_tail_{figure}")
        return [upper] if lower is None else [upper, lower]
    return [upper, _mirrored(upper, 0.5)]


def _mirrored(figure: Interval, chance: float) -> Interval:
    low, value, high = (2 * chance - x for x in (figure.high, figure.value, figure.low))
    return dataclasses.replace(figure, low=low, value=value, high=high)


def _no_worse(record: Record, baseline: Record, limit: Limit) -> Decision:
    """Compare with an earlier release by the interval of the difference.

    Source: Newcombe 1998, method 10, as generalised by Zou and Donner 2008 (MOVER).
    """
    rule = f"baseline.{limit.figure}"
    margin = limit.worse_than_baseline or 0.0
    before = {a.finding: a.tails for group in _measured(baseline, limit) for a in group}
    pairs: list[tuple[_Measured, Interval]] = []
    for attack in (a for group in _measured(record, limit) for a in group):
        if olds := before.get(attack.finding):  # each tail against what leaked most before
            old = max(olds, key=lambda tail: tail.value)
            pairs += [(attack, difference(new, old)) for new in attack.tails]
    if not pairs:
        values = {"figure": limit.figure, "limit": margin, "subject": record.subject.name}
        return Decision(rule, "", "inconclusive", "gate.baseline_missing.inconclusive", values)
    worst, change = max(pairs, key=lambda pair: (pair[1].low, pair[1].high))
    if change.low > margin:
        outcome: Outcome = "fail"
    else:
        worst, change = max(pairs, key=lambda pair: pair[1].high)
        outcome = "pass" if change.high <= margin else "inconclusive"
    values = {
        "figure": limit.figure,
        "limit": margin,
        "subject": worst.subject,
        "low": change.low,
        "estimate": change.value,
        "high": change.high,
    }
    return Decision(rule, worst.finding, outcome, f"gate.baseline.{outcome}", values)


def difference(new: Interval, old: Interval) -> Interval:
    """The interval of new minus old for independent figures (Zou and Donner 2008, equation 6)."""
    value = new.value - old.value
    below = math.hypot(new.value - new.low, old.high - old.value)
    above = math.hypot(new.high - new.value, old.value - old.low)
    confidence = min(new.confidence, old.confidence)
    return Interval(value - below, value, value + above, confidence, "MOVER", min(new.n, old.n))


def _limit_decision(
    rule: str, attack: _Measured, figure: Interval, limit: Limit, outcome: Outcome, message: str
) -> Decision:
    values = {
        "figure": limit.figure,
        "limit": limit.at_most,
        "subject": attack.subject,
        "low": figure.low,
        "estimate": figure.value,
        "high": figure.high,
        "confidence": figure.confidence,
        "n": figure.n,
        "access": attack.access,
    }
    return Decision(rule, attack.finding, outcome, f"{message}.{outcome}", values)


def _with_waiver(decision: Decision, policy: Policy, today: datetime.date) -> Decision:
    if decision.outcome == "pass" or not _waivable(decision.rule, policy.limits):
        return decision
    for waiver in policy.waivers:
        if waiver.rule == decision.rule and waiver.finding == decision.finding:
            return dataclasses.replace(decision, waiver=_waiver_text(waiver, today))
    return decision


def _waivable(rule: str, limits: Iterable[Limit]) -> bool:
    return all(limit.waivable for limit in limits if rule.endswith(f".{limit.figure}"))


def _waiver_text(waiver: Waiver, today: datetime.date) -> str:
    state = "until" if today <= waiver.until else "expired on"
    return f"{waiver.reason} ({waiver.by}, {state} {waiver.until.isoformat()})"
