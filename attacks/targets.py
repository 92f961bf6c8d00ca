"""What an attack may ask of a model, by access level, and the adapters that models enter through.

The levels are ordered: label < scores < logits < gradients. A target answers up to its own level
and refuses above it, so that an attack cannot use more than the audit says it used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

if TYPE_CHECKING:
    import torch

AccessLevel = Literal["none", "label", "scores", "logits", "gradients", "samples"]
Array = NDArray[Any]
Floats = NDArray[np.float64]
GradientNorms = Callable[[Array, NDArray[np.int64]], Floats]

LADDER: tuple[AccessLevel, ...] = ("none", "label", "scores", "logits", "gradients")


class AccessDenied(ValueError):
    """The attack asked for more than the target's access level gives."""


def allows(granted: AccessLevel, needed: AccessLevel) -> bool:
    """Whether a target at level ``granted`` answers a question of level ``needed``."""
    if granted not in LADDER or needed not in LADDER:  # a generator's samples: no ladder
        return granted == needed
    return LADDER.index(granted) >= LADDER.index(needed)


class Target:
    """A classifier behind an access level; it counts the records it was asked about.

    Args:
        answer: records (n, ...) to labels (n,), probabilities (n, C) or logits (n, C).
        gives: which of the three ``answer`` returns.
        access: the level that the attacker is granted.
        classes: the C class labels, in the order of the answer's columns.
        gradient_norms: records and class positions (n,) to the L2 norm (n,) of each record's own
            loss gradient; needed for access ``gradients``.

    Raises:
        ValueError: if classes repeat or are fewer than two, or the access level asks for more than
            ``answer`` gives.
    """

    def __init__(
        self,
        answer: Callable[[Array], ArrayLike],
        *,
        gives: Literal["label", "scores", "logits"],
        access: AccessLevel,
        classes: Sequence[Any] | Array,
        gradient_norms: GradientNorms | None = None,
    ) -> None:
        self.classes: Array = np.asarray(classes)
        self.access: AccessLevel = access
        self.queries = 0
        self._answer, self._gives, self._gradient_norms = answer, gives, gradient_norms
        if self.classes.ndim != 1 or len(np.unique(self.classes)) != len(self.classes):
            raise ValueError("classes: must be a list without repeats")
        if len(self.classes) < 2:
            raise ValueError(f"classes: need at least two, got {len(self.classes)}")
        if access not in LADDER[1:]:
            raise ValueError(f"access: {access!r} is none of {', '.join(LADDER[1:])}")
        if access == "gradients" and gradient_norms is None:
            raise ValueError("access: this kind of target has no gradients; use scores or label")
        # gradients come beside an answer, and attacks take that for logits
        if not allows(gives, "logits" if access == "gradients" else access):
            raise ValueError(
                f"access: {access!r} asked of a target that gives {gives} at most; use {gives!r}"
            )

    def predict_labels(self, X: Array) -> Array:
        """The class label that the model gives to each record, (n,)."""
        answer = self._ask(X)
        if self._gives == "label":
            return answer
        labels: Array = self.classes[np.argmax(self._columns(answer), axis=1)]
        return labels

    def scores(self, X: Array) -> Floats:
        """The probabilities (n, C), columns in the order of ``classes``."""
        self._demand("scores")
        answer = self._columns(self._ask(X))
        if self._gives == "logits":
            return np.asarray(softmax(answer, axis=1), dtype=np.float64)
        if answer.min(initial=0.0) < 0 or np.abs(answer.sum(axis=1) - 1).max(initial=0.0) > 1e-3:
            raise ValueError("target: its scores are not probabilities that sum to 1 in each row")
        return answer

    def logits(self, X: Array) -> Floats:
        """The scores before the softmax (n, C)."""
        self._demand("logits")
        return self._columns(self._ask(X))

    def gradient_norms(self, X: Array, y: Array) -> Floats:
        """The L2 norm (n,) of the gradient of each record's cross-entropy, over all parameters."""
        self._demand("gradients")
        assert self._gradient_norms is not None
        self.queries += len(X)
        at = positions(y, self.classes)
        with one_line_error("target: cannot answer about these records"):
            return np.asarray(self._gradient_norms(X, at), dtype=np.float64)

    def _demand(self, level: AccessLevel) -> None:
        if not allows(self.access, level):
            raise AccessDenied(f"target: {level} asked for, access level is {self.access!r}")

    def _ask(self, X: Array) -> Array:
        self.queries += len(X)
        with one_line_error("target: cannot answer about these records"):
            answer = np.asarray(self._answer(X))
        if len(answer) != len(X):
            raise ValueError(f"target: asked about {len(X)} records, answered for {len(answer)}")
        return answer

    def _columns(self, answer: Array) -> Floats:
        if answer.shape != (len(answer), len(self.classes)):
            raise ValueError(
                f"target: answered with shape {answer.shape}, expected (n, {len(self.classes)})"
            )
        if bad := int((~np.isfinite(answer)).any(axis=1).sum()):
            raise ValueError(
                f"target: answered with NaN or infinite values for {bad} of {len(answer)} "
                "records; its weights or these records overflow, train again or scale the features"
            )
        return np.asarray(answer, dtype=np.float64)


