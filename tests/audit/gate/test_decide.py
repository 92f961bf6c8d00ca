"""The gate never passes what was not shown: every way of not showing it, one test each."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math

import pytest

from audit.gate.decide import decide, difference
from audit.gate.policy import Limit, Policy, Waiver
from reports.record import (
    OUTCOMES,
    Attack,
    Curve,
    Finding,
    Interval,
    Metric,
    Provenance,
    Record,
    Subject,
    Verdict,
)

TODAY = datetime.date(2026, 11, 30)
POLICY = Policy(limits=[Limit(figure="auc", at_most=0.6, worse_than_baseline=0.02)])


def auc(low: float, value: float, high: float) -> Metric:
    return Metric("auc", Interval(low, value, high, 0.95, "DeLong", 200))


def attack(metric: Metric, name: str = "loss", subject: str = "target") -> Attack:
    roc = Curve("roc", "FPR", "TPR", (0.0, 1.0), (0.0, 1.0))
    return Attack(
        name, name, subject, "logits", 100, 100, (metric,), roc, 0, 200, 0.1, 1  # type: ignore[arg-type]
    )  # fmt: skip


def record(*attacks: Attack, findings: tuple[Finding, ...] = ()) -> Record:
    return Record(
        "t",
        Subject("s", "torch", "", "logits", 100, 100),
        (),
        findings,
        attacks,
        (),
        (),
        Verdict("error", ()),
        Provenance("", 0, "", 0.0, {}, "", ()),
    )


CONTROL = attack(auc(0.8, 0.85, 0.9), subject="positive control")


def outcome(r: Record, policy: Policy = POLICY, baseline: Record | None = None) -> str:
    return decide(r, policy, baseline, TODAY).outcome


def test_a_leak_above_the_limit_fails_with_or_without_a_control() -> None:
    assert outcome(record(attack(auc(0.61, 0.7, 0.8)))) == "fail"


def test_silence_passes_only_beside_a_control_that_breaks_the_same_limit() -> None:
    quiet = attack(auc(0.45, 0.5, 0.55))
    weak = attack(auc(0.55, 0.65, 0.75), subject="positive control")
    other = attack(auc(0.8, 0.85, 0.9), name="other", subject="positive control")
    assert outcome(record(quiet, CONTROL)) == "pass"
    assert outcome(record(quiet)) == "inconclusive"
    assert outcome(record(quiet, weak)) == "inconclusive"
    assert outcome(record(quiet, other)) == "inconclusive"


def test_an_attack_that_is_wrong_on_purpose_leaks_as_well() -> None:
    assert outcome(record(attack(auc(0.2, 0.3, 0.39)), CONTROL)) == "fail"
    assert outcome(record(attack(auc(0.39, 0.45, 0.5)), CONTROL)) == "inconclusive"
    limit = Policy(limits=[Limit(figure="tpr_at_fpr_0.01", at_most=0.1)])
    upper = Metric("tpr_at_fpr_0.01", Interval(0.0, 0.01, 0.05, 0.95, "CP", 200))
    lower = Metric("lower_tail_tpr_at_fpr_0.01", Interval(0.2, 0.3, 0.4, 0.95, "CP", 200))
    leaky = dataclasses.replace(attack(upper), metrics=(upper, lower))
    assert outcome(record(leaky), limit) == "fail"


def test_no_pass_where_nobody_says_that_the_split_was_random() -> None:
    split = Finding("records/split", "records.split", "inconclusive", "records.split.inconclusive")
    quiet, loud = attack(auc(0.45, 0.5, 0.55)), attack(auc(0.7, 0.8, 0.9))
    assert outcome(record(quiet, CONTROL, findings=(split,))) == "inconclusive"
    assert outcome(record(loud, CONTROL, findings=(split,))) == "fail"


def test_an_interval_across_the_limit_is_inconclusive() -> None:
    assert outcome(record(attack(auc(0.5, 0.55, 0.61)), CONTROL)) == "inconclusive"


def test_one_loud_attack_among_quiet_ones_fails() -> None:
    quiet, loud = attack(auc(0.45, 0.5, 0.55)), attack(auc(0.7, 0.8, 0.9), name="loud")
    assert outcome(record(quiet, loud, CONTROL)) == "fail"
    assert outcome(record(loud, quiet, CONTROL)) == "fail"


def test_a_void_attack_neither_passes_nor_fails() -> None:
    void = Finding("attack/loss", "attack.membership", "void", "attacks.membership.void")
    assert outcome(record(attack(auc(0.7, 0.8, 0.9)), findings=(void,))) == "inconclusive"
    quiet = record(attack(auc(0.45, 0.5, 0.55)), CONTROL, findings=(void,))
    assert outcome(quiet) == "inconclusive"


def test_an_unmeasured_figure_and_an_empty_record_are_inconclusive() -> None:
    assert outcome(record(attack(Metric("auc", None, "too few")), CONTROL)) == "inconclusive"
    assert outcome(record()) == "inconclusive"


def test_what_did_not_run_is_an_error() -> None:
    required = POLICY.model_copy(update={"require": ["shadow"]})
    assert outcome(record(attack(auc(0.45, 0.5, 0.55)), CONTROL), required) == "error"
    broke = Finding("attack/x", "attack.membership", "error", "audit.broke.error")
    leaky = record(attack(auc(0.7, 0.8, 0.9)), findings=(broke,))
    assert outcome(leaky) == "error"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("supported", "pass"),
        ("refuted", "fail"),
        ("inconclusive", "inconclusive"),
        ("not checkable", "inconclusive"),
        ("error", "error"),
    ],
)
def test_a_claim_decides_by_its_state(state: str, expected: str) -> None:
    claim = Finding("claim/c", "claims.dp_guarantee", state, "m", claim="c")  # type: ignore[arg-type]
    assert outcome(record(findings=(claim,))) == expected
    ledger = dataclasses.replace(claim, id="ledger/chain", check="ledger.chain", claim="")
    assert outcome(record(findings=(ledger,))) == expected


def test_a_ledger_need_not_be_signed_and_one_process_has_no_ranks() -> None:
    chain = Finding("ledger.chain", "ledger.chain", "supported", "m")
    for check in ("ledger.ranks", "ledger.signature"):
        absent = Finding(check, check, "not checkable", "m")
        assert outcome(record(findings=(chain, absent))) == "pass"
        assert outcome(record(findings=(absent,))) == "inconclusive"
        refuted = dataclasses.replace(absent, state="refuted")
        assert outcome(record(findings=(chain, refuted))) == "fail"


def test_the_worst_decision_is_first_and_decides() -> None:
    states = ("supported", "refuted", "inconclusive", "error")
    findings = [
        Finding(f"claim/{s}", "claims.x", s, "m", claim=s)  # type: ignore[arg-type]
        for s in states
    ]
    for order in itertools.permutations(findings):
        verdict = decide(record(findings=order), POLICY, None, TODAY)
        ranks = [OUTCOMES.index(d.outcome) for d in verdict.decisions]
        assert verdict.outcome == "error"
        assert ranks == sorted(ranks, reverse=True)


def test_a_waiver_stands_beside_the_failure_and_changes_nothing() -> None:
    def policy(until: datetime.date, waivable: bool = True) -> Policy:
        limit = Limit(figure="auc", at_most=0.6, waivable=waivable)
        waiver = Waiver(
            rule="limit.auc", finding="attack/loss", reason="known", by="lab", until=until
        )
        return Policy(limits=[limit], waivers=[waiver])

    leaky = record(attack(auc(0.7, 0.8, 0.9)))
    verdict = decide(leaky, policy(TODAY), None, TODAY)
    assert (verdict.outcome, verdict.decisions[0].waiver) == (
        "fail",
        "known (lab, until 2026-11-30)",
    )
    expired = decide(leaky, policy(TODAY - datetime.timedelta(1)), None, TODAY)
    assert "expired on 2026-11-29" in expired.decisions[0].waiver
    assert decide(leaky, policy(TODAY, waivable=False), None, TODAY).decisions[0].waiver == ""


def test_the_baseline_is_compared_by_the_interval_of_the_difference() -> None:
    def run(low: float, value: float, high: float) -> Record:
        return record(attack(auc(low, value, high)), CONTROL)

    before = run(0.49, 0.5, 0.51)
    assert outcome(run(0.49, 0.5, 0.51), baseline=before) == "pass"
    assert outcome(run(0.56, 0.57, 0.58), baseline=before) == "fail"
    assert outcome(run(0.50, 0.52, 0.54), baseline=before) == "inconclusive"
    assert outcome(run(0.49, 0.5, 0.51), baseline=record()) == "inconclusive"


def test_the_difference_of_two_intervals_is_zou_and_donners() -> None:
    new = Interval(0.6, 0.7, 0.75, 0.95, "x", 100)
    old = Interval(0.4, 0.5, 0.65, 0.95, "x", 80)
    change = difference(new, old)
    assert change.value == pytest.approx(0.2)
    assert change.low == pytest.approx(0.2 - math.hypot(0.1, 0.15))
    assert change.high == pytest.approx(0.2 + math.hypot(0.05, 0.1))
    assert change.n == 80


def test_the_reversed_rule_has_an_advantage_of_its_own() -> None:
    def gain(name: str, high: float) -> Metric:
        return Metric(name, Interval(high - 0.1, high - 0.05, high, 0.95, "x", 200))

    limit = Policy(limits=[Limit(figure="advantage", at_most=0.2)])
    quiet = attack(gain("advantage", 0.1))
    mirrored = dataclasses.replace(
        quiet, metrics=(gain("advantage", 0.1), gain("lower_tail_advantage", 0.8))
    )
    control = attack(gain("advantage", 0.9), subject="positive control")
    assert outcome(record(quiet, control), limit) == "pass"
    assert outcome(record(mirrored, control), limit) == "fail"


def test_a_leak_that_turned_around_is_worse_than_the_baseline() -> None:
    loose = Policy(limits=[Limit(figure="auc", at_most=0.9, worse_than_baseline=0.05)])
    control = attack(auc(0.95, 0.97, 0.99), subject="positive control")
    before = record(attack(auc(0.49, 0.5, 0.51)), control)
    turned = record(attack(auc(0.19, 0.2, 0.21)), control)
    assert outcome(before, loose, before) == "pass"
    assert outcome(turned, loose, before) == "fail"


def guess(
    low: float, high: float, control: float | None = 0.3, column: str = "c", state: str = "measured"
) -> Finding:
    """A finding about one column; ``control`` is the low end on the positive control."""
    figures = {"advantage": Interval(low, (low + high) / 2, high, 0.95, "Newcombe 1998", 200)}
    if control is not None:
        beside = Interval(control, control + 0.1, control + 0.2, 0.95, "Newcombe 1998", 200)
        figures["positive_control_advantage"] = beside
    values = {"column": column, "subject": column, "access": "scores"}
    return Finding(
        f"attack/attribute/{column}/all/yeom",
        "attack.attribute",
        state,  # type: ignore[arg-type]
        f"attacks.attribute.{state}",
        values,
        figures=figures,
    )


ATTRIBUTES = Policy(limits=[Limit(figure="attribute_advantage", at_most=0.1)])
MEASURED = attack(auc(0.45, 0.5, 0.55))


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (guess(0.11, 0.3), "fail"),
        (guess(0.11, 0.3, control=None), "fail"),
        (guess(-0.05, 0.09), "pass"),
        (guess(-0.05, 0.09, control=0.01), "pass"),
        (guess(-0.05, 0.09, control=0.0), "inconclusive"),
        (guess(-0.05, 0.09, control=None), "inconclusive"),
        (guess(0.05, 0.11), "inconclusive"),
        (guess(0.11, 0.3, state="void"), "inconclusive"),
        (guess(-0.05, 0.09, state="void"), "inconclusive"),
        (guess(-0.3, -0.11), "fail"),  # wrong on purpose
        (guess(-0.11, 0.0), "inconclusive"),
    ],
)
def test_an_attribute_advantage_is_held_against_its_limit(finding: Finding, expected: str) -> None:
    verdict = decide(record(MEASURED, findings=(finding,)), ATTRIBUTES, None, TODAY)
    assert verdict.outcome == expected
    (decision,) = verdict.decisions
    assert (decision.rule, decision.finding) == ("limit.attribute_advantage", finding.id)


def test_each_column_is_judged_on_its_own() -> None:
    """A control that leaks one column says nothing of the attack's power on another."""
    quiet, blind = guess(-0.05, 0.09), guess(-0.05, 0.09, control=-0.1, column="d")
    verdict = decide(record(MEASURED, findings=(quiet, blind)), ATTRIBUTES, None, TODAY)
    assert [(d.finding, d.outcome) for d in verdict.decisions] == [
        (blind.id, "inconclusive"),
        (quiet.id, "pass"),
    ]
    loud = dataclasses.replace(guess(0.2, 0.3), id="attack/attribute/c/a+b/yeom")
    verdict = decide(record(MEASURED, findings=(quiet, loud)), ATTRIBUTES, None, TODAY)
    assert [(d.finding, d.outcome) for d in verdict.decisions] == [(loud.id, "fail")]


