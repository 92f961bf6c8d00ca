"""Writes down what post-processing did: a JSON record with its lineage stages, and a ledger.

A step that read raw data has no budget: its lineage stage says so, and its ledger is that of a run
without noise. Whoever accounts for either finds ε = ∞.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from trainers.ledger import Header, LedgerWriter
from trainers.preparation.postprocess import RawData, Step, fingerprint

SCHEMA = "dpassay.postprocess/1"
ENDINGS = (".ledger.jsonl", ".postprocess.json")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # as a LINEAGE.yaml takes it


def describe(steps: Sequence[Step], after: str = "generate") -> dict[str, Any]:
    """What was done, as JSON data. What is under ``lineage`` fits a LINEAGE.yaml as it stands.

    Args:
        steps: in the order in which they were taken.
        after: the id of the lineage stage that made the synthetic table.

    Raises:
        ValueError: if there is no step, one comes twice, one does not start from what the one
            before it left (so that a step is missing), or a name suits no lineage.
    """
    if not steps:
        raise ValueError("steps: there is none to record")
    for first, second in pairwise(steps):
        if first.after != second.before:
            raise ValueError(f"steps: {second.stage} does not start from what {first.stage} left")
    if len({step.stage for step in steps}) < len(steps):
        raise ValueError("steps: one comes twice; save after the first, and go on from that file")
    raw = {step.stage: step.raw for step in steps if step.raw}
    for name in (after, *(data.population for data in raw.values())):
        if not _NAME.fullmatch(name) or name in {step.stage for step in steps}:
            raise ValueError(f"lineage: {name!r} is no free name of letters, digits, '_', '.', '-'")
    last = steps[-1]
    return {
        "schema": SCHEMA,
        "input": {"records": steps[0].records, "fingerprint": steps[0].before},
        "output": {"records": last.records - last.removed, "fingerprint": last.after},
        "raw_data_access": bool(raw),
        "steps": [
            {
                "stage": step.stage,
                "reads": ["synthetic", *([step.raw.name] if step.raw else [])],
                "raw_data_access": step.raw is not None,
                "raw": vars(step.raw) if step.raw else None,
                "records": step.records,
                "removed": step.removed,
                "changed": step.changed,
                "parameters": dict(step.parameters),
            }
            for step in steps
        ],
        "lineage": {
            "populations": {
                data.population: {"description": f"the records of {data.name}"}
                for data in raw.values()
            },
            "stages": _stages(steps, after),
        },
        "notes": [
            f"{stage} read raw data without DP: ε = ∞ for the table from there on. The records of "
            f"{data.name} decide which rows are missing; how many were removed is a statistic of "
            "them too, so keep this file as they are kept."
            for stage, data in raw.items()
        ],
    }


def save(out: Path, table: pd.DataFrame, steps: Sequence[Step], after: str = "generate") -> None:
    """Write the table, ``OUT.postprocess.json`` and, if raw data were read, ``OUT.ledger.jsonl``.

    Files appear when all of them are whole, the table last.

    Args:
        out: a .csv or .parquet file that does not exist.
        table, steps: what the last step returned, and all steps.
        after: as in ``describe``.

    Raises:
        ValueError: if the steps are not those that made the table, or ``out`` is of another kind or
            exists.
    """
    described = describe(steps, after)
    if fingerprint(table) != steps[-1].after:
        raise ValueError(f"steps: the table is not what {steps[-1].stage} left; a step is missing")
    check_free(out)
    names = [out.name + ending for ending in (*ENDINGS, "")]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        ledger, record, written = (Path(folder) / name for name in names)
        if out.suffix == ".csv":
            table.to_csv(written, index=False)
        else:
            table.to_parquet(written, index=False)
        described["output"] |= {"file": out.name, "sha256": _digest(written)}
        for data in (step.raw for step in steps if step.raw):
            _account(ledger, data, written)
            described["ledger"] = {"file": ledger.name, "sha256": _digest(ledger)}
        text = json.dumps(described, indent=1, ensure_ascii=False, allow_nan=False)
        record.write_text(text + "\n", encoding="utf-8")
        for file in (ledger, record, written):
            if file.exists():
                os.replace(file, out.with_name(file.name))


def check_free(out: Path) -> None:
    """Refuse what ``save`` would refuse to write, before any work is done.

    Raises:
        ValueError: if ``out`` is no .csv or .parquet file, or it or a file beside it exists.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{out}: must be a .csv or .parquet file")
    for ending in ("", *ENDINGS):
        if (found := out.with_name(out.name + ending)).exists():
            raise ValueError(f"{found}: exists; choose another name")


def _stages(steps: Sequence[Step], after: str) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = []
    for step in steps:
        kind = "other" if step.stage == "generalise-rare" else "filtering"
        stages.append({"id": step.stage, "kind": kind, "inputs": [after]})
        if step.raw:
            stages[-1] |= {"reads": [step.raw.population], "budget": "none"}
        after = step.stage
    return stages


def _account(path: Path, data: RawData, released: Path) -> None:
    """The ledger of one look at all raw records, with nothing to protect them."""
    header = Header(
        data_fingerprint=data.fingerprint,
        records=data.records,
        sampler="full_batch",
        sample_rate=1.0,
        expected_batch_size=data.records,
        clipping="none",
        clipping_norm=None,
        noise_multiplier=0.0,
        noise_source="seeded",
        planned_steps=1,
        code="trainers.preparation.postprocess",
    )
    with LedgerWriter.create(path, header) as ledger:
        ledger.step(
            batch_size=data.records,
            expected_batch_size=data.records,
            noise_multiplier=0.0,
            clipping_norm=None,
        )
        ledger.checkpoint(released)
        ledger.end()


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
