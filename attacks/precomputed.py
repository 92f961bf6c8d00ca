"""Scores that somebody else computed, for those who cannot reach the model."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attacks.result import AttackResult
from attacks.targets import AccessLevel


def precomputed(
    member_scores: ArrayLike,
    non_member_scores: ArrayLike,
    *,
    higher_means: Literal["member", "non-member"],
    member_ids: ArrayLike | None = None,
    non_member_ids: ArrayLike | None = None,
    access: AccessLevel = "scores",
    title: str = "Scores from a file",
    source: str = "",
) -> AttackResult:
    """An attack's result from finished scores (n,), with the direction that was fixed beforehand.

    A loss has ``higher_means="non-member"``. The direction is never read off the scores.

    Raises:
        ValueError: if the direction is unknown, a side is empty, or a score is NaN.
    """
    if higher_means not in ("member", "non-member"):
        raise ValueError(f"higher_means: {higher_means!r} is neither 'member' nor 'non-member'")
    sign = 1.0 if higher_means == "member" else -1.0
    inside = np.asarray(member_scores, dtype=np.float64)
    outside = np.asarray(non_member_scores, dtype=np.float64)
    if member_ids is None:
        member_ids = [f"member-{i}" for i in range(inside.size)]
    if non_member_ids is None:
        non_member_ids = [f"non-member-{i}" for i in range(outside.size)]
    return AttackResult(
        name="precomputed",
        title=title,
        access=access,
        member_scores=sign * inside,
        non_member_scores=sign * outside,
        member_ids=np.asarray(member_ids),
        non_member_ids=np.asarray(non_member_ids),
        source=source,
        notes=(f"scores as given; higher means {higher_means}",),
    )
