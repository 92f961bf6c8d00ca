"""A policy: what an audit must show for a pass, and the dated waivers that stand beside it."""

from __future__ import annotations

import datetime
import hashlib
from typing import Literal

from pydantic import Field, model_validator

from audit.yaml_file import Strict

Figure = Literal[
    "auc",
    "advantage",
    "tpr_at_fpr_0.1",
    "tpr_at_fpr_0.01",
    "tpr_at_fpr_0.001",
    "attribute_advantage",
]


class Limit(Strict):
    """An attack's figure must be shown to be at most ``at_most``.

    ``attribute_advantage`` holds for every attack on every attribute, the others for every attack
    on membership.

    ``worse_than_baseline`` is by how much the figure may exceed that of the baseline record, where
    one is given.
    """

    figure: Figure
    at_most: float = Field(ge=0, le=1)
    worse_than_baseline: float | None = Field(default=None, ge=0, le=1)
    waivable: bool = True


class Waiver(Strict):
    """A known failure that somebody answers for until a date. It never turns a fail into a pass."""

    rule: str
    finding: str
    reason: str = Field(min_length=1)
    by: str = Field(min_length=1)
    until: datetime.date


class Policy(Strict):
    """Rules of the gate.

    ``limits`` hold for every attack on the target. ``claims`` asks that every claim be supported,
    ``ledger`` that the ledger verify. ``require`` names attacks that must have run.
    """

    limits: list[Limit] = [
        Limit(figure="auc", at_most=0.60, worse_than_baseline=0.05),
        Limit(figure="tpr_at_fpr_0.01", at_most=0.10, worse_than_baseline=0.05),
    ]
    claims: bool = True
    ledger: bool = True
    require: list[str] = []
    waivers: list[Waiver] = []

    @model_validator(mode="after")
    def _once(self) -> Policy:
        figures = [limit.figure for limit in self.limits]
        if len(set(figures)) != len(figures):
            raise ValueError("limits: a figure is limited twice; keep one")
        return self

    def digest(self) -> str:
        """SHA-256 over the policy's canonical JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
