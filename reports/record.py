"""The Record of one audit and its vocabulary: the format that outlives the program.

Standard library only, so that an archived ``audit.json`` can be read, checked and rendered
years later with nothing but Python and jinja2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reports import json_form

SCHEMA_VERSION = "1.0"

Relation = Literal["add-remove", "replace-one"]
Unit = Literal["record", "user"]
AccessLevel = Literal["none", "label", "scores", "logits", "gradients", "samples"]
ClaimState = Literal["supported", "refuted", "inconclusive", "not checkable"]
FindingState = Literal[
    "supported", "refuted", "inconclusive", "not checkable",  # a claim, or a check of a fact
    "measured",  # an attack's figure: whether it is bad is the gate's business
    "void",  # measured, but the premises do not hold
    "error",  # the check broke
]  # fmt: skip
Outcome = Literal["pass", "inconclusive", "fail", "error"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "inconclusive", "fail", "error")  # worst last
Value = float | int | str | bool | None


@dataclass(frozen=True)
class Interval:
    """A measured number with its uncertainty: the only form in which one enters a finding.

    ``value`` is the point estimate inside ``[low, high]``. A bound that is computed and not sampled
    has ``confidence`` 1. ``n`` counts the samples behind it (records, or steps for an account).

    Raises:
        ValueError: if a bound is NaN, the order low <= value <= high fails, the confidence lies
            outside (0, 1], or n is negative.
    """

    low: float
    value: float
    high: float
    confidence: float
    method: str
    n: int

    def __post_init__(self) -> None:
        if any(math.isnan(x) for x in (self.low, self.value, self.high)):
            raise ValueError("Interval: low, value and high must not be NaN")
        if not self.low <= self.value <= self.high:
            raise ValueError(
                f"Interval: need low <= value <= high, got {self.low}, {self.value}, {self.high}"
            )
        if not 0 < self.confidence <= 1:
            raise ValueError(f"Interval: confidence must lie in (0, 1], got {self.confidence}")
        if self.n < 0:
            raise ValueError(f"Interval: n must not be negative, got {self.n}")


@dataclass(frozen=True)
class Curve:
    """A line to draw: y over x, with an optional band [low, high] around it."""

    name: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"Curve {self.name}: x and y differ in length")
        if len(self.low) not in (0, len(self.x)) or len(self.high) != len(self.low):
            raise ValueError(f"Curve {self.name}: low and high must both be empty or as long as x")


@dataclass(frozen=True)
class Claim:
    """What somebody asserts, before anything is checked.

    ``figures`` holds the asserted numbers by the family's own names (``epsilon``, ``delta``,
    ``accuracy``, ...); ``source`` says where it was read, as ``file:line`` where known.
    """

    id: str
    family: str
    statement: str
    figures: Mapping[str, Value] = field(default_factory=dict)
    unit: Unit = "record"
    relation: Relation = "add-remove"
    release: str = ""
    source: str = ""


@dataclass(frozen=True)
class Evidence:
    """A file that a finding rests on, with its digest."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Finding:
    """One check's statement.

    ``message`` is a key of ``reports/locales`` and ``values`` fill its sentence; ``meaning`` and
    ``remedy`` are that sentence in English, so that the record reads without this program.
    ``figures`` are the measured numbers. ``power`` says in words what the check could have seen.
    ``claim`` is the id of the claim that it judges, if any.
    """

    id: str
    check: str
    state: FindingState
    message: str
    values: Mapping[str, Value] = field(default_factory=dict)
    meaning: str = ""
    remedy: str = ""
    figures: Mapping[str, Interval] = field(default_factory=dict)
    power: str = ""
    claim: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A figure of an attack: an interval, or the reason why the sample cannot say."""

    name: str
    interval: Interval | None = None
    unmeasured: str = ""

    def __post_init__(self) -> None:
        if (self.interval is None) == (not self.unmeasured):
            raise ValueError(f"Metric {self.name}: give an interval or a reason, not both")


@dataclass(frozen=True)
class Attack:
    """What one attack measured on one subject.

    ``subject`` is ``target``, ``positive control`` (a twin known to leak) or ``blind baseline``
    (an attacker that never saw the target).
    """

    name: str
    title: str
    subject: Literal["target", "positive control", "blind baseline"]
    access: AccessLevel
    members: int
    non_members: int
    metrics: tuple[Metric, ...]
    roc: Curve
    models_trained: int
    queries: int
    seconds: float
    seed: int
    source: str = ""
    notes: tuple[str, ...] = ()

    def metric(self, name: str) -> Interval | None:
        """The interval of the named metric, or None where it was not measured."""
        return next((m.interval for m in self.metrics if m.name == name), None)


@dataclass(frozen=True)
class Guarantee:
    """An upper bound on ε as one accountant gives it, with all that makes it meaningful.

    ``epsilon.high`` is the guarantee; ``epsilon.low`` a value below which the recorded mechanism's
    ε at this δ cannot lie (0 where the accountant gives none). ``guaranteed`` is False for figures
    shown for comparison only (a CLT approximation, or an account of a sampler that did not run).
    """

    accountant: str
    epsilon: Interval
    delta: float
    unit: Unit
    relation: Relation
    group_size: int
    guaranteed: bool
    curve: Curve
    trade_off: Curve
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budget:
    """The recomputed account of one ledger: what ran, in words, and every accountant's answer."""

    ledger: str
    events: tuple[str, ...]
    guarantees: tuple[Guarantee, ...]


