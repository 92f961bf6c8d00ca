"""Sorts what a record holds onto the cards of the report: each finding on one, with its charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports import charts
from reports.charts import Chart, Line, Mark, Row
from reports.record import (
    Attack,
    Budget,
    Claim,
    Finding,
    Guarantee,
    Interval,
    Metric,
    Record,
    Value,
)
from reports.sentence import (
    basis_text,
    false_positive_rate,
    figure,
    figures_text,
    sentence,
    speaks,
)

TONES = {  # state or outcome -> the class that gives it colour and icon
    "pass": "pass",
    "supported": "pass",
    "fail": "fail",
    "refuted": "fail",
    "error": "error",
    "inconclusive": "open",
    "void": "open",
    "not checkable": "none",
    "measured": "none",
}
# A claim that several findings judge: one refutation decides, a broken check hides behind nothing.
_CLAIM_STATES = ("refuted", "error", "supported", "inconclusive", "void", "measured")
_SUBJECTS = {"target": "s0", "positive control": "s1", "blind baseline": "s2"}
_DRAWN = 6  # lines in one chart: more than that nobody can tell apart


@dataclass(frozen=True)
class Statement:
    """A finding with its place on the page and its sentences in the page's language."""

    anchor: str
    finding: Finding
    meaning: str
    remedy: str


@dataclass(frozen=True)
class ClaimCard:
    """A claim, the findings that judge it, and both figures side by side."""

    claim: Claim
    state: str
    statements: tuple[Statement, ...]
    rows: tuple[tuple[str, str, Interval | None], ...]  # figure, claimed, recomputed
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class MetricRow:
    """One figure over the runs of a card. What all cells rest on stands once, in ``shared``."""

    name: str
    shared: str
    cells: tuple[tuple[str, str], ...]  # number, what it rests on


@dataclass(frozen=True)
class AttackCard:
    """One attack on its subjects: the target first, then the control and the baseline."""

    title: str
    runs: tuple[Attack, ...]
    metrics: tuple[MetricRow, ...]
    unmeasured: tuple[tuple[str, str], ...]  # a figure that no run could measure, and why
    statements: tuple[Statement, ...]
    chart: Chart


@dataclass(frozen=True)
class BudgetCard:
    """One ledger's account with its two charts, where there is something to draw."""

    budget: Budget
    best: Guarantee | None  # the tightest guarantee, where all guarantees speak of the same thing
    charts: tuple[Chart, ...]


def statement(index: int, finding: Finding, locale: str) -> Statement:
    """English stands in the record itself; another language comes from its sentences."""
    meaning, remedy = finding.meaning, finding.remedy
    if not meaning or (locale != "en" and speaks(finding.message, finding.values, locale)):
        meaning = sentence(finding.message, finding.values, locale)
    key = f"{finding.message}.remedy"
    if remedy and locale != "en" and speaks(key, finding.values, locale):
        remedy = sentence(key, finding.values, locale)
    return Statement(f"finding-{index}", finding, meaning, remedy)


def claim(index: int, claim: Claim, placed: Sequence[Statement], locale: str) -> ClaimCard:
    """The claim with the findings that judge it and, figure by figure, claimed and recomputed."""
    mine = tuple(s for s in placed if s.finding.claim == claim.id)
    states = {s.finding.state for s in mine}
    names = list(dict.fromkeys([*claim.figures, *(n for s in mine for n in s.finding.figures)]))
    rows: list[tuple[str, str, Interval | None]] = []
    drawings: list[Chart] = []
    for name in names:
        claimed = claim.figures.get(name)
        text = _value(claimed, locale)
        found = [(s, s.finding.figures[name]) for s in mine if name in s.finding.figures]
        rows += [(name, text, interval) for _, interval in found]
        if not found:
            rows.append((name, text, None))
        elif _number(claimed) is not None:
            id_ = f"claim-{index}-{len(drawings)}"
            drawings.append(_claimed_beside(id_, name, claimed, found, locale))
    state = next((s for s in _CLAIM_STATES if s in states), "not checkable")
    return ClaimCard(claim, state, mine, tuple(rows), tuple(drawings))


