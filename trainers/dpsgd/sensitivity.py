"""Clipping by sensitivity class: a text's loss is split by class, each part clipped on its own.

``docs/sensitivity.md`` says what that guarantees, and under which conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

from trainers.dpsgd.class_guarantees import SensitivityClasses, Visibility
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.engine import ClippedSum


@dataclass(frozen=True)
class Template:
    """Which places of every text are of which class: public, and fixed before the data is seen.

    Each field has a fixed number of places; a shorter content leaves the rest of them empty. Where
    a field begins or ends therefore tells nothing of what stands in it, or in the one before.

    Attributes:
        classes: the classes.
        fields: for each field in its order, its class and how many places it has.

    Raises:
        ValueError: if a field has no place, its class is unknown, or a class has no field.
    """

    classes: SensitivityClasses
    fields: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name, places in self.fields:
            self.classes.index(name)
            if places < 1:
                raise ValueError(f"fields: one of class {name!r} has {places} places")
        terms = {max(pair) for pair in pairwise(self.places.tolist())}
        if idle := [n for k, n in enumerate(self.classes.names) if k not in terms]:
            raise ValueError(f"fields: no loss is of class {idle[0]!r}; its norm is wasted")

    @property
    def places(self) -> torch.Tensor:
        """(T,): the index of each place's class; a higher one is more sensitive."""
        return torch.tensor([self.classes.index(name) for name, n in self.fields for _ in range(n)])

    def check(self, ids: torch.Tensor, filled: torch.Tensor) -> None:
        """Refuse texts that are not of this layout.

        Raises:
            ValueError: unless both are (B, T).
        """
        length = len(self.places)
        if ids.dim() != 2 or ids.shape[1] != length or filled.shape != ids.shape:
            raise ValueError(
                f"ids: shape {tuple(ids.shape)}, filled {tuple(filled.shape)}, where the template "
                f"has {length} places; fill up each field to its own length"
            )


