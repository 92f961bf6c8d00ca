"""Whom an attack finds: figures by group, and the records that stand out most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attacks.metrics import Estimate, Figure, clopper_pearson, measure
from attacks.result import AttackResult


@dataclass(frozen=True)
class Group:
    """One group's figures, or ``unmeasured``: the reason why it has none."""

    name: str
    members: int
    non_members: int
    figures: tuple[Figure, ...] = ()
    unmeasured: str = ""


@dataclass(frozen=True)
class Exposed:
    """A member that stands out: the share of non-members that score at least as high."""

    id: str
    score: float
    false_positives: Estimate


def by_group(
    result: AttackResult,
    member_groups: ArrayLike,
    non_member_groups: ArrayLike,
    confidence: float = 0.95,
) -> tuple[Group, ...]:
    """Every figure for each group (a class, or any column's value), in the order of their names.

    Each group is judged against its own non-members. The intervals of all G groups hold together
    at this confidence: each is taken at 1 - (1 - confidence) / G (Bonferroni).

    Raises:
        ValueError: if a list of groups is not as long as its side of the result.
    """
    inside, outside = np.asarray(member_groups), np.asarray(non_member_groups)
    for side, column, scores in (
        ("member", inside, result.member_scores),
        ("non-member", outside, result.non_member_scores),
    ):
        if column.shape != scores.shape:
            raise ValueError(f"{side} groups: {column.shape}, the result has {scores.shape}")
    names = np.unique(np.concatenate([inside, outside]))
    shared = 1 - (1 - confidence) / len(names)
    groups = []
    for name in names:
        members = result.member_scores[inside == name]
        others = result.non_member_scores[outside == name]
        sizes = (str(name), len(members), len(others))
        if not len(members) or not len(others):
            groups.append(Group(*sizes, unmeasured="the group is empty on one side"))
        else:
            figures = measure(members, others, confidence=shared, seed=result.seed)
            groups.append(Group(*sizes, figures))
    return tuple(groups)


def most_exposed(
    result: AttackResult, top: int = 20, confidence: float = 0.95
) -> tuple[Exposed, ...]:
    """The ``top`` members with the highest scores; equal scores in the order of their ids."""
    order = np.lexsort((result.member_ids, -result.member_scores))[:top]
    outside = np.sort(result.non_member_scores)
    scores = result.member_scores[order]
    above = len(outside) - np.searchsorted(outside, scores, side="left")
    return tuple(
        Exposed(str(id_), float(score), clopper_pearson(int(count), len(outside), confidence))
        for id_, score, count in zip(result.member_ids[order], scores, above, strict=True)
    )
