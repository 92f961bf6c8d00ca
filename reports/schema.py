"""Generates the JSON Schemas (2020-12) of ``audit.json`` and ``trace.json`` from their dataclasses.

``python -m reports.schema --write`` writes both files; ``--check`` exits 1 where one is stale.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from reports.record import SCHEMA_VERSION, Record
from reports.trace import SCHEMA as TRACE_SCHEMA
from reports.trace import TraceReport

PATH = Path(__file__).with_name("record.schema.json")
TRACE_PATH = Path(__file__).with_name("trace.schema.json")
_INFINITIES = ["Infinity", "-Infinity"]
_SCALARS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    types.NoneType: "null",
}


def schema() -> dict[str, Any]:
    """The schema of one record, every type of the vocabulary under ``$defs``."""
    major = SCHEMA_VERSION.partition(".")[0]
    version = {"type": "string", "pattern": rf"^{major}(\.|$)"}
    id_ = f"urn:dpassay:record:{SCHEMA_VERSION}"
    return _schema(Record, id_, "dpassay audit record", "schema_version", version)


def trace_schema() -> dict[str, Any]:
    """The schema of one trace report."""
    version = {"const": TRACE_SCHEMA}
    return _schema(TraceReport, "urn:dpassay:trace:1", "dpassay trace report", "schema", version)


def text(schema: Mapping[str, Any]) -> str:
    """A schema as the text of its shipped file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _schema(
    kind: type, id_: str, title: str, version: str, accepted: Mapping[str, Any]
) -> dict[str, Any]:
    """The schema of a top type whose field ``version`` must be there and as ``accepted``."""
    definitions: dict[str, Any] = {
        "number": {
            "description": "JSON has no infinities, so they are strings.",
            "anyOf": [{"type": "number"}, {"enum": _INFINITIES}],
        }
    }
    top = _describe(kind, definitions)
    described = definitions[kind.__name__]
    described["properties"][version] = dict(accepted)
    described["required"].append(version)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": id_,
        "title": title,
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _describe(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type; a dataclass adds itself to the definitions and is referred to."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is float:
        return {"$ref": "#/$defs/number"}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _describe(args[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _describe(args[1], definitions)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_describe(arg, definitions) for arg in args]}
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"no schema for {kind!r}")
    name = typing.cast(type, kind).__name__
    if name not in definitions:
        definitions[name] = {}  # holds the place while its own fields are described
        definitions[name] = _describe_dataclass(typing.cast(type, kind), definitions)
    return {"$ref": f"#/$defs/{name}"}


def _describe_dataclass(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    return {
        "description": " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()),
        "type": "object",
        "properties": {f.name: _describe(hints[f.name], definitions) for f in fields},
        "required": [
            f.name for f in fields if f.default is missing and f.default_factory is missing
        ],
        "additionalProperties": False,
    }


def main(arguments: list[str]) -> int:
    """``--write`` the shipped files, or ``--check`` that they are up to date."""
    if arguments not in (["--write"], ["--check"]):
        print("usage: python -m reports.schema --check | --write", file=sys.stderr)
        return 2
    stale = 0
    for path, wanted in ((PATH, text(schema())), (TRACE_PATH, text(trace_schema()))):
        if arguments == ["--write"]:
            path.write_text(wanted, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != wanted:
            print(f"{path.name} is stale: run python -m reports.schema --write", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
