"""Tries what a claim leaves open over a plausible range: could any filling give the claimed ε?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from audit.accounting.events import SampledGaussian
from audit.claims.account import account
from audit.claims.schema import Mechanism
from audit.claims.verdicts import at_most
from reports.record import Interval, Relation

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6)  # and below 1/N: at 1/N a mechanism may publish one record whole
EPOCHS = (1, 2, 5, 10, 20, 50, 100)
RECORDS = (100, 1_000, 10_000, 100_000, 1_000_000)
RATES = (0.0001, 0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Fillings:
    """What the search found.

    Attributes:
        tried: how many fillings; ``refuted`` and ``supported`` count verdicts on them.
        least: the smallest ε that an accountant guarantees for any, reached at ``least_at``.
        range: what was tried; B is the batch size, N the records, E the epochs.
        frontier: those that could give the claimed ε: for each δ the most epochs of a batch size.
    """

    tried: int
    refuted: int
    supported: int
    least: float
    least_low: float
    least_at: str
    range: str
    frontier: str

    def interval(self) -> Interval:
        """The least ε as a figure."""
        low = min(self.least_low, self.least)
        return Interval(low, self.least, self.least, 1.0, "least of all fillings", self.tried)


@dataclass(frozen=True)
class _Setting:
    """A batch size over a record count, or a bare sample rate."""

    name: str
    rate: float
    records: int | None


def search(claim: Mechanism, claimed: float) -> Fillings:
    """Judge every filling of δ, batch size or records, and epochs that the claim leaves open.

    ε grows with the epochs and falls with δ, so that one refuted filling refutes those beyond it.

    Args:
        claim: with a noise multiplier; its ``delta``, ``relation`` are used where it has them.
        claimed: the ε in question.
    """
    given = getattr(claim, "delta", None)
    relation: Relation = getattr(claim, "relation", "add-remove")
    if relation not in ("add-remove", "replace-one"):
        relation = "add-remove"  # never the larger of the two, so what it refutes is refuted
    assert claim.noise_multiplier is not None
    tried = refuted = supported = 0
    least, least_low, least_at = math.inf, math.inf, ""
    reach: dict[float, dict[str, str]] = defaultdict(dict)
    settings = list(_settings(claim))
    for setting in settings:
        records = setting.records or claim.records
        deltas = (given,) if given else tuple(d for d in DELTAS if not records or d < 1 / records)
        deltas = deltas or (min(DELTAS),)
        beyond = len(_epochs(claim))  # the first epoch count that a larger δ already refuted
        for delta in deltas:
            for i, (label, steps) in enumerate(_steps(claim, setting.rate)):
                tried += 1
                if i >= beyond:
                    refuted += 1
                    continue
                event = SampledGaussian(claim.noise_multiplier, setting.rate, steps, claim.sampling)
                cost = account((event,), delta, relation=relation)
                if cost.high < least:
                    least, least_low = cost.high, cost.low
                    least_at = f"δ={delta:g}, {setting.name}, {label}"
                state = at_most(claimed, cost.low, cost.high)
                supported += state == "supported"
                if state == "refuted":
                    refuted += 1
                    beyond = i
                else:
                    reach[delta][setting.name] = label
    frontier = "; ".join(
        f"δ={delta:g}: " + ", ".join(f"{name} ({label})" for name, label in found.items())
        for delta, found in sorted(reach.items(), reverse=True)
    )
    return Fillings(
        tried, refuted, supported, least, least_low, least_at,
        _range(claim, settings, given), frontier.replace("E=", "E≤"),
    )  # fmt: skip


def _settings(claim: Mechanism) -> Iterator[_Setting]:
    rate = claim.rate()
    if rate is not None:
        yield _Setting(f"q={rate:.3g}", rate, claim.records)
    elif claim.records is not None:
        size = 1
        while size < claim.records:
            yield _Setting(f"B={size}", size / claim.records, claim.records)
            size *= 2
        yield _Setting(f"B={claim.records}", 1.0, claim.records)
    elif claim.batch_size is not None:
        for records in (n for n in RECORDS if n >= claim.batch_size):
            yield _Setting(f"N={records}", claim.batch_size / records, records)
    else:
        for rate in RATES:
            yield _Setting(f"q={rate:g}", rate, None)


def _epochs(claim: Mechanism) -> tuple[float, ...]:
    return (claim.epochs,) if claim.epochs else (claim.steps,) if claim.steps else EPOCHS


def _steps(claim: Mechanism, rate: float) -> Iterator[tuple[str, int]]:
    for epochs in _epochs(claim):
        if claim.steps:
            yield f"T={claim.steps}", claim.steps
        else:
            yield f"E={epochs:g}", max(1, math.floor(epochs / rate))


def _range(claim: Mechanism, settings: list[_Setting], delta: float | None) -> str:
    parts = [f"{settings[0].name} … {settings[-1].name}" if len(settings) > 1 else settings[0].name]
    epochs = _epochs(claim)
    parts.append(f"T={claim.steps}" if claim.steps else f"E={epochs[0]:g} … {epochs[-1]:g}")
    if delta is None:
        parts.append(f"δ={DELTAS[-1]:g} … {DELTAS[0]:g}")
    return ", ".join(parts)
