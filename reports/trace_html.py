"""A TraceReport as one self-contained HTML file: the answer first, then runs, then records.

Whatever a stranger wrote is shown and never run, and what cannot be seen in it is made visible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from reports import cards
from reports.cards import Statement
from reports.excerpt import excerpt
from reports.page import environment, styles, words
from reports.record import FindingState, Interval, Value
from reports.sentence import at_least, at_most, percent, sentence, visible
from reports.trace import (
    VERDICTS,
    BudgetState,
    LedgerState,
    RegistryState,
    SpotCheck,
    TracedRecord,
    TracedRun,
    TraceReport,
    TraceVerdict,
)

_TONES = {  # verdict or state -> the class that gives it colour and icon
    "forged": "fail",
    "conflict": "fail",
    "unknown": "open",
    "stripped": "none",
    "traced": "pass",
    "verified": "pass",
    "missing": "open",
    "swapped": "fail",
    "holds": "pass",
    "exceeded": "fail",
}
_SHOWN: Mapping[TraceVerdict, int] = {"stripped": 60, "traced": 24}  # rows; 80 of the others
_OPEN = 12  # rows before the fold
_RUNS, _ANSWERS, _PROBLEMS = 60, 3, 20
_BUDGETS: tuple[BudgetState, ...] = ("exceeded", "not checkable", "holds")
_LEDGERS: tuple[LedgerState, ...] = ("swapped", "refuted", "missing", "not checkable", "verified")
_GOOD: tuple[FindingState, ...] = ("supported", "measured")
_IGNORABLE = re.compile(
    r"[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True)
class _Line:
    """One line of the answer."""

    tone: str
    word: str
    text: str


@dataclass(frozen=True)
class _Group:
    """The records of one verdict: those shown at once, those folded, and how many are left out."""

    verdict: TraceVerdict
    count: int
    parts: tuple[Sequence[TracedRecord], Sequence[TracedRecord]]
    rest: int


@dataclass(frozen=True)
class _Run:
    """A run with its anchor and its ledger's findings, those that hold apart."""

    anchor: str
    run: TracedRun
    broken: tuple[Statement, ...]
    good: tuple[Statement, ...]


def render(report: TraceReport, locale: str = "en") -> str:
    """The report as one HTML file in the given language.

    At most a few hundred records are shown, the troubling ones first; the others are counted.

    Raises:
        ValueError: if there is no such locale.
    """
    language = words(locale)

    def say(message: str, values: Mapping[str, Value]) -> str:
        return sentence(message, _shown_values(values), locale)

    runs = _runs(report.runs, locale)
    html = (
        environment()
        .get_template("trace.html")
        .render(
            report=report,
            lines=_answer(report, [r.run for r in runs], locale),
            files=len({r.file for r in report.records}),
            counts=report.counts,
            bar=_bar(report.counts),
            groups=_groups(report.records),
            runs=runs,
            more_runs=len(report.runs) - len(runs),
            places={r.run.id: r for r in runs},
            share=lambda x: _share(x, locale),
            excerpt=excerpt,
            problems_shown=_PROBLEMS,
            **{**language, "say": say, "tones": {**language["tones"], **_TONES}},
            **styles("report.css", "trace.css"),
        )
    )
    return _IGNORABLE.sub("\N{REPLACEMENT CHARACTER}", visible(html))


def _shown_values(values: Mapping[str, Value]) -> dict[str, Value]:
    return {k: excerpt(v) if isinstance(v, str) else v for k, v in values.items()}


def _answer(report: TraceReport, runs: Sequence[TracedRun], locale: str) -> list[_Line]:
    """What the inspector asked, in a few lines: records, sample, runs with budgets, registry."""
    lines = [_records_line(report, locale)]
    if report.spot_check:
        lines.append(_spot_line(report.spot_check, locale))
    lines += [_run_line(run, locale) for run in runs[:_ANSWERS]]
    if len(report.runs) > _ANSWERS:
        more = len(report.runs) - _ANSWERS
        text = sentence("trace.answer.more_runs", {"count": more}, locale)
        lines.append(_Line("none", sentence("trace.runs.title", {}, locale), text))
    lines.append(_registry_line(report.registry, locale))
    return lines


def _records_line(report: TraceReport, locale: str) -> _Line:
    counts, total = report.counts, len(report.records)
    stripped = counts["stripped"]
    found = counts["traced"] + stripped
    key = ".none" if not total else ".stripped" if stripped else ""
    values = {"total": total, "found": found, "stripped": stripped}
    worst = next((v for v in VERDICTS if counts[v]), "unknown")
    tone = "pass" if total and found == total else _TONES[worst]
    word = sentence("trace.records.title", {}, locale)
    return _Line(tone, word, sentence(f"trace.answer.records{key}", values, locale))


