"""How often records break logic rules, on the real and the synthetic table side by side."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attacks.metrics import clopper_pearson
from attacks.synthetic.tables import Coded, Column, Tables
from audit.quality.rules_file import Condition, Rule, RulesFile
from audit.to_record import interval
from audit.yaml_file import InputError
from reports.record import Interval

Mask = NDArray[np.bool_]
State = Literal["satisfied", "violated", "inconclusive", "not checkable"]


@dataclass(frozen=True)
class RuleCount:
    """One rule on one table.

    Attributes:
        state: of this table's records; ``not checkable`` where the rule applies to none,
            ``inconclusive`` where none breaks it but some cannot be judged.
        violation_rate: of the records that the rule applies to; None where there are none.
        applies: to so many records, all of which can be judged.
        violations: how many of them break it.
        undecided: records that a missing value keeps from being judged.
    """

    state: State
    violation_rate: Interval | None
    applies: int
    violations: int
    undecided: int


@dataclass(frozen=True)
class RuleResult:
    """One rule on both tables. ``unmeasured`` says why it cannot be checked at all."""

    id: str
    description: str
    real: RuleCount
    synthetic: RuleCount
    unmeasured: str = ""


def check_rules(
    file: RulesFile,
    path: Path,
    tables: Tables,
    real: str,
    synthetic: str,
    *,
    confidence: float = 0.95,
) -> tuple[RuleResult, ...]:
    """Every rule of the file, in its order.

    A comparison with a missing value is neither true nor false (Kleene 1938): such a record is
    undecided unless the other conditions settle it. A value that no table holds may be misspelt:
    a rule that rests on one is not checkable. Intervals: Clopper and Pearson (1934), of all rules
    and both tables together (Bonferroni).

    Raises:
        InputError: naming file, rule and field, if a column is not there or cannot be compared
            with the value given.
    """
    each = 1 - (1 - confidence) / (2 * len(file.rules))
    results = []
    for number, rule in enumerate(file.rules):
        parts = _parts(rule)
        absent = ""
        for field, condition in parts:
            where = f"{path}: rules.{number} ({rule.id}): {field}"
            column = _column(tables, condition, where)
            absent = absent or _absent(tables, (real, synthetic), condition, column, where)
        counts = [_count(rule, tables, tables[side], each) for side in (real, synthetic)]
        if absent:
            counts = [replace(c, state="not checkable", violation_rate=None) for c in counts]
        results.append(RuleResult(rule.id, rule.description, counts[0], counts[1], absent))
    return tuple(results)


@dataclass(frozen=True)
class _Truth:
    """Which records are known to meet a condition, and which known not to."""

    yes: Mask
    no: Mask

    def __and__(self, other: _Truth) -> _Truth:
        return _Truth(self.yes & other.yes, self.no | other.no)

    def __invert__(self) -> _Truth:
        return _Truth(self.no, self.yes)


def _count(rule: Rule, tables: Tables, table: Coded, confidence: float) -> RuleCount:
    first, then = _sides(rule)
    everyone = np.ones(len(table), dtype=np.bool_)
    applies = _all(first, tables, table, _Truth(everyone, ~everyone))
    kept = _all(then, tables, table, _Truth(everyone, ~everyone))
    if rule.never is not None:
        kept = ~kept
    judged = applies.yes & (kept.yes | kept.no)
    broken = int((judged & kept.no).sum())
    # known to be kept whether or not it applies: no doubt about such a record
    undecided = int((~applies.no & ~judged & ~kept.yes).sum())
    support = int(judged.sum())
    if not support:
        return RuleCount("not checkable", None, 0, 0, undecided)
    state: State = "violated" if broken else "inconclusive" if undecided else "satisfied"
    rate = interval(clopper_pearson(broken, support, confidence))
    return RuleCount(state, rate, support, broken, undecided)


def _sides(rule: Rule) -> tuple[Sequence[Condition], Sequence[Condition]]:
    """What makes the rule apply, and what it then demands (or forbids, of ``never``)."""
    if rule.never is not None:
        return rule.never[:-1], rule.never[-1:]
    assert rule.if_ is not None
    assert rule.then is not None
    return rule.if_, rule.then


def _parts(rule: Rule) -> list[tuple[str, Condition]]:
    """Each condition with its place in the file."""
    lists = {"never": rule.never, "if": rule.if_, "then": rule.then}
    return [(f"{name}.{k}", c) for name, part in lists.items() for k, c in enumerate(part or [])]


def _all(conditions: Sequence[Condition], tables: Tables, table: Coded, start: _Truth) -> _Truth:
    truth = start
    for condition in conditions:
        truth = truth & _holds(condition, tables, table)
    return truth


def _holds(condition: Condition, tables: Tables, table: Coded) -> _Truth:
    column = _column(tables, condition, "")
    if column.kind == "category":
        values: Any = table.codes[:, tables.categorical.index(column)]
        gone = values < 0
    else:
        values = table.numbers[:, tables.numeric.index(column)]
        gone = np.isnan(values)
    test = condition.tests[0]
    if test in ("missing", "present"):
        return _Truth(gone, ~gone) if test == "missing" else _Truth(~gone, gone)
    if test == "less":
        met = values < _place(column, condition.less, "")
    elif test == "greater":
        met = values > _place(column, condition.greater, "")
    elif test == "between":
        assert condition.between is not None
        low, high = (_place(column, bound, "") for bound in condition.between)
        met = (values >= low) & (values <= high)
    else:
        met = np.isin(values, [_place(column, value, "") for value in _listed(condition)])
        met = ~met if test == "not_in" else met
    return _Truth(met & ~gone, ~met & ~gone)


def _listed(condition: Condition) -> list[Any]:
    """The values of equals, in, not_in; of no other test."""
    if condition.equals is not None:
        return [condition.equals]
    return list(condition.in_ or condition.not_in or [])


def _column(tables: Tables, condition: Condition, where: str) -> Column:
    """The condition's column.

    Raises:
        InputError: if there is none, or its values cannot be compared as the test does.
    """
    for column in tables.numeric + tables.categorical:
        if column.name == condition.column:
            break
    else:
        raise InputError(
            f"{where}.column: no column {condition.column!r}; there are {', '.join(tables.names)}"
        )
    test = condition.tests[0]
    if where and test in ("less", "greater", "between"):
        if column.kind == "category":
            raise InputError(f"{where}.{test}: column {column.name!r} holds text; use equals or in")
        bounds = condition.between or (condition.less, condition.greater)
        places = [_place(column, b, f"{where}.{test}") for b in bounds if b is not None]
        if test == "between" and places[0] > places[1]:
            raise InputError(f"{where}.between: the first bound is above the second; swap them")
    return column


def _absent(
    tables: Tables, sides: tuple[str, str], condition: Condition, column: Column, where: str
) -> str:
    """Which value of the condition no table holds, where that leaves nothing to check."""
    test = condition.tests[0]
    missing = []
    for value in _listed(condition):
        place = _place(column, value, f"{where}.{test}")
        held = any(
            (tables[side].numbers[:, tables.numeric.index(column)] == place).any()
            if column.kind != "category"
            else (tables[side].codes[:, tables.categorical.index(column)] == place).any()
            for side in sides
        )
        if not held:
            missing.append(value)
    if missing and (test == "not_in" or len(missing) == len(_listed(condition))):
        return f"no table holds {column.name} = {str(missing[0])!r}: is it misspelt?"
    return ""


def _place(column: Column, value: Any, where: str) -> float:
    """The number that the column's coding gives to a value; for a level that is not there, -2.

    Raises:
        InputError: if the column cannot hold such a value.
    """
    if column.kind == "category":
        if isinstance(value, bool) and str(value) not in column.levels:
            raise InputError(
                f"{where}: {str(value).lower()} is no value of column {column.name!r}; YAML reads "
                "yes, no, on and off as true or false: put them in quotes"
            )
        whole = isinstance(value, float) and value.is_integer()
        text = str(int(value)) if whole else str(value)
        return float(column.levels.index(text)) if text in column.levels else -2.0
    if column.kind == "number":
        if isinstance(value, bool | str | datetime.date):
            raise InputError(f"{where}: column {column.name!r} holds numbers, got {str(value)!r}")
        return float(value)
    return _seconds(column, value, where)


def _seconds(column: Column, value: Any, where: str) -> float:
    try:
        moment = datetime.datetime.fromisoformat(str(value))
    except ValueError:
        raise InputError(
            f"{where}: column {column.name!r} holds dates, got {str(value)!r}; write 2024-01-31"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()
