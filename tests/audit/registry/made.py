"""What the tests of the registry put in."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from audit.registry.entries import Batch, Run

RUN = Run("r1", "first", "ledger.jsonl", "a" * 64, "b" * 64, epsilon=3.0, delta=1e-5)
BATCH = Batch("c" * 32, "r1", "text", "0123456789abcdef", "", 3, {"words": "é\ud800", "n": 2})


def table(count: int, salt: bytes = b"") -> pa.Table:
    """So many records' marks; every fifth has no tag."""
    digests = [hashlib.sha256(salt + str(i).encode()).digest() for i in range(count)]
    return pa.table(
        {
            "record_id": [f"Datensatz {i} 记录" for i in range(count)],
            "tag": [None if i % 5 == 4 else digest[:8] for i, digest in enumerate(digests)],
            "digest": digests,
            "sketch": [[i, 2**32 - 1] for i in range(count)],
        }
    )
