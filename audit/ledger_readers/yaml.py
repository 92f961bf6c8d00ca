"""A hand-written YAML of phases: ``phases:``, a list of mechanisms with their parameters.

Each entry names one mechanism of audit/accounting/events.py: ``sampled_gaussian``, ``gaussian``,
``laplace``, ``approximate_dp``, ``zcdp`` or ``gnmax``, and under it that event's fields.
"""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import Field, model_validator

from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    MechanismEvent,
    SampledGaussian,
    ZeroConcentratedDP,
)
from audit.ledger import Ledger
from audit.ledger_format import LedgerError
from audit.yaml_file import InputError, Strict, load


class Phase(Strict):
    """One mechanism."""

    sampled_gaussian: SampledGaussian | None = None
    gaussian: Gaussian | None = None
    laplace: Laplace | None = None
    approximate_dp: ApproximateDP | None = None
    zcdp: ZeroConcentratedDP | None = None
    gnmax: GNMax | None = None

    @model_validator(mode="after")
    def _one(self) -> Phase:
        if len(self.model_fields_set) != 1 or self.event is None:
            raise ValueError(f"name one of {', '.join(type(self).model_fields)}, with its fields")
        return self

    @property
    def event(self) -> MechanismEvent | None:
        """The mechanism that is named."""
        return next((v for _, v in self if v is not None), None)


class Phases(Strict):
    """The file."""

    phases: list[Phase] = Field(min_length=1)


def detects(path: Path, start: bytes) -> bool:
    """Whether a line opens the list of phases."""
    return any(line.startswith(b"phases:") for line in start.splitlines())


def read(path: Path) -> Ledger:
    """The phases as events.

    Raises:
        LedgerError: if the YAML does not fit; the message names line and field.
    """
    try:
        file = load(path, Phases)
    except InputError as error:
        raise LedgerError(str(error)) from None
    events = tuple(phase.event for phase in file.phases if phase.event is not None)
    return Ledger(
        path=path,
        format="yaml",
        mechanisms=events,
        private=not any(isinstance(e, ApproximateDP) and math.isinf(e.epsilon) for e in events),
        steps=sum(_count(e) for e in events),
        notes=("Written by hand: it says what somebody believes to have run.",),
    )


def _count(event: MechanismEvent) -> int:
    if isinstance(event, SampledGaussian):
        return event.steps
    return event.votes if isinstance(event, GNMax) else getattr(event, "count", 1)
