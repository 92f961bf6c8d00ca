"""Logic rules as people write them in a YAML file."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, FiniteFloat, StrictBool, StrictStr, model_validator

from audit.yaml_file import Strict, load

Bound = FiniteFloat | datetime.date | datetime.datetime
Value = StrictBool | FiniteFloat | datetime.datetime | datetime.date | StrictStr
Values = Annotated[list[Value], Field(min_length=1)]
TESTS = ("equals", "in", "not_in", "less", "greater", "between", "missing", "present")


class Condition(Strict):
    """One test of one column. ``less`` and ``greater`` exclude the bound, ``between`` has both."""

    column: str
    equals: Value | None = None
    in_: Values | None = Field(default=None, alias="in")
    not_in: Values | None = None
    less: Bound | None = None
    greater: Bound | None = None
    between: tuple[Bound, Bound] | None = None
    missing: Literal[True] | None = None
    present: Literal[True] | None = None

    @property
    def tests(self) -> list[str]:
        """The tests given, by their names in the file."""
        return [
            name for name in TESTS if getattr(self, "in_" if name == "in" else name) is not None
        ]

    @model_validator(mode="after")
    def _one(self) -> Condition:
        if len(self.tests) != 1:
            said = f"{self.tests[0]} and {self.tests[1]}" if self.tests else "none"
            raise ValueError(f"give one of {', '.join(TESTS)}; this has {said}")
        return self


Conditions = Annotated[list[Condition], Field(min_length=1)]


class Rule(Strict):
    """What must not be: all of ``never`` together, or ``if`` without ``then``.

    All conditions of a list must hold. ``never: [a, b]`` is ``if: [a]`` with b denied: the last
    condition is what is forbidden to records that meet the others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(min_length=1)]
    description: str = ""
    never: Conditions | None = None
    if_: Conditions | None = Field(default=None, alias="if")
    then: Conditions | None = None

    @model_validator(mode="after")
    def _whole(self) -> Rule:
        if self.never is not None and (self.if_ is not None or self.then is not None):
            raise ValueError(f"rule {self.id!r}: give never, or if and then, not both")
        if self.never is None and (self.if_ is None or self.then is None):
            raise ValueError(f"rule {self.id!r}: give never, or both if and then")
        return self


class RulesFile(Strict):
    """A file of rules, each with an id of its own."""

    version: Literal[1] = 1
    title: str = ""
    rules: Annotated[list[Rule], Field(min_length=1)]

    @model_validator(mode="after")
    def _once(self) -> RulesFile:
        ids = [rule.id for rule in self.rules]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"rules: two are called {twice[0]!r}; give each its own id")
        return self


def read_rules(path: Path) -> RulesFile:
    """The rules in a YAML file.

    Raises:
        InputError: naming the file, the rule and the field of what cannot be used.
    """
    return load(path, RulesFile)