@dataclass(frozen=True)
class Subject:
    """What was audited."""

    name: str
    kind: str
    description: str
    access: AccessLevel | None
    members: int
    non_members: int


@dataclass(frozen=True)
class Rule:
    """One line of a policy as it was applied.

    The figure must be shown to lie within the limit; ``waivable`` says if a waiver may stand
    beside a failure of this rule.
    """

    id: str
    figure: str
    limit: float | None
    waivable: bool = True


@dataclass(frozen=True)
class Decision:
    """What one rule said of one finding."""

    rule: str
    finding: str
    outcome: Outcome
    message: str
    values: Mapping[str, Value] = field(default_factory=dict)
    reason: str = ""
    waiver: str = ""


@dataclass(frozen=True)
class Verdict:
    """The outcome of the gate with the decisions behind it, worst first."""

    outcome: Outcome
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Input:
    """A file that the audit read."""

    role: str
    path: str
    sha256: str
    bytes: int
    rows: int | None = None


@dataclass(frozen=True)
class Provenance:
    """How to get the same record again."""

    command: str
    seed: int
    started: str
    seconds: float
    versions: Mapping[str, str]
    platform: str
    inputs: tuple[Input, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One audit, from promise to verdict."""

    title: str
    subject: Subject
    claims: tuple[Claim, ...]
    findings: tuple[Finding, ...]
    attacks: tuple[Attack, ...]
    budgets: tuple[Budget, ...]
    policy: tuple[Rule, ...]
    verdict: Verdict
    provenance: Provenance
    schema_version: str = SCHEMA_VERSION


def to_json(record: Record) -> str:
    """The record as JSON text: keys in field order, infinities as the strings ±"Infinity".

    Raises:
        ValueError: if a value is NaN.
    """
    return json_form.dumps(record)


def from_json(text: str) -> Record:
    """The record in JSON text written by ``to_json``.

    Raises:
        ValueError: if the text is not JSON, comes from another major schema version, or a field is
            missing, unknown or of the wrong type. The message names the field.
    """
    data = json_form.loads(text, "record")
    version = str(data.get("schema_version", ""))
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise ValueError(
            f"record: schema_version {version!r} is not readable here, "
            f"this program reads {SCHEMA_VERSION}"
        )
    built = json_form.build(Record, data, "record")
    assert isinstance(built, Record)
    return built