def _claimed_beside(
    id_: str,
    name: str,
    claimed: Value,
    found: Sequence[tuple[Statement, Interval]],
    locale: str,
) -> Chart:
    """The claimed number as a line across the recomputed intervals."""
    number = _number(claimed)
    assert number is not None
    alone = sentence("claims.recomputed", {}, locale) if len(found) == 1 else ""
    rows = [Row(alone or s.finding.check, f"tone-{TONES[s.finding.state]}", i) for s, i in found]
    return charts.forest(
        id_,
        sentence("claims.axis", {"figure": name}, locale),
        _read_aloud(rows, locale) + sentence("claims.axis.claimed", {"claimed": number}, locale),
        rows,
        number,
        sentence("claims.claimed", {}, locale),
    )


def _read_aloud(rows: Sequence[Row], locale: str) -> str:
    return "".join(
        sentence("claims.axis.text", {"row": r.name, "value": figures_text(r.interval)}, locale)
        + " "
        for r in rows
    )


def attacks(record: Record, placed: Sequence[Statement], locale: str) -> list[AttackCard]:
    """One card an attack. A blind baseline stands beside every attack that it is a baseline for."""
    baselines = [a for a in record.attacks if a.subject == "blind baseline"]
    targets = {a.name for a in record.attacks if a.subject == "target"}
    order = list(_SUBJECTS)
    cards: list[AttackCard] = []
    for name in dict.fromkeys(a.name for a in record.attacks):
        own = [a for a in record.attacks if a.name == name]
        if targets and name not in targets and all(a in baselines for a in own):
            continue
        if name in targets and not any(a in baselines for a in own):
            own += baselines
        own.sort(key=lambda a: order.index(a.subject))
        statements = tuple(
            s
            for s in placed
            if not s.finding.claim and (s.finding.check == name or s.finding.id == f"attack/{name}")
        )
        names = dict.fromkeys(m.name for a in own for m in a.metrics)
        missing = tuple(n for n in names if not any(a.metric(n) for a in own))
        metrics = tuple(_metric_row(n, own, locale) for n in names if n not in missing)
        chart = _roc(f"roc-{len(cards) + 1}", own, locale)
        cards.append(
            AttackCard(own[0].title, tuple(own), metrics, _reasons(missing, own), statements, chart)
        )
    return cards


def _reasons(names: Sequence[str], runs: Sequence[Attack]) -> tuple[tuple[str, str], ...]:
    """The named figures, each with the reason why the first run that tried has none."""
    return tuple(
        (name, next(m.unmeasured for a in runs for m in a.metrics if m.name == name))
        for name in names
    )


def _metric_row(name: str, runs: Sequence[Attack], locale: str) -> MetricRow:
    found = [next((m for m in a.metrics if m.name == name), None) for a in runs]
    intervals = [m.interval for m in found if m and m.interval]
    cells = [_cell(m, locale) for m in found]
    shared = {basis for _, basis in cells}
    if len(shared) == 1:
        return MetricRow(name, shared.pop(), tuple((number, "") for number, _ in cells))
    methods = {i.method for i in intervals}
    if len(methods) > 1:
        return MetricRow(name, "", tuple(cells))
    short = tuple(
        (number, _sample(m.interval, locale) if m and m.interval else basis)
        for m, (number, basis) in zip(found, cells, strict=True)
    )
    return MetricRow(name, methods.pop(), short)


def _cell(metric: Metric | None, locale: str) -> tuple[str, str]:
    if metric is None:
        return ("–", "")
    if metric.interval:
        return (figures_text(metric.interval), basis_text(metric.interval, locale))
    return (sentence("attacks.unmeasured", {}, locale), metric.unmeasured)


def _sample(interval: Interval, locale: str) -> str:
    values = {"confidence": interval.confidence, "n": interval.n}
    return sentence("interval.sample", values, locale)


