"""How ε follows the batch size at equal epochs: recomputed over a grid of stated settings.

A larger batch means a larger sample rate and fewer steps. For many small steps ε follows a central
limit, with μ ∝ q·√T = √(batch size · epochs)/N (Bu et al. 2020): ε grows with the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scipy.optimize import brentq

from audit.accounting.convert import gdp_mu, gdp_to_epsilon
from audit.accounting.events import SampledGaussian, Sampling, UnsupportedEvent
from audit.claims.account import Account, account
from audit.claims.context import Context
from audit.claims.schema import Mechanism, Scaling
from audit.claims.verdicts import at_most, finding
from reports.record import ClaimState, Finding, Interval, Relation, Value

GRID = (  # records, batch size, epochs, σ: small to middling data, as DP-SGD is published on
    (900, 8, 3.0, 0.7),
    (900, 32, 3.0, 1.0),
    (2_000, 64, 20.0, 1.41),
    (2_000, 256, 50.0, 4.0),
    (10_000, 256, 10.0, 1.0),
    (60_000, 256, 15.0, 1.1),
)
CLOSE = 0.1  # exponents that differ by less count as equal


def check(claim: Scaling, context: Context) -> Finding:
    """The verdict on an exponent, or on the ε that a changed batch size is said to give."""
    if claim.relation == "unstated" or claim.sampling == "full_batch":
        missing = "relation" if claim.relation == "unstated" else "sampling of a batch"
        return finding(
            claim, "not checkable", "missing", {"missing": missing}, figure="epsilon",
            claimed=claim.epsilon,
        )  # fmt: skip
    try:
        return _exponent(claim) if claim.exponent is not None else _pair(claim)
    except UnsupportedEvent as error:
        return finding(
            claim, "not checkable", "unsupported", {"problem": str(error)}, figure="epsilon",
            claimed=claim.epsilon,
        )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    records: int
    batch_size: int
    epochs: float
    noise_multiplier: float
    sampling: Sampling

    def account(self, factor: float, delta: float, relation: Relation) -> Account:
        """ε with the batch size multiplied by ``factor``, at the same number of epochs."""
        rate = min(1.0, self.batch_size * factor / self.records)
        steps = max(1, round(self.epochs / rate))
        event = SampledGaussian(self.noise_multiplier, rate, steps, self.sampling)
        return account((event,), delta, relation=relation)


def _exponent(claim: Scaling) -> Finding:
    """Compare ε ∝ (batch size)^p with the slope between a batch size and its double.

    A grid can refute an exponent, and prove none.
    """
    assert claim.exponent is not None
    assert claim.relation != "unstated"
    bounds = []
    runs = list(_runs(claim))
    for run in runs:
        one = run.account(1, claim.delta, claim.relation)
        two = run.account(2, claim.delta, claim.relation)
        bounds.append(
            (_slope(one.high, two.low), _slope(one.high, two.high), _slope(one.low, two.high))
        )
    low, high = min(b[0] for b in bounds), max(b[2] for b in bounds)
    middle = sorted(b[1] for b in bounds)[len(bounds) // 2]
    state: ClaimState = "inconclusive"
    if claim.exponent + CLOSE < low or claim.exponent - CLOSE > high:
        state = "refuted"
    figure = Interval(low, min(max(middle, low), high), high, 1.0, "PLD over a grid", len(runs))
    return finding(
        claim, state, f"exponent_{state}", {"low": low, "high": high, "runs": len(runs)},
        figure="exponent", claimed=claim.exponent, figures={"exponent": figure},
        power=f"{len(runs)} settings recomputed",
    )  # fmt: skip


def _pair(claim: Scaling) -> Finding:
    """Find the noise that gives ε before the change, and recompute ε after it.

    Where no setting is stated, the central limit μ ∝ √(batch size) gives the value, and the grid
    how far exact accounts spread around it. It compares two settings and guarantees nothing.
    """
    before, after = claim.epsilon_before, claim.epsilon
    assert before is not None
    assert after is not None
    runs = list(_runs(claim))
    exact = [_after(run, claim, before) for run in runs]
    spread = [a for a in exact if a is not None]
    stated = claim.rate() is not None and claim.step_range() is not None
    law = gdp_to_epsilon(gdp_mu(before, claim.delta) * math.sqrt(claim.factor), claim.delta)
    value = spread[0] if stated and spread else law
    low, high = min([value, *spread]), max([value, *spread])
    state = at_most(after, low, high)
    if not spread and state == "supported":
        state = "inconclusive"  # the central limit alone bounds nothing
    method = "PLD" if stated else "central limit, PLD over a grid"
    values: dict[str, Value] = {"before": before, "factor": claim.factor, "delta": claim.delta}
    values |= {"value": value, "low": low, "high": high}
    return finding(
        claim, state, f"pair_{state}", values, figure="epsilon", claimed=after,
        figures={"epsilon": Interval(low, value, high, 1.0, method, len(runs))},
        power=f"{len(runs)} settings recomputed",
    )  # fmt: skip


def _after(run: _Run, claim: Scaling, before: float) -> float | None:
    """ε after the change for the noise that gives ``before``; None where no noise does."""
    assert claim.relation != "unstated"
    relation: Relation = claim.relation

    def gap(log_noise: float) -> float:
        there = replace(run, noise_multiplier=math.exp(log_noise))
        return there.account(1, claim.delta, relation).high - before

    try:
        noise = math.exp(brentq(gap, math.log(0.3), math.log(200), xtol=1e-3))
    except ValueError:
        return None
    there = replace(run, noise_multiplier=noise)
    return there.account(claim.factor, claim.delta, relation).high


def _runs(claim: Scaling) -> Iterator[_Run]:
    """The stated setting, or the grid with what is stated put in its place."""
    seen = set()
    for records, batch_size, epochs, noise in GRID:
        run = _Run(
            claim.records or records,
            _batch(claim, claim.records or records, batch_size),
            _run_epochs(claim, epochs),
            claim.noise_multiplier or noise,
            claim.sampling,
        )
        if run not in seen:
            seen.add(run)
            yield run


def _batch(claim: Mechanism, records: int, batch_size: int) -> int:
    size = claim.batch_size or (
        round(claim.sample_rate * records) if claim.sample_rate else batch_size
    )
    return min(max(1, size), records)


def _run_epochs(claim: Mechanism, epochs: float) -> float:
    rate = claim.rate()
    if claim.steps and rate:
        return claim.steps * rate
    return claim.epochs or epochs


def _slope(one: float, two: float) -> float:
    """log₂ of how much ε changes when the batch size doubles."""
    return math.log2(max(two, 1e-12) / max(one, 1e-12))
