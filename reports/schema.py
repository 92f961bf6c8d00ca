"""Generates ``record.schema.json`` (JSON Schema 2020-12) from the dataclasses of ``record.py``.

``python -m reports.schema --write`` writes the file; ``--check`` exits 1 where it is stale.
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

PATH = Path(__file__).with_name("record.schema.json")
_INFINITIES = ["Infinity", "-Infinity"]
_SCALARS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    types.NoneType: "null",
}


def schema() -> dict[str, Any]:
    """The schema of one record, every type of the vocabulary under ``$defs``."""
    definitions: dict[str, Any] = {
        "number": {
            "description": "JSON has no infinities, so they are strings.",
            "anyOf": [{"type": "number"}, {"enum": _INFINITIES}],
        }
    }
    _describe(Record, definitions)
    major = SCHEMA_VERSION.partition(".")[0]
    definitions["Record"]["properties"]["schema_version"] = {
        "type": "string",
        "pattern": rf"^{major}(\.|$)",
    }
    definitions["Record"]["required"].append("schema_version")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:dpassay:record:{SCHEMA_VERSION}",
        "title": "dpassay audit record",
        "$ref": "#/$defs/Record",
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The schema as the text of the shipped file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


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
    """``--write`` the shipped file, or ``--check`` that it is up to date."""
    if arguments not in (["--write"], ["--check"]):
        print("usage: python -m reports.schema --check | --write", file=sys.stderr)
        return 2
    if arguments == ["--write"]:
        PATH.write_text(text(), encoding="utf-8")
        return 0
    if PATH.exists() and PATH.read_text(encoding="utf-8") == text():
        return 0
    print(f"{PATH.name} is stale: run python -m reports.schema --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
