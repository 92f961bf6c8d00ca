"""What entries may state, each given what came before it, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from audit.registry.entries import Batch, BatchState, Legacy, Run

BLOCK_RECORDS = 4096


@dataclass(frozen=True)
class Block:
    """What a "marks" entry signs: ``records`` records of a batch from number ``first`` on."""

    batch: str
    first: int
    records: int
    sha256: str


class Statements:
    """Runs, batches, blocks and legacy codes, as far as entries have stated them.

    Attributes:
        counted: batch to the records in its blocks so far.
        blocks: position of a "marks" entry to what it signed.
        positions: ("run" or "batch", id) to the position of the entry that stated it.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.batches: dict[str, Batch] = {}
        self.states: dict[str, BatchState] = {}
        self.counted: dict[str, int] = {}
        self.legacy: dict[str, tuple[Legacy, ...]] = {}
        self.blocks: dict[int, Block] = {}
        self.positions: dict[tuple[str, str], int] = {}

    def refusal(self, kind: str, body: Mapping[str, Any]) -> str:
        """Why this cannot be stated next; empty if it can."""
        if kind not in _FIELDS:
            return f"{kind!r} is no kind of entry that this program knows"
        if fault := misshapen(_FIELDS[kind], body):
            return f"{kind}: {fault}"
        match kind:
            case "run":
                taken = body["id"] in self.runs
                return f"run {body['id']}: is registered already" if taken else ""
            case "batch":
                return self._batch(body)
            case "legacy":
                if len(body["code"]) != 8 or body["code"].strip("0123456789abcdef"):
                    return f"code: {body['code']!r} is not 8 hexadecimal digits"
                return self._run(body)
        state = self.states.get(body["batch"], "not registered")
        if state != "open":
            return f"batch {body['batch']}: is {state}"
        if kind == "marks":
            return self._marks(body)
        return self._closed(body) if kind == "closed" else ""

    def take(self, position: int, kind: str, body: dict[str, Any]) -> None:
        """Take in what ``refusal`` had nothing against."""
        match kind:
            case "run":
                self.runs[body["id"]] = Run(**body)
                self.positions["run", body["id"]] = position
            case "batch":
                batch = Batch(**body)
                self.batches[batch.id] = batch
                self.positions["batch", batch.id] = position
                self.states[batch.id], self.counted[batch.id] = "open", 0
            case "marks":
                self.blocks[position] = Block(**body)
                self.counted[body["batch"]] += body["records"]
            case "closed":
                self.states[body["batch"]] = "closed"
            case "abandoned":
                self.states[body["batch"]] = "abandoned"
            case "legacy":
                code = body["code"]
                self.legacy[code] = (*self.legacy.get(code, ()), Legacy(**body))

    def _run(self, body: Mapping[str, Any]) -> str:
        return "" if body["run"] in self.runs else f"run {body['run']}: is not registered"

    def _batch(self, body: Mapping[str, Any]) -> str:
        if body["id"] in self.batches:
            return f"batch {body['id']}: is registered already"
        if body["kind"] not in ("text", "table"):
            return f"batch {body['id']}: kind: {body['kind']!r} is neither text nor table"
        if body["records"] < 0:
            return f"batch {body['id']}: records: {body['records']} is no count"
        return self._run(body)

    def _marks(self, body: Mapping[str, Any]) -> str:
        id, records, first = body["batch"], body["records"], self.counted[body["batch"]]
        if not 0 < records <= BLOCK_RECORDS or first + records > self.batches[id].records:
            return f"batch {id}: a block of {records} records does not fit in"
        return "" if body["first"] == first else f"batch {id}: its block must begin at {first}"

    def _closed(self, body: Mapping[str, Any]) -> str:
        id = body["batch"]
        whole = body["records"] == self.counted[id] == self.batches[id].records
        return "" if whole else f"batch {id}: has {self.counted[id]} records, not all of them"


# Fields of each kind's body. True is an int to Python and no number here.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float | None": (float, int, type(None)),
    "Mapping[str, Any]": (dict,),
    "list": (list,),
}


def _fields_of(kind: type[Any]) -> dict[str, str]:
    return {f.name: f.type if f.type in _TYPES else "str" for f in fields(kind)}


_FIELDS: dict[str, dict[str, str]] = {
    "run": _fields_of(Run),
    "batch": _fields_of(Batch),
    "marks": _fields_of(Block),
    "closed": {"batch": "str", "records": "int"},
    "abandoned": {"batch": "str"},
    "legacy": _fields_of(Legacy),
}


def misshapen(known: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """What keeps a body from having just these fields, each of its type; empty if nothing."""
    for name, word in known.items():
        if name not in body:
            return f"{name}: is missing"
        if type(body[name]) not in _TYPES[word]:
            return f"{name}: {str(body[name])[:60]!r} is no {word}"
        if isinstance(body[name], float) and not math.isfinite(body[name]):
            return f"{name}: must be finite"
    strange = sorted(body.keys() - known.keys())
    return f"{strange[0]}: is no field of it" if strange else ""
