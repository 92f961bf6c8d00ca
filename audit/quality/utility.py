"""What a model loses that is trained on synthetic records instead of real ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.metrics import auc
from attacks.synthetic.tables import Tables
from audit.quality.features import LEAST, Features, without
from reports.record import Interval, Metric

CLASSES = 10  # a column of numbers with at most so many values is one of classes
MOST = 50  # classes of any label: each has a model of its own
REPLICATES = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Utility:
    """Train on synthetic, test on real, beside train on real, test on real.

    Attributes:
        task: ``classes`` (figures ``auc_real``, ``auc_synthetic``, ``auc_loss``) or ``number``
            (``r2_real``, ``r2_synthetic``, ``r2_loss``). A loss is real minus synthetic.
        trained_real, trained_synthetic, tested: records with a label that was used.
    """

    label: str
    task: str
    figures: tuple[Metric, ...]
    trained_real: int
    trained_synthetic: int
    tested: int
    notes: tuple[str, ...] = ()


def compare_utility(
    tables: Tables,
    real: str,
    synthetic: str,
    holdout: str,
    label: str,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Utility:
    """Boosted trees predict ``label``; both are judged on the records of ``holdout``.

    AUC where the label has classes, the mean over classes of one against the rest where there are
    more than two; R² where it is a number of more than ten values. Intervals: paired bootstrap over
    the test records (within each class), percentiles of 1,000 replicates. They take both models as
    given: they do not cover another training, or another release of the same generator.

    Raises:
        ValueError: if no column is called ``label``, or it holds dates or more than 50 classes.
    """
    if label not in tables.names:
        raise ValueError(f"label: no column {label!r}; there are {', '.join(tables.names)}")
    names = (real, synthetic, holdout)
    truth, task, classes = _labels(tables, names, label)
    inputs = without(tables, label)
    features = Features.of(inputs, names[:2])
    notes, matrices = [], {}
    for name in names:
        kept = ~np.isnan(truth[name])
        if not kept.all():
            notes.append(f"{name}: {(~kept).sum()} records have no label that real records have")
        truth[name] = truth[name][kept]
        matrices[name] = features.matrix(inputs[name])[kept]
    kind = "auc" if task == "classes" else "r2"
    reason = _unusable(inputs, truth, names, task)
    figures: tuple[Metric, ...]
    if reason:
        figures = tuple(
            Metric(f"{kind}_{of}", unmeasured=reason) for of in ("real", "synthetic", "loss")
        )
    else:
        tested, asked = matrices[holdout], truth[holdout]
        predicted = [
            _predict(features, matrices[name], truth[name], tested, classes, seed)
            for name in names[:2]
        ]
        rng = np.random.default_rng(seed)
        values, draws = (
            _aucs(predicted, asked, rng) if task == "classes" else _r2s(predicted, asked, rng)
        )
        width = _width_of_one(asked, confidence) if task == "classes" else 0.0
        figures = _figures(kind, values, draws, width, confidence, len(asked))
    trained, also, judged = (len(truth[name]) for name in names)
    return Utility(label, task, figures, trained, also, judged, tuple(notes))


def _labels(
    tables: Tables, names: tuple[str, str, str], label: str
) -> tuple[dict[str, Floats], str, int]:
    """Each table's labels as numbers, NaN where unusable; the task; the number of classes."""
    numeric = [column.name for column in tables.numeric]
    if label in numeric:
        at = numeric.index(label)
        if tables.numeric[at].kind == "date":
            raise ValueError(f"label: column {label!r} holds dates; name classes or a number")
        found = {name: tables[name].numbers[:, at] for name in names}
    else:
        at = [column.name for column in tables.categorical].index(label)
        found = {
            name: np.where(tables[name].codes[:, at] < 0, np.nan, tables[name].codes[:, at])
            for name in names
        }
    real = np.concatenate([found[names[0]], found[names[2]]])
    values = np.unique(real[~np.isnan(real)])
    if label in numeric and len(values) > CLASSES:
        return found, "number", 0
    if len(values) > MOST:
        raise ValueError(
            f"label: column {label!r} has {len(values)} classes, at most {MOST} can be"
        )
    coded = {}
    for name, column in found.items():
        at_ = np.minimum(np.searchsorted(values, column), max(len(values) - 1, 0))
        known = values[at_] == column if len(values) else np.zeros(len(column), dtype=np.bool_)
        coded[name] = np.where(known, at_.astype(np.float64), np.nan)
    return coded, "classes", len(values)


def _unusable(
    inputs: Tables, truth: dict[str, Floats], names: tuple[str, str, str], task: str
) -> str:
    """Why nothing can be measured; empty where it can."""
    if not inputs.names:
        return "no column but the label"
    for name in names[:2]:
        if len(truth[name]) < LEAST:
            return f"{name}: {len(truth[name])} records with a label; needs {LEAST} or more"
    if len(truth[names[2]]) < 2 or len(np.unique(truth[names[2]])) < 2:
        return f"{names[2]}: the label has one value"
    if len(np.unique(truth[names[0]])) < 2:
        return f"{names[0]}: the label has one value"
    return ""


