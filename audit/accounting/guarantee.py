"""The front door: what every accountant says about the same events, and which of it is a guarantee.

Upper bounds come from RDP and from the privacy loss distribution, each by its own mathematics.
Figures that are no bound for what ran (a limit theorem, or the account of a sampler that did not
run) are kept beside them and marked, since people will have seen them elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from audit.accounting import compose, convert, group, pld, rdp
from audit.accounting.events import (
    ApproximateDP,
    MechanismEvent,
    Relation,
    SampledGaussian,
    UnsupportedEvent,
    canonical,
    release_count,
)

Floats = NDArray[np.float64]
Unit = Literal["record", "user"]

_SENSIBLE_MU = 100  # above it, ε is in the thousands by whatever account
_DELTAS = np.geomspace(1e-12, 0.9, 49)
_FPR = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 61)])


@dataclass(frozen=True)
class PrivacyGuarantee:
    """ε at δ by one accountant, with all that makes it mean something.

    Attributes:
        accountant: whose mathematics it is.
        epsilon: the upper bound; infinite where nothing is proved.
        lower: the mechanism's own ε at δ is not below it; 0 where nothing is known.
        delta: in (0, 1).
        unit: whose presence is protected; a user has up to ``group_size`` records.
        relation: the neighbouring relation.
        steps: releases composed.
        guaranteed: False for a figure that is no bound for what ran.
        notes: conditions, and why a figure is no guarantee.
        epsilon_at: ε at any other δ, by the same accountant.
        delta_at: δ at any ε, where that is quicker to say; a curve then has even steps of ε.
    """

    accountant: str
    epsilon: float
    lower: float
    delta: float
    unit: Unit
    relation: Relation
    group_size: int
    steps: int
    guaranteed: bool
    notes: tuple[str, ...]
    epsilon_at: Callable[[float], float] = field(repr=False, compare=False)
    delta_at: Callable[[float], float] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def curve(self) -> tuple[Floats, Floats]:
        """ε(δ) as (δ, ε), both of shape (k,), δ rising; only where ε is finite."""
        if self.delta_at is None:
            epsilons = np.array([self.epsilon_at(float(delta)) for delta in _DELTAS])
            finite = np.isfinite(epsilons)
            return _DELTAS[finite], epsilons[finite]
        finite_ones = (e for d in _DELTAS[::4] if math.isfinite(e := self.epsilon_at(float(d))))
        if (top := next(finite_ones, None)) is None:
            return np.empty(0), np.empty(0)
        bend = self.epsilon_at(0.9)
        epsilons = np.unique(np.r_[np.linspace(0, bend, 24), np.linspace(bend, top, 120)])[::-1]
        return np.array([self.delta_at(float(epsilon)) for epsilon in epsilons]), epsilons

    @cached_property
    def trade_off(self) -> tuple[Floats, Floats]:
        """The most that an attacker can reach as (FPR, TPR), both of shape (k,)."""
        deltas, epsilons = self.curve
        if not len(deltas):
            return _FPR, np.ones_like(_FPR)
        return _FPR, convert.trade_off(epsilons, deltas, _FPR)

    def tpr_at(self, fpr: float) -> float:
        """The largest TPR that any attack on this unit can have at a false positive rate."""
        deltas, epsilons = self.curve
        if not len(deltas):
            return 1.0
        return float(convert.trade_off(epsilons, deltas, [fpr])[0])


def guarantees(
    events: Iterable[MechanismEvent],
    delta: float,
    *,
    relation: Relation = "add-remove",
    unit: Unit = "record",
    group_size: int = 1,
) -> tuple[PrivacyGuarantee, ...]:
    """Every accountant's ε for the composed events at δ: guarantees first, the tightest foremost.

    Cost: milliseconds for RDP; for the PLD some 10 to 100 ms per distinct phase, whatever the
    number of steps. Curves are computed when asked for.

    Args:
        events: all that was released about the same people.
        delta: in (0, 1).
        relation: the neighbouring relation.
        unit: whose presence is protected.
        group_size: the most records of one user; 1 for the unit ``record``.

    Raises:
        UnsupportedEvent: if no accountant has a valid bound.
        ValueError: if δ lies outside (0, 1), or the group size does not fit the unit.
    """
    convert.checked_delta(delta)
    if group_size < 1 or (unit == "record" and group_size != 1):
        raise ValueError(f"group_size: must be 1 for a record and at least 1, got {group_size}")
    events = tuple(events)
    merged = canonical(events)
    steps = sum(release_count(event) for event in events)

    def given(
        name: str,
        at: Callable[[float], float],
        lower: float = 0.0,
        guaranteed: bool = True,
        notes: tuple[str, ...] = (),
        delta_at: Callable[[float], float] | None = None,
    ) -> PrivacyGuarantee:
        epsilon = at(delta)
        return PrivacyGuarantee(
            name, epsilon, min(lower, epsilon), delta, unit, relation, group_size, steps,
            guaranteed, notes, at, delta_at,
        )  # fmt: skip

    if any(isinstance(e, ApproximateDP) and math.isinf(e.epsilon) for e in merged):
        why = ("a release without noise or without clipping hides nobody",)
        return (given("no DP", lambda _: math.inf, math.inf, notes=why),)
    found: list[PrivacyGuarantee] = []
    problems: list[str] = []
    conditions = _conditions(events, relation)
    for accountant in (_tight, _renyi):
        try:
            name, at, lower, delta_at = accountant(merged, events, delta, relation, group_size)
        except UnsupportedEvent as error:
            problems.append(str(error))
            continue
        found.append(given(name, at, lower, notes=conditions, delta_at=delta_at))
    if merged and all(isinstance(e, ApproximateDP) for e in merged) and group_size == 1:
        bare = [e for e in merged if isinstance(e, ApproximateDP)]
        found += [
            given(name, partial(bound, bare), notes=conditions)
            for name, bound in (
                ("basic composition", compose.basic),
                ("advanced composition", compose.advanced),
            )
        ]
    if not found:
        raise UnsupportedEvent("; ".join(dict.fromkeys(problems)))
    highest = max(g.lower for g in found)
    found = [replace(g, lower=min(highest, g.epsilon)) for g in found]
    found.sort(key=lambda g: g.epsilon)
    if group_size == 1:
        found += [
            given(name, at, guaranteed=False, notes=notes, delta_at=delta_at)
            for name, at, notes, delta_at in _no_guarantee(events, delta, relation)
        ]
    return tuple(found)


def best(
    events: Iterable[MechanismEvent],
    delta: float,
    *,
    relation: Relation = "add-remove",
    unit: Unit = "record",
    group_size: int = 1,
) -> PrivacyGuarantee:
    """The tightest guarantee; raises as ``guarantees`` does."""
    return guarantees(events, delta, relation=relation, unit=unit, group_size=group_size)[0]


Answer = tuple[str, Callable[[float], float], float, Callable[[float], float] | None]
Events = Sequence[MechanismEvent]


def _tight(
    merged: Events, events: Events, delta: float, relation: Relation, group_size: int
) -> Answer:
    mu = pld.gaussian_mu(merged, relation, group_size)
    if mu is not None:
        exact = convert.gdp_to_epsilon(mu, delta) if pld.all_attained(events) else 0.0
        return (
            "Gaussian, closed form",
            lambda d: convert.gdp_to_epsilon(mu, d),
            exact,
            lambda e: float(convert.gdp_to_delta(mu, e)),
        )
    loss = pld.compose(events, relation, group_size)
    return "PLD", loss.epsilon, loss.epsilon_lower(delta), loss.delta


def _renyi(
    merged: Events, events: Events, delta: float, relation: Relation, group_size: int
) -> Answer:
    rdp.rdp(merged, 2.0, relation)  # raises here if there is no bound, and not at the first use
    return "RDP", lambda d: group.rdp_epsilon(merged, d, relation, group_size), 0.0, None


def _conditions(events: Events, relation: Relation) -> tuple[str, ...]:
    schemes = {e.sampling for e in events if isinstance(e, SampledGaussian) and e.sample_rate < 1}
    notes = []
    if "poisson" in schemes:
        notes.append("holds if every batch was drawn by Poisson sampling and is kept secret")
    if "without_replacement" in schemes:
        notes.append("holds if batches are drawn afresh each step and are kept secret")
    if "shuffled" in schemes:
        fixed = "; the other batches must not depend on the record"
        apart = fixed if relation == "add-remove" else ""
        notes.append(
            "shuffled batches: each epoch counts as one release without amplification by sampling"
            + apart
        )
    return tuple(notes)


def _no_guarantee(
    events: Events, delta: float, relation: Relation
) -> list[tuple[str, Callable[[float], float], tuple[str, ...], Callable[[float], float]]]:
    """Figures that people report and that bound nothing here: (name, ε(δ), why, δ(ε))."""
    sampled = [e for e in events if isinstance(e, SampledGaussian) and e.sample_rate < 1]
    other = [e for e in sampled if e.sampling != "poisson"]
    if other:
        swapped = [
            replace(e, sampling="poisson") if isinstance(e, SampledGaussian) else e for e in events
        ]
        try:
            loss = pld.compose(swapped, relation)
        except UnsupportedEvent:
            return []
        why = "Poisson sampling did not run: the batches were " + " and ".join(
            sorted({_SCHEMES[e.sampling] for e in other})
        )
        return [("PLD as if Poisson", loss.epsilon, (why,), loss.delta)]
    if len(sampled) == len(events) and relation == "add-remove" and sampled:
        mu = math.sqrt(
            sum(convert.clt_mu(e.sample_rate, e.noise_multiplier, e.steps) ** 2 for e in sampled)
        )
        if mu < _SENSIBLE_MU:
            why = "a limit theorem for many steps, which may lie below the true ε"
            return [
                (
                    "GDP (limit)",
                    lambda d: convert.gdp_to_epsilon(mu, d),
                    (why,),
                    lambda e: float(convert.gdp_to_delta(mu, e)),
                )
            ]
    return []


_SCHEMES = {
    "shuffled": "those of shuffled epochs",
    "without_replacement": "of fixed size, drawn without replacement",
    "full_batch": "the whole data",
}
