"""The graph of stages that touched raw data, and what each stage's output costs the people in it.

Whoever holds a stage's output holds what all its ancestors let through, along every path at once.
So the budget of a person is that of all ancestors that read the person's data, each counted once:
composed by RDP or PLD where the mechanisms are known, by adding ε and δ where they are not. A
person can be in several populations unless these are stated to be disjoint; over disjoint people
the budget is the largest, not the sum (McSherry 2009, theorem 4). A stage that read raw data
without DP leaves every descendant with ε = ∞: no later noise takes back what it let through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.claims.account import Account, Spent, compose, released_gaussian
from audit.claims.context import read_ledger
from audit.claims.verdicts import at_most
from audit.lineage_file import Budget, Kind, LineageFile, Promise, apart, read_file
from reports.record import ClaimState, Evidence, Finding, Interval, Relation
from reports.sentence import finish

SEEDED = "its noise comes from a seed: whoever has the seed can compute it"


@dataclass(frozen=True)
class Exposure:
    """What a stage's output costs the people of one population.

    Attributes:
        spent_by: the stages that read these people's data under DP.
        raw: those that read them without; ε is infinite if there is one.
        path: how the first of them, or the first that spent, reaches the stage.
    """

    stage: str
    kind: Kind
    population: str
    account: Account
    delta: float
    spent_by: tuple[str, ...]
    raw: tuple[str, ...]
    path: tuple[str, ...]


@dataclass(frozen=True)
class Lineage:
    """Every stage's exposures, in the order of the graph, and the findings on them."""

    title: str
    relation: Relation
    exposures: tuple[Exposure, ...]
    findings: tuple[Finding, ...]


def read_lineage(path: Path) -> Lineage:
    """The budget of every stage and population of a LINEAGE.yaml.

    Raises:
        InputError: if the file cannot be used, names what it does not define, or has a cycle; the
            message names the line.
    """
    file, order = read_file(path)
    graph = _Graph(path, file, order)
    exposures = tuple(e for stage in graph.order for e in graph.exposures(stage))
    findings = [_raw_finding(s, graph) for s in graph.order if graph.is_raw(s)]
    findings += [_ledger_finding(s, why) for s, why in graph.unreliable.items()]
    findings += [_exposure_finding(e) for e in exposures if not e.raw]
    findings += [_promise_finding(i, promise, graph) for i, promise in enumerate(file.promises)]
    return Lineage(file.title, file.relation, exposures, tuple(finish(f) for f in findings))


class _Graph:
    """The checked graph: stages in order, their ancestors, and what each spent."""

    def __init__(self, path: Path, file: LineageFile, order: list[str]) -> None:
        self.file = file
        self.order = order
        self.stages = {stage.id: stage for stage in file.stages}
        self.ancestors: dict[str, list[str]] = {}
        for name in order:
            above = {name}.union(*(self.ancestors[i] for i in self.stages[name].inputs))
            self.ancestors[name] = [s for s in order if s in above]
        self.private = [n for n, p in file.populations.items() if not p.public]
        self.groups = list(_groups(self.private, apart(file)))
        self.spent: dict[str, Spent] = {}
        self.evidence: dict[str, tuple[Evidence, ...]] = {}
        self.unreliable: dict[str, str] = {}
        for name, stage in self.stages.items():
            if isinstance(stage.budget, Budget):
                self.spent[name] = self._spent(path, name, stage.budget)
        self._known: dict[tuple[tuple[str, ...], float | None], tuple[Account, float]] = {}

    def _spent(self, path: Path, name: str, budget: Budget) -> Spent:
        if budget.ledger is not None:
            ledger = read_ledger(path.parent / budget.ledger)
            self.evidence[name] = ledger.evidence
            if ledger.ledger_problem or ledger.seeded_noise:
                self.unreliable[name] = ledger.ledger_problem or SEEDED
                return Spent((), math.inf, 0.0)
            return Spent(ledger.events or (), group_size=ledger.group_size)
        if budget.mechanisms:
            return Spent(tuple(m.events()[1] for m in budget.mechanisms))
        assert budget.epsilon is not None
        if budget.gaussian:
            return Spent((released_gaussian(budget.epsilon, budget.delta, self.file.relation),))
        return Spent((), budget.epsilon, budget.delta)

    def _cost(self, spent_by: tuple[str, ...], promised: float | None) -> tuple[Account, float]:
        key = (spent_by, promised)
        if key not in self._known:
            spent = [self.spent[s] for s in spent_by]
            relation = self.file.relation
            self._known[key] = compose(spent, self.file.delta, relation, promised)
        return self._known[key]

    def is_raw(self, name: str) -> bool:
        stage = self.stages[name]
        return stage.budget == "none" and any(p in self.private for p in stage.reads)

    def exposures(self, name: str) -> Iterator[Exposure]:
        """One for each population that the stage or an ancestor read."""
        read = {p for s in self.ancestors[name] for p in self.stages[s].reads}
        for population in (p for p in self.private if p in read):
            yield self.exposure(name, population, None)

    def exposure(self, name: str, population: str, promised: float | None) -> Exposure:
        """The costliest group that a person of the population may be in, at the promised δ."""
        worst: Exposure | None = None
        for group in (g for g in self.groups if population in g):
            touched = [s for s in self.ancestors[name] if group & set(self.stages[s].reads)]
            raw = tuple(s for s in touched if self.is_raw(s))
            spent_by = tuple(s for s in touched if s in self.spent)
            if raw:
                cost = Account(math.inf, math.inf, "no DP")
                delta = promised or self.file.delta
            else:
                cost, delta = self._cost(spent_by, promised)
            path = self.path((raw or spent_by or (name,))[0], name)
            stage = self.stages[name]
            found = Exposure(name, stage.kind, population, cost, delta, spent_by, raw, path)
            if worst is None or (cost.high, cost.low) > (worst.account.high, worst.account.low):
                worst = found
        assert worst is not None
        return worst

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """A shortest way from one stage down to another."""
        ways: dict[str, tuple[str, ...]] = {end: (end,)}
        for name in reversed(self.ancestors[end]):
            for source in self.stages[name].inputs if name in ways else ():
                if source not in ways or len(ways[source]) > len(ways[name]) + 1:
                    ways[source] = (source, *ways[name])
        return ways[start]


