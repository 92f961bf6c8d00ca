"""What an attacker without the target achieves: the blind baseline that every attack must beat.

Das, Zhang and Tramèr (2024, "Blind baselines beat membership inference attacks") show that on many
benchmarks members differ from non-members by themselves; there an attack's figure says nothing
about the model.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from attacks.encoding import beside, encode
from attacks.metrics import auc
from attacks.records import Membership, Records, by_person
from attacks.result import AttackResult
from attacks.targets import Array, Floats, positions

LIMIT = 10_000  # records a side: more would only cost time


def blind_baseline(records: Membership, *, seed: int = 0) -> AttackResult:
    """Tell members from non-members by features and label alone; scores of a held-out half.

    A forest and a linear model learn on one random half of each side and are judged on the other,
    by the mean of their ranks. One split and no cross-validation: folds share training data, which
    doubles the variance of a null AUC, while an interval takes the scores for independent. Where
    the records name persons, these are halved, and a person's score is the mean over his records.
    """
    started = time.monotonic()
    rng = np.random.default_rng(seed)
    sides = (records.members, records.non_members)
    notes = ["learned on one random half of the records, judged on the other; the target unused"]
    halves = [_halves(side, records.of_persons, rng) for side in sides]
    judged = [side.take(rows[1]) for side, rows in zip(sides, halves, strict=True)]
    if min(len(rows[0]) for rows in halves) < 4:
        notes.append("too few records to learn from: all scores are equal")
        scores = [np.zeros(len(side)) for side in judged]
    else:
        learned = [side.take(rows[0]) for side, rows in zip(sides, halves, strict=True)]
        scores = _tell_apart(learned, judged, records.classes, seed)
    ids = [side.ids for side in judged]
    if records.of_persons:
        ids, scores = map(list, zip(*map(by_person, judged, scores), strict=True))
        notes.append("each person has the mean score of his records")
    return AttackResult(
        name="blind_baseline",
        title="Blind baseline",
        access="none",
        member_scores=scores[0],
        non_member_scores=scores[1],
        member_ids=ids[0],
        non_member_ids=ids[1],
        seed=seed,
        seconds=time.monotonic() - started,
        source="Das, Zhang and Tramèr 2024",
        notes=tuple(notes),
    )


def distribution_shift(result: AttackResult, confidence: float = 0.95) -> bool:
    """Whether a blind baseline's AUC interval lies above one half: the split is not exchangeable.

    Attacks on such a split are void. On an exchangeable split this happens in (1 - confidence) / 2
    of all cases.
    """
    return auc(result.member_scores, result.non_member_scores, confidence).low > 0.5


def _halves(
    side: Records, of_persons: bool, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to learn from and rows to judge; one person's are on the same half."""
    if not of_persons:
        rows = rng.permutation(len(side))[:LIMIT]
        return rows[: len(rows) // 2], rows[len(rows) // 2 :]
    names, of_whom = np.unique(np.asarray(side.users, dtype=np.str_), return_inverse=True)
    first = np.zeros(len(names), dtype=np.bool_)
    first[rng.permutation(len(names))[: len(names) // 2]] = True
    learned = first[of_whom]
    return np.flatnonzero(learned)[:LIMIT], np.flatnonzero(~learned)[:LIMIT]


def _tell_apart(
    learned: list[Records], judged: list[Records], classes: Array, seed: int
) -> list[Floats]:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    everyone = learned + judged
    columns, dense = encode(np.concatenate([side.features for side in everyone]))
    labels = positions(np.concatenate([side.labels for side in everyone]), classes)
    onehot = np.eye(len(classes))[labels]
    sizes = [len(side) for side in learned]
    train, truth = slice(0, sum(sizes)), np.repeat([1, 0], sizes)
    test = slice(sum(sizes), None)
    linear = make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=500))
    forest = RandomForestClassifier(100, min_samples_leaf=3, n_jobs=-1, random_state=seed)
    ranks = np.zeros(len(labels) - sum(sizes))
    for model, features in ((linear, beside(columns, onehot)), (forest, beside(dense, onehot))):
        model.fit(features[train], truth)
        ranks += rankdata(model.predict_proba(features[test])[:, 1])
    return [ranks[: len(judged[0])], ranks[len(judged[0]) :]]
