"""What a training step's code guarantees: its clipping, and its noise against the sensitivity."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path

from audit.accounting.events import SampledGaussian, UnsupportedEvent
from audit.claims.account import Account, account
from audit.claims.code import Clipping, Reading, read_source
from audit.claims.context import Context
from audit.claims.schema import Snippet
from audit.claims.verdicts import at_most, finding
from audit.yaml_file import InputError
from reports.record import ClaimState, Evidence, Finding, Value

# what is said with the account's figures, and without them where they are not to be had
WITH_FIGURES = {"aggregate", "aggregate_masked", "over_noised", "under_noised"}


def noise_factor(clipping: Clipping, noise_on: str, divided: bool, batch_size: float) -> float:
    """What to multiply σ with to get the noise over the true sensitivity; 0 is no protection.

    Per-record clipping to C moves the clipped sum by at most C. Clipping the aggregate to C keeps
    the result in a ball of radius C, in which one record can move it by 2C. A mean moves by the
    batch size less; noise that is divided by the batch is that much smaller.
    """
    if clipping == "none" or noise_on == "none":
        return 0.0
    factor = 1.0
    if clipping == "aggregate":
        factor /= 2  # the clipped object itself moves by up to 2C, mean or sum
    elif noise_on == "mean":
        factor *= batch_size
    return factor / batch_size if divided else factor


def check(claim: Snippet, context: Context) -> Finding:
    """The verdict on what the code is said to do.

    A description may stand alone. Beside a file it must agree with it, and what the file does not
    show it cannot support.
    """
    if claim.file is None:
        described = Reading(claim.clipping, claim.noise_on, claim.noise_divided_by_batch)
        return _judge(claim, described, ())
    path = context.folder / claim.file
    reading = read_source(path)
    evidence = (Evidence(claim.file, _digest(path)),)
    pairs = {
        "clipping": (claim.clipping, reading.clipping),
        "noise on": (claim.noise_on, reading.noise_on),
        "noise divided by batch": (claim.noise_divided_by_batch, reading.noise_divided_by_batch),
        "noise multiplier": (claim.noise_multiplier, reading.sigma),
    }
    for part, (said, read) in pairs.items():
        if said is not None and read is not None and said != read:
            return _finding(
                claim, "not checkable", "contradiction", evidence,
                part=part, said=_shown(said), read=_shown(read),
            )  # fmt: skip
    return _judge(claim, reading, evidence)


def _judge(claim: Snippet, reading: Reading, evidence: tuple[Evidence, ...]) -> Finding:
    clipping, noise_on = reading.clipping, reading.noise_on
    if clipping is None:
        return _finding(claim, "not checkable", "unreadable", evidence, part="clipping")
    if claim.asserts == "bounds_each_record":
        state: ClaimState = "supported" if clipping == "per_record" else "refuted"
        masked = clipping == "aggregate" and reading.masked_after_clipping
        reason = f"{clipping}_masked" if masked else clipping
        return _with_account(claim, state, reason, reading, evidence)
    if reading.seeded and noise_on != "none":
        return _finding(claim, "refuted", "seeded", evidence)
    protected = clipping != "none" and noise_on != "none"
    if noise_on is None or (protected and reading.noise_divided_by_batch is None):
        return _finding(claim, "not checkable", "unreadable", evidence, part="noise")
    factor = _factor(claim, reading)
    if claim.asserts == "accounted_mechanism":
        if factor is None:
            needed = "batch_size"
            return _finding(claim, "not checkable", "missing", evidence, missing=needed)
        state = "supported" if math.isclose(factor, 1.0) else "refuted"
        reason = "no_protection" if factor == 0 else "over_noised" if factor > 1 else "under_noised"
        reason = "accounted" if state == "supported" else reason
        return _with_account(claim, state, reason, reading, evidence)
    return _epsilon(claim, reading, factor, evidence)


def _epsilon(
    claim: Snippet, reading: Reading, factor: float | None, evidence: tuple[Evidence, ...]
) -> Finding:
    assert claim.epsilon is not None
    missing = list(claim.missing()) + ([] if claim.delta else ["delta"])
    if factor is None and "batch_size" not in missing:
        missing.append("batch_size")
    if factor == 0:
        return _with_account(claim, "refuted", "no_protection", reading, evidence)
    cost = _account(claim, factor)
    if missing or cost is None:
        listed = ", ".join(missing) or "relation"
        return _finding(claim, "not checkable", "missing", evidence, missing=listed)
    state = at_most(claim.epsilon, cost.low, cost.high)
    return _with_account(claim, state, f"epsilon_{state}", reading, evidence)


def _factor(claim: Snippet, reading: Reading) -> float | None:
    """The noise factor, or None where it needs a batch size that is not stated."""
    size = claim.batch_size
    if size is None and claim.sample_rate and claim.records:
        size = max(1, round(claim.sample_rate * claim.records))
    divided = bool(reading.noise_divided_by_batch)
    assert reading.clipping is not None
    noise_on = reading.noise_on or "sum"
    matters = divided or (noise_on == "mean" and reading.clipping == "per_record")
    if size is None and matters and reading.clipping != "none":
        return None
    return noise_factor(reading.clipping, noise_on, divided, size or 1)


def _account(claim: Snippet, factor: float | None) -> Account | None:
    """ε of the code as it stands, where everything that an account needs is stated."""
    if claim.missing() or claim.delta is None or not factor or claim.relation == "unstated":
        return None
    try:
        event: SampledGaussian = claim.events()[1]
        noise = event.noise_multiplier * factor
        event = dataclasses.replace(event, noise_multiplier=noise)
        return account((event,), claim.delta, relation=claim.relation)
    except UnsupportedEvent:
        return None


def _with_account(
    claim: Snippet,
    state: ClaimState,
    reason: str,
    reading: Reading,
    evidence: tuple[Evidence, ...],
) -> Finding:
    factor = _factor(claim, reading)
    cost, as_stated = _account(claim, factor), _account(claim, 1.0)
    if cost is None and reason in WITH_FIGURES:
        reason = f"{reason}_bare"
    found = _finding(
        claim,
        state,
        reason,
        evidence,
        factor=factor,
        effective=None if factor is None or not claim.noise_multiplier
        else factor * claim.noise_multiplier,
        epsilon=None if cost is None else cost.high,
        low=None if cost is None else cost.low,
        stated=None if as_stated is None else as_stated.high,
        batch=claim.batch_size,
    )  # fmt: skip
    if cost is None:
        return found
    figures = {"epsilon": cost.interval()}
    figures |= {f"epsilon_{name}": interval for name, interval in cost.by.items()}
    return dataclasses.replace(found, figures=figures)


def _finding(
    claim: Snippet,
    state: ClaimState,
    reason: str,
    evidence: tuple[Evidence, ...],
    **values: Value,
) -> Finding:
    figure = "epsilon" if claim.epsilon is not None else "mechanism"
    return finding(
        claim, state, reason,
        {"delta": claim.delta, "sigma": claim.noise_multiplier, **values},
        figure=figure, claimed=claim.epsilon, evidence=evidence,
    )  # fmt: skip


def _shown(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace("_", " ")


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
