"""Membership in a generator's training set, learned from shadow generators.

Stadler, Oprisanu and Troncoso (2022, "Synthetic Data - Anonymisation Groundhog Day", section 4);
Houssiau et al. (2022, "TAPAS"). Many generators are trained with and without each target; an attack
model learns from some of them what a table shows of a target, and is judged on the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks.metrics import Figure, auc
from attacks.records import Bools
from attacks.synthetic.clustered import EpsilonBound, by_target, least_epsilon, most_exposed, pooled
from attacks.synthetic.generator_fleet import GeneratorFleet, Observations, coded_like
from attacks.synthetic.generator_scores import METHODS, Method, score, sides
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.summaries import FAMILIES, NEAR, WHOLE, Summary
from attacks.synthetic.tables import code
from attacks.synthetic.vulnerable import most_vulnerable
from attacks.targets import Floats

SOURCE = "Stadler, Oprisanu and Troncoso 2022; Houssiau et al. 2022; Meeus et al. 2023"
LEAST = 16  # runs; half of them teach


@dataclass(frozen=True, eq=False)
class ShadowResult(SyntheticResult):
    """A ``SyntheticResult`` with the least ε that the runs show, where there were runs to count."""

    bound: EpsilonBound | None = None
    models_trained: int = 0


def attack(
    fleet: GeneratorFleet,
    pool: pd.DataFrame,
    targets: Sequence[int] | int = 20,
    *,
    families: Sequence[str] = FAMILIES,
    method: Method = "logistic",
    delta: float = 0.0,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ShadowResult:
    """How well a table tells whether each target trained its generator, on held-out runs.

    One fleet serves all targets. Half of its pairs of runs teach the attack model, and choose the
    bound's rule (target, threshold, side) by cross-validation; all figures and counts are of the
    other half.

    Args:
        pool: real records; what the shadow generators train on is drawn from them.
        targets: rows of the pool, or how many of its most vulnerable ones.
        families: of features, out of ``summaries.FAMILIES``.
        method: ``logistic`` and ``forest`` learn from all targets together; ``lira`` is a ratio of
            Gaussians with a shift of each target's own.
        delta: of the (ε, δ) that is bounded.

    Raises:
        ValueError: if there are too few runs, no such family, method or target, or as
            ``GeneratorFleet.observations``.
    """
    started = time.monotonic()
    _check(families, method)
    if not 0 <= delta < 1:
        raise ValueError(f"delta: must lie in [0, 1), got {delta}")
    if fleet.runs < LEAST or fleet.runs % 2:
        raise ValueError(f"runs: need an even number of {LEAST} or more, got {fleet.runs}")
    rows, isolation = _targets(pool, targets)
    seen = fleet.observations(pool, rows, progress)
    pairs = np.random.default_rng(seed).permutation(fleet.runs // 2)
    learn, judge = np.split(pairs, [len(pairs) // 2])

    def learned_from(of: NDArray[np.int64], judged: NDArray[np.int64]) -> tuple[Floats, Floats]:
        scores = score(seen, np.concatenate([2 * of, 2 * of + 1]), families, method, seed)
        return sides(scores, seen.inside, judged)

    inside, outside = learned_from(learn, judge)
    folds = np.array_split(learn, 2)
    tried = [learned_from(*both) for both in (folds, folds[::-1])]
    chosen = np.concatenate([t[0] for t in tried]), np.concatenate([t[1] for t in tried])
    bound = least_epsilon(chosen, (inside, outside), rows, delta, confidence)
    areas, p = by_target(inside, outside, confidence)
    worst, area = most_exposed(inside, outside, rows, confidence)
    return ShadowResult(
        attack="generator_shadow",
        title="Shadow generators",
        access="samples",
        figures=(
            *pooled(inside, outside, confidence, seed),
            Figure("auc_most_exposed", area),
        ),
        rows={
            "target": rows,
            "isolation": isolation,
            "auc": np.array([a.value for a in areas]),
            "auc_low": np.array([a.low for a in areas]),
            "auc_high": np.array([a.high for a in areas]),
            "p_holm": p,
        },
        notes=(
            _about(fleet),
            f"scores of {len(rows)} targets in {2 * len(inside)} runs that the attack model did "
            "not learn from; the figures are of these targets, not of all records",
            f"most exposed: row {worst} of the pool",
            bound_in_words(bound),
        ),
        source=SOURCE,
        seed=seed,
        seconds=time.monotonic() - started,
        bound=bound,
        models_trained=fleet.runs,
    )


def attack_release(
    fleet: GeneratorFleet,
    pool: pd.DataFrame,
    release: pd.DataFrame,
    targets: Sequence[int] | int = 20,
    *,
    members: Bools | None = None,
    families: Sequence[str] = FAMILIES,
    method: Method = "logistic",
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ShadowResult:
    """Each target's score in one release, learned from all runs of the fleet; higher is a member.

    ``release`` has as many records as the fleet makes: with the generator at hand draw more than
    were published, and let the fleet draw as many. ``members`` (records of the pool,), where the
    truth is known and was drawn by a coin for each record, gives an AUC over the targets. The rows
    hold the scores, in logarithms of odds.

    Raises:
        ValueError: if the release has another size, or as ``attack``.
    """
    started = time.monotonic()
    _check(families, method)
    if len(release) != fleet.records:
        raise ValueError(
            f"release: {len(release)} records, the shadow generators make {fleet.records}; give "
            "both the same number"
        )
    known = code({"pool": pool})
    coded = coded_like(pool, known, release, "release")
    rows, isolation = _targets(pool, targets)
    seen = fleet.observations(pool, rows, progress)
    summary = Summary.of(known["pool"], rows)
    whole, near = summary.whole(coded), summary.near(coded)
    extended = Observations(
        np.vstack([seen.inside, np.zeros((1, len(rows)), dtype=np.bool_)]),
        {f: np.concatenate([seen.whole[f], whole[f][None]]) for f in WHOLE},
        {f: np.concatenate([seen.near[f], near[f][None]]) for f in NEAR},
        seen.influence,
    )
    scores = score(extended, np.arange(fleet.runs), families, method, seed)[-1]
    found = {"target": rows, "isolation": isolation, "score": scores}
    figures = (Figure("auc", unmeasured="who was a member is not known"),)
    if members is not None:
        truth = np.asarray(members, dtype=np.bool_)
        if truth.shape != (len(pool),):
            raise ValueError(f"members: {truth.shape}, need one truth for each pool record")
        found["member"] = truth = truth[rows]
        figures = (Figure("auc", unmeasured="all targets are on one side"),)
        if 0 < truth.sum() < len(truth):
            figures = (Figure("auc", auc(scores[truth], scores[~truth], confidence)),)
    return ShadowResult(
        attack="generator_shadow",
        title="Shadow generators against one release",
        access="samples",
        figures=figures,
        rows=found,
        notes=(_about(fleet), f"one release; figures are of {len(rows)} targets"),
        source=SOURCE,
        seed=seed,
        seconds=time.monotonic() - started,
        models_trained=fleet.runs,
    )


def copies(training: pd.DataFrame, records: int, seed: int) -> pd.DataFrame:
    """A generator that leaks all: training records drawn with replacement. The positive control."""
    rows = np.random.default_rng(seed).integers(0, len(training), records)
    return training.iloc[rows].reset_index(drop=True)


def bound_in_words(bound: EpsilonBound) -> str:
    """The bound as a sentence, with what it could have been."""
    at = f"at δ = {bound.delta:g}, {bound.confidence:.0%} confidence, adding or removing a record"
    could = f"{bound.pairs} pairs of runs can show {bound.most:.2f} at most"
    if bound.epsilon is None:
        return f"no evidence of any ε {at}; {could}"
    return f"ε is at least {bound.epsilon:.2f} {at}; {could}"


def _about(fleet: GeneratorFleet) -> str:
    knows = {
        "halves": "each trained on a random half of the pool: the attacker knows the distribution",
        "fixed": "each trained on all of the pool but targets: the attacker knows all others",
    }[fleet.others]
    return f"{fleet.runs} shadow generators, {fleet.records} records from each, {knows}"


def _check(families: Sequence[str], method: str) -> None:
    if strange := [f for f in families if f not in FAMILIES]:
        raise ValueError(f"families: {strange[0]!r} is none of {', '.join(FAMILIES)}")
    if not families or len(set(families)) < len(families):
        raise ValueError("families: name one or more, each once")
    if method not in METHODS:
        raise ValueError(f"method: {method!r} is none of {', '.join(METHODS)}")


def _targets(pool: pd.DataFrame, targets: Sequence[int] | int) -> tuple[NDArray[np.int64], Floats]:
    """Rows of the pool and how far they lie from the others; NaN where the caller chose them."""
    if isinstance(targets, int | np.integer):
        found = most_vulnerable(code({"pool": pool})["pool"], int(targets))
        return found.rows, found.distances
    rows = np.asarray(targets, dtype=np.int64)
    return rows, np.full(len(rows), np.nan)