@contextmanager
def one_line_error(what: str) -> Iterator[None]:
    """Make what a model raises about records that it cannot take a ValueError of one line."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, LookupError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{what}: {reason}") from error


def positions(labels: Array, classes: Array) -> NDArray[np.int64]:
    """Where each label (n,) stands in ``classes``; ValueError names a label that does not."""
    labels = np.asarray(labels)
    numbers = "biuf"
    if (labels.dtype.kind in numbers) != (classes.dtype.kind in numbers):
        raise ValueError(
            f"labels: {labels[:1].tolist()} and classes {classes[:1].tolist()} are of "
            "different types; write both as numbers or both as text"
        )
    order = np.argsort(classes, kind="stable")
    at = np.minimum(np.searchsorted(classes, labels, sorter=order), len(classes) - 1)
    found = order[at]
    if (strange := classes[found] != labels).any():
        label = labels[strange].tolist()[0]
        raise ValueError(f"labels: {label!r} is none of the classes {classes.tolist()}")
    return np.asarray(found, dtype=np.int64)


def from_callable(
    fn: Callable[[Array], ArrayLike],
    classes: Sequence[Any] | Array,
    access: AccessLevel,
    gives: Literal["label", "scores", "logits"] = "scores",
    gradient_norms: GradientNorms | None = None,
) -> Target:
    """A target from any function of records; ``gives`` says what the function returns.

    Access ``gradients`` needs logits and ``gradient_norms``, see ``Target``.
    """
    return Target(fn, gives=gives, access=access, classes=classes, gradient_norms=gradient_norms)


def from_sklearn(estimator: Any, access: AccessLevel = "scores") -> Target:
    """A target from a fitted scikit-learn classifier: labels, and scores by ``predict_proba``.

    Raises:
        ValueError: if the estimator is not fitted, or access asks for more than it has.
    """
    if not hasattr(estimator, "classes_"):
        raise ValueError("estimator: not a fitted classifier (it has no classes_); call fit first")
    if hasattr(estimator, "predict_proba"):
        return Target(
            estimator.predict_proba, gives="scores", access=access, classes=estimator.classes_
        )
    return Target(estimator.predict, gives="label", access=access, classes=estimator.classes_)


def from_torch(
    module: torch.nn.Module,
    access: AccessLevel,
    classes: int | Sequence[Any] | Array,
    device: str = "auto",
    batch_size: int = 1024,
) -> Target:
    """A target from a torch module that maps a batch (n, ...) to logits (n, C).

    The module is put into evaluation mode and moved to ``device`` (``auto``: CUDA where there is
    one). ``classes`` is the number of classes or their labels. Records come to it as
    ``torch_records`` says. Gradients are taken per record by ``torch.func``, in batches.
    """
    import torch
    from torch.func import functional_call, grad, vmap

    place = torch_device(device)
    module = module.to(place).eval()

    def load(X: Array) -> torch.Tensor:
        return torch_records(module, X, place)

    def answer(X: Array) -> Floats:
        with torch.inference_mode():
            parts = [
                module(load(X[rows])).double().cpu().numpy() for rows in _batches(X, batch_size)
            ]
        return np.concatenate(parts) if parts else np.empty((0, len(labels)))

    def record_loss(weights: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        out = functional_call(module, weights, (x[None],))
        return torch.nn.functional.cross_entropy(out, label[None])

    def gradient_norms(X: Array, y: NDArray[np.int64]) -> Floats:
        weights = {name: p.detach() for name, p in module.named_parameters()}
        per_record = vmap(grad(record_loss), in_dims=(None, 0, 0))
        norms = []
        for rows in _batches(X, min(batch_size, 256)):
            grads = per_record(weights, load(X[rows]), torch.as_tensor(y[rows], device=place))
            squares = [g.double().flatten(1).square().sum(1) for g in grads.values()]
            norms.append(torch.stack(squares).sum(0).sqrt().cpu().numpy())
        return np.concatenate(norms) if norms else np.empty(0)

    labels = np.arange(classes) if isinstance(classes, int) else np.asarray(classes)
    return Target(
        answer, gives="logits", access=access, classes=labels, gradient_norms=gradient_norms
    )


def from_transformers(
    folder: str | Path, access: AccessLevel, device: str = "auto", batch_size: int = 32
) -> Target:
    """A target from a transformers folder for sequence classification; records are strings (n,).

    Only local files and safetensors weights are read, and no code from the folder runs. Classes
    are the positions 0 to C-1 of the model's outputs.

    Raises:
        ValueError: if the folder is missing or holds no safetensors weights.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder; give a saved transformers model")
    if not any(path.glob("*.safetensors")):
        raise ValueError(f"{path}: no *.safetensors weights; save with safe_serialization=True")
    strict = {"local_files_only": True, "trust_remote_code": False}
    place = torch_device(device)
    tokenizer = AutoTokenizer.from_pretrained(path, **strict)
    model = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=True, **strict)
    model = model.to(place).eval()

    def answer(texts: Array) -> Floats:
        parts = []
        for rows in _batches(texts, batch_size):
            batch = tokenizer(
                [str(text) for text in texts[rows]],
                padding=True,
                truncation=True,
                return_tensors="pt",
            ).to(place)
            with torch.inference_mode():
                parts.append(model(**batch).logits.double().cpu().numpy())
        return np.concatenate(parts) if parts else np.empty((0, model.config.num_labels))

    return Target(answer, gives="logits", access=access, classes=np.arange(model.config.num_labels))


def torch_records(module: torch.nn.Module, X: Array, device: str) -> torch.Tensor:
    """A copy of the records (n, ...) in the type that the module takes.

    That is the type of its weights; whole numbers stay such for a module with an embedding, which
    looks them up.

    Raises:
        ValueError: if the records are not numbers.
    """
    import torch
    from torch.nn import Embedding, EmbeddingBag

    if X.dtype.kind not in "biuf":
        raise ValueError("a torch module takes numbers alone; encode words beforehand")
    if X.dtype.kind in "iu" and any(
        isinstance(part, Embedding | EmbeddingBag) for part in module.modules()
    ):
        return torch.from_numpy(np.array(X, dtype=np.int64, order="C")).to(device)
    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    double = kind is torch.float64
    with np.errstate(over="ignore"):  # infinite then, which the answer's check names
        values = np.array(X, dtype=np.float64 if double else np.float32, order="C")
    return torch.from_numpy(values).to(device, kind)


def torch_device(name: str) -> str:
    """The device that ``auto`` means here, or the one named."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _batches(X: Array, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, len(X), size))
