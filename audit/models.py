"""From a target as AUDIT.yaml names it to what an attack can ask, and how to train its like.

Nothing of a stranger's is unpickled here: weights come as safetensors, estimators through skops
with the types that the auditor vouched for. A ``module:function`` is the auditor's own code.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attacks.records import Records
from attacks.shadows.fleet import FitMany
from attacks.targets import Target, from_torch, from_transformers
from audit import config
from audit.record_files import digest
from audit.yaml_file import InputError
from reports.record import AccessLevel, Input

if TYPE_CHECKING:
    from attacks.shadows.torch_fleet import TorchTraining
    from trainers.classifier import ClassifierConfig

OUR_FACTORY = "trainers.networks:build"
MOST_CLASSES = 10**6  # beyond it model.json is no description, and would only fill memory

Fit = Callable[[Any, Any, int], Target]


@dataclass(frozen=True)
class Model:
    """A target to attack; ``fit`` trains one more like it (None: nobody said how).

    ``fit_many``, where there is one, trains a whole fleet by the same recipe at once. ``recipe``
    says all that decides what ``fit`` does: answers of shadow models are reused under it alone.
    """

    target: Target
    fit: Fit | None
    description: str
    inputs: tuple[Input, ...] = ()
    fit_many: FitMany | None = None
    recipe: str = ""


def classes_of(spec: config.Target) -> Any:
    """The labels that the target's outputs stand for; None where those that occur must serve."""
    if isinstance(spec, config.TrainedTarget):
        return np.arange(_description(spec.folder)["arguments"]["classes"])
    return None


def load_model(
    spec: config.Target, members: Records, names: tuple[str, ...], classes: Any, seed: int
) -> Model:
    """The model that AUDIT.yaml names.

    ``members`` train a recipe; ``names`` are the feature columns, for estimators that want a frame;
    ``classes`` are the labels that occur.

    Raises:
        InputError: names the file or the field that cannot be used.
    """
    try:
        match spec:
            case config.SklearnTarget():
                return _load_sklearn(spec, names)
            case config.RecipeTarget():
                return _train_recipe(spec, members, seed)
            case config.TorchTarget():
                return _load_torch(spec, classes)
            case config.TrainedTarget():
                return _load_trained(spec, classes)
            case config.TransformersTarget():
                target = from_transformers(spec.folder, spec.access)
                inputs = (digest(spec.folder, "model"),)
                return Model(target, None, f"transformers model {spec.folder.name}", inputs)
            case config.ScoresTarget():
                raise InputError("target: a scores file has no model behind it")
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"target: needs {error.name}: pip install 'dpassay[lm]'") from None
    except (ValueError, TypeError, OSError) as error:
        raise InputError(f"target ({spec.kind}): {error}") from None


def builtin_control(members: Records, seed: int) -> Model:
    """A model that is known to leak: a forest of fully grown trees, each fitted to all members."""
    if members.features.dtype.kind not in "biuf":
        raise InputError(
            "positive_control: builtin needs numeric features; name a leaky model of the target's "
            "kind, or none"
        )
    spec = config.RecipeTarget(
        kind="recipe", recipe="random_forest", arguments={"bootstrap": False, "max_features": 0.3}
    )
    try:
        return _train_recipe(spec, members, seed)
    except ValueError as error:  # labels that are fractions
        raise InputError(
            f"positive_control: builtin cannot be trained on these records: {error}; write "
            "positive_control: none, or the labels as whole numbers or words"
        ) from None


def _train_recipe(spec: config.RecipeTarget, members: Records, seed: int) -> Model:
    def fit(features: Any, labels: Any, seed: int) -> Target:
        estimator = _recipe(spec, seed).fit(_flat(features), labels)
        return _estimator_target(estimator, spec.access)

    name = type(_recipe(spec, seed)).__name__
    target = fit(members.features, members.labels, seed)
    description = f"scikit-learn {name}, trained on the members by this audit"
    return Model(target, fit, description, recipe=recipe_text(spec.model_dump(mode="json")))


