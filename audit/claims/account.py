"""The accountants' answer in the form that a claim needs: ε lies between ``low`` and ``high``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from audit.accounting import group
from audit.accounting.convert import gdp_mu
from audit.accounting.events import (
    Gaussian,
    MechanismEvent,
    SampledGaussian,
    canonical,
    release_count,
)
from audit.accounting.guarantee import Unit, guarantees
from reports.record import Interval, Relation

EASY_NOISE = 0.5  # σ and steps at which the lower estimate is always to be had
EASY_STEPS = 10_000
TINY_NOISE = 0.02  # below it ε is in the ten thousands, and a loss distribution takes seconds


@dataclass(frozen=True)
class Account:
    """ε at one δ: no lower than ``low``, guaranteed no higher than ``high``.

    ``by`` has the answer of every accountant that guarantees one.
    """

    low: float
    high: float
    accountant: str
    by: Mapping[str, Interval] = field(default_factory=dict)
    steps: int = 0

    def interval(self) -> Interval:
        """The account as a figure: its value is the guarantee."""
        low = min(self.low, self.high)
        return Interval(low, self.high, self.high, 1.0, self.accountant, self.steps)


@dataclass(frozen=True)
class Spent:
    """What one part of a composition cost: known mechanisms, or bare (ε, δ)."""

    events: tuple[MechanismEvent, ...] = ()
    epsilon: float = 0.0
    delta: float = 0.0
    group_size: int = 1


def account(
    events: Sequence[MechanismEvent],
    delta: float,
    *,
    relation: Relation = "add-remove",
    group_size: int = 1,
) -> Account:
    """ε of the composed events at δ: the tightest guarantee, and the highest lower estimate.

    Raises:
        UnsupportedEvent: if no accountant has a valid bound for the events under the relation.
        ValueError: if δ is outside (0, 1).
    """
    unit: Unit = "record" if group_size == 1 else "user"
    if any(isinstance(e, SampledGaussian) and e.noise_multiplier < TINY_NOISE for e in events):
        high = group.rdp_epsilon(canonical(events), delta, relation, group_size)
        easier = tuple(_easier(event) for event in events)
        low = account(easier, delta, relation=relation, group_size=group_size).low
        steps = sum(release_count(event) for event in events)
        by = {"RDP": Interval(low, high, high, 1.0, "RDP", steps)}
        return Account(low, high, "RDP", by, steps)
    found = guarantees(events, delta, relation=relation, unit=unit, group_size=group_size)
    valid = [g for g in found if g.guaranteed]
    if not valid:
        return Account(0.0, math.inf, "none")
    tightest = min(valid, key=lambda g: g.epsilon)
    low = max(g.lower for g in valid)
    easier = tuple(_easier(event) for event in events)
    if low == 0 and math.isfinite(tightest.epsilon) and easier != tuple(events):
        low = account(easier, delta, relation=relation, group_size=group_size).low
    return Account(
        min(low, tightest.epsilon),
        tightest.epsilon,
        tightest.accountant,
        {
            g.accountant: Interval(g.lower, g.epsilon, g.epsilon, 1.0, g.accountant, g.steps)
            for g in valid
        },
        tightest.steps,
    )


def _easier(event: MechanismEvent) -> MechanismEvent:
    """The same mechanism with more noise and fewer steps: what it leaks, the event leaks too."""
    if isinstance(event, SampledGaussian):
        noise = max(event.noise_multiplier, EASY_NOISE)
        steps = min(event.steps, EASY_STEPS)
        return dataclasses.replace(event, noise_multiplier=noise, steps=steps)
    if isinstance(event, Gaussian):
        noise = max(event.noise_multiplier, EASY_NOISE)
        return Gaussian(noise, min(event.count, EASY_STEPS))
    return event


def released_gaussian(epsilon: float, delta: float, relation: Relation) -> Gaussian:
    """The Gaussian release whose (ε, δ) under the relation is this one (Balle and Wang 2018)."""
    sensitivity = 2 if relation == "replace-one" else 1  # as the accountants will take it
    return Gaussian(sensitivity / gdp_mu(epsilon, delta))


def compose(
    spent: Sequence[Spent], delta: float, relation: Relation, promised: float | None = None
) -> tuple[Account, float]:
    """The account of parts on the same people, and the δ at which it holds.

    Known mechanisms are composed by the accountants at ``delta``; bare (ε, δ) are added to that
    (Dwork and Roth 2014, theorem 3.16). With ``promised`` the known ones get what the bare δ leave
    of it; where they leave nothing, ε is infinite.
    """
    events = [e for s in spent for e in s.events]
    group_size = max((s.group_size for s in spent), default=1)
    bare_epsilon = math.fsum(s.epsilon for s in spent)
    bare_delta = math.fsum(s.delta for s in spent)
    if promised is not None:
        delta = promised - bare_delta
        if delta < -1e-12 * promised or (events and delta <= 0):
            return Account(0.0, math.inf, "δ exceeded", steps=len(spent)), promised
    if not events:
        cost = Account(0.0, bare_epsilon, "basic composition", steps=len(spent))
        return cost, min(1.0, bare_delta) if promised is None else promised
    known = account(events, delta, relation=relation, group_size=group_size)
    if not bare_epsilon and not bare_delta:
        return known, delta
    name = f"{known.accountant} + basic composition"
    cost = dataclasses.replace(known, high=known.high + bare_epsilon, accountant=name)
    return cost, min(1.0, delta + bare_delta)