def attention_mask(
    template: Template, filled: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Who sees whom, for causal transformers models: (B, 1, T, T), to be added to the scores.

    A place sees itself, and earlier filled places of its own or a less sensitive class. So no
    place's state depends on a more sensitive class, whatever the number of layers.

    Args:
        template: the public layout.
        filled: (B, T), false where a field is shorter than its places.
        dtype: of the model's activations.
    """
    places = template.places.to(filled.device)
    allowed = (places[None, :] <= places[:, None]).tril() & filled[:, None, :].bool()
    allowed = allowed | torch.eye(len(places), dtype=torch.bool, device=filled.device)
    mask = torch.zeros(allowed.shape, dtype=dtype, device=filled.device)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)[:, None]


def split_losses(
    logits: torch.Tensor, ids: torch.Tensor, filled: torch.Tensor, template: Template
) -> torch.Tensor:
    """Each text's loss by class, (K, B); over classes they sum up to its loss.

    A term predicts a token from the place before. It belongs to the more sensitive class of the
    two and counts only if both are filled: a class that is left empty has loss 0. Terms are summed
    and divided by T − 1, which is public; a count of filled places would tie the classes together.

    Args:
        logits: (B, T, V).
        ids: (B, T).
        filled: (B, T), false where there is no token.
        template: the public layout.

    Raises:
        ValueError: if the texts are not of the template's layout.
    """
    template.check(ids, filled)
    places = template.places.to(ids.device)
    terms = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    terms = terms.masked_fill(~(filled[:, 1:] & filled[:, :-1]).bool(), 0.0)
    own = torch.maximum(places[1:], places[:-1])
    return torch.stack(
        [terms[:, own == k].sum(1) / len(own) for k in range(len(template.classes.names))]
    )


def class_losses(
    model: Any, ids: torch.Tensor, filled: torch.Tensor, template: Template
) -> torch.Tensor:
    """Each text's loss by class, (K, B), from a causal transformers model under the mask.

    Raises:
        ValueError: if the texts are not of the template's layout.
    """
    template.check(ids, filled)
    mask = attention_mask(template, filled, model.dtype)
    return split_losses(model(input_ids=ids, attention_mask=mask).logits, ids, filled, template)


def add_by_class(
    engine: ClippedSum, classes: SensitivityClasses, losses: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Add a micro-batch, each class' part clipped to its own norm; returns the norms (K, B).

    ``engine.unusable`` counts parts, ``engine.records`` records.

    Args:
        engine: made with ``Flat(classes.sensitivity)``, so that its noise fits.
        classes: the classes.
        losses: calls the model and returns each record's loss by class, (K, B). Called once for
            each class.

    Raises:
        ValueError: if the engine's sensitivity is not ΣC.
        Unsupported: as ``ClippedSum.add``.
    """
    whole = engine.clipping
    if whole.sensitivity != classes.sensitivity:
        raise ValueError(
            f"engine: its sensitivity is {whole.sensitivity}; make it with "
            f"Flat(classes.sensitivity), {classes.sensitivity}"
        )
    before, norms = engine.records, []
    try:
        for k, clipping_norm in enumerate(classes.clipping_norms):
            engine.clipping = Flat(clipping_norm)
            norms.append(engine.add(_of_class(losses(), k, classes)))
    finally:
        engine.clipping = whole
    engine.records = before + len(norms[0])
    return torch.stack(norms)


def check_visibility(
    engine: ClippedSum,
    template: Template,
    losses: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ids: torch.Tensor,
    filled: torch.Tensor,
    vocabulary: int,
    seed: int = 0,
) -> Visibility:
    """Change one class' fields at a time and see which classes' clipped sums move, and how far.

    Each class is filled with other tokens, and emptied. A sum that does not depend on it moves by
    exactly 0. It is a test on these texts: give it some that fill every field, and the weights that
    training starts with (weights that are all 0 would hide a path).

    Args:
        engine: with nothing added yet; it is empty afterwards.
        template: the public layout.
        losses: from ids and filled, each record's loss by class, (K, B).
        ids: (B, T), best two texts or more.
        filled: (B, T).
        vocabulary: ids are below this number.
        seed: of the other tokens, and of dropout.

    Raises:
        ValueError: if records were added already, the same texts give two results, a gradient is
            not finite, or a class does not move its own sum: the check would show nothing.
    """
    template.check(ids, filled)
    if engine.records:
        raise ValueError("engine: holds records already; check before training")
    classes, draw = template.classes, torch.Generator().manual_seed(seed)

    def sums(ids: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
        found, whole = [], engine.clipping
        try:
            for k, clipping_norm in enumerate(classes.clipping_norms):
                engine.clipping = Flat(clipping_norm)
                engine.clear()
                with torch.random.fork_rng():
                    torch.manual_seed(seed)  # the same dropout each time
                    engine.add(_of_class(losses(ids, filled), k, classes))
                if engine.unusable:
                    raise ValueError("losses: a gradient is not finite, and would count as unmoved")
                found.append(engine.flat.double())  # squares of float32 could vanish
        finally:
            engine.clipping = whole
            engine.clear()
        return torch.stack(found)

    sums(ids, filled)  # the engine's first batch takes a way of its own
    base, moved = sums(ids, filled), []
    if not torch.equal(base, sums(ids, filled)):
        raise ValueError(
            "losses: the same texts give two results; use torch.use_deterministic_algorithms(True)"
        )
    for k, name in enumerate(classes.names):
        own = (template.places == k).to(ids.device)
        step = torch.randint(1, vocabulary, ids.shape, generator=draw).to(ids.device)
        others = torch.where(own, (ids + step) % vocabulary, ids)
        gap = torch.maximum(
            (sums(others, filled) - base).norm(dim=1),
            (sums(ids, filled.bool() & ~own) - base).norm(dim=1),
        )
        if not gap[k] > 0:
            raise ValueError(f"ids: changing class {name!r} does not move its own sum")
        moved.append(tuple(gap.tolist()))
    return Visibility(classes.names, tuple(moved))


def _of_class(losses: torch.Tensor, k: int, classes: SensitivityClasses) -> torch.Tensor:
    if losses.dim() != 2 or len(losses) != len(classes.names):
        raise ValueError(
            f"losses: shape {tuple(losses.shape)}; give (K, B), a row for each of "
            f"{len(classes.names)} classes"
        )
    return losses[k]
