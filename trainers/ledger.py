"""Writes the training ledger: hash-chained JSON lines, the only writer of that format.

The format is described in docs/ledger.md. What matters for the account: a step is on file before
its update is applied, and every step is on disk before a checkpoint is announced. So whatever
leaves the run has been counted, and a killed run that resumes counts what it did before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = "dpassay.ledger/1"
FIRST = "0" * 64


@dataclass(frozen=True)
class Header:
    """What holds for the whole run.

    Attributes:
        data_fingerprint: ``fingerprint`` of the training records.
        records: how many there are.
        sampler: how a batch is drawn.
        sample_rate: q, the expected batch size over ``records``.
        clipping: ``per_sample`` to a flat L2 norm C, or ``none``.
        noise_multiplier: σ, the noise's standard deviation over C; 0 for a run without noise.
        noise_source: where noise and batches come from: ``secure`` (a cryptographic generator),
            ``unseeded`` (another generator started from the system's entropy), or ``seeded``
            (anybody who learns the seed can take the noise away again).
        group_size: the most records that one user has; 1 if the unit is the record.
        ranks: how many processes count the budget.
        orders: the RDP orders of every step's ``rdp``.
        delta, epsilon: what the trainer aims at; its opinion, not an account.
    """

    data_fingerprint: str
    records: int
    sampler: Literal["poisson", "without_replacement", "shuffled", "full_batch"]
    sample_rate: float
    expected_batch_size: float
    clipping: Literal["per_sample", "none"]
    clipping_norm: float | None
    noise_multiplier: float
    noise_source: Literal["secure", "unseeded", "seeded"]
    unit: Literal["record", "user"] = "record"
    group_size: int = 1
    ranks: int = 1
    orders: tuple[float, ...] = ()
    planned_steps: int | None = None
    delta: float | None = None
    epsilon: float | None = None
    code: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


class LedgerWriter:
    """Appends events to one ledger file; use ``create`` or ``resume``, and as a context manager.

    Leaving the context closes the file without an end mark: only ``end`` says that the run is over.
    """

    def __init__(
        self, path: Path, descriptor: int, head: str, steps: int, fsync_every: int
    ) -> None:
        if fsync_every < 1:
            raise ValueError(f"fsync_every: must be at least 1, got {fsync_every}")
        self.path = path
        self.steps = steps
        self._descriptor = descriptor
        self._head = head
        self._fsync_every = fsync_every
        self._unsynced = 0

    @classmethod
    def create(cls, path: Path, header: Header, fsync_every: int = 64) -> Self:
        """Start a new ledger.

        Raises:
            FileExistsError: if the file exists; a run that goes on calls ``resume``.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        writer = cls(path, os.open(path, flags, 0o644), FIRST, 0, fsync_every)
        writer._append("header", {"schema": SCHEMA, **dataclasses.asdict(header)}, durable=True)
        return writer

    @classmethod
    def resume(
        cls,
        path: Path,
        checkpoint_step: int,
        fsync_every: int = 64,
        *,
        header: Header | None = None,
    ) -> Self:
        """Go on with the ledger of a run that was killed.

        Steps go on after the last one on file, even where the checkpoint that training restarts
        from is older: what ran has been spent. A last line that was cut off in the middle is
        dropped (its update was never applied) and the resume event says how many bytes it had.
        Give the ``header`` that this run would have written, and it is compared.

        Raises:
            ValueError: if the file is no ledger, or has its end mark, or another header (versions
                may differ), or holds fewer steps than the checkpoint: it is another run's ledger.
        """
        head, steps, kind, whole = FIRST, 0, "", 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    event = json.loads(line)
                    kind = event["kind"]
                    steps = max(steps, event["step"]) if kind == "step" else steps
                except (ValueError, KeyError, TypeError):
                    raise ValueError(f"{path}: line {number}: is no line of a ledger") from None
                if header is not None and number == 1:
                    _same_run(path, header, event)
                head, whole = _digest(line[:-1]), whole + len(line)
        if not whole:
            raise ValueError(f"{path}: holds no ledger to resume; start a new one")
        if kind == "end":
            raise ValueError(
                f"{path}: has its end mark; further training needs a ledger of its own"
            )
        if checkpoint_step > steps:
            raise ValueError(
                f"{path}: holds {steps} steps, the checkpoint {checkpoint_step}; "
                "resume with the ledger that this checkpoint belongs to"
            )
        torn = path.stat().st_size - whole
        os.truncate(path, whole)
        writer = cls(path, os.open(path, os.O_WRONLY | os.O_APPEND), head, steps, fsync_every)
        fields = {"after_step": steps, "checkpoint_step": checkpoint_step, "torn_bytes": torn}
        writer._append("resume", fields, durable=True)
        return writer

    def step(
        self,
        *,
        batch_size: int,
        expected_batch_size: float,
        noise_multiplier: float,
        clipping_norm: float | None,
        rdp: Sequence[Sequence[float]] = (),
    ) -> int:
        """Record a step and return its number, from 1. Call it before the update is applied.

        ``rdp`` holds, for each rank, what its accountant adds for this step at the header's orders.
        """
        self.steps += 1
        self._append(
            "step",
            {
                "step": self.steps,
                "batch_size": batch_size,
                "expected_batch_size": expected_batch_size,
                "noise_multiplier": noise_multiplier,
                "clipping_norm": clipping_norm,
                "rdp": rdp,
            },
        )
        return self.steps

    def change(
        self,
        *,
        expected_batch_size: float,
        noise_multiplier: float,
        clipping_norm: float | None,
        reason: str,
    ) -> None:
        """Announce on purpose what the steps from here on use."""
        self._append(
            "change",
            {
                "expected_batch_size": expected_batch_size,
                "noise_multiplier": noise_multiplier,
                "clipping_norm": clipping_norm,
                "reason": reason,
            },
        )

    def checkpoint(self, file: Path) -> None:
        """Record a model file by its digest; call it when the file is complete."""
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        fields = {"step": self.steps, "file": file.name, "sha256": digest}
        self._append("checkpoint", fields, durable=True)

    def end(self, *, epsilon: float | None = None, key: Ed25519PrivateKey | None = None) -> None:
        """Set the end mark and close the file.

        ``epsilon`` is the trainer's own figure at the header's δ. With a key, the end mark carries
        an Ed25519 signature over its own bytes before the field ``signature``, closed by a brace:
        through ``prev`` that signs every line.
        """
        fields: dict[str, Any] = {"steps": self.steps, "epsilon": epsilon}
        if key is not None:
            fields["public_key"] = key.public_key().public_bytes_raw().hex()
            fields["signature"] = key.sign(self._line("end", fields)).hex()
        self._append("end", fields, durable=True)
        self.close()

    def sync(self) -> None:
        """Put on disk what was recorded; then it survives a power cut too."""
        os.fsync(self._descriptor)
        self._unsynced = 0

    def close(self) -> None:
        """Flush to disk and close; a second call does nothing."""
        if self._descriptor >= 0:
            self.sync()
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        event = {"kind": kind, "prev": self._head, **fields}
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()

    def _append(self, kind: str, fields: Mapping[str, Any], durable: bool = False) -> None:
        line = self._line(kind, fields)
        # straight to the system, past any buffer of ours: this survives kill -9 of the process
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._head = _digest(line)
        self._unsynced += 1
        if durable or self._unsynced >= self._fsync_every:
            self.sync()


def fingerprint(features: np.ndarray, labels: np.ndarray) -> str:
    """The SHA-256 of a set of records, whatever their order.

    A record's bytes are its features as little-endian float64 and its label as little-endian int64.
    The records' digests, sorted and joined, are hashed again. Minus zero counts as zero.
    """
    rows = np.asarray(features, dtype="<f8").reshape(len(features), -1) + 0.0
    ends = np.asarray(labels, dtype="<i8")
    records = zip(rows, ends, strict=True)
    digests = sorted(hashlib.sha256(x.tobytes() + y.tobytes()).digest() for x, y in records)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _same_run(path: Path, header: Header, event: Mapping[str, Any]) -> None:
    ours = json.loads(json.dumps(dataclasses.asdict(header)))
    for name in ours.keys() - {"versions"}:
        if event.get(name) != ours[name]:
            raise ValueError(
                f"{path}: {name}: is {event.get(name)!r} in this ledger and {ours[name]!r} in the "
                "run to be resumed; use the same records and settings"
            )


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
