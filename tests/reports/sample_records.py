"""Realistic and hostile records for the tests of the report; `python -m` writes them as HTML."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from reports.record import (
    Attack,
    Budget,
    Claim,
    Curve,
    Decision,
    Evidence,
    Finding,
    Guarantee,
    Input,
    Interval,
    Metric,
    Outcome,
    Provenance,
    Record,
    Rule,
    Subject,
    Verdict,
)

NORMAL = NormalDist()
SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}|`@all`\u202e\udcff"

AttackSubject = Literal["target", "positive control", "blind baseline"]


def roc(shift: float, members: int, non_members: int, seed: int = 0, band: bool = True) -> Curve:
    """The ROC of normal scores whose members lie ``shift`` standard deviations higher."""
    draw = random.Random(seed)
    scores = [(draw.gauss(shift, 1), True) for _ in range(members)]
    scores += [(draw.gauss(0, 1), False) for _ in range(non_members)]
    x, y, found, accused = [0.0], [0.0], 0, 0
    for _, member in sorted(scores, reverse=True):
        found, accused = found + member, accused + (not member)
        x.append(accused / non_members)
        y.append(found / members)
    width = [1.96 * math.sqrt(max(v * (1 - v), 1 / members) / members) for v in y]
    low = tuple(max(v - w, 0) for v, w in zip(y, width, strict=True)) if band else ()
    high = tuple(min(v + w, 1) for v, w in zip(y, width, strict=True)) if band else ()
    return Curve("ROC", "false positive rate", "true positive rate", tuple(x), tuple(y), low, high)


def attack(
    name: str,
    title: str,
    subject: AttackSubject,
    shift: float,
    members: int = 284,
    non_members: int = 285,
    models: int = 0,
) -> Attack:
    curve = roc(shift, members, non_members, seed=len(title) + len(subject))
    area = sum(
        (x1 - x0) * (y0 + y1) / 2
        for x0, x1, y0, y1 in zip(curve.x, curve.x[1:], curve.y, curve.y[1:], strict=False)
    )
    n = members + non_members

    def around(value: float, width: float, method: str, floor: float = 0.0) -> Interval:
        return Interval(max(value - width, floor), value, min(value + width, 1.0), 0.95, method, n)

    metrics = [Metric("auc", around(area, 0.042, "Newcombe 2006"))]
    for rate in (0.1, 0.01, 0.001):
        if rate * non_members < 1:
            few = f"too few non-members to say: {non_members} support an FPR of 0.0035 at best"
            metrics.append(Metric(f"tpr_at_fpr_{rate:g}", unmeasured=few))
            continue
        value = max(b for a, b in zip(curve.x, curve.y, strict=True) if a <= rate)
        width = 1.96 * math.sqrt(max(value * (1 - value), 0.003) / members)
        interval = around(value, width, "Clopper-Pearson, threshold estimated")
        metrics.append(Metric(f"tpr_at_fpr_{rate:g}", interval))
    metrics.append(Metric("advantage", around(2 * area - 1.02, 0.07, "Newcombe 1998", -1.0)))
    metrics.append(Metric("balanced_accuracy", around(area - 0.01, 0.035, "Newcombe 1998")))
    return Attack(
        name=name,
        title=title,
        subject=subject,
        access="none" if subject == "blind baseline" else "scores",
        members=members,
        non_members=non_members,
        metrics=tuple(metrics),
        roc=curve,
        models_trained=models,
        queries=n * (1 + models),
        seconds=0.4 + 1.7 * models,
        seed=7,
        source="Yeom et al. 2018, section 3" if not models else "Shokri et al. 2017",
        notes=("the true label is known to the attacker",) if subject == "target" else (),
    )


def attacks(shift: float, control: bool = True) -> tuple[Attack, ...]:
    found = []
    for name, title, models in (
        ("loss_threshold", "Loss threshold", 0),
        ("shadow", "Shadow models", 16),
    ):
        found.append(attack(name, title, "target", shift, models=models))
        if control:
            found.append(attack(name, title, "positive control", 1.3, models=models))
    found.append(attack("blind_baseline", "Blind classifier", "blind baseline", 0.0))
    return tuple(found)


def epsilon(mu: float, delta: float) -> float:
    """ε of a Gaussian mechanism with parameter μ (Dong et al. 2022, corollary 1)."""

    def delta_of(e: float) -> float:
        tail = NORMAL.cdf(-e / mu + mu / 2)
        return tail - math.exp(e + math.log(max(NORMAL.cdf(-e / mu - mu / 2), 1e-300)))

    low, high = 0.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def guarantee(accountant: str, mu: float, slack: float, guaranteed: bool = True) -> Guarantee:
    deltas = tuple(10.0 ** (-e / 4) for e in range(40, 11, -1))
    rates = (0.0, *(10.0 ** (e / 10) for e in range(-60, 1)))
    found = [NORMAL.cdf(NORMAL.inv_cdf(a) + mu) if 0 < a < 1 else a for a in rates]
    value = epsilon(mu, 1e-5)
    return Guarantee(
        accountant=accountant,
        epsilon=Interval(value if slack else 0.0, value + slack, value + slack, 1, accountant, 230),
        delta=1e-5,
        unit="record",
        relation="add-remove",
        group_size=1,
        guaranteed=guaranteed,
        curve=Curve("ε(δ)", "δ", "ε", deltas, tuple(epsilon(mu, d) + slack for d in deltas)),
        trade_off=Curve("trade-off", "FPR", "TPR at most", rates, tuple(found)),
        notes=() if guaranteed else ("a central-limit approximation: no bound",),
    )


def budget() -> Budget:
    return Budget(
        ledger="twin/ledger.jsonl",
        events=("230 steps of Poisson-sampled Gaussian noise: σ = 1.4, q = 0.112",),
        guarantees=(
            guarantee("RDP (Mironov et al. 2019)", 0.62, 0.24),
            guarantee("PLD (dp-accounting)", 0.62, 0.012),
            guarantee("GDP, central limit", 0.6, 0.0, guaranteed=False),
        ),
    )


def claim(id_: str, claimed: float) -> Claim:
    return Claim(
        id=id_,
        family="dp_guarantee",
        statement=f"The classifier was trained with ({claimed:g}, 1e-5)-differential privacy.",
        figures={"epsilon": claimed, "delta": 1e-5, "mechanism": "DP-SGD"},
        release="final model",
        source="MODEL_CARD.md:17",
    )


def claim_finding(id_: str, claimed: float, state: Literal["supported", "refuted"]) -> Finding:
    low, high = epsilon(0.62, 1e-5), epsilon(0.62, 1e-5) + 0.012
    words = {
        "supported": f"At most ε = {high:.3f} was spent at δ = 1e-5, as {claimed:g} claims.",
        "refuted": f"At least ε = {low:.3f} was spent at δ = 1e-5: {claimed:g} is too low.",
    }
    return Finding(
        id=f"claim/{id_}",
        check="claims.dp_guarantee",
        state=state,
        message=f"claims.dp_guarantee.{state}",
        values={"figure": "epsilon", "claimed": claimed, "low": low, "high": high, "delta": 1e-5},
        meaning=words[state],
        remedy="" if state == "supported" else "State the recomputed ε, or add noise and retrain.",
        figures={"epsilon": Interval(low, high, high, 1, "PLD", 230)},
        power="The account is exact to 0.012: any claim outside that gap is decided.",
        claim=id_,
        evidence=(Evidence("twin/ledger.jsonl", SHA),),
    )


def ledger_findings() -> tuple[Finding, ...]:
    return (
        Finding(
            id="ledger.chain",
            check="ledger.chain",
            state="supported",
            message="ledger.chain.supported",
            values={"n": 233, "head": "9f86d081884c"},
            meaning="The hash chain of 233 lines is whole; its head is 9f86d081884c.",
            power="every line was read",
            evidence=(Evidence("twin/ledger.jsonl", SHA),),
        ),
        Finding(
            id="ledger.noise",
            check="ledger.noise",
            state="inconclusive",
            message="ledger.noise.inconclusive",
            values={"n": 230},
            meaning="The noise came from a seeded generator: whoever knows the seed can remove it.",
            remedy="Train the model that is released with the secure noise source.",
        ),
    )


def records_finding() -> Finding:
    return Finding(
        id="records.overlap",
        check="records.overlap",
        state="measured",
        message="records.overlap.measured",
        values={"n": 0},
        meaning="No record stands on both sides.",
        figures={"overlap": Interval(0, 0, 0, 1, "count", 569)},
    )


def limit_decision(run: Attack, outcome: Outcome, figure: str, limit: float) -> Decision:
    interval = run.metric(figure)
    assert interval is not None
    return Decision(
        rule=f"limit.{figure}",
        finding=f"attack/{run.name}",
        outcome=outcome,
        message=f"gate.attack.{outcome}",
        values={
            "figure": figure,
            "limit": limit,
            "subject": run.title,
            "low": interval.low,
            "estimate": interval.value,
            "high": interval.high,
        },
    )


def claim_decision(finding: Finding, outcome: Outcome) -> Decision:
    values = {**finding.values, "subject": finding.claim, "value": finding.meaning}
    return Decision("claims", finding.id, outcome, f"gate.claim.{outcome}", values)


def ledger_decision(finding: Finding, outcome: Outcome) -> Decision:
    values = {"subject": finding.id, "value": finding.meaning}
    return Decision("ledger", finding.id, outcome, f"gate.ledger.{outcome}", values)


POLICY = (
    Rule("claims", "claims", None, waivable=False),
    Rule("ledger", "ledger", None, waivable=False),
    Rule("limit.auc", "auc", 0.6),
    Rule("limit.tpr_at_fpr_0.01", "tpr_at_fpr_0.01", 0.05),
)


def _record(title: str, name: str, **parts: object) -> Record:
    inputs = (
        Input("members", "data/members.csv", SHA, 61_204, 284),
        Input("non-members", "data/non_members.csv", SHA[::-1], 61_533, 285),
        Input("target", "models/model.safetensors", SHA[8:] + SHA[:8], 12_840, None),
    )
    whole: dict[str, object] = {
        "title": title,
        "subject": Subject(
            name,
            "torch classifier",
            "Three layers on the breast-cancer data, trained for 40 epochs.",
            "scores",
            284,
            285,
        ),
        "claims": (),
        "findings": (),
        "attacks": (),
        "budgets": (),
        "policy": POLICY,
        "verdict": Verdict("pass", ()),
        "provenance": Provenance(
            command="dpassay audit fixtures/demo/audit.yaml --out demo-out --seed 7",
            seed=7,
            started="2026-03-02T09:14:05Z",
            seconds=41.7,
            versions={
                "dpassay": "0.1.0",
                "python": "3.12.8",
                "torch": "2.9.1",
                "numpy": "2.3.4",
                "scikit-learn": "1.7.2",
                "dp-accounting": "0.6.0",
            },
            platform="Linux x86_64, 2 CPUs",
            inputs=inputs,
        ),
    }
    return Record(**(whole | parts))  # type: ignore[arg-type]


def leaky() -> Record:
    """A model without DP that leaks: fails."""
    runs = attacks(0.95)
    decisions = (
        limit_decision(runs[0], "fail", "auc", 0.6),
        dataclasses.replace(
            limit_decision(runs[2], "fail", "tpr_at_fpr_0.01", 0.05),
            waiver="pilot with public data only (privacy office, until 2026-12-31)",
        ),
    )
    return _record(
        "Breast-cancer classifier without DP",
        "overfitted",
        findings=(records_finding(),),
        attacks=runs,
        verdict=Verdict("fail", decisions),
    )


def private() -> Record:
    """The DP twin: claim supported, attacks near chance: passes."""
    runs = attacks(0.05)
    finding = claim_finding("model-card", 3.0, "supported")
    ledger = ledger_findings()[0]
    decisions = (
        claim_decision(finding, "pass"),
        ledger_decision(ledger, "pass"),
        limit_decision(runs[0], "pass", "auc", 0.6),
    )
    return _record(
        "Breast-cancer classifier, DP twin",
        "dp-twin",
        claims=(claim("model-card", 3.0),),
        findings=(finding, ledger, records_finding()),
        attacks=runs,
        budgets=(budget(),),
        verdict=Verdict("pass", decisions),
    )


def refuted() -> Record:
    """A false claim about the twin's budget, beside a true one: fails."""
    false, true = (
        claim_finding("press-release", 0.5, "refuted"),
        claim_finding("model-card", 3.0, "supported"),
    )
    chain, noise = ledger_findings()
    decisions = (
        claim_decision(false, "fail"),
        ledger_decision(noise, "inconclusive"),
        claim_decision(true, "pass"),
        ledger_decision(chain, "pass"),
    )
    return _record(
        "Claims about the DP twin",
        "dp-twin",
        claims=(claim("press-release", 0.5), claim("model-card", 3.0)),
        findings=(false, true, chain, noise),
        budgets=(budget(),),
        verdict=Verdict("fail", decisions),
    )


