"""What a line of the ledger may hold: kinds of events, their fields, and what each must be.

An unknown kind or field is refused and never skipped: what nobody understands cannot be accounted.
The formats' words are in docs/ledger.md. Speed matters here: this runs once for every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, get_args

from audit.accounting.events import Sampling
from audit.yaml_file import InputError

SCHEMA = "dpassay.ledger/1"
LARGEST_GROUP = 10**6  # records of one person
_LARGEST = 1e18  # far above anything that ran, and safe in floating point

NoiseSource = Literal["secure", "unseeded", "seeded"]


class LedgerError(InputError):
    """The file cannot be read as a ledger; the message names file, line and field."""


def parsed(line: bytes, where: str) -> dict[str, Any]:
    """The event in one line, every field checked.

    Raises:
        LedgerError: if the line is no JSON object, has an unknown kind or field, lacks one, or
            holds a value of the wrong type or range. ``where`` begins the message.
    """
    try:
        event = _decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{where}: is no JSON: {error}") from None
    kind = event.get("kind") if type(event) is dict else None
    checks = _FIELDS.get(kind) if type(kind) is str else None
    if checks is None:
        raise LedgerError(f"{where}: kind: expected one of {', '.join(_FIELDS)}")
    if kind == "header" and event.get("schema") != SCHEMA:
        raise LedgerError(f"{where}: schema: this program reads {SCHEMA!r} only")
    if checks.keys() != event.keys():
        if kind == "end" and "signature" in event:
            checks = {**checks, **_SIGNATURE}
        if unknown := sorted(event.keys() - checks.keys()):
            raise LedgerError(f"{where}: {unknown[0]}: {kind} has no such field")
        if missing := sorted(checks.keys() - event.keys()):
            raise LedgerError(f"{where}: {missing[0]}: {kind} needs this field")
    for name, check in checks.items():
        if not check(event[name]):
            raise LedgerError(f"{where}: {name}: {event[name]!r} is not allowed here")
    assert isinstance(event, dict)
    return event


# What each field of a line must hold. True is an int to Python and no number here.


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -_LARGEST < value < _LARGEST


def _positive(value: Any) -> bool:
    return _number(value) and value > 1 / _LARGEST


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _divergence(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # huge where σ is tiny


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _counted(value: Any) -> bool:
    return type(value) is int and 1 <= value < _LARGEST


def _text(value: Any) -> bool:
    return type(value) is str


def _hex(digits: int) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is str and len(value) == digits and not value.strip("0123456789abcdef")
    )


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(check, value))


def _one_of(words: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: value in words


_SETTING: dict[str, Callable[[Any], bool]] = {
    "expected_batch_size": _positive,
    "noise_multiplier": _not_negative,
    "clipping_norm": _optional(_positive),
}
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "header": {
        **_SETTING,
        "schema": _one_of((SCHEMA,)),
        "data_fingerprint": _hex(64),
        "records": _counted,
        "sampler": _one_of(get_args(Sampling)),
        "sample_rate": lambda value: _positive(value) and value <= 1,
        "clipping": _one_of(("per_sample", "none")),
        "noise_source": _one_of(get_args(NoiseSource)),
        "unit": _one_of(("record", "user")),
        "group_size": lambda value: _counted(value) and value <= LARGEST_GROUP,
        "ranks": _counted,
        "orders": _list_of(lambda value: _number(value) and value > 1),
        "planned_steps": _optional(_count),
        "delta": _optional(lambda value: _number(value) and 0 <= value < 1),
        "epsilon": _optional(_divergence),
        "code": _text,
        "versions": lambda value: type(value) is dict and all(map(_text, value.values())),
    },
    "step": {
        **_SETTING,
        "step": _counted,
        "batch_size": _count,
        "rdp": _list_of(_list_of(_divergence)),
    },
    "change": {**_SETTING, "reason": _text},
    "checkpoint": {"step": _count, "file": _text, "sha256": _hex(64)},
    "resume": {"after_step": _count, "checkpoint_step": _count, "torn_bytes": _count},
    "end": {"steps": _count, "epsilon": _optional(_divergence)},
}
_SIGNATURE = {"public_key": _hex(64), "signature": _hex(128)}
for _checks in _FIELDS.values():
    _checks.update({"kind": _text, "prev": _hex(64)})


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
