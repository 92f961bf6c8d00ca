"""Recipes have a name of their own for all that decides them, and the user's code fails by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attacks.records import Records
from audit.config import SklearnTarget, TorchTarget, TrainedTarget
from audit.models import Model, _kinds, builtin_control, load_model
from audit.yaml_file import InputError
from trainers.classifier import ClassifierConfig, train

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), np.arange(40) % 2
MEMBERS = Records(X, Y)
CODE = """
import torch
from {helper} import width

def build(): return torch.nn.Linear(3, width())
def train(features, labels, seed): return build()
def boom(features, labels, seed): raise RuntimeError("boom\\nsecond line")
def leave(features, labels, seed): raise SystemExit(0)
def none(features, labels, seed): return None
def boom_build(): raise KeyError("layers")
"""

Torch = Callable[..., Model]


@pytest.fixture
def torch_target(tmp_path: Path, request: pytest.FixtureRequest) -> Torch:
    """Load a torch target of user code; a fresh interpreter is played by forgetting its modules."""
    name = "".join(c for c in request.node.name if c.isalnum())
    helper = f"{name}_helper"
    save_file(torch.nn.Linear(3, 2).state_dict(), tmp_path / "w.safetensors")
    (tmp_path / f"{name}.py").write_text(CODE.format(helper=helper))

    def load(training: str = "train", build: str = "build", width: str = "2") -> Model:
        (tmp_path / f"{helper}.py").write_text(f"def width(): return {width}\n")
        for module in (name, helper):
            sys.modules.pop(module, None)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            spec = TorchTarget(
                kind="torch",
                weights=tmp_path / "w.safetensors",
                factory=f"{name}:{build}",
                training={"function": f"{name}:{training}"},  # type: ignore[arg-type]
            )
            return load_model(spec, MEMBERS, (), np.array([0, 1]), 0)
        finally:
            sys.dont_write_bytecode = before

    return load


def test_code_that_the_training_function_imports_is_part_of_the_recipe(torch_target: Torch) -> None:
    """A change to the network's own module took the old network's answers for the new one's."""
    first = torch_target()
    assert torch_target().recipe == first.recipe
    assert torch_target(width="1 + 1").recipe != first.recipe
    assert torch_target(training="boom").recipe != first.recipe
    assert "site-packages" not in first.recipe
    assert len(first.recipe) < 3000  # the user's modules, not torch's


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ("boom", r"target.training.function: \w+:boom: raised RuntimeError: boom$"),
        ("leave", r"target.training.function: \w+:leave: raised SystemExit: 0$"),
        ("none", r"\w+:none: returned NoneType, not a torch module$"),
    ],
)
def test_a_training_function_that_fails_is_named(
    torch_target: Torch, training: str, said: str
) -> None:
    fit = torch_target(training=training).fit
    assert fit is not None
    with pytest.raises(InputError, match=said):
        fit(X, Y, 0)


def test_a_factory_that_fails_is_named(torch_target: Torch) -> None:
    with pytest.raises(InputError, match=r"target.factory: \w+:boom_build: raised KeyError: 'lay"):
        torch_target(build="boom_build")
    with pytest.raises(InputError, match=r"target.factory: \w+:build: raised ZeroDivisionError"):
        torch_target(width="1 / 0")


def test_an_estimators_packages_are_part_of_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaf.py").write_text("class Leaf:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import leaf  # type: ignore[import-not-found]

    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    assert set(_kinds(pipe)) == {"sklearn"}
    nested = make_pipeline(leaf.Leaf(), pipe)
    first = _kinds(nested)
    assert set(first) == {"leaf", "sklearn"}
    (tmp_path / "leaf.py").write_text("class Leaf:\n    depth = 3\n")
    assert _kinds(nested) != first
    leaf.__version__ = "4.1"
    assert _kinds(nested)["leaf"] == "4.1"

    model = tmp_path / "m.skops"
    skops.io.dump(pipe.fit(X, Y), model)
    recipe = load_model(SklearnTarget(kind="sklearn", model=model), MEMBERS, (), None, 0).recipe
    for package in ("numpy", "opacus", "scikit-learn", "torch", "dpassay", "sklearn"):
        assert f'"{package}": "' in recipe


def test_an_estimator_that_cannot_be_trained_again_is_named(tmp_path: Path) -> None:
    model = tmp_path / "m.skops"
    skops.io.dump(LogisticRegression().fit(X, Y), model)
    fit = load_model(SklearnTarget(kind="sklearn", model=model), MEMBERS, (), None, 0).fit
    assert fit is not None
    with pytest.raises(InputError, match=r"m\.skops: fit: raised ValueError: This solver needs"):
        fit(X, np.zeros(40, int), 0)


def test_a_builtin_control_needs_classes() -> None:
    with pytest.raises(InputError, match="positive_control: none, or the labels as whole numbers"):
        builtin_control(Records(X, Y + 0.5), 0)
    assert builtin_control(Records(X, Y.astype(float)), 0).fit is not None


@pytest.mark.parametrize("features", [X > 0, (X * 9).astype(int), X[:, :2], X.astype(object)])
def test_a_trained_target_takes_numbers_of_any_type_and_names_what_it_cannot(
    tmp_path: Path, features: Any
) -> None:
    train(ClassifierConfig(classes=2, epochs=1), np.tile(X, (2, 1)), np.tile(Y, 2), tmp_path / "t")
    spec = TrainedTarget(kind="trained", folder=tmp_path / "t")
    model = load_model(spec, MEMBERS, (), np.array([0, 1]), 0)
    if features.dtype.kind in "bi":
        assert np.isfinite(model.target.logits(features)).all()
        return
    with pytest.raises(ValueError, match="target: cannot answer about these records: "):
        model.target.logits(features)
    assert model.fit_many is not None
    with pytest.raises(ValueError, match=r"these records: mat1|encode words beforehand"):
        next(model.fit_many(features, Y, np.ones((2, 40), bool), [0, 1]))