def guessed(column: str, known: str, gain: float, state: Literal["measured", "void"]) -> Finding:
    """One attribute attack, with two values that leak on their own."""

    def around(value: float, width: float, method: str, n: int) -> Interval:
        return Interval(value - width, value, value + width, 0.9917, method, n)

    names = ("accuracy_members", "accuracy_non_members", "control_accuracy_members")
    shares = zip(names, (0.41 + gain, 0.41, 0.44), strict=True)
    figures = {name: around(share, 0.061, "Clopper-Pearson", 284) for name, share in shares}
    figures["advantage"] = around(gain, 0.08, "Newcombe 1998", 569)
    figures["auc"] = around(0.5 + gain / 2, 0.04, "DeLong", 569)
    figures["positive_control_advantage"] = around(0.37, 0.08, "Newcombe 1998", 569)
    if gain > 0.08:
        for value, n in (("type_2", 38), ("none", 531)):
            figures[f"advantage_where_{value}"] = around(gain + 0.1, 0.17, "Newcombe 1998", n)
    said = f"guesses {column} with an advantage of {gain:g} on members"
    return Finding(
        id=f"attack/attribute/{column}/{known.replace(', ', '+') or 'all'}/yeom",
        check="attack.attribute",
        state=state,
        message=f"attacks.attribute.{state}",
        values={
            "subject": f"Likelihood of the label times prior, {column}",
            "title": "Likelihood of the label times prior",
            "column": column,
            "known": known,
            "access": "scores",
            "members": 284,
            "non_members": 285,
            "advantage": gain,
            "low": gain - 0.08,
            "high": gain + 0.08,
            "confidence": 0.9917,
        },
        meaning=f"Likelihood of the label times prior {said}.",
        remedy="Draw members and non-members from one pool at random." if state == "void" else "",
        figures=figures,
    )


