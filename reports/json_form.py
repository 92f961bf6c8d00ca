"""Frozen dataclasses as JSON text and back, with complaints that name the field.

Standard library only: an archived file must open in years. Infinities, which JSON lacks, are the
strings ``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal


def dumps(value: Any) -> str:
    """A dataclass as JSON text, keys in field order, one line a value.

    Raises:
        ValueError: if a value is NaN.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    # A file name that is no UTF-8 holds lone surrogates: as \udcXX they are valid JSON and return.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def loads(text: str, where: str) -> dict[str, Any]:
    """The object in JSON text, not yet built into a dataclass; ``where`` names it in complaints.

    Raises:
        ValueError: if the text is no JSON object, or holds NaN or a bare infinity.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{where}: {name} is not JSON")

    try:
        data = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected a JSON object")
    return data


def build(kind: Any, value: Any, where: str) -> Any:
    """A value of the annotated type from what JSON gave.

    Raises:
        ValueError: if a field is missing, unknown or of the wrong type. The message names it.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(typing.cast(type, kind), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list")
        return tuple(build(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object")
        return {k: build(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where}: {value!r} is none of {', '.join(map(repr, args))}")
        return value
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, value, where)
    if kind is float and value in ("Infinity", "-Infinity"):
        return math.inf if value == "Infinity" else -math.inf
    if kind in (float, int) and isinstance(value, int) and not isinstance(value, bool):
        try:
            in_floats = float(value)
            return in_floats if kind is float else value
        except OverflowError:
            raise ValueError(f"{where}: the number is too large") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _build_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if float in kinds and value in ("Infinity", "-Infinity"):
        return build(float, value, where)
    if value is not None:  # so that the complaint is about the type that was meant
        kinds = tuple(k for k in kinds if k is not types.NoneType)
    exact = [k for k in kinds if isinstance(k, type) and type(value) is k]
    for kind in exact or kinds:
        try:
            return build(kind, value, where)
        except ValueError as error:
            last = error
    raise last


def _build_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object")
    hints, required = _fields(kind)
    if unknown := sorted(set(value) - set(hints)):
        raise ValueError(f"{where}: unknown field {unknown[0]!r}")
    for name in required:
        if name not in value:
            raise ValueError(f"{where}: field {name!r} is missing")
    built = {k: build(hints[k], v, f"{where}.{k}") for k, v in value.items()}
    try:
        return kind(**built)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@cache
def _fields(kind: type) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Every field's type, and the names of those without a default."""
    fields, missing = dataclasses.fields(kind), dataclasses.MISSING
    hints = typing.get_type_hints(kind)
    required = (f.name for f in fields if f.default is missing and f.default_factory is missing)
    return {f.name: hints[f.name] for f in fields}, tuple(required)
