"""Fleets resume, are shared, and never take another configuration's answers for their own."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from attacks.membership.signals import CONFIDENCE
from attacks.records import Pool, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import from_callable, from_sklearn

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(31, 3)), RNG.integers(0, 2, 31)
POOL = Pool(X, Y, np.array([0, 1]))
EXTRA = Records(RNG.normal(size=(20, 3)), np.arange(20) % 2)


class Fit:
    """Counts its trainings, and may be interrupted."""

    def __init__(self, strength=1.0, stop_at=None):
        self.strength, self.stop_at, self.trained = strength, stop_at, 0

    def __call__(self, X, y, seed):
        if self.trained == self.stop_at:
            raise KeyboardInterrupt
        self.trained += 1
        return from_sklearn(LogisticRegression(C=self.strength).fit(X, y))


def test_answers_are_those_of_models_trained_on_the_plan():
    seen = Shadows(Fit(), 4, seed=3).observations(POOL)
    model = LogisticRegression().fit(X[seen.inside[2]], Y[seen.inside[2]])
    p = model.predict_proba(X)[np.arange(31), Y]
    assert np.allclose(seen.values[2, :, CONFIDENCE], np.log(p / (1 - p)), atol=1e-5)


def test_models_are_trained_once_for_all_attacks_and_counted():
    fit, calls = Fit(), []
    shadows = Shadows(fit, 6)
    shadows.observations(POOL, lambda done, total: calls.append((done, total)))
    shadows.observations(POOL)
    assert fit.trained == 6
    assert calls == [(k, 6) for k in range(7)]


def test_an_interrupted_fleet_resumes(tmp_path):
    broken = Fit(stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        Shadows(broken, 6, folder=tmp_path, recipe="lr").observations(POOL)
    fit = Fit()
    seen = Shadows(fit, 6, folder=tmp_path, recipe="lr").observations(POOL)
    assert fit.trained == 3
    assert np.array_equal(seen.values, Shadows(Fit(), 6).observations(POOL).values)


@pytest.mark.parametrize("change", ["recipe", "seed", "data", "label", "models", "auxiliary"])
def test_answers_of_another_configuration_are_not_reused(tmp_path, change):
    """A peer took stale shadow models from its output folder: AUC 0.84 for 0.90."""
    Shadows(Fit(), 4, folder=tmp_path, recipe="lr C=1").observations(POOL)
    fit, pool, options = Fit(0.01), POOL, {"models": 4, "recipe": "lr C=1"}
    match change:
        case "recipe":
            options["recipe"] = "lr C=0.01"
        case "seed":
            options["seed"] = 1
        case "data":
            pool = Pool(X + 1e-9, Y, POOL.classes)
        case "label":
            pool = Pool(X, 1 - Y, POOL.classes)
        case "models":
            options["models"] = 6
        case "auxiliary":
            pool = Pool(X, Y, POOL.classes, None, EXTRA)
    Shadows(fit, folder=tmp_path, **options).observations(pool)
    assert fit.trained == options["models"]


def test_equal_values_in_another_shape_or_type_are_other_records(tmp_path):
    """A model may take them otherwise: an image is no row, a whole number is looked up."""
    trained = []

    def fit(features, labels, seed):
        trained.append(seed)
        model = LogisticRegression().fit(features.reshape(len(features), -1), labels)
        return from_callable(
            lambda rows: model.predict_proba(rows.reshape(len(rows), -1)), model.classes_, "scores"
        )

    whole = RNG.integers(0, 9, size=(31, 4))
    for X, y in (
        (whole, Y),
        (whole.reshape(31, 2, 2), Y),
        (whole.astype(np.float64), Y),
        (whole.astype(np.float32), Y),
        (whole, Y.astype(np.float64)),
    ):
        before = len(trained)
        for _ in range(2):
            pool = Pool(X, y, np.array([0, 1]))
            Shadows(fit, 4, folder=tmp_path, recipe="lr").observations(pool)
        assert len(trained) == before + 4


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (lambda path: path.write_bytes(b""), 4),
        (lambda path: path.write_bytes(b"garbage" * 100), 4),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), 1),
        (lambda path: np.save(path, np.load(path).astype(np.float64)), 4),
        (lambda path: np.save(path, np.load(path)[:, :5]), 4),
        (lambda path: path.unlink(), 4),
        (lambda path: mark(path).write_bytes(b"\xff\xfe"), 1),
    ],
    ids=["empty", "garbage", "truncated", "wrong type", "wrong shape", "gone", "mark not UTF-8"],
)
def test_answers_of_a_damaged_store_are_missing(tmp_path, damage, again):
    whole = Shadows(Fit(), 4, folder=tmp_path, recipe="lr").observations(POOL).values.copy()
    (path,) = tmp_path.glob("answers-*.npy")
    damage(path)
    fit = Fit()
    seen = Shadows(fit, 4, folder=tmp_path, recipe="lr").observations(POOL)
    assert 1 <= fit.trained <= again
    assert np.array_equal(seen.values, whole)


def mark(path):
    return path.with_name(path.name.replace(".npy", ".0001.done"))


def test_a_store_that_cannot_be_opened_is_named(tmp_path):
    Shadows(Fit(), 4, folder=tmp_path, recipe="lr").observations(POOL)
    (path,) = tmp_path.glob("answers-*.npy")
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=r"answers-.*npy: cannot be used .*; delete it"):
        Shadows(Fit(), 4, folder=tmp_path, recipe="lr").observations(POOL)


def test_torn_answers_are_trained_again(tmp_path):
    Shadows(Fit(), 4, folder=tmp_path, recipe="lr").observations(POOL)
    (path,) = tmp_path.glob("answers-*.npy")
    matrix = np.lib.format.open_memmap(path, "r+")
    whole = matrix.copy()
    matrix[2, 5:] = 0
    matrix.flush()
    fit = Fit()
    seen = Shadows(fit, 4, folder=tmp_path, recipe="lr").observations(POOL)
    assert fit.trained == 1
    assert np.array_equal(seen.values, whole)


def test_processes_give_the_same_answers(tmp_path):
    alone = Shadows(Fit(), 4).observations(POOL)
    together = Shadows(Fit(), 4, workers=2, folder=tmp_path, recipe="lr").observations(POOL)
    assert np.array_equal(alone.values, together.values)


def test_auxiliary_records_keep_the_audited_out_of_every_model():
    seen = Shadows(Fit(), 4).observations(Pool(X, Y, POOL.classes, None, EXTRA))
    assert not seen.inside[:, seen.judged].any()
    assert (seen.inside[:, seen.learned].sum(axis=0) == 2).all()
    assert seen.values[:, seen.judged].shape[1] == 31


def test_a_folder_needs_a_recipe_and_errors_name_the_model(tmp_path):
    with pytest.raises(ValueError, match="recipe: missing"):
        Shadows(Fit(), 4, folder=tmp_path)

    def bad(X, y, seed):
        raise ValueError("no convergence")

    with pytest.raises(ValueError, match="shadow model 0: no convergence"):
        Shadows(bad, 4).observations(POOL)