def attributes() -> Record:
    """Two columns guessed, from everything and from every three columns, more than fit unfolded."""
    columns = [f"column_{i}" for i in range(14)]
    findings = [guessed("diagnosis", "", 0.31, "measured"), guessed("sex", "", 0.01, "void")]
    for i, column in enumerate(columns):
        known = f"age, region, {column}"
        findings.append(guessed("diagnosis", known, 0.2 - i / 50, "measured"))
    late = Finding(
        id="attack/attribute/income",
        check="attack.attribute",
        state="error",
        message="audit.broke.error",
        values={"subject": "income", "reason": "OutOfTime"},
        meaning="income did not finish: OutOfTime: the 60 seconds were used up",
    )
    shown = findings[0].figures["advantage"]
    values = {"figure": "attribute_advantage", "limit": 0.1, "subject": "diagnosis"}
    values |= {"low": shown.low, "estimate": shown.value, "high": shown.high, "n": shown.n}
    decision = Decision(
        "limit.attribute_advantage", findings[0].id, "fail", "gate.attack.fail", values
    )
    return _record(
        "Diagnosis model",
        "forest",
        findings=(*findings, late),
        attacks=attacks(0.95),
        verdict=Verdict("fail", (decision,)),
    )


def inconclusive() -> Record:
    """An attack near chance without a positive control, and a claim nobody could check."""
    runs = attacks(0.1, control=False)
    decision = dataclasses.replace(
        limit_decision(runs[0], "inconclusive", "auc", 0.6), message="gate.no_power.inconclusive"
    )
    return _record(
        "Vendor model, scores only",
        "vendor",
        claims=(Claim("k", "k_anonymity", "The data is 5-anonymous.", {"k": 5}),),
        attacks=runs,
        verdict=Verdict("inconclusive", (decision,)),
    )