def _recipe(spec: config.RecipeTarget, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    arguments = spec.arguments
    match spec.recipe:
        case "random_forest":
            return RandomForestClassifier(random_state=seed, **arguments)
        case "gradient_boosting":
            return HistGradientBoostingClassifier(random_state=seed, **arguments)
        case "nearest_neighbour":
            return KNeighborsClassifier(**{"n_neighbors": 1, **arguments})
        case "logistic_regression":
            model = LogisticRegression(**{"max_iter": 1000, **arguments})
        case "mlp":
            model = MLPClassifier(random_state=seed, **{"max_iter": 500, **arguments})
    return make_pipeline(StandardScaler(), model)


def _load_sklearn(spec: config.SklearnTarget, names: tuple[str, ...]) -> Model:
    import skops.io
    from sklearn.base import clone

    try:
        unknown = skops.io.get_untrusted_types(file=spec.model)
        if strange := sorted(set(unknown) - set(spec.trusted)):
            raise InputError(
                f"{spec.model}: holds types nobody vouched for: {', '.join(strange)}; list under "
                "target.trusted those whose code you trust"
            )
        estimator = skops.io.load(spec.model, trusted=list(spec.trusted))
    except InputError:
        raise
    except Exception as error:
        # skops raises what the zip, JSON and numpy readers below it raise: no common base
        raise InputError(
            f"{spec.model}: not a skops file ({type(error).__name__}: {error}); a pickle or joblib "
            "file is refused, save the estimator with skops.io.dump"
        ) from None
    if not hasattr(estimator, "classes_"):
        raise InputError(f"{spec.model}: {type(estimator).__name__} is not a fitted classifier")

    def fit(features: Any, labels: Any, seed: int) -> Target:
        fresh = clone(estimator)
        seeds = {k: seed for k in fresh.get_params() if k.split("__")[-1] == "random_state"}
        try:
            fresh.set_params(**seeds).fit(_for(estimator, features, names), labels)
        except Exception as error:  # the code of a type that the auditor vouched for
            raise InputError(f"{spec.model}: {_raised('fit', error)}") from error
        return _estimator_target(fresh, spec.access, names)

    target = _estimator_target(estimator, spec.access, names)
    description = f"scikit-learn {type(estimator).__name__} from {spec.model.name}"
    read = digest(spec.model, "model")
    recipe = recipe_text([read.sha256, spec.access, names, _kinds(estimator)])
    return Model(target, fit, description, (read,), recipe=recipe)


def _estimator_target(estimator: Any, access: AccessLevel, names: tuple[str, ...] = ()) -> Target:
    gives = "scores" if hasattr(estimator, "predict_proba") else "label"
    ask = estimator.predict_proba if gives == "scores" else estimator.predict
    return Target(
        lambda rows: ask(_for(estimator, rows, names)),
        gives="scores" if gives == "scores" else "label",
        access=access,
        classes=estimator.classes_,
    )


def _for(estimator: Any, rows: Any, names: tuple[str, ...]) -> Any:
    """The records as this estimator was fitted: a frame where it knows column names."""
    if names and (rows.dtype == object or hasattr(estimator, "feature_names_in_")):
        import pandas as pd

        return pd.DataFrame(rows, columns=list(names)).infer_objects()
    return _flat(rows)


def _flat(features: Any) -> Any:
    return features.reshape(len(features), -1)


def _load_torch(spec: config.TorchTarget, classes: Any) -> Model:
    build = import_function(spec.factory, "target.factory", spec.weights.parent)
    module = _module(build, f"target.factory: {spec.factory}", **spec.arguments)
    load_weights(module, spec.weights)
    fit, recipe = None, ""
    if spec.training is not None:
        train = import_function(
            spec.training.function, "target.training.function", spec.weights.parent
        )
        arguments, name = spec.training.arguments, spec.training.function
        recipe = recipe_text(
            [
                spec.training.model_dump(),
                spec.access,
                code_of([(name, train), (spec.factory, build)], spec.weights.parent),
            ]
        )

        def fit(features: Any, labels: Any, seed: int) -> Target:
            what = f"target.training.function: {name}"
            module = _module(train, what, features, labels, seed, **arguments)
            return from_torch(module, spec.access, classes)

    description = f"torch module {spec.factory} from {spec.weights.name}"
    inputs = (digest(spec.weights, "weights"),)
    return Model(from_torch(module, spec.access, classes), fit, description, inputs, recipe=recipe)


def _load_trained(spec: config.TrainedTarget, classes: Any) -> Model:
    """A folder of `dpassay train`: the architecture is data for our own factory, never a call."""
    from pydantic import TypeAdapter

    from trainers.classifier import ClassifierConfig, fit_classifier
    from trainers.networks import build

    description = _description(spec.folder)
    training = TypeAdapter(ClassifierConfig).validate_python(description["training"])
    arguments = description["arguments"]
    module = build(**arguments)
    load_weights(module, spec.folder / "model.safetensors")

    def fit(features: Any, labels: Any, seed: int) -> Target:
        return from_torch(fit_classifier(training, features, labels, seed), spec.access, classes)

    privacy = "with DP-SGD" if training.privacy else "without DP"
    files = ("model.safetensors", "model.json")
    return Model(
        from_torch(module, spec.access, classes),
        fit,
        f"{training.architecture} trained {privacy}, from {spec.folder.name}",
        tuple(digest(spec.folder / name, "model") for name in files),
        stacked(training, arguments, spec.access) if training.architecture == "mlp" else None,
        recipe_text([description["training"], arguments, spec.access]),
    )


def _module(function: Callable[..., Any], what: str, *arguments: Any, **options: Any) -> Any:
    """The module that the auditor's own function returns; ``what`` names the function.

    Raises:
        InputError: if it raises anything, or returns something else.
    """
    from torch.nn import Module

    try:
        found = function(*arguments, **options)
    except (Exception, SystemExit) as error:  # it must not end the audit with a code of its own
        raise InputError(_raised(what, error)) from error
    if not isinstance(found, Module):
        raise InputError(f"{what}: returned {type(found).__name__}, not a torch module")
    return found


def _raised(what: str, error: BaseException) -> str:
    reason = str(error).strip().splitlines()[:1]
    return ": ".join([f"{what}: raised {type(error).__name__}", *reason])


def recipe_text(parts: Any) -> str:
    """All of it, with the versions of what trains; another version may train otherwise."""
    packages = ("dpassay", "numpy", "opacus", "scikit-learn", "torch")
    versions = {name: metadata.version(name) for name in packages}
    return json.dumps([parts, versions], sort_keys=True, default=str)


def _kinds(estimator: Any) -> dict[str, str]:
    """The packages that an estimator and its parts come from: their versions, or their code."""
    parts = [estimator, *getattr(estimator, "get_params", dict)().values()]
    names = {getattr(part, "__module__", None) or "builtins" for part in parts}
    found = {}
    for name in sorted({name.partition(".")[0] for name in names} - {"builtins"}):
        package = sys.modules.get(name)
        version = getattr(package, "__version__", None)
        found[name] = str(version) if version else _file_digest(package)
    return found


def code_of(functions: list[tuple[str, Callable[..., Any]]], folder: Path) -> dict[str, str]:
    """The SHA-256 of the modules of these functions, and of all loaded ones of their project.

    Those are the modules beside or below theirs or ``folder``, without installed packages.
    """
    own = {name.partition(":")[0] for name, _ in functions}
    own |= {getattr(function, "__module__", None) or "" for _, function in functions}
    files = {
        name: Path(file).resolve()
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
    }
    places = {folder.resolve()} | {files[name].parent for name in own & set(files)}
    libraries = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = {Path(sysconfig.get_path(key)).resolve() for key in libraries}

    def within(file: Path, place: Path) -> bool:
        """Below the place, and not in a library that lies there (a .venv, site-packages)."""
        return file.is_relative_to(place) and not any(
            root.is_relative_to(place) and file.is_relative_to(root) for root in installed
        )

    return {
        name: _file_digest(sys.modules[name])
        for name, file in sorted(files.items())
        if name in own or any(within(file, place) for place in places)
    }


def _file_digest(module: Any) -> str:
    path = Path(getattr(module, "__file__", None) or "")
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def stacked(
    training: ClassifierConfig, arguments: dict[str, Any], access: AccessLevel
) -> TorchTraining:
    """The recipe of `dpassay train` for many models, trained at once.

    The noise is what the recipe takes on as many records as a model has. With the same seed a
    model without DP is that of ``fit_classifier``, to rounding.
    """
    from attacks.shadows.torch_fleet import PrivateTraining, TorchTraining
    from trainers.classifier import noise_multiplier
    from trainers.networks import build

    private = None
    if training.privacy is not None:
        of_records = partial(noise_multiplier, training)
        private = PrivateTraining(of_records, training.privacy.clipping_norm)
    return TorchTraining(
        build=lambda: build(**arguments),
        classes=np.arange(training.classes),
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        optimiser=training.optimizer,
        momentum=0.9,
        weight_decay=training.weight_decay,
        private=private,
        access=access,
    )


def _description(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        found = {key: description[key] for key in ("factory", "arguments", "training")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: cannot be used ({error!r}); `dpassay train` writes it, or name a torch target"
        ) from None
    arguments = found["arguments"]
    classes = arguments.get("classes") if isinstance(arguments, dict) else None
    if type(classes) is not int or not 2 <= classes <= MOST_CLASSES:
        raise InputError(
            f"{path}: arguments: classes: {classes!r} is no number from 2 to {MOST_CLASSES:,}"
        )
    if found["factory"] != OUR_FACTORY:
        raise InputError(
            f"{path}: factory {found['factory']!r} is not {OUR_FACTORY}; name a torch target"
        )
    return found


def load_weights(module: Any, path: Path) -> None:
    """Load safetensors weights into a module; a pickle by any name is refused.

    Raises:
        InputError: if the file is not safetensors, or its tensors are not the module's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        with path.open("rb") as file:
            head = file.read(4)
        pickled = head[:2] == b"PK" or head[:1] == b"\x80"
        what = "a pickle (torch.save), which can run code when loaded" if pickled else str(error)
        raise InputError(
            f"{path}: not safetensors: {what}; save with safetensors.torch.save_file"
        ) from None
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: does not fit the module of target.factory: {reason}") from None


def import_function(name: str, field: str, folder: Path) -> Callable[..., Any]:
    """The function named ``module:function``, looked for on the path and then in ``folder``.

    Raises:
        InputError: if there is no such module or function.
    """
    module_name, _, function = name.partition(":")
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)  # last, so that nothing there shadows an installed module
    try:
        found = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{field}: {name}: {error}") from None
    except (Exception, SystemExit) as error:  # importing runs the module
        raise InputError(_raised(f"{field}: {name}", error)) from error
    if not callable(found):
        raise InputError(f"{field}: {name} is not a function")
    result: Callable[..., Any] = found
    return result
