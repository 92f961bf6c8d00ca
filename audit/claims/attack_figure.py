"""Attack figures: what an accuracy, an AUC or a TPR can show, and what it cannot.

An attack at chance is no proof of protection, and one below chance is no protection at all: who
guesses the opposite is above chance. An ε is contradicted by an attack that succeeds more often
than any attack on an (ε, δ)-DP mechanism can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from audit.accounting.convert import trade_off
from audit.claims.context import Context
from audit.claims.schema import AttackFigure
from audit.claims.verdicts import finding
from reports.record import ClaimState, Finding, Interval, Value

Array = NDArray[Any]
CONFIDENCE = 0.95
LARGEST_N = 10**6


def accuracy_bound(epsilon: float, delta: float = 0.0, members: float = 0.5) -> float:
    """The highest accuracy against (ε, δ)-DP where this share of the records are members.

    With one half it is (e^ε + δ)/(1 + e^ε): Kairouz, Oh, Viswanath 2015, theorem 2.1, at its best
    threshold. The best one is a corner of their region of error rates.
    """
    corner = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))  # FPR = FNR
    best = max(
        members * (1 - fnr) + (1 - members) * (1 - fpr)
        for fpr, fnr in ((0.0, 1 - delta), (corner, corner), (1 - delta, 0.0))
    )
    return max(best, members, 1 - members)


def auc_bound(epsilon: float, delta: float = 0.0) -> float:
    """The largest AUC against (ε, δ)-DP: the area under the trade-off of the same theorem."""
    # The curve rises from (0, δ) with slope e^ε to the corner and from there with e^-ε to (1-δ, 1).
    corner = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    height = 1 - corner
    first = corner * (delta + height) / 2
    second = (1 - delta - corner) * (height + 1) / 2
    return first + second + delta


def check(claim: AttackFigure, context: Context) -> Finding:
    """The verdict on an attack figure and on what is concluded from it."""
    if claim.concludes == "figure":
        return _figure(claim, context)
    if claim.concludes == "better_than_guessing":
        return _better_than_guessing(claim)
    if claim.concludes == "contradicts_epsilon":
        return _contradicts(claim)
    return _protection(claim)


def _figure(claim: AttackFigure, context: Context) -> Finding:
    """Compare with what this audit measured; a figure alone cannot be recomputed."""
    name = _name(claim)
    for attack in context.attacks:
        measured = attack.metric(name) if attack.subject == "target" else None
        if measured is not None:
            within = measured.low <= claim.value <= measured.high
            return _finding(
                claim,
                "supported" if within else "refuted",
                "agrees" if within else "differs",
                {name: measured},
                attack=attack.title,
                low=measured.low,
                high=measured.high,
            )
    reported = _interval(claim, claim.value)
    if reported is None:
        return _without_n(claim, "not checkable")
    return _finding(
        claim,
        "not checkable",
        "not_measured",
        {name: reported},
        low=reported.low,
        high=reported.high,
        n=reported.n,
    )


def _better_than_guessing(claim: AttackFigure) -> Finding:
    """Below chance is chance or an inverted attack: neither is better than guessing."""
    chance = _chance(claim)
    if claim.value >= chance:
        return _protection(claim)
    interval = _interval(claim, _mirrored(claim))
    values = {"mirrored": _mirrored(claim), "chance": chance, "needed": needed_n(claim, chance)}
    if interval is None:
        return _finding(claim, "refuted", "mirrored", {}, **values)
    low, high = interval.low, interval.high
    reason = "mirrored_leaks" if low > chance else "mirrored_chance"
    figures = {f"mirrored_{_name(claim)}": interval}
    return _finding(claim, "refuted", reason, figures, n=interval.n, low=low, high=high, **values)


def _protection(claim: AttackFigure) -> Finding:
    """Refuted by an attack clearly above chance, or above what ε allows; never supported."""
    limit = _bound(claim, claim.epsilon or 0.0)
    value = max(claim.value, _mirrored(claim))
    interval = _interval(claim, value)
    if interval is None:
        return _without_n(claim, "inconclusive", limit=limit)
    leaks = interval.low > limit
    return _finding(
        claim,
        "refuted" if leaks else "inconclusive",
        ("leaks" if claim.epsilon is None else "leaks_more") if leaks else "no_proof",
        {_name(claim): interval},
        low=interval.low,
        high=interval.high,
        limit=limit,
        n=interval.n,
        value=value,
    )


def _contradicts(claim: AttackFigure) -> Finding:
    """Supported where the attack's one-sided lower limit lies above the highest possible figure."""
    assert claim.epsilon is not None
    limit = _bound(claim, claim.epsilon, one_sided=True)
    value = max(claim.value, _mirrored(claim))
    one_sided = value == claim.value  # who looks at both tails pays for both
    interval = _interval(claim, value, one_sided)
    needed = needed_n(claim, limit, one_sided) if value > limit else None
    state: ClaimState
    if value <= limit:
        state, reason = "refuted", "allowed"
    elif interval is None:
        state, reason = "inconclusive", "contradicts_from_n"
    elif interval.low > limit:
        state, reason = "supported", "contradicts"
    else:
        state, reason = "inconclusive", "contradicts_from_n"
    return _finding(
        claim,
        state,
        reason,
        {} if interval is None else {_name(claim): interval},
        epsilon=claim.epsilon,
        limit=limit,
        needed=needed,
        n=None if interval is None else interval.n,
        low=None if interval is None else interval.low,
    )