def _groups(names: Sequence[str], disjoint: set[frozenset[str]]) -> Iterator[frozenset[str]]:
    """The largest sets of populations that one person may be in (Bron and Kerbosch 1973)."""

    def together(a: str) -> set[str]:
        return {b for b in names if b != a and frozenset((a, b)) not in disjoint}

    near = {name: together(name) for name in names}

    def grow(group: set[str], open_: set[str], done: set[str]) -> Iterator[frozenset[str]]:
        if not open_ and not done:
            yield frozenset(group)
            return
        pivot = max(open_ | done, key=lambda n: len(near[n] & open_))
        for name in sorted(open_ - near[pivot]):
            yield from grow(group | {name}, open_ & near[name], done & near[name])
            open_, done = open_ - {name}, done | {name}

    yield from grow(set(), set(names), set())


def _raw_finding(name: str, graph: _Graph) -> Finding:
    """Names a stage that read raw data without DP and what it spoils."""
    stage = graph.stages[name]
    spoilt = [s for s in graph.order if name in graph.ancestors[s] and s != name]
    people = [p for p in stage.reads if p in graph.private]
    return Finding(
        id=f"lineage/{name}",
        check="lineage.raw",
        state="refuted",
        message="lineage.filter" if stage.kind == "filtering" else "lineage.raw",
        values={
            "subject": name,
            "kind": stage.kind,
            "populations": ", ".join(people),
            "descendants": ", ".join(spoilt) or "–",
        },
        figures={"epsilon": Interval(math.inf, math.inf, math.inf, 1.0, "no DP", 0)},
    )


def _ledger_finding(name: str, problem: str) -> Finding:
    return Finding(
        id=f"lineage/{name}/ledger",
        check="lineage.ledger",
        state="inconclusive",
        message="lineage.ledger",
        values={"subject": name, "problem": problem},
    )


def _exposure_finding(exposure: Exposure) -> Finding:
    return Finding(
        id=f"lineage/{exposure.stage}/{exposure.population}",
        check="lineage.budget",
        state="measured",
        message="lineage.budget" if exposure.spent_by else "lineage.free",
        values={
            "subject": exposure.stage,
            "population": exposure.population,
            "epsilon": exposure.account.high,
            "delta": exposure.delta,
            "accountant": exposure.account.accountant,
            "stages": ", ".join(exposure.spent_by),
            "path": " → ".join(exposure.path),
        },
        figures={"epsilon": exposure.account.interval()},
    )


def _promise_finding(index: int, promise: Promise, graph: _Graph) -> Finding:
    """The verdict on what a stage promises, for the people whom it costs most."""
    read = {p for s in graph.ancestors[promise.stage] for p in graph.stages[s].reads}
    found = [
        graph.exposure(promise.stage, p, promise.delta) for p in graph.private if p in read
    ]  # fmt: skip
    nobody = Account(0.0, 0.0, "nothing read")
    worst = max(found, key=lambda e: (e.account.high, e.account.low), default=None)
    cost = worst.account if worst else nobody
    state: ClaimState = at_most(promise.epsilon, max((e.account.low for e in found), default=0.0),
                                cost.high)  # fmt: skip
    reason = "raw_promise" if worst and worst.raw else "over_delta"
    if not math.isinf(cost.high):
        reason = f"promise_{state}"
    return Finding(
        id=f"lineage/promise/{index}",
        check="lineage.promise",
        state=state,
        message=f"lineage.{reason}",
        values={
            "figure": "epsilon",
            "claimed": promise.epsilon,
            "subject": promise.stage,
            "delta": promise.delta,
            "epsilon": cost.high,
            "low": cost.low,
            "population": worst.population if worst else "–",
            "accountant": cost.accountant,
            "stages": ", ".join(
                worst.raw if worst and worst.raw else worst.spent_by if worst else ()
            ),
        },
        figures={"epsilon": cost.interval()},
        claim=f"lineage.{promise.stage}",
    )
