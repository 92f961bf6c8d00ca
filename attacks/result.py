"""What an attack returns: one score a record, higher meaning member, and what it cost."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attacks.files import whole_file
from attacks.targets import AccessLevel, Array, Floats

if TYPE_CHECKING:
    from attacks.breakdown import Group


@dataclass(frozen=True, eq=False)
class AttackResult:
    """Scores of members and non-members by stable id, and the attack's cost.

    A score of ±inf is allowed and means an extreme; NaN is refused. ``access`` is what the attack
    used, ``none`` for the blind baseline. ``queries`` counts records that the target was asked
    about, ``models_trained`` the shadow models, ``source`` names the method's paper.

    Raises:
        ValueError: if a side is empty, scores and ids differ in length, or a score is NaN.
    """

    name: str
    title: str
    access: AccessLevel
    member_scores: Floats
    non_member_scores: Floats
    member_ids: Array
    non_member_ids: Array
    seed: int = 0
    models_trained: int = 0
    queries: int = 0
    seconds: float = 0.0
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for side in ("member", "non_member"):
            scores = np.array(getattr(self, f"{side}_scores"), dtype=np.float64)
            ids = np.array(getattr(self, f"{side}_ids"), dtype=np.str_)
            called = side.replace("_", "-")
            if scores.ndim != 1 or len(scores) == 0:
                raise ValueError(f"{self.name}: {called} scores: need one or more, in one column")
            if scores.shape != ids.shape:
                raise ValueError(f"{self.name}: {len(scores)} {called} scores, {len(ids)} ids")
            if (bad := np.isnan(scores)).any():
                raise ValueError(f"{self.name}: the score of {called} '{ids[bad][0]}' is NaN")
            for name, values in ((f"{side}_scores", scores), (f"{side}_ids", ids)):
                values.setflags(write=False)
                object.__setattr__(self, name, values)


def write_scores(result: AttackResult, path: Path) -> None:
    """The scores as Parquet with columns ``id``, ``member``, ``score``: whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sizes = [len(result.member_scores), len(result.non_member_scores)]
    table = pa.table(
        {
            "id": np.concatenate([result.member_ids, result.non_member_ids]).tolist(),
            "member": np.repeat([True, False], sizes),
            "score": np.concatenate([result.member_scores, result.non_member_scores]),
        }
    )
    with whole_file(path) as temporary:
        pq.write_table(table, temporary)


def write_json(
    result: AttackResult,
    path: Path,
    *,
    confidence: float = 0.95,
    groups: Mapping[str, Sequence[Group]] | None = None,
    top: int = 20,
) -> None:
    """The result without its scores as JSON: every figure, figures by group, and who stands out.

    ``groups`` are those of ``breakdown.by_group``, under the name of their column. ``top`` members
    are listed by id, the most exposed first.
    """
    from attacks.breakdown import most_exposed
    from attacks.metrics import measure

    plain = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if not field.name.endswith(("_scores", "_ids"))
    }
    plain["members"] = len(result.member_scores)
    plain["non_members"] = len(result.non_member_scores)
    figures = measure(
        result.member_scores, result.non_member_scores, confidence=confidence, seed=result.seed
    )
    plain["figures"] = [dataclasses.asdict(figure) for figure in figures]
    plain["groups"] = {
        column: [dataclasses.asdict(group) for group in found]
        for column, found in (groups or {}).items()
    }
    exposed = [dataclasses.asdict(found) for found in most_exposed(result, top, confidence)]
    for found in exposed:  # JSON has no infinity
        found["score"] = found["score"] if math.isfinite(found["score"]) else str(found["score"])
    plain["most_exposed"] = exposed
    with whole_file(path) as temporary:
        text = json.dumps(plain, ensure_ascii=False, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
