"""Google dp-accounting: a ``DpEvent`` as JSON.

dp-accounting has no JSON form of its own, but ``event.to_named_tuple()`` is meant for storing
(dp_accounting 0.6, dp_event.py), and ``json.dumps`` makes of it nested lists: module, class, fields
in order. Objects with ``class_name`` and the fields by name are read as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    Laplace,
    MechanismEvent,
    SampledGaussian,
    ZeroConcentratedDP,
)
from audit.ledger import Ledger
from audit.ledger_format import LedgerError

# Events that can be accounted here, and their fields in order. All others are refused.
FIELDS = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "ZCDpEvent": ("rho", "xi"),
    "SelfComposedDpEvent": ("event", "count"),
    "ComposedDpEvent": ("events",),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
}


def detects(path: Path, start: bytes) -> bool:
    """Whether the file is JSON that speaks of DpEvents."""
    return start.lstrip()[:1] in (b"[", b"{") and b"DpEvent" in start


def read(path: Path) -> Ledger:
    """The events of a DpEvent, in our terms.

    Raises:
        LedgerError: if the text is no JSON, or an event is unknown, malformed or has no bound here.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        events = tuple(_events(tree, 1, "event"))
    except json.JSONDecodeError as error:
        raise LedgerError(f"{path}: line {error.lineno}: is no JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise LedgerError(f"{path}: is no UTF-8 text; write it with json.dumps") from None
    except RecursionError:
        raise LedgerError(f"{path}: event: is nested too deeply; compose it flat") from None
    except _BadEvent as error:
        raise LedgerError(f"{path}: {error}") from None
    return Ledger(
        path=path,
        format="dp-event",
        mechanisms=events,
        private=not any(isinstance(e, ApproximateDP) for e in events),
        steps=sum(_count(e) for e in events),
        notes=(
            "A DpEvent states a mechanism; nothing in it says that this mechanism is what ran.",
        ),
    )


class _BadEvent(ValueError):
    """The message begins with the event's place in the file."""


def _events(tree: Any, count: int, where: str) -> Iterator[MechanismEvent]:
    try:
        name, fields = _named(tree)
        yield from _known(name, fields, count, where)
    except _BadEvent:
        raise
    except (ValueError, TypeError, ArithmeticError) as error:
        raise _BadEvent(f"{where}: {error}") from None


def _known(name: str, fields: dict[str, Any], count: int, where: str) -> Iterator[MechanismEvent]:
    match name:
        case "NoOpDpEvent":
            return
        case "NonPrivateDpEvent":
            yield ApproximateDP(math.inf)
        case "GaussianDpEvent":
            yield Gaussian(_number(fields, "noise_multiplier"), count)
        case "LaplaceDpEvent":
            yield Laplace(_number(fields, "noise_multiplier"), count)
        case "ZCDpEvent":
            if fields["xi"]:
                raise ValueError(f"ZCDpEvent: xi = {fields['xi']} has no bound here, only 0 has")
            yield ZeroConcentratedDP(_number(fields, "rho") * count)
        case "SelfComposedDpEvent":
            times = fields["count"]
            if type(times) is not int or times < 0:
                raise ValueError(f"SelfComposedDpEvent: count: {times!r} is no whole number")
            yield from _events(fields["event"], count * times, f"{where}.event")
        case "ComposedDpEvent":
            if not isinstance(fields["events"], list):
                raise ValueError("ComposedDpEvent: events: must be a list")
            for i, event in enumerate(fields["events"]):
                yield from _events(event, count, f"{where}.events[{i}]")
        case "PoissonSampledDpEvent":
            sigma = _gaussian(name, fields["event"])
            yield SampledGaussian(sigma, _number(fields, "sampling_probability"), count)
        case _:  # without replacement
            # theirs is relative to the replace-one sensitivity 2C of a clipped sum, ours to C
            sigma = 2 * _gaussian(name, fields["event"])
            sample, source = fields["sample_size"], fields["source_dataset_size"]
            if not (type(sample) is int and type(source) is int and 0 < sample <= source):
                raise ValueError(f"{name}: sample_size: {sample!r} of {source!r} is no sample")
            rate = sample / source
            yield SampledGaussian(sigma, rate, count, "without_replacement")


def _gaussian(name: str, tree: Any) -> float:
    inner, fields = _named(tree)
    if inner != "GaussianDpEvent":
        raise ValueError(f"{name}: of a {inner} has no bound here, only of a GaussianDpEvent")
    return _number(fields, "noise_multiplier")


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields[name]
    if type(value) not in (int, float):
        raise ValueError(f"{name}: expected a number, got {value!r}")
    return float(value)


def _named(tree: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(tree, list) and len(tree) >= 2 and isinstance(tree[1], str):
        name, values = tree[1], tree[2:]
        fields = dict(zip(FIELDS.get(name, ()), values, strict=False))
        surplus = len(values) > len(fields)
    elif isinstance(tree, dict) and isinstance(tree.get("class_name"), str):
        name = tree["class_name"]
        fields = {k: v for k, v in tree.items() if k not in ("module_name", "class_name")}
        surplus = not fields.keys() <= set(FIELDS.get(name, ()))
    else:
        raise ValueError(f"expected a DpEvent with its class name, got {str(tree)[:60]}")
    if name not in FIELDS:
        raise ValueError(f"{name}: has no bound here; known are {', '.join(FIELDS)}")
    if name == "ZCDpEvent":
        fields.setdefault("xi", 0.0)
    if surplus or len(fields) < len(FIELDS[name]):
        raise ValueError(f"{name}: needs the fields {', '.join(FIELDS[name]) or 'none'}")
    return name, fields


def _count(event: MechanismEvent) -> int:
    if isinstance(event, SampledGaussian):
        return event.steps
    return event.count if isinstance(event, Gaussian | Laplace) else 1