def _spot_line(check: SpotCheck, locale: str) -> _Line:
    whole = check.sample == check.population
    key = "all" if whole else "some" if check.untraceable else "none"
    values: dict[str, Value] = {
        "sample": check.sample,
        "population": check.population,
        "untraceable": check.untraceable,
        "share": _share(check.share_at_most.high, locale),
        "confidence": check.share_at_most.confidence,
    }
    word = sentence("trace.spot.title", {}, locale)
    tone = "open" if check.untraceable else "pass"
    return _Line(tone, word, sentence(f"trace.answer.spot.{key}", values, locale))


def _run_line(run: TracedRun, locale: str) -> _Line:
    bound = run.bound
    values: dict[str, Value] = {
        "records": run.records,
        "run": excerpt(run.name or run.id, 60),
        "claimed": run.epsilon,
        "delta": run.delta,
    }
    if bound:
        values["accountant"] = excerpt(bound.method, 60)
        values["low"], values["epsilon"] = at_least(bound.low), at_most(bound.high)
    word = sentence(f"trace.budget.{run.budget}", {}, locale)
    word = f"{sentence('trace.runs.budget', {}, locale)}: {word}"
    key = f"trace.answer.run.{_budget_key(run, bound)}"
    return _Line(_tone(run.budget), word, sentence(key, values, locale))


def _budget_key(run: TracedRun, bound: Interval | None) -> str:
    if run.epsilon is None:
        return "unclaimed"
    if run.budget != "exceeded":
        return run.budget
    if bound is None or math.isinf(bound.high):
        return "exceeded.unbounded"
    return "exceeded.between" if bound.low > run.epsilon else "exceeded"


def _registry_line(registry: RegistryState, locale: str) -> _Line:
    vouched = registry.known or registry.pinned
    key = "problems" if registry.problems else "whole" if vouched else "unknown"
    tone = {"problems": "fail", "whole": "pass", "unknown": "open"}[key]
    values = {"entries": registry.entries, "count": len(registry.problems)}
    word = sentence("trace.registry.title", {}, locale)
    return _Line(tone, word, sentence(f"trace.answer.registry.{key}", values, locale))


def _runs(runs: Sequence[TracedRun], locale: str) -> list[_Run]:
    """The runs to show, those whose budget or ledger fails first, then the largest."""
    order = sorted(
        runs,
        key=lambda r: (_BUDGETS.index(r.budget), _LEDGERS.index(r.ledger_state), -r.records),
    )
    shown, number = [], 0
    for i, run in enumerate(order[:_RUNS], 1):
        placed = [cards.statement(number + j, f, locale) for j, f in enumerate(run.checks, 1)]
        number += len(placed)
        broken = tuple(s for s in placed if s.finding.state not in _GOOD)
        good = tuple(s for s in placed if s.finding.state in _GOOD)
        shown.append(_Run(f"run-{i}", run, broken, good))
    return shown


def _groups(records: Sequence[TracedRecord]) -> list[_Group]:
    found: dict[TraceVerdict, list[TracedRecord]] = {verdict: [] for verdict in VERDICTS}
    for record in records:
        found[record.verdict].append(record)
    groups = []
    for verdict, mine in found.items():
        shown = mine[: _SHOWN.get(verdict, 80)]
        first = len(shown) if len(shown) <= _OPEN + 3 else _OPEN
        parts = (shown[:first], shown[first:])
        groups.append(_Group(verdict, len(mine), parts, len(mine) - len(shown)))
    return [group for group in groups if group.count]


def _bar(counts: Mapping[TraceVerdict, int]) -> list[tuple[TraceVerdict, float, float]]:
    """Verdict, start and width of each piece of a bar 1000 wide; none so thin that it is unseen."""
    total = sum(counts.values())
    wide = {v: max(1000 * n / total, 8) for v, n in counts.items() if n}
    scale = 1000 / sum(wide.values()) if wide else 1
    pieces, at = [], 0.0
    for verdict, width in wide.items():
        pieces.append((verdict, round(at, 1), round(width * scale, 1)))
        at += width * scale
    return pieces


def _share(x: float, locale: str) -> str:
    """A share that is an upper bound, as a percentage rounded up to three digits."""
    if not 0 < x < 1:
        return percent(x, locale)
    exact = Decimal(repr(x))
    places = Decimal(1).scaleb(exact.adjusted() - 2)
    return percent(float(exact.quantize(places, ROUND_CEILING)), locale)


def _tone(state: str) -> str:
    return _TONES.get(state) or cards.TONES[state]
