"""A plain CSV of steps: ``noise_multiplier``, ``sample_rate``, and maybe ``steps``, ``sampling``.

One row is one step, or as many as ``steps`` says. Further columns (a loss, a date) are no part of
the account and are left alone.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from audit.accounting.events import ApproximateDP, MechanismEvent, SampledGaussian, Sampling
from audit.ledger import Ledger
from audit.ledger_format import LedgerError


def detects(path: Path, start: bytes) -> bool:
    """Whether the first line names the columns."""
    names = {n.strip() for n in start.split(b"\n")[0].removeprefix(b"\xef\xbb\xbf").split(b",")}
    return {b"noise_multiplier", b"sample_rate"} <= names


def read(path: Path) -> Ledger:
    """The rows as events; rows with equal settings are merged.

    Raises:
        LedgerError: if a column is missing or a value is out of range; the message names the line.
    """
    phases: Counter[tuple[float, float, Sampling]] = Counter()
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        try:
            names = [name.strip() for name in rows.fieldnames or ()]
            rows.fieldnames = names
            for name in ("noise_multiplier", "sample_rate", "steps", "sampling"):
                if names.count(name) > 1:
                    raise ValueError(f"column {name!r} stands there twice; keep one")
                if name not in names and name in ("noise_multiplier", "sample_rate"):
                    raise ValueError(f"column {name!r} is missing; add it")
            for row in rows:
                sigma, rate, sampling, steps = _row(row)
                phases[sigma, rate, sampling] += steps
        except UnicodeDecodeError:
            raise LedgerError(f"{path}: is no UTF-8 text; save the table as CSV in UTF-8") from None
        except (ValueError, csv.Error) as error:
            raise LedgerError(f"{path}: line {max(rows.line_num, 1)}: {error}") from None
    if not phases:
        raise LedgerError(f"{path}: line 2: is missing; give at least one row of steps")
    bare = sum(steps for (sigma, _, _), steps in phases.items() if sigma == 0)
    events: list[MechanismEvent] = [
        SampledGaussian(sigma, rate, steps, sampling)
        for (sigma, rate, sampling), steps in phases.items()
        if sigma > 0
    ]
    if bare:
        events.append(ApproximateDP(math.inf))
    silent = "sampling" not in names
    return Ledger(
        path=path,
        format="csv",
        mechanisms=tuple(events),
        private=not bare,
        steps=sum(phases.values()),
        notes=("No column says how batches were drawn: Poisson is supposed.",) if silent else (),
    )


def _row(row: dict[str, Any]) -> tuple[float, float, Sampling, int]:
    if None in row:
        raise ValueError("has more cells than there are columns; write decimals with a point")
    sigma = _number(row, "noise_multiplier", float)
    rate = _number(row, "sample_rate", float)
    steps = _number(row, "steps", int) if row.get("steps") not in (None, "") else 1
    word = row.get("sampling") or "poisson"
    sampling: Sampling | None = next((s for s in get_args(Sampling) if s == word), None)
    if sampling is None:
        raise ValueError(f"sampling: {word!r} is none of {', '.join(get_args(Sampling))}")
    SampledGaussian(sigma or 1.0, rate, steps, sampling)  # 0 is no noise, and is told apart later
    return sigma, rate, sampling, steps


def _number(row: dict[str, Any], name: str, kind: type[Any]) -> Any:
    try:
        return kind(row[name])
    except (TypeError, ValueError):
        what = "whole number" if kind is int else "number"
        raise ValueError(f"{name}: {row[name]!r} is no {what}") from None