def error() -> Record:
    """A check that broke."""
    broken = Finding(
        id="attack/shadow",
        check="attacks.shadow",
        state="error",
        message="attacks.error",
        meaning="The attack stopped: shadow model 3 of 16 did not converge.",
        remedy="Lower the learning rate of the shadow models.",
    )
    values = {"subject": "Shadow models", "value": broken.meaning}
    decision = Decision("ran", broken.id, "error", "gate.not_run.error", values, reason="NaN loss")
    return _record(
        "Audit that broke", "target", findings=(broken,), verdict=Verdict("error", (decision,))
    )


def hostile() -> Record:
    """Every text that a stranger can write tries to break out; nothing else changes."""
    spoiled = _spoil(dataclasses.replace(refuted(), attacks=attacks(0.5)))
    assert isinstance(spoiled, Record)
    column = guessed(HOSTILE, HOSTILE, 0.3, "measured")
    where = {f"advantage_where_{HOSTILE}": column.figures["advantage"]}
    column = dataclasses.replace(column, figures={**column.figures, **where})
    bare = Finding("x", "attack.attribute", "measured", "m", figures=column.figures)
    return dataclasses.replace(spoiled, findings=(*spoiled.findings, column, bare))


def huge() -> Record:
    """Long lists, long words and large attacks."""
    finding = records_finding()
    many = tuple(dataclasses.replace(finding, id=f"records.{i}") for i in range(300))
    big = attack("lira", "LiRA", "target", 0.4, 3_000, 3_000, models=64)
    return _record(
        "W" * 300,
        "x" * 200,
        claims=(dataclasses.replace(claim("c", 3.0), statement="long" * 400),),
        findings=many,
        attacks=(big, *attacks(0.2)),
        budgets=(budget(),) * 5,
        verdict=Verdict("pass", (limit_decision(big, "pass", "auc", 0.9),) * 40),
    )


