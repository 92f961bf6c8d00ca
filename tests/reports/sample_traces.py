"""Realistic and hostile trace reports for the tests; `python -m` writes them as HTML."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from functools import cache
from pathlib import Path

from reports.excerpt import excerpt
from reports.record import Finding, Input, Interval, Provenance
from reports.sentence import finish
from reports.trace import (
    Hit,
    LegacyMarks,
    Reason,
    RegistryState,
    SpotCheck,
    TokenEvidence,
    TracedRecord,
    TracedRun,
    TraceReport,
)

WORDS = (
    *("patient", "presents", "with", "mild", "chest", "pain", "after", "exercise", "no", "fever"),
    *("history", "of", "asthma", "daughter", "reports", "cough", "since", "three", "days"),
    *("blood", "pressure", "stable", "discharged", "advice", "and", "follow", "up"),
)
SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
RUNS = ("run-2031-a", "run-2031-b")
BATCHES = ("5f0c3f6be2c54d0f8a9b1f7f0d2c6e11", "b7d1a7d0c0de4b0f9d7e3c1a2b4f5e66")
HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\u202etxt.exe\u2066\udcff"
    "\u200b\u200d\U000e0041\U000e0101\x00\x1b[31m"
)


def hit(which: int = 0, **changes: object) -> Hit:
    made = Hit("invisible", RUNS[which], BATCHES[which], "note-000123", True, 4e-10)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def note(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=40))


@cache
def records(
    traced: int,
    stripped: int = 0,
    unknown: int = 0,
    conflict: int = 0,
    forged: int = 0,
) -> tuple[TracedRecord, ...]:
    """So many records of each verdict, in an order drawn with seed 7."""
    draw = random.Random(7)
    kinds = ["traced"] * traced + ["stripped"] * stripped + ["unknown"] * unknown
    kinds += ["conflict"] * conflict + ["forged"] * forged
    draw.shuffle(kinds)
    made = []
    for row, kind in enumerate(kinds, 1):
        run = int(draw.random() < 0.2)
        found = {
            "traced": (
                Reason("trace.record.traced.invisible", {"copies": 6}),
                (hit(run, record=f"note-{row:06}"),),
            ),
            "stripped": (
                Reason("trace.record.stripped.near", {"similarity": 0.84, "highest": 0.31}),
                (hit(run, layer="near duplicate", exact=False, false_trace=1e-4),),
            ),
            "unknown": (Reason("trace.record.unknown.nothing"), ()),
            "conflict": (
                Reason("trace.record.conflict.runs", {"first": RUNS[0], "second": RUNS[1]}),
                (hit(0), hit(1)),
            ),
            "forged": (
                Reason("trace.record.forged.copied", {"new": 37, "words": 40}),
                (hit(run, exact=False),),
            ),
        }[kind]
        text = excerpt(note(draw))
        made.append(TracedRecord("release/notes.jsonl", row, text, kind, *found))  # type: ignore[arg-type]
    return tuple(made)


def check(id_: str, state: str, message: str, **values: object) -> Finding:
    return finish(Finding(id_, id_, state, message, values))  # type: ignore[arg-type]


def run(which: int = 0, records_: int = 9_912) -> TracedRun:
    bounds = (
        Interval(2.536, 2.549, 2.549, 1, "PLD (dp-accounting)", 230),
        Interval(0, 2.781, 2.781, 1, "RDP (Mironov et al. 2019)", 230),
    )
    return TracedRun(
        id=RUNS[which],
        name=("Discharge notes, spring", "Discharge notes, autumn")[which],
        records=records_,
        ledger="runs/spring/ledger.jsonl",
        ledger_state="verified",
        epsilon=3.0,
        delta=1e-5,
        unit="record",
        relation="add-remove",
        budget="holds",
        recomputed=bounds,
        checks=(
            check("ledger.chain", "supported", "ledger.chain.supported", n=233, head=SHA[:12]),
            check("ledger.end", "supported", "ledger.end.supported", n=230),
            check("ledger.noise", "inconclusive", "ledger.noise.inconclusive", n=230),
        ),
    )


def spot(population: int, sample: int, untraceable: int, share: float) -> SpotCheck:
    value = untraceable / sample
    bound = Interval(0, value, share, 0.95, "hypergeometric, exact", sample)
    return SpotCheck(population, sample, untraceable, bound)


def tokens(which: int, green: int, p_value: float) -> TokenEvidence:
    file = "release/notes.jsonl"
    return TokenEvidence(file, RUNS[which], BATCHES[which], 41, 49_230, green, p_value, 18, 1e-3)


def problem(entry: int, detail: str) -> Reason:
    return Reason("trace.registry.problem", {"entry": entry, "detail": detail})


def provenance() -> Provenance:
    return Provenance(
        command="dpassay trace release/notes.jsonl --registry registry.db --sample 100 --seed 7",
        seed=7,
        started="2031-04-02T09:15:00Z",
        seconds=3.2,
        versions={"dpassay": "0.1.0", "python": "3.11.9", "sqlalchemy": "2.0.44"},
        platform="Linux x86_64",
        inputs=(Input("records", "release/notes.jsonl", SHA, 8_412_331, 10_000),),
    )


def report(**changes: object) -> TraceReport:
    made = TraceReport(
        title="Discharge notes, release of April",
        outcome="pass",
        reasons=(Reason("trace.reason.all_traced", {"count": 100}),),
        registry=RegistryState(
            url="postgresql+psycopg://audit:***@registry.example.org/marks",
            entries=412,
            batches=18,
            records=1_000_000,
            head=SHA,
            public_key=SHA[::-1],
            mode="keys",
            known=True,
            pinned=True,
        ),
        runs=(run(0, 81), run(1, 19)),
        records=records(100),
        provenance=provenance(),
        spot_check=spot(10_000, 100, 0, 0.02934),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def clean() -> TraceReport:
    """A spot check of a hundred records, all traced to two runs whose budgets hold."""
    return report()


def troubled() -> TraceReport:
    """Ten thousand records with a few of every trouble, and a run whose budget does not hold."""
    made = records(9_900, 41, 44, 3, 12)
    exceeded = dataclasses.replace(
        run(1, 1_950),
        epsilon=1.0,
        budget="exceeded",
        ledger_state="swapped",
        checks=(
            check("ledger.chain", "refuted", "ledger.chain.refuted", n=233, count=4, line=17),
            check("ledger.end", "supported", "ledger.end.supported", n=230),
        ),
    )
    return report(
        outcome="fail",
        reasons=(
            Reason("trace.reason.forged", {"count": 12, "total": 10_000}),
            Reason(
                "trace.reason.budget.exceeded",
                {"run": RUNS[1], "epsilon": 2.549, "claimed": 1, "delta": 1e-5},
            ),
            Reason("trace.reason.ledger.swapped", {"run": RUNS[1]}),
        ),
        runs=(run(0, 7_991), exceeded),
        records=made,
        spot_check=spot(200_000, 10_000, 59, 0.00742),
        token_evidence=(
            tokens(0, 26_112, 3.1e-9),
            tokens(1, 24_590, 1.0),
        ),
        legacy=LegacyMarks(7),
        registry=dataclasses.replace(
            report().registry,
            mode="public",
            known=False,
            pinned=False,
            problems=(
                problem(17, "its hash is not that of its body"),
                problem(18, "it does not follow entry 17"),
            ),
        ),
    )


def open_ended() -> TraceReport:
    """Nothing wrong and not everything shown: no ledger, no key from outside, unknown records."""
    unchecked = dataclasses.replace(
        run(0, 96),
        ledger="",
        ledger_state="missing",
        budget="not checkable",
        recomputed=(),
        checks=(),
    )
    return report(
        outcome="inconclusive",
        reasons=(
            Reason("trace.reason.unknown", {"count": 4, "total": 100}),
            Reason("trace.reason.ledger.missing", {"run": RUNS[0]}),
            Reason("trace.reason.registry.unknown"),
        ),
        runs=(unchecked,),
        records=records(96, unknown=4),
        spot_check=spot(10_000, 100, 4, 0.0889),
        registry=dataclasses.replace(
            report().registry, url="registry.db", known=False, pinned=False
        ),
    )


def hostile() -> TraceReport:
    """Every word of a stranger is meant to harm the page or its reader."""
    places = (hit(0, run=HOSTILE, batch=HOSTILE, record=HOSTILE), hit(1))
    long = "w" * 10_000
    zalgo = "a" + "\u0301" * 500
    texts = (
        HOSTILE,
        long,
        zalgo,
        "\u202e" * 3000,
        "\U000e0100" * 24 + "a note",
        "",
        "اختبار " * 30,
    )
    two_runs = Reason("trace.record.conflict.runs", {"first": HOSTILE, "second": long})
    made = (
        *(
            TracedRecord(HOSTILE, row, text, "conflict", two_runs, places)
            for row, text in enumerate(texts, 1)
        ),
        TracedRecord(long, 1, HOSTILE, "forged", Reason(HOSTILE, {HOSTILE: HOSTILE}), places),
        TracedRecord("رؤية", 10**9, long, "unknown", Reason("trace.record.unknown.nothing")),
    )
    unbounded = dataclasses.replace(
        run(0),
        id=HOSTILE,
        name="<b>bold</b>" + HOSTILE,
        ledger=HOSTILE,
        budget="exceeded",
        recomputed=(Interval(math.inf, math.inf, math.inf, 1, HOSTILE, 1),),
        checks=(Finding("x", "x", "refuted", HOSTILE, {HOSTILE: HOSTILE}),),
    )
    return report(
        title=HOSTILE,
        outcome="fail",
        reasons=(Reason(HOSTILE, {"a": HOSTILE}), Reason("trace.reason.broke", {"part": long})),
        runs=(unbounded, dataclasses.replace(run(1), name=long, epsilon=None, delta=None)),
        records=made,
        registry=dataclasses.replace(
            report().registry,
            url=HOSTILE,
            head=HOSTILE,
            problems=(problem(17, HOSTILE + long),) * 30,
        ),
        token_evidence=(TokenEvidence(HOSTILE, HOSTILE, HOSTILE, 1, 1, 1, 0.5, 1, 0.01),),
        provenance=dataclasses.replace(
            provenance(),
            command=HOSTILE,
            inputs=(Input(HOSTILE, HOSTILE, SHA, 1),),
            notes=(HOSTILE,),
        ),
    )


def huge() -> TraceReport:
    """Ten thousand records of which most trouble, from three hundred runs."""
    runs = tuple(
        dataclasses.replace(run(0), id=f"run-{i}", name=f"Run {i}", records=i) for i in range(300)
    )
    return report(records=records(2_000, 2_000, 2_000, 2_000, 2_000), runs=runs, outcome="fail")


def empty() -> TraceReport:
    """No record, no run, no sample."""
    return report(
        title="",
        outcome="inconclusive",
        reasons=(Reason("trace.reason.nothing"),),
        runs=(),
        records=(),
        spot_check=None,
    )


ALL = (clean, troubled, open_ended, hostile, huge, empty)


def main(folder: Path) -> None:
    """Write every sample as HTML, to be looked at."""
    from reports.trace_html import render

    folder.mkdir(parents=True, exist_ok=True)
    for build in ALL:
        for locale in ("en", "zh"):
            text = render(build(), locale)
            (folder / f"{build.__name__}.{locale}.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
