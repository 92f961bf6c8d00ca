"""What a registry says: entries of a signed chain, and the runs and batches that they state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["registry", "key", "run", "batch", "marks", "closed", "abandoned", "legacy"]
BatchState = Literal["open", "closed", "abandoned"]
ProblemKind = Literal[
    "root",  # the first entry, or the key that it rests on, is not the one expected
    "head",  # the pinned entry is not there: entries were dropped, or the chain is another
    "missing",  # positions that no entry has
    "hash",  # an entry is not what its own hash says
    "chain",  # an entry does not follow the one before
    "signature",  # an entry is not signed by the key in force
    "content",  # an entry states what its kind cannot, or what contradicts an earlier one
    "block",  # a block of marks is missing, or is not what its entry signed
    "index",  # the index of marks says something else than the blocks
    "unfinished",  # a batch was never closed: its writer was killed, or is still at work
]


@dataclass(frozen=True)
class Entry:
    """One link of the chain, as it is stored.

    Attributes:
        position: from 1, without gaps.
        body: canonical JSON.
        previous: hash of the entry before, in hexadecimal digits; zeros for the first.
        hash: of this entry, over ``previous``, ``position``, ``kind`` and ``body``.
        key_id: of the signing key.
        signature: Ed25519 over the hash, in hexadecimal digits.
    """

    position: int
    kind: str
    body: str
    previous: str
    hash: str
    key_id: str
    signature: str


@dataclass(frozen=True)
class Run:
    """A training run: whose ledger, which model, and the budget that it claims.

    Attributes:
        id: unique in the registry.
        ledger_file: its path, from the folder of a SQLite registry.
        ledger_sha256: of the ledger's file, as it was when the run was registered.
        ledger_head: head of the ledger's own chain; empty for records that have none.
        model_sha256: of the model's file, or of a folder as audit records digest it.
        data_fingerprint: of the training records, as the ledger states it.
        epsilon, delta: what is claimed, and finite; None if nothing is.
        unit: ``record`` or ``user``.
        relation: neighbouring relation of the claim, ``add-remove`` or ``replace-one``.
        registered: time in UTC, ISO 8601; filled in when added if empty.
    """

    id: str
    name: str
    ledger_file: str
    ledger_sha256: str
    ledger_head: str = ""
    model_sha256: str = ""
    data_fingerprint: str = ""
    epsilon: float | None = None
    delta: float | None = None
    unit: str = "record"
    relation: str = "add-remove"
    registered: str = ""


@dataclass(frozen=True)
class Batch:
    """Records that one run released together.

    Attributes:
        id: 32 hexadecimal digits, unique in the registry.
        run: id of the run that made it.
        mark_key: id of the marking secret, never the secret.
        release_sha256: of the file that was released; empty if it is not known.
        records: how many it has.
        details: what further layers need (JSON values only): token mark, row schema, thresholds.
        created: time in UTC, ISO 8601; filled in when added if empty.
    """

    id: str
    run: str
    kind: Literal["text", "table"]
    mark_key: str
    release_sha256: str
    records: int
    details: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""


@dataclass(frozen=True)
class Legacy:
    """A code of the older recipe, U+2063 and 8 hexadecimal digits, and what it was given to."""

    code: str
    batch: str
    run: str
    registered: str = ""


@dataclass(frozen=True)
class Place:
    """Where the index says that a mark stands: row ``row`` of the block of entry ``entry``."""

    batch: str
    entry: int
    row: int


@dataclass(frozen=True)
class Problem:
    """Something that does not hold, and the entry that shows it (0: no single one)."""

    kind: ProblemKind
    entry: int
    detail: str