def empty() -> Record:
    """Nothing was given."""
    decision = Decision("nothing", "", "inconclusive", "gate.nothing.inconclusive")
    return _record("", "", policy=(), verdict=Verdict("inconclusive", (decision,)))


def unbounded() -> Record:
    """Training without noise: ε is infinite, and the claim is refuted."""
    infinite = Interval(math.inf, math.inf, math.inf, 1, "no noise", 230)
    deltas = (1e-8, 1e-6, 1e-4)
    answer = dataclasses.replace(
        guarantee("RDP", 0.6, 0.1),
        epsilon=infinite,
        curve=Curve("ε(δ)", "δ", "ε", deltas, (math.inf,) * 3),
        trade_off=Curve("trade-off", "FPR", "TPR at most", (0, 1), (1, 1)),
    )
    finding = dataclasses.replace(
        claim_finding("card", 3.0, "refuted"), figures={"epsilon": infinite}
    )
    return _record(
        "Training without noise",
        "plain",
        claims=(claim("card", 3.0), claim("none", math.inf)),
        findings=(finding,),
        budgets=(Budget("ledger.jsonl", (), (answer,)),),
        verdict=Verdict("fail", (claim_decision(finding, "fail"),)),
    )


ALL = (leaky, attributes, private, refuted, inconclusive, error, hostile, huge, empty, unbounded)
CHOICES = {"state", "subject", "access", "unit", "relation", "outcome", "message", "schema_version"}


def _spoil(value: Any, name: str = "") -> Any:
    if isinstance(value, Interval):
        return dataclasses.replace(value, method=HOSTILE)
    if isinstance(value, Metric):  # has either an interval or a reason
        return Metric(value.name, _spoil(value.interval), value.unmeasured and HOSTILE)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            f.name: _spoil(getattr(value, f.name), f.name) for f in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(_spoil(v, name) for v in value)
    if isinstance(value, dict):
        return {k if name == "figures" else HOSTILE + k: _spoil(v, k) for k, v in value.items()}
    if isinstance(value, str) and name not in CHOICES and name not in ("id", "claim"):
        return HOSTILE + value
    return value


def main(folder: Path) -> None:
    """Write every sample as HTML, to be looked at."""
    from reports.html import render

    folder.mkdir(parents=True, exist_ok=True)
    for build in ALL:
        for locale in ("en", "zh"):
            text = render(build(), locale)
            (folder / f"{build.__name__}.{locale}.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
