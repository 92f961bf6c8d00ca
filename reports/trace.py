"""The report of one trace: which records lead to which run, and whether that run's budget holds.

Standard library only, as ``record.py``: ``trace.json`` must be readable when nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reports import json_form
from reports.record import Finding, Interval, Outcome, Provenance, Relation, Unit, Value

SCHEMA = "dpassay.trace/1"
TraceVerdict = Literal["forged", "conflict", "unknown", "stripped", "traced"]
VERDICTS: tuple[TraceVerdict, ...] = ("forged", "conflict", "unknown", "stripped", "traced")
Layer = Literal["invisible", "token choice", "row", "digits", "digest", "near duplicate", "legacy"]
LedgerState = Literal["verified", "refuted", "missing", "swapped", "not checkable"]
BudgetState = Literal["holds", "exceeded", "not checkable"]
_PASSWORD = re.compile(r"://[^/?#@\s:]*:(?!\*+@)[^@\s]+@")


@dataclass(frozen=True)
class Reason:
    """A sentence: ``message`` is a key of ``reports/locales``, ``values`` fill it."""

    message: str
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """One registered place that a layer led to.

    ``exact`` says that content and mark are as registered; False means edited since. ``record`` is
    "" where the layer names a batch only. ``false_trace`` bounds the chance that an unmarked record
    does this (for token choice: the p-value, corrected over all batches); None where no chance is
    meant, as for an unkeyed mark that anyone can set.
    """

    layer: Layer
    run: str
    batch: str
    record: str = ""
    exact: bool = True
    false_trace: float | None = None


@dataclass(frozen=True)
class TracedRecord:
    """One record of the files and what became of it.

    ``row`` counts from 1 within ``file``. ``preview`` is a short excerpt (``reports.excerpt``), a
    stranger's words. ``hits`` stand strongest first: the first is the one that the verdict speaks
    of, and a conflict has at least two. Those of an unknown record are hints that show nothing.

    Raises:
        ValueError: if the row is below 1, or the hits do not fit the verdict.
    """

    file: str
    row: int
    preview: str
    verdict: TraceVerdict
    reason: Reason
    hits: tuple[Hit, ...] = ()

    def __post_init__(self) -> None:
        if self.row < 1:
            raise ValueError(f"TracedRecord: rows count from 1, got {self.row}")
        least = {"traced": 1, "stripped": 1, "conflict": 2}.get(self.verdict, 0)
        if len(self.hits) < least:
            raise ValueError(
                f"TracedRecord {self.file}:{self.row}: {self.verdict} needs {least} hits or more, "
                f"got {len(self.hits)}"
            )


@dataclass(frozen=True)
class TracedRun:
    """A run that records led to, with its budget claimed and recomputed.

    ``records`` counts those traced or stripped to it. ``epsilon`` and ``delta`` are as claimed at
    registration. ``recomputed`` holds one bound for each accountant at ``delta``: ``high`` is the
    guarantee and ``method`` the accountant. ``checks`` are the ledger's, in words.
    """

    id: str
    name: str
    records: int
    ledger: str
    ledger_state: LedgerState
    epsilon: float | None
    delta: float | None
    unit: Unit
    relation: Relation
    budget: BudgetState
    recomputed: tuple[Interval, ...] = ()
    checks: tuple[Finding, ...] = ()

    @property
    def bound(self) -> Interval | None:
        """The tightest recomputed upper bound, or None where nothing was recomputed."""
        return min(self.recomputed, key=lambda i: i.high, default=None)


@dataclass(frozen=True)
class TokenEvidence:
    """What the token choices of several records say together of one batch.

    Of ``choices`` distinct layer bits of (context, token) pairs ``green`` were ones; ``p_value`` is
    exact binomial, corrected over ``batches`` registered ones, and judged at ``alpha``.
    """

    file: str
    run: str
    batch: str
    records: int
    choices: int
    green: int
    p_value: float
    batches: int
    alpha: float


@dataclass(frozen=True)
class RegistryState:
    """The registry that was asked, and what its verification found.

    ``head`` is the hash of its last entry and ``pinned`` says that a head kept elsewhere was found
    in it; ``public_key`` is the root key in hex and ``known`` says that the caller gave that key.
    ``mode`` is ``keys`` where marking secrets were at hand, ``public`` where none was.

    Raises:
        ValueError: if the URL still shows a password.
    """

    url: str
    entries: int
    batches: int
    records: int
    head: str
    public_key: str
    mode: Literal["keys", "public"]
    known: bool = False
    pinned: bool = False
    problems: tuple[Reason, ...] = ()

    def __post_init__(self) -> None:
        if _PASSWORD.search(self.url):
            raise ValueError("RegistryState: the URL shows a password; put *** in its place")


@dataclass(frozen=True)
class SpotCheck:
    """A random sample of a release: how many of it could not be traced, and what that bounds.

    ``share_at_most.high`` is the upper confidence bound on the untraceable share of all
    ``population`` records.

    Raises:
        ValueError: unless 0 <= untraceable <= sample <= population.
    """

    population: int
    sample: int
    untraceable: int
    share_at_most: Interval

    def __post_init__(self) -> None:
        if not 0 <= self.untraceable <= self.sample <= self.population:
            raise ValueError(
                "SpotCheck: need 0 <= untraceable <= sample <= population, got "
                f"{self.untraceable}, {self.sample}, {self.population}"
            )


@dataclass(frozen=True)
class LegacyMarks:
    """How many records carry the published recipe's mark, and the size of its code.

    ``even_odds`` is the number of batches at which the chance that two share a code is nearest to
    one half.
    """

    records: int
    bits: int = 32
    even_odds: int = 77_163


@dataclass(frozen=True)
class TraceReport:
    """One trace, from files to verdict. ``provenance.inputs`` are the files with their digests."""

    title: str
    outcome: Outcome
    reasons: tuple[Reason, ...]
    registry: RegistryState
    runs: tuple[TracedRun, ...]
    records: tuple[TracedRecord, ...]
    provenance: Provenance
    token_evidence: tuple[TokenEvidence, ...] = ()
    spot_check: SpotCheck | None = None
    legacy: LegacyMarks | None = None
    schema: str = SCHEMA

    @property
    def counts(self) -> dict[TraceVerdict, int]:
        """How many records have each verdict, every verdict named, most troubling first."""
        found = dict.fromkeys(VERDICTS, 0)
        for record in self.records:
            found[record.verdict] += 1
        return found


def to_json(report: TraceReport) -> str:
    """The report as JSON text: keys in field order, infinities as the strings ±"Infinity".

    Raises:
        ValueError: if a value is NaN.
    """
    return json_form.dumps(report)


def from_json(text: str) -> TraceReport:
    """The report in JSON text written by ``to_json``.

    Raises:
        ValueError: if the text is not JSON, has another schema, or a field is missing, unknown or
            of the wrong type. The message names the field.
    """
    data = json_form.loads(text, "trace")
    if data.get("schema") != SCHEMA:
        raise ValueError(
            f"trace: schema {data.get('schema', '')!r} is not readable here, "
            f"this program reads {SCHEMA}"
        )
    built = json_form.build(TraceReport, data, "trace")
    assert isinstance(built, TraceReport)
    return built
