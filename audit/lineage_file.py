"""LINEAGE.yaml: its models, and the checks that no single field can make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from audit.claims.schema import Delta, Epsilon, Mechanism, Number
from audit.yaml_file import InputError, Strict, load
from reports.record import Relation

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
Kind = Literal["pre-training", "fine-tuning", "generation", "prompts", "filtering", "other"]
MOST_POPULATIONS = 24  # the groups that one person may be in are enumerated


class Population(Strict):
    """People whose raw data some stage reads. Public data have no privacy to lose."""

    public: bool = False
    description: str = ""


class Budget(Strict):
    """What a stage spent: a ledger, mechanisms, or the (ε, δ) that is all that is known.

    ``gaussian`` says that (ε, δ) is that of one Gaussian release, which composes more tightly.
    """

    ledger: Path | None = None
    mechanisms: list[Mechanism] = []
    epsilon: Epsilon | None = None
    delta: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    gaussian: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> Budget:
        if sum((self.ledger is not None, bool(self.mechanisms), self.epsilon is not None)) != 1:
            raise ValueError("give one of ledger, mechanisms, epsilon (and delta)")
        if self.gaussian and not (self.epsilon and self.delta):
            raise ValueError("gaussian: needs epsilon and delta above 0")
        for mechanism in self.mechanisms:
            if absent := mechanism.missing():
                raise ValueError(f"mechanisms: {absent[0]} is missing; state it")
        return self


class Stage(Strict):
    """One step: what it takes from other stages, which raw data it reads, what that cost.

    A filter that compares its input with raw data reads them. A stage that reads nothing is
    post-processing and free.
    """

    id: Name
    kind: Kind = "other"
    inputs: list[Name] = []
    reads: list[Name] = []
    budget: Budget | Literal["none"] | None = None

    @model_validator(mode="after")
    def _budget_for_what_is_read(self) -> Stage:
        if self.budget is not None and not self.reads:
            raise ValueError("reads: missing; a budget is spent on the raw data of somebody")
        return self


class Promise(Strict):
    """What is said of a stage's output."""

    stage: Name
    epsilon: Epsilon
    delta: Delta


class LineageFile(Strict):
    """A LINEAGE.yaml. ``delta`` is that of the account of known mechanisms."""

    version: Literal[1] = 1
    title: str = ""
    relation: Relation = "add-remove"
    delta: Delta = 1e-5
    populations: dict[Name, Population] = Field(min_length=1, max_length=MOST_POPULATIONS)
    disjoint: list[Annotated[list[Name], Field(min_length=2)]] = []
    stages: list[Stage] = Field(min_length=1, max_length=1000)
    promises: list[Promise] = []


def read_file(path: Path) -> tuple[LineageFile, list[str]]:
    """The lineage in a file, and its stages in an order in which inputs come first.

    Raises:
        InputError: if the file cannot be used, names what it does not define, or has a cycle; the
            message names the line.
    """
    file = load(path, LineageFile)
    _check(path, file)
    return file, _sorted(path, file)


def apart(file: LineageFile) -> set[frozenset[str]]:
    """The pairs of populations that are stated to share nobody."""
    return {frozenset((a, b)) for group in file.disjoint for a in group for b in group if a != b}


def _check(path: Path, file: LineageFile) -> None:
    """Refuse names that nothing defines, and reads whose cost is not stated."""
    lines = _stage_lines(path)
    known = {stage.id for stage in file.stages}
    seen: set[str] = set()
    strangers = apart(file)
    for name in (n for group in file.disjoint for n in group):
        if name not in file.populations:
            raise InputError(f"{path}: disjoint: no population {name!r}; add it to populations")
    for stage, line in zip(file.stages, lines, strict=True):
        where = f"{path}:{line}: stage {stage.id}"
        if stage.id in seen:
            raise InputError(f"{where}: id: given to two stages; give each its own")
        seen.add(stage.id)
        if unknown := next((i for i in stage.inputs if i not in known), None):
            raise InputError(f"{where}: inputs: no stage {unknown!r}; add it or correct the name")
        if unknown := next((r for r in stage.reads if r not in file.populations), None):
            raise InputError(f"{where}: reads: no population {unknown!r}; add it to populations")
        private = [r for r in dict.fromkeys(stage.reads) if not file.populations[r].public]
        if private and stage.budget is None:
            raise InputError(f"{where}: budget: missing; state it, or 'none' for reads without DP")
        for i, a in enumerate(private):
            for b in private[i + 1 :]:
                if frozenset((a, b)) not in strangers:
                    raise InputError(
                        f"{where}: reads: {a} and {b} may hold the same people, who would then "
                        "count twice; list them under disjoint, or make them one population"
                    )
    for promise in file.promises:
        if promise.stage not in known:
            raise InputError(f"{path}: promises: no stage {promise.stage!r}; correct the name")


def _sorted(path: Path, file: LineageFile) -> list[str]:
    """The stages with every input before the stage that takes it."""
    inputs = {stage.id: set(stage.inputs) for stage in file.stages}
    order: list[str] = []
    while inputs:
        ready = [name for name, needs in inputs.items() if not needs - set(order)]
        if not ready:
            cycle = _cycle(inputs)
            line = dict(zip((s.id for s in file.stages), _stage_lines(path), strict=True))[cycle[0]]
            shown = " -> ".join((*cycle, cycle[0]))
            raise InputError(
                f"{path}:{line}: stage {cycle[0]}: inputs: go round in a circle ({shown}); "
                "remove one of them"
            )
        order += ready
        for name in ready:
            del inputs[name]
    return order


def _cycle(inputs: Mapping[str, set[str]]) -> list[str]:
    """Stages that feed one another, in the direction of the data, from the file's first one."""
    way = [next(iter(inputs))]
    while True:
        source = next(s for s in sorted(inputs[way[-1]]) if s in inputs)
        if source in way:
            circle = way[way.index(source) :][::-1]
            first = circle.index(next(name for name in inputs if name in circle))
            return circle[first:] + circle[:first]
        way.append(source)


def _stage_lines(path: Path) -> list[int]:
    root: Any = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    items = next(value for key, value in root.value if key.value == "stages")
    return [item.start_mark.line + 1 for item in items.value]
