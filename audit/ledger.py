"""Reads a training ledger by code of its own: what ran, as events for the accountants.

The lines are streamed and counted, never held, so that millions of steps fit in little memory.
Nothing here trusts the trainer's ε: the budget follows from the steps alone. What looks wrong is
kept as a ``Problem`` and judged in audit/ledger_checks.py; what is no ledger at all is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from audit.accounting.events import ApproximateDP, MechanismEvent, SampledGaussian, Sampling
from audit.ledger_format import LedgerError, NoiseSource, parsed

RDP_TOLERANCE = 1e-9  # relative: the ranks compute the same formula from the same numbers
LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class Header:
    """What the ledger says of the whole run; docs/ledger.md explains each field."""

    data_fingerprint: str
    records: int
    sampler: Sampling
    sample_rate: float
    expected_batch_size: float
    clipping: Literal["per_sample", "none"]
    clipping_norm: float | None
    noise_multiplier: float
    noise_source: NoiseSource
    unit: Literal["record", "user"]
    group_size: int
    ranks: int
    orders: tuple[float, ...]
    planned_steps: int | None
    delta: float | None
    epsilon: float | None
    code: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """A model file that the run released after ``step`` steps."""

    step: int
    file: str
    sha256: str


@dataclass(frozen=True)
class Resume:
    """The run went on after having been stopped, from a checkpoint of ``checkpoint_step``."""

    after_step: int
    checkpoint_step: int
    torn_bytes: int


@dataclass(frozen=True)
class End:
    """The end mark. ``signed`` are the bytes that its signature covers."""

    steps: int
    epsilon: float | None
    public_key: str = ""
    signature: str = ""
    signed: bytes = b""


@dataclass(frozen=True)
class Problem:
    """A fault of one kind: how often it occurs, and the first line with it, from 1."""

    kind: Literal["chain", "missing", "repeated", "drift", "ranks", "torn"]
    line: int
    count: int
    detail: str


@dataclass(frozen=True)
class Ledger:
    """What one record of training says, whoever wrote it.

    Attributes:
        format: ``ledger`` for our own format, else the name of the reader in audit/ledger_readers.
        mechanisms: what spent budget; equal steps are merged, wherever they stand.
        private: False if a step had no noise or no clipping; ε is then infinite.
        steps: how many steps the account counts; a missing one counts as well.
        header: None for other people's records, as are the fields below.
        batches: expected batch size to the counts of realised ones.
        head: SHA-256 of the last whole line: who keeps it can tell if the file was rewritten.
        lines: how many whole lines there are.
        notes: what the format cannot say, or how it was understood.
    """

    path: Path
    format: str
    mechanisms: tuple[MechanismEvent, ...]
    private: bool
    steps: int
    header: Header | None = None
    batches: Mapping[float, Mapping[int, int]] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    resumes: tuple[Resume, ...] = ()
    problems: tuple[Problem, ...] = ()
    end: End | None = None
    head: str = ""
    lines: int = 0
    notes: tuple[str, ...] = ()

    def events(self) -> tuple[MechanismEvent, ...]:
        """The events to account for. One with ε = ∞ is among them if the run is not private."""
        return self.mechanisms

    def problem(self, kind: str) -> Problem | None:
        """The fault of this kind, if there is one."""
        return next((p for p in self.problems if p.kind == kind), None)


def read(path: Path) -> Ledger:
    """The ledger in a file of our own format; other forms: ``audit.ledger_readers.read``.

    A last line that was cut off in the middle is left out and reported. Where the header's sample
    rate is not the expected batch size over the record count, the larger one is accounted.

    Raises:
        LedgerError: if the file is missing or no ledger of this schema, or a line is no JSON
            object, has an unknown kind or field, or lacks one, or holds a value of the wrong type.
    """
    run = _Run(path)
    for number, line in _lines(path, run):
        run.take(number, line)
    return run.ledger()


def _lines(path: Path, run: _Run) -> Iterator[tuple[int, bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from None
    with file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            if len(line) == LONGEST_LINE:
                raise LedgerError(f"{path}: line {number}: is too long for a ledger")
            if not line.endswith(b"\n"):
                run.fault("torn", number, f"{len(line)} bytes")
                return
            yield number, line[:-1]


class _Run:
    """What has been read so far: counts, not lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.head = "0" * 64
        self.lines = 0
        self.last_step = 0
        self.announced: tuple[float, float, float | None] = (0.0, 0.0, None)
        self.phases: Counter[tuple[float, float]] = Counter()
        self.unprotected = 0
        self.batches: dict[float, Counter[int]] = {}
        self.checkpoints: list[Checkpoint] = []
        self.resumes: list[Resume] = []
        self.end: End | None = None
        self.faults: dict[str, Problem] = {}

    def take(self, number: int, line: bytes) -> None:
        where = f"{self.path}: line {number}"
        event = parsed(line, where)
        kind = event["kind"]
        if (kind == "header") != (number == 1):
            raise LedgerError(f"{where}: a ledger has one header, and it comes first")
        if self.end is not None:
            raise LedgerError(f"{where}: stands after the end mark")
        if event["prev"] != self.head:
            self.fault("chain", number, "prev is not the digest of the line before")
        self.head = hashlib.sha256(line).hexdigest()
        self.lines = number
        if kind == "step":
            self.take_step(number, event)
        elif kind == "header":
            self.take_header(event)
        elif kind == "change":
            self.announced = _setting(event)
        elif kind == "checkpoint":
            self.checkpoints.append(_made(Checkpoint, event))
        elif kind == "resume":
            self.resumes.append(_made(Resume, event))
        else:
            self.end = _made(End, event, signed=_signed(line, event))

    def take_header(self, event: dict[str, Any]) -> None:
        event["orders"] = tuple(event["orders"])
        self.header = _made(Header, event)
        self.announced = _setting(event)

    def take_step(self, number: int, event: dict[str, Any]) -> None:
        assert self.header is not None
        step, batch = event["step"], event["batch_size"]
        gap = step - self.last_step
        if gap > 1:
            self.fault("missing", number, f"step {self.last_step + 1}", gap - 1)
        elif gap < 1:
            self.fault("repeated", number, f"step {step}")
        self.last_step = max(step, self.last_step)
        used = expected, noise, norm = _setting(event)
        if used != self.announced:
            self.fault("drift", number, _difference(self.announced, used))
        steps = max(gap, 1)  # a missing step has spent its budget too
        if noise == 0 or norm is None or self.header.clipping == "none":
            self.unprotected += steps
        else:
            self.phases[noise, _sample_rate(self.header, expected)] += steps
        if expected not in self.batches:
            self.batches[expected] = Counter()
        self.batches[expected][batch] += 1
        if (rdp := event["rdp"]) and not _agree(rdp, self.header.ranks):
            self.fault("ranks", number, f"step {step}")

    def fault(self, kind: Any, line: int, detail: str, count: int = 1) -> None:
        first = self.faults.get(kind, Problem(kind, line, 0, detail))
        self.faults[kind] = Problem(kind, first.line, first.count + count, first.detail)

    def ledger(self) -> Ledger:
        if self.header is None:
            raise LedgerError(f"{self.path}: holds no whole line, so it is no ledger")
        mechanisms: list[MechanismEvent] = [
            SampledGaussian(noise, rate, steps, self.header.sampler)
            for (noise, rate), steps in self.phases.items()
        ]
        if self.unprotected:
            mechanisms.append(ApproximateDP(math.inf))
        return Ledger(
            path=self.path,
            format="ledger",
            mechanisms=tuple(mechanisms),
            private=self.header.clipping != "none" and not self.unprotected,
            steps=sum(self.phases.values()) + self.unprotected,
            header=self.header,
            batches=self.batches,
            checkpoints=tuple(self.checkpoints),
            resumes=tuple(self.resumes),
            problems=tuple(self.faults.values()),
            end=self.end,
            head=self.head,
            lines=self.lines,
        )


