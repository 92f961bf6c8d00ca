"""What an attack on a synthetic release found, and the records that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attacks.metrics import Figure
from attacks.targets import AccessLevel, Array


@dataclass(frozen=True, eq=False)
class SyntheticResult:
    """One attack's figures and evidence. Whether they are bad is not decided here.

    Attributes:
        attack: its name, as in ``attacks.synthetic.registry``.
        title: for people.
        access: ``samples`` for the release alone; ``none`` where only real records are looked at.
        figures: each an estimate with its interval and n, or why it cannot be measured.
        rows: evidence, columns of one length: row numbers (0 is a table's first record), distances.
        notes: what a reader must know to read the figures.
        source: the method's paper, or the definition that it measures.
    """

    attack: str
    title: str
    access: AccessLevel
    figures: tuple[Figure, ...]
    rows: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: str = ""
    seed: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if len({len(column) for column in self.rows.values()}) > 1:
            raise ValueError(f"{self.attack}: columns of evidence differ in length")
