"""What an attacker without the target achieves: the blind baseline that every attack must beat.

Das, Zhang and Tramèr (2024, "Blind baselines beat membership inference attacks") show that on many
benchmarks members differ from non-members by themselves; there an attack's figure says nothing
about the model.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from attacks.metrics import auc
from attacks.records import Membership, Records
from attacks.result import AttackResult
from attacks.targets import Array, Floats, positions

LIMIT = 10_000  # records a side: more would only cost time


def blind_baseline(records: Membership, *, seed: int = 0) -> AttackResult:
    """Tell members from non-members by features and label alone; scores of a held-out half.

    A forest and a linear model learn on one random half of each side and are judged on the other,
    by the mean of their ranks. One split and no cross-validation: folds share training data, which
    doubles the variance of a null AUC, while an interval takes the scores for independent.
    """
    started = time.monotonic()
    rng = np.random.default_rng(seed)
    sides = (records.members, records.non_members)
    notes = ["learned on one random half of the records, judged on the other; the target unused"]
    chosen = [rng.permutation(len(side))[:LIMIT] for side in sides]
    halves = [(rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in chosen]
    judged = [side.take(rows[1]) for side, rows in zip(sides, halves, strict=True)]
    if min(len(rows[0]) for rows in halves) < 4:
        notes.append("too few records to learn from: all scores are equal")
        scores = [np.zeros(len(side)) for side in judged]
    else:
        learned = [side.take(rows[0]) for side, rows in zip(sides, halves, strict=True)]
        scores = _tell_apart(learned, judged, records.classes, seed)
    return AttackResult(
        name="blind_baseline",
        title="Blind baseline",
        access="none",
        member_scores=scores[0],
        non_member_scores=scores[1],
        member_ids=judged[0].ids,
        non_member_ids=judged[1].ids,
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


def _tell_apart(
    learned: list[Records], judged: list[Records], classes: Array, seed: int
) -> list[Floats]:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    everyone = learned + judged
    columns, dense = _encode(np.concatenate([side.features for side in everyone]))
    labels = positions(np.concatenate([side.labels for side in everyone]), classes)
    onehot = np.eye(len(classes))[labels]
    sizes = [len(side) for side in learned]
    train, truth = slice(0, sum(sizes)), np.repeat([1, 0], sizes)
    test = slice(sum(sizes), None)
    linear = make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=500))
    forest = RandomForestClassifier(100, min_samples_leaf=3, n_jobs=-1, random_state=seed)
    ranks = np.zeros(len(labels) - sum(sizes))
    for model, features in ((linear, _beside(columns, onehot)), (forest, _beside(dense, onehot))):
        model.fit(features[train], truth)
        ranks += rankdata(model.predict_proba(features[test])[:, 1])
    return [ranks[: len(judged[0])], ranks[len(judged[0]) :]]


def _encode(features: Array) -> tuple[Any, NDArray[Any]]:
    """Records as columns for the linear model, and as a dense table for the forest."""
    if features.dtype.kind in "biuf":
        table = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
        spread = table.std(axis=0)
        scaled = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return scaled, table
    if features.ndim == 1:
        return _encode_texts(features)
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    numeric = [
        all(isinstance(v, int | float) for v in features[:, j]) for j in range(features.shape[1])
    ]
    numbers = features[:, numeric].astype(np.float64)
    words = features[:, np.logical_not(numeric)].astype(np.str_)
    if not words.shape[1]:
        return _encode(numbers)
    names = OneHotEncoder(max_categories=50, sparse_output=False).fit_transform(words)
    codes = OrdinalEncoder().fit_transform(words)
    scaled = _encode(numbers)[0] if numbers.shape[1] else numbers
    return np.hstack([scaled, names]), np.hstack([numbers, codes])


def _encode_texts(texts: Array) -> tuple[Any, NDArray[Any]]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    lengths = np.array(
        [[len(str(text)), len(str(text).split())] for text in texts], dtype=np.float64
    )
    words = TfidfVectorizer(
        ngram_range=(1, 2), max_features=20_000, token_pattern=r"(?u)\S+"
    ).fit_transform([str(text) for text in texts])
    size = min(50, words.shape[1] - 1, words.shape[0] - 1)
    if size < 1:
        return words, lengths
    dense = TruncatedSVD(size, random_state=0).fit_transform(words)
    return words, np.hstack([dense, lengths])


def _beside(columns: Any, onehot: Floats) -> Any:
    from scipy import sparse

    if sparse.issparse(columns):
        blocks: list[Any] = [columns, sparse.csr_matrix(onehot)]
        return sparse.hstack(blocks, format="csr")
    return np.hstack([columns, onehot])
