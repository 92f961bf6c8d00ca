"""What the other rooms measured, in the record's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attacks.attribute.result import AttributeResult, by_value, figures
from attacks.metrics import Estimate, Figure, measure, roc
from attacks.result import AttackResult
from audit.accounting.guarantee import PrivacyGuarantee
from audit.gate.policy import Policy
from reports.record import (
    Attack,
    Curve,
    Finding,
    FindingState,
    Guarantee,
    Interval,
    Metric,
    Rule,
    Value,
)
from reports.sentence import figures_text, finish

Subject = Literal["target", "positive control", "blind baseline"]


def interval(estimate: Estimate) -> Interval:
    """An attack's estimate as the record's interval: the same fields."""
    return Interval(
        estimate.low,
        estimate.value,
        estimate.high,
        estimate.confidence,
        estimate.method,
        estimate.n,
    )


def attack(result: AttackResult, subject: Subject, confidence: float) -> Attack:
    """One attack's result with every figure at this confidence, and its ROC thinned for drawing."""
    figures = measure(
        result.member_scores, result.non_member_scores, confidence=confidence, seed=result.seed
    )
    curve = roc(result.member_scores, result.non_member_scores).thinned()
    return Attack(
        name=result.name,
        title=result.title,
        subject=subject,
        access=result.access,
        members=len(result.member_scores),
        non_members=len(result.non_member_scores),
        metrics=tuple(
            Metric(f.name, interval(f.estimate) if f.estimate else None, f.unmeasured)
            for f in figures
        ),
        roc=Curve(
            f"ROC, {subject}",
            "false positive rate",
            "true positive rate",
            tuple(curve.fpr.tolist()),
            tuple(curve.tpr.tolist()),
        ),
        models_trained=result.models_trained,
        queries=result.queries,
        seconds=round(result.seconds, 3),
        seed=result.seed,
        source=result.source,
        notes=result.notes,
    )


def attack_finding(measured: Attack, void: bool = False) -> Finding:
    """The finding of one attack on the target: measured, or void where its premises do not hold."""
    state: FindingState = "void" if void else "measured"
    auc = measured.metric("auc")
    assert auc is not None
    values: dict[str, Value] = {
        "subject": measured.title,
        "access": measured.access,
        "members": measured.members,
        "non_members": measured.non_members,
        "auc": auc.value,
        "low": auc.low,
        "high": auc.high,
        "confidence": auc.confidence,
    }
    figures = {m.name: m.interval for m in measured.metrics if m.interval is not None}
    return Finding(
        id=f"attack/{measured.name}",
        check="attack.membership",
        state=state,
        message=f"attacks.membership.{state}",
        values=values,
        figures=figures,
    )


def attribute_findings(
    results: Sequence[AttributeResult],
    controls: Sequence[AttributeResult],
    confidence: float,
    void: bool,
) -> list[Finding]:
    """One finding for each attribute attack on the target, every figure at this confidence.

    The same attack's advantage on the positive control stands beside as
    ``positive_control_advantage``, a value's own advantage that lies above zero as
    ``advantage_where_<value>``.
    """
    beside = {_attribute_id(result): result for result in controls}
    return [
        _attribute_finding(result, beside.get(_attribute_id(result)), confidence, void)
        for result in results
    ]


def _attribute_finding(
    result: AttributeResult, control: AttributeResult | None, confidence: float, void: bool
) -> Finding:
    measured = _intervals(figures(result, confidence))
    if control is not None:
        shown = _intervals(figures(control, confidence))["advantage"]
        measured["positive_control_advantage"] = shown
    leaking = {
        group.name: advantage
        for group in by_value(result, confidence)
        if (advantage := _intervals(group.figures).get("advantage")) and advantage.low > 0
    }
    measured |= {f"advantage_where_{name}": found for name, found in leaking.items()}
    gain = measured["advantage"]
    known = ", ".join(result.known) if result.neighbours else ""
    values: dict[str, Value] = {
        "subject": f"{result.title}, {result.column}" + (f" ← {known}" if known else ""),
        "title": result.title,
        "column": result.column,
        "known": known,  # empty: all other columns
        "access": result.access,
        "members": len(result.members),
        "non_members": len(result.non_members),
        "reference": result.reference,
        "advantage": gain.value,
        "low": gain.low,
        "high": gain.high,
        "confidence": gain.confidence,
        "queries": result.queries,
        "seed": result.seed,
        "source": result.source,
        "leaking": "; ".join(f"{k}: {figures_text(v)} (n = {v.n})" for k, v in leaking.items()),
    }
    state: FindingState = "void" if void else "measured"
    by_values = "_values" if leaking and not void else ""
    return Finding(
        id=_attribute_id(result),
        check="attack.attribute",
        state=state,
        message=f"attacks.attribute.{state}{by_values}",
        values=values,
        figures=measured,
    )


def _attribute_id(result: AttributeResult) -> str:
    """What was guessed from what by which attack; separators within a column's name are coded."""
    coded = str.maketrans({"%": "%25", "/": "%2F", "+": "%2B"})
    known = "+".join(name.translate(coded) for name in result.known)
    parts = (result.column.translate(coded), known if result.neighbours else "all", result.attack)
    return "/".join(("attack", "attribute", *parts))


def _intervals(measured: Sequence[Figure]) -> dict[str, Interval]:
    return {f.name: interval(f.estimate) for f in measured if f.estimate is not None}


def guarantee(given: PrivacyGuarantee) -> Guarantee:
    """An accountant's answer as the record keeps it."""
    deltas, epsilons = given.curve
    fpr, tpr = given.trade_off
    return Guarantee(
        accountant=given.accountant,
        epsilon=Interval(
            given.lower, given.epsilon, given.epsilon, 1.0, given.accountant, given.steps
        ),
        delta=given.delta,
        unit=given.unit,
        relation=given.relation,
        group_size=given.group_size,
        guaranteed=given.guaranteed,
        notes=given.notes,
        curve=Curve("ε(δ)", "δ", "ε", tuple(deltas.tolist()), tuple(epsilons.tolist())),
        trade_off=Curve(
            "trade-off",
            "false positive rate",
            "true positive rate at most",
            tuple(fpr.tolist()),
            tuple(tpr.tolist()),
        ),
    )


def rules(policy: Policy) -> tuple[Rule, ...]:
    """The policy's lines as the record shows them."""
    lines = [Rule(f"limit.{x.figure}", x.figure, x.at_most, x.waivable) for x in policy.limits]
    lines += [
        Rule(f"baseline.{x.figure}", x.figure, x.worse_than_baseline, x.waivable)
        for x in policy.limits
        if x.worse_than_baseline is not None
    ]
    lines += [Rule(name, name, None) for name in ("claims", "ledger") if getattr(policy, name)]
    lines += [Rule("require", name, None, waivable=False) for name in policy.require]
    return tuple(lines)


def failed(id_: str, check: str, subject: str, error: BaseException) -> Finding:
    """The finding of a check that broke or could not run: what did not run did not pass."""
    values: dict[str, Value] = {"subject": subject, "reason": f"{type(error).__name__}: {error}"}
    return finish(Finding(id_, check, "error", "audit.broke.error", values))
