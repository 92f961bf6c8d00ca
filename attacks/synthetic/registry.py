"""Which attacks on synthetic tables there are, and the one way to run them.

An attack is ``attack(tables, *, seed, confidence, **options) -> SyntheticResult``. To add one,
write that function and one line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.tables import Tables


class Attack(Protocol):
    """What every attack's function looks like."""

    def __call__(
        self, tables: Tables, *, seed: int = 0, confidence: float = 0.95, **options: Any
    ) -> SyntheticResult:
        """Attack the release among the tables."""


@dataclass(frozen=True)
class Entry:
    """One attack: where its function is (``module:function``) and what it needs.

    Attributes:
        tables: which of train, holdout and synthetic it looks at.
        no_leak: figures, by the part of their name before the colon, that say whether there is a
            leak, and their value where there is none.
        source: of the method.
        options: those that its function takes beyond seed and confidence.
        generator: it trains the generator again, so ``run`` cannot: call its function.
        text_as_numbers: a column of free text comes to it as numbers, since it takes distances.
    """

    name: str
    title: str
    function: str
    no_leak: Mapping[str, float]
    source: str
    tables: tuple[str, ...] = ("train", "holdout", "synthetic")
    options: tuple[str, ...] = ()
    generator: bool = False
    text_as_numbers: bool = False

    def load(self) -> Attack:
        """The attack's function; its module is imported now."""
        module, _, function = self.function.partition(":")
        loaded: Attack = getattr(importlib.import_module(module), function)
        return loaded


_S = "attacks.synthetic"
_RATES = {"auc": 0.5, "tpr_at_fpr_0.1": 0.1, "tpr_at_fpr_0.01": 0.01, "tpr_at_fpr_0.001": 0.001}
_EXCESS = {"excess_risk": 0.0}
_WP216 = "Article 29 Working Party 2014"
ENTRIES = {
    entry.name: entry
    for entry in (
        Entry("copies", "Copies of training records", f"{_S}.copies:attack", {"excess": 0.0},
              "ours"),
        Entry("nearest", "Distance to the closest record", f"{_S}.nearest:attack",
              {"share": 0.5}, "Platzer, Reutterer 2021", text_as_numbers=True),
        Entry("density", "Membership by density ratio", f"{_S}.density:attack", _RATES,
              "van Breugel et al. 2023", text_as_numbers=True),
        Entry("singling_out", "Singling out", f"{_S}.singling_out:attack", _EXCESS, _WP216),
        Entry("linkability", "Linkability", f"{_S}.linkability:attack", _EXCESS, _WP216,
              options=("parts",)),
        Entry("inference", "Inference", f"{_S}.inference:attack", _EXCESS, _WP216,
              options=("secrets",)),
        Entry("uniqueness", "Uniqueness and re-identification", f"{_S}.uniqueness:attack",
              _EXCESS, "Sweeney 2000", options=("sensitive",)),
        Entry("generator_shadow", "Shadow generators", f"{_S}.generator_shadow:attack",
              {"auc": 0.5}, "Stadler et al. 2022", generator=True),
    )
}  # fmt: skip


def find(name: str) -> Entry:
    """The attack of this name; ValueError lists the names there are."""
    if name not in ENTRIES:
        raise ValueError(f"attacks: {name!r} is none of {', '.join(ENTRIES)}")
    return ENTRIES[name]


def run(
    name: str,
    tables: Tables,
    *,
    seed: int = 0,
    confidence: float = 0.95,
    options: Mapping[str, Any] | None = None,
) -> SyntheticResult:
    """Run one attack, with those of the options that it takes.

    Raises:
        ValueError: if there is no such attack, it needs the generator or a table that is missing,
            or it refuses the tables or an option.
    """
    entry = find(name)
    if entry.generator:
        raise ValueError(f"attacks: {name} trains the generator again; tables are not enough")
    if missing := [table for table in entry.tables if table not in tables.tables]:
        raise ValueError(f"attacks: {name} needs the table {missing[0]!r}; give it")
    taken = {key: value for key, value in (options or {}).items() if key in entry.options}
    return entry.load()(tables, seed=seed, confidence=confidence, **taken)