def _sample_rate(header: Header, expected: float) -> float:
    """The larger of what is stated (scaled to the batch size in force) and what follows from it."""
    stated = header.sample_rate * expected / header.expected_batch_size
    followed = expected / header.records
    if header.sampler == "full_batch":
        return 1.0
    if math.isclose(stated, followed, rel_tol=1e-9):
        return min(1.0, followed)
    return min(1.0, max(stated, followed))


def _setting(event: Mapping[str, Any]) -> tuple[float, float, float | None]:
    return event["expected_batch_size"], event["noise_multiplier"], event["clipping_norm"]


def _signed(line: bytes, event: Mapping[str, Any]) -> bytes:
    """What the signature covers; nothing, if it is not last: what comes after it is unsigned."""
    tail = f',"signature":"{event.get("signature")}"}}'.encode()
    return line.removesuffix(tail) + b"}" if line.endswith(tail) else b""


def _difference(
    announced: tuple[float, float, float | None], used: tuple[float, float, float | None]
) -> str:
    names = ("expected_batch_size", "noise_multiplier", "clipping_norm")
    return ", ".join(
        f"{name} {new} where {old} was announced"
        for name, old, new in zip(names, announced, used, strict=True)
        if old != new
    )


def _agree(rdp: list[list[float]], ranks: int) -> bool:
    first = rdp[0]
    return len(rdp) == ranks and all(
        len(other) == len(first)
        and all(
            math.isclose(a, b, rel_tol=RDP_TOLERANCE) for a, b in zip(first, other, strict=True)
        )
        for other in rdp[1:]
    )


def _made(kind: type[Any], event: Mapping[str, Any], **more: Any) -> Any:
    names = {f.name for f in fields(kind)}
    return kind(**{k: v for k, v in event.items() if k in names}, **more)