def test_an_attribute_limit_that_nothing_measured_is_inconclusive() -> None:
    verdict = decide(record(MEASURED), ATTRIBUTES, None, TODAY)
    assert verdict.outcome == "inconclusive"
    assert verdict.decisions[0].message == "gate.not_tried.inconclusive"


def test_no_attribute_passes_where_nobody_says_that_the_split_was_random() -> None:
    split = Finding("records/split", "records.split", "inconclusive", "records.split.inconclusive")
    assert outcome(record(MEASURED, findings=(split, guess(-0.05, 0.09))), ATTRIBUTES) == (
        "inconclusive"
    )


def test_an_attribute_is_compared_with_the_same_question_in_the_baseline() -> None:
    limit = Limit(figure="attribute_advantage", at_most=0.9, worse_than_baseline=0.05)
    loose = Policy(limits=[limit])
    before = record(MEASURED, findings=(guess(-0.01, 0.01),))
    assert outcome(before, loose, before) == "pass"
    assert outcome(record(MEASURED, findings=(guess(0.29, 0.31),)), loose, before) == "fail"
    other = record(MEASURED, findings=(guess(0.29, 0.31, column="d"),))
    assert outcome(other, loose, before) == "inconclusive"


def test_attributes_leave_the_limits_on_membership_alone() -> None:
    quiet = record(MEASURED, CONTROL, findings=(guess(0.5, 0.6),))
    assert outcome(quiet) == "pass"
