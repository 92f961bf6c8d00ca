"""Which attacks there are, and the one way to run them.

An attack is a function of a target and a ``Pool``: records without the truth. It cannot use what
it is not given; the truth comes back only when ``run`` sorts its scores into the two sides. To add
an attack, write that function and one line here; an installed package adds its own by an entry
point of the group ``dpassay.attacks`` that names an ``Entry``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from attacks.records import Membership, Pool, by_person
from attacks.result import AttackResult
from attacks.targets import AccessDenied, AccessLevel, Floats, Target, allows, positions

if TYPE_CHECKING:
    from attacks.shadows.fleet import Shadows

Progress = Callable[[int, int], None]


class Scored(NamedTuple):
    """An attack's answer: one score for each record of the pool, higher meaning member."""

    scores: Floats
    notes: tuple[str, ...] = ()


class Attack(Protocol):
    """What every attack function looks like; ``shadows`` is None where the entry needs none."""

    def __call__(
        self, target: Target, pool: Pool, shadows: Shadows | None, seed: int, progress: Progress
    ) -> Scored:
        """Score the pool's records."""


@dataclass(frozen=True)
class Entry:
    """One attack: what it needs, where its function is (``module:function``), and its paper."""

    name: str
    title: str
    access: AccessLevel
    needs_shadows: bool
    function: str
    source: str

    def load(self) -> Attack:
        """The attack's function; its module is imported now."""
        module, _, function = self.function.partition(":")
        loaded: Attack = getattr(importlib.import_module(module), function)
        return loaded


_M = "attacks.membership"
_OWN = (
    Entry("loss_threshold", "Loss threshold", "scores", False,
          f"{_M}.threshold:loss_threshold", "Yeom et al. 2018"),
    Entry("label_gap", "Right or wrong label", "label", False,
          f"{_M}.threshold:label_gap", "Yeom et al. 2018"),
    Entry("label_only", "Label-only, by perturbed copies", "label", False,
          f"{_M}.label_only:label_only", "Choquette-Choo et al. 2021"),
    Entry("quantile", "Quantile regression", "scores", False,
          f"{_M}.quantile:quantile", "Bertran et al. 2023"),
    Entry("gradient_norm", "Gradient norm, white box", "gradients", False,
          f"{_M}.gradient:gradient_norm", "Nasr et al. 2019"),
    Entry("shadow", "Shadow models, one attack model per class", "scores", True,
          f"{_M}.shadow:shadow_per_class", "Shokri et al. 2017"),
    Entry("calibrated", "Difficulty calibration", "scores", True,
          f"{_M}.calibration:calibrated", "Watson et al. 2022"),
    Entry("lira", "LiRA, online", "scores", True,
          f"{_M}.lira:lira", "Carlini et al. 2022"),
    Entry("lira_fixed", "LiRA, online, fixed variance", "scores", True,
          f"{_M}.lira:lira_fixed", "Carlini et al. 2022"),
    Entry("lira_offline", "LiRA, offline", "scores", True,
          f"{_M}.lira:lira_offline", "Carlini et al. 2022"),
    Entry("lira_offline_fixed", "LiRA, offline, fixed variance", "scores", True,
          f"{_M}.lira:lira_offline_fixed", "Carlini et al. 2022"),
    Entry("rmia", "RMIA, online", "scores", True,
          f"{_M}.rmia:rmia", "Zarifzadeh et al. 2024"),
    Entry("rmia_offline", "RMIA, offline", "scores", True,
          f"{_M}.rmia:rmia_offline", "Zarifzadeh et al. 2024"),
    Entry("ensemble", "Ensemble of attacks, fitted on shadow models", "scores", True,
          f"{_M}.ensemble:ensemble", "Wolpert 1992"),
)  # fmt: skip


@cache
def entries() -> dict[str, Entry]:
    """Every attack by name: ours, then those of installed packages.

    Raises:
        ValueError: if an installed package's entry point is no Entry or takes a name that is taken.
    """
    found = {entry.name: entry for entry in _OWN}
    for point in entry_points(group="dpassay.attacks"):
        entry = point.load()
        if not isinstance(entry, Entry):
            raise ValueError(f"entry point {point.value}: must name an attacks.registry.Entry")
        if entry.name in found:
            raise ValueError(f"entry point {point.value}: an attack {entry.name!r} exists already")
        found[entry.name] = entry
    return found


def find(name: str) -> Entry:
    """The attack of this name; ValueError lists the names there are."""
    if name not in entries():
        raise ValueError(f"attacks: {name!r} is none of {', '.join(entries())}")
    return entries()[name]


def run(
    name: str,
    target: Target,
    records: Membership,
    *,
    shadows: Shadows | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> AttackResult:
    """Run one attack.

    ``shadows`` may be shared between attacks: its models are trained once, which
    ``progress(done, total)`` counts. ``queries`` counts what the target was asked, not the shadows.
    Where the records name persons, a score belongs to a person: the mean over his records.

    Raises:
        AccessDenied: if the attack needs more than the target's access level.
        ValueError: if there is no such attack, it needs shadow models and there are none, or a
            member's label is none of the target's classes.
    """
    entry = find(name)
    if not allows(target.access, entry.access):
        raise AccessDenied(
            f"attacks: {name} needs {entry.access}, the target's access is {target.access!r}"
        )
    if entry.needs_shadows and shadows is None:
        raise ValueError(f"attacks: {name} trains shadow models and nobody said how; give a fit")
    try:
        positions(records.members.labels, target.classes)
    except ValueError as error:
        # else each of these records would count as one that the target has never seen
        raise ValueError(f"members: {error}; give the labels that it was trained on") from None
    started, asked = time.monotonic(), target.queries
    pool, order = records.pool()
    scored = entry.load()(
        target, pool, shadows if entry.needs_shadows else None, seed, progress or _silent
    )
    if scored.scores.shape != (len(pool),):
        raise ValueError(f"{name}: {scored.scores.shape} scores for {len(pool)} records")
    scores = np.empty(len(pool))
    scores[order] = scored.scores
    count = len(records.members)
    inside, outside, notes = scores[:count], scores[count:], scored.notes
    member_ids, non_member_ids = records.members.ids, records.non_members.ids
    if records.of_persons:
        member_ids, inside = by_person(records.members, inside)
        non_member_ids, outside = by_person(records.non_members, outside)
        notes = (
            *notes,
            f"{len(inside)} and {len(outside)} persons with {count} and {len(scores) - count} "
            "records: each person has the mean score of his records",
        )
    return AttackResult(
        name=name,
        title=entry.title,
        access=entry.access,
        member_scores=inside,
        non_member_scores=outside,
        member_ids=member_ids,
        non_member_ids=non_member_ids,
        seed=seed,
        models_trained=shadows.models if entry.needs_shadows and shadows is not None else 0,
        queries=target.queries - asked,
        seconds=time.monotonic() - started,
        source=entry.source,
        notes=records.notes + notes,
    )


def _silent(done: int, total: int) -> None:
    """Progress that nobody watches."""
