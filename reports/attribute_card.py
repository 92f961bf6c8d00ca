"""Attribute inference on the report: one row an attack, and the values that leak on their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.cards import Statement
from reports.record import Finding, Interval
from reports.sentence import ADVANTAGE_WHERE, basis_text, figures_text, sentence

CHECK = "attack.attribute"
_COLUMNS = {  # the finding's figure, and the key of the heading over it
    "advantage": "advantage",
    "accuracy_members": "members",
    "accuracy_non_members": "non_members",
    "control_accuracy_members": "without",
    "positive_control_advantage": "control",
}


@dataclass(frozen=True)
class Cell:
    """A number, and what it rests on where the heading does not say."""

    text: str
    basis: str = ""


@dataclass(frozen=True)
class AttributeRow:
    """One attack: what is guessed, from what and how, and its numbers."""

    statement: Statement
    column: str
    known: str
    attack: str
    numbers: tuple[Cell, ...]


@dataclass(frozen=True)
class AttributeCard:
    """All attribute attacks, what leaks most first.

    ``headings`` say what all numbers below them rest on. ``values`` are those whose own advantage
    lies above zero, each with the row of the attack that shows most. ``others`` have no figures:
    attacks that broke.
    """

    headings: tuple[Cell, ...]
    rows: tuple[AttributeRow, ...]
    values: tuple[tuple[str, AttributeRow, Cell], ...]
    others: tuple[Statement, ...]
    controlled: bool


def attributes(placed: Sequence[Statement], locale: str) -> AttributeCard | None:
    """The card of the attribute attacks, or None where none was run."""
    mine = [s for s in placed if s.finding.check == CHECK and not s.finding.claim]
    if not mine:
        return None
    measured = [s for s in mine if "advantage" in s.finding.figures]
    measured.sort(key=lambda s: -s.finding.figures["advantage"].low)
    shared = {name: _shared(name, measured, locale) for name in _COLUMNS}
    rows = tuple(_row(s, shared, locale) for s in measured)
    return AttributeCard(
        headings=tuple(
            Cell(sentence(f"attributes.{key}", {}, locale), shared[name])
            for name, key in _COLUMNS.items()
        ),
        rows=rows,
        values=_values(rows, locale),
        others=tuple(s for s in mine if "advantage" not in s.finding.figures),
        controlled=any("positive_control_advantage" in s.finding.figures for s in measured),
    )


def _values(
    rows: Sequence[AttributeRow], locale: str
) -> tuple[tuple[str, AttributeRow, Cell], ...]:
    best: dict[tuple[str, str], tuple[Interval, AttributeRow]] = {}
    for row in rows:
        for name, interval in row.statement.finding.figures.items():
            if not name.startswith(ADVANTAGE_WHERE) or row.statement.finding.state == "void":
                continue
            of = (row.column, name.removeprefix(ADVANTAGE_WHERE))
            if of not in best or interval.low > best[of][0].low:
                best[of] = (interval, row)
    return tuple(
        (value, row, Cell(figures_text(interval), basis_text(interval, locale)))
        for (_, value), (interval, row) in best.items()
    )


def _shared(name: str, measured: Sequence[Statement], locale: str) -> str:
    found = (s.finding.figures.get(name) for s in measured)
    bases = {basis_text(interval, locale) for interval in found if interval}
    return bases.pop() if len(bases) == 1 else ""


def _row(s: Statement, shared: dict[str, str], locale: str) -> AttributeRow:
    values = s.finding.values
    known = sentence("attributes.from", {"known": values.get("known", "?")}, locale)
    access = sentence(f"access.{values.get('access', 'none')}", {}, locale)
    return AttributeRow(
        s,
        str(values.get("column", s.finding.id)),
        known,
        f"{values.get('title', s.finding.id)} · {access}",
        tuple(_number(s.finding, name, locale, shared[name]) for name in _COLUMNS),
    )


def _number(finding: Finding, name: str, locale: str, shared: str) -> Cell:
    interval = finding.figures.get(name)
    if interval is None:
        return Cell("–")
    return Cell(figures_text(interval), "" if shared else basis_text(interval, locale))