def needed_n(claim: AttackFigure, limit: float, one_sided: bool = False) -> int | None:
    """From how many records on the interval at the claimed value always lies above ``limit``.

    None where no number up to a million does.
    """
    value = max(claim.value, _mirrored(claim))
    if value <= limit:
        return None
    z = norm.ppf(1 - _alpha(one_sided))
    guess = z**2 * max(value * (1 - value), 0.01) / (value - limit) ** 2
    if guess > LARGEST_N:
        return None
    n = np.arange(1, int(4 * guess) + 100)
    low = _binomial_low(np.round(value * n), n, _alpha(one_sided))
    failing = np.flatnonzero(low <= limit)
    records = int(n[failing[-1]]) + 1 if failing.size else 1
    return records if claim.metric == "accuracy" else 2 * records


def _interval(claim: AttackFigure, value: float, one_sided: bool = False) -> Interval | None:
    members = claim.members or (claim.n // 2 if claim.n else 0)
    non_members = claim.non_members or (claim.n - members if claim.n else 0)
    if not members or not non_members:
        return None
    alpha = _alpha(one_sided)
    if claim.metric == "auc":
        # Hoeffding 1963, section 5b, on U-statistics of two samples: for all scores and any n.
        spread = math.sqrt(math.log(1 / alpha) / (2 * min(members, non_members)))
        low, high, method = max(0.0, value - spread), min(1.0, value + spread), "Hoeffding"
        n = members + non_members
    else:
        n = members + non_members if claim.metric == "accuracy" else members
        alpha = alpha if claim.metric == "accuracy" else alpha / 2  # the other half is the FPR's
        hits = math.floor(value * n + 1e-9) if one_sided else round(value * n)
        low, high = (float(x) for x in _clopper_pearson(hits, n, alpha))
        method = "Clopper-Pearson"
    if one_sided:
        high, method = 1.0, f"{method}, one-sided"
    return Interval(min(low, value), value, max(high, value), CONFIDENCE, method, n)


def _alpha(one_sided: bool) -> float:
    return (1 - CONFIDENCE) / (1 if one_sided else 2)


def _binomial_low(hits: Array, n: Array, alpha: float) -> Array:
    with np.errstate(invalid="ignore"):
        low = beta.ppf(alpha, hits, n - hits + 1)
    return np.where(hits == 0, 0.0, low)


def _clopper_pearson(hits: int, n: int, alpha: float) -> tuple[float, float]:
    low = 0.0 if hits == 0 else beta.ppf(alpha, hits, n - hits + 1)
    high = 1.0 if hits == n else beta.ppf(1 - alpha, hits + 1, n - hits)
    return low, high


def _mirrored(claim: AttackFigure) -> float:
    """What the attacker gets who guesses the opposite; a TPR has no mirror at the same FPR."""
    return claim.value if claim.metric == "tpr" else 1 - claim.value


def _chance(claim: AttackFigure) -> float:
    """What an attack without the target reaches at most, by always saying the same."""
    if claim.metric == "accuracy":
        return max(_share(claim), 1 - _share(claim))
    return 0.5 if claim.fpr is None else claim.fpr


def _share(claim: AttackFigure) -> float:
    if not claim.members or not claim.non_members:
        return 0.5
    return claim.members / (claim.members + claim.non_members)


def _bound(claim: AttackFigure, epsilon: float, one_sided: bool = False) -> float:
    delta = claim.delta if claim.epsilon is not None else 0.0  # chance has neither
    if claim.metric == "accuracy":
        return accuracy_bound(epsilon, delta, _share(claim))
    if claim.metric == "auc":
        return auc_bound(epsilon, delta)
    return float(trade_off([epsilon], [delta], [_largest_fpr(claim, one_sided)])[0])


def _largest_fpr(claim: AttackFigure, one_sided: bool) -> float:
    """The FPR's upper limit: it was measured as the TPR was. As stated where n is not."""
    assert claim.fpr is not None
    non_members = claim.non_members or (claim.n - claim.n // 2 if claim.n else 0)
    if not non_members:
        return claim.fpr
    alarms = math.ceil(claim.fpr * non_members - 1e-9)
    return max(claim.fpr, _clopper_pearson(alarms, non_members, _alpha(one_sided) / 2)[1])


def _name(claim: AttackFigure) -> str:
    return f"tpr_at_fpr_{claim.fpr:g}" if claim.metric == "tpr" else claim.metric


def _without_n(claim: AttackFigure, state: ClaimState, limit: float | None = None) -> Finding:
    limit = _chance(claim) if limit is None else limit
    needed = needed_n(claim, limit)
    return _finding(claim, state, "without_n", {}, needed=needed, limit=limit)


def _finding(
    claim: AttackFigure,
    state: ClaimState,
    reason: str,
    figures: Mapping[str, Interval],
    **values: Value,
) -> Finding:
    n = next((f.n for f in figures.values()), None)
    power = f"n = {n}" if n else "n is not stated"
    name, claimed = _name(claim), claim.value
    return finding(
        claim, state, reason, values, figure=name, claimed=claimed, figures=figures, power=power
    )