def _predict(
    features: Features, matrix: Floats, truth: Floats, tested: Floats, classes: int, seed: int
) -> Floats:
    """What a model trained on ``matrix`` says: (tested, classes) probabilities, or (tested, 1)."""
    if not classes:
        model = features.fit(matrix, truth, "number", seed)
        number: Floats = model.predict(tested)[:, None]
        return number
    said = np.zeros((len(tested), classes))
    learned = np.unique(truth).astype(np.int64)
    if len(learned) > 1:  # else it always says the same
        model = features.fit(matrix, truth, "classes", seed)
        said[:, learned] = model.predict_proba(tested)
    return said


def _aucs(
    predicted: list[Floats], truth: Floats, rng: np.random.Generator, replicates: int = REPLICATES
) -> tuple[Floats, Floats]:
    """Both models' macro AUC (2,), and on replicates that keep the classes' sizes (B, 2)."""
    present = np.unique(truth).astype(np.int64)
    judged = present if len(present) > 2 else present[1:]  # of two, each mirrors the other
    rows = [np.flatnonzero(truth == c) for c in present]
    places = [[np.unique(said[:, c], return_inverse=True)[1] for c in judged] for said in predicted]

    def both(weights: Floats) -> Floats:
        return np.array(
            [
                np.mean(
                    [
                        _weighted_auc(at, truth == c, weights)
                        for at, c in zip(p, judged, strict=True)
                    ]
                )
                for p in places
            ]
        )

    draws = []
    for _ in range(replicates):
        weights = np.zeros(len(truth))
        for of_class in rows:
            drawn = rng.integers(0, len(of_class), len(of_class))
            weights[of_class] = np.bincount(drawn, minlength=len(of_class))
        draws.append(both(weights))
    return both(np.ones(len(truth))), np.array(draws)


def _weighted_auc(places: NDArray[np.int64], positive: NDArray[np.bool_], weights: Floats) -> float:
    """AUC of weighted records; ``places`` are the ranks of their scores, equal for ties."""
    above = np.bincount(places, weights * positive)
    below = np.bincount(places, weights * ~positive)
    return float(above @ (np.cumsum(below) - below / 2) / (above.sum() * below.sum()))


def _r2s(predicted: list[Floats], truth: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Both models' R² (2,), and on replicates of the test records (B, 2)."""
    errors = np.column_stack([(said[:, 0] - truth) ** 2 for said in predicted])

    def both(rows: NDArray[np.int64]) -> Floats:
        spread = ((truth[rows] - truth[rows].mean()) ** 2).sum()
        r2: Floats = 1 - errors[rows].sum(axis=0) / spread if spread else np.zeros(2)
        return r2

    n = len(truth)
    draws = [both(rng.integers(0, n, n)) for _ in range(REPLICATES)]
    return both(np.arange(n)), np.array(draws)


def _figures(
    kind: str, values: Floats, draws: Floats, width: float, confidence: float, n: int
) -> tuple[Metric, ...]:
    tail = (1 - confidence) / 2

    def figure(value: float, drawn: Floats, width: float, least: float, most: float) -> Interval:
        ends = np.quantile(drawn, [tail, 1 - tail])
        if ends[0] == ends[1]:  # perfect or constant: resamples cannot show what is uncertain
            ends = value + np.array([-width, width])
        ends = np.clip(ends, least, most)
        method = "paired bootstrap"
        return Interval(
            min(float(ends[0]), value), value, max(float(ends[1]), value), confidence, method, n
        )

    lowest = 0.0 if kind == "auc" else -np.inf
    real, synthetic = (figure(float(values[k]), draws[:, k], width, lowest, 1.0) for k in (0, 1))
    loss = figure(
        float(values[0] - values[1]),
        draws[:, 0] - draws[:, 1],
        np.sqrt(2) * width,
        *((-1.0, 1.0) if kind == "auc" else (-np.inf, np.inf)),
    )
    chance = 0.5 if kind == "auc" else 0.0
    told = Metric(f"{kind}_loss", loss)
    if real.low <= chance:
        reason = "real records teach no more than chance here, so there is nothing to lose"
        told = Metric(f"{kind}_loss", unmeasured=reason)
    return Metric(f"{kind}_real", real), Metric(f"{kind}_synthetic", synthetic), told


def _width_of_one(truth: Floats, confidence: float) -> float:
    """How far an AUC of 1 may be from the truth, for the rarest class against the rest."""
    rarest = int(np.unique(truth, return_counts=True)[1].min())
    return 1 - auc(np.ones(rarest), np.zeros(len(truth) - rarest), confidence).low
