"""What the other rooms measured, in the record's vocabulary."""

from __future__ import annotations

from typing import Literal

from attacks.metrics import Estimate, Figure, advantage, measure, roc
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
from reports.sentence import finish

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
    # an attack that is wrong on purpose gains as much; the reversed rule needs its own threshold
    reversed_gain = advantage(
        -result.member_scores, -result.non_member_scores, None, confidence, result.seed
    )
    figures = (*figures, Figure("lower_tail_advantage", reversed_gain))
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