def _roc(id_: str, runs: Sequence[Attack], locale: str) -> Chart:
    lines = [Line(_subject(a, runs, locale), _SUBJECTS[a.subject], a.roc) for a in runs if a.roc.x]
    name = sentence("chart.mark", {}, locale)
    marks = [
        Mark(name, "s0", rate, metric.interval)
        for a in runs[:1]
        for metric in a.metrics
        if metric.interval and (rate := false_positive_rate(metric.name)) is not None
    ]
    title = sentence("chart.roc", {"attack": runs[0].title}, locale)
    return charts.roc(id_, title, lines[:_DRAWN], marks, runs[0].non_members, locale)


def _subject(attack: Attack, runs: Sequence[Attack], locale: str) -> str:
    subject = sentence(f"subject.{attack.subject}", {}, locale)
    alone = sum(a.subject == attack.subject for a in runs) == 1
    return subject if alone else f"{subject}: {attack.title}"


def glance(record: Record, locale: str) -> Chart | None:
    """The AUC of every run against chance, or None where fewer than two were measured."""
    order = list(_SUBJECTS)
    names = list(dict.fromkeys(a.name for a in record.attacks))
    blind = "blind baseline"
    runs = sorted(
        record.attacks,
        key=lambda a: (a.subject == blind, names.index(a.name), order.index(a.subject)),
    )
    rows = [
        Row(_run_name(a, locale), _SUBJECTS[a.subject], interval)
        for a in runs
        if (interval := a.metric("auc"))
    ]
    if len(rows) < 2:
        return None
    title, chance = (sentence(f"attacks.{key}", {}, locale) for key in ("glance", "chance"))
    return charts.forest("glance", title, _read_aloud(rows, locale), rows, 0.5, chance)


def _run_name(attack: Attack, locale: str) -> str:
    """Attack and subject in the room that a forest has; the subject is never cut off."""
    subject = sentence(f"subject.{attack.subject}", {}, locale)
    if attack.title == subject:
        return subject
    return f"{charts.shortened(attack.title, charts.NAME - charts.width(subject) - 3)} · {subject}"


def budget(index: int, budget: Budget, record: Record, locale: str) -> BudgetCard:
    """The account of one ledger with its curves, and the (ε, δ) that is claimed marked in them."""
    guarantees = budget.guarantees[:_DRAWN]
    claimed = [
        Mark(sentence("chart.claimed", {}, locale), "claimed", delta, epsilon)
        for claim in record.claims
        if (epsilon := _number(claim.figures.get("epsilon"))) is not None
        and (delta := _number(claim.figures.get("delta"))) is not None
    ]

    def lines(kind: str) -> list[Line]:
        return [
            Line(_accountant(g, locale), _accountant_style(i, g), getattr(g, kind))
            for i, g in enumerate(guarantees)
        ]

    title = {key: sentence(f"chart.{key}", {}, locale) for key in ("epsilon", "trade_off")}
    drawn = (
        charts.epsilon_curve(f"eps-{index}", title["epsilon"], lines("curve"), claimed, locale),
        charts.trade_off(f"tof-{index}", title["trade_off"], lines("trade_off"), locale),
    )
    return BudgetCard(budget, _best(budget), tuple(c for c in drawn if c))


def _best(budget: Budget) -> Guarantee | None:
    sound = [g for g in budget.guarantees if g.guaranteed]
    meanings = {(g.delta, g.unit, g.relation, g.group_size) for g in sound}
    return min(sound, key=lambda g: g.epsilon.high) if len(meanings) == 1 else None


def _accountant(guarantee: Guarantee, locale: str) -> str:
    if guarantee.guaranteed:
        return guarantee.accountant
    return f"{guarantee.accountant} · {sentence('budget.comparison', {}, locale)}"


def _accountant_style(index: int, guarantee: Guarantee) -> str:
    return f"a{index}" + ("" if guarantee.guaranteed else " comparison")


def _number(value: Value) -> float | None:
    """A claimed figure as a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _value(value: Value, locale: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return sentence("word.yes" if value else "word.no", {}, locale)
    return value if isinstance(value, str) else figure(value)
