"""From an AUDIT.yaml to attribute attacks on its target, and to the files of what they found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from attacks.attribute.infer import infer
from attacks.attribute.methods import METHODS, find
from attacks.attribute.question import Question, triples
from attacks.attribute.result import AttributeResult, write_guesses, write_json
from attacks.baselines import blind_baseline, distribution_shift
from attacks.metrics import auc
from attacks.records import Membership
from attacks.result import AttackResult
from attacks.targets import AccessDenied, Target, allows
from audit.config import Attribute, AuditConfig, ScoresTarget, TransformersTarget
from audit.membership import Loaded, OutOfTime, Watch
from audit.models import classes_of, load_model
from audit.output import ATTRIBUTE_WRITTEN
from audit.record_files import read_membership
from audit.to_record import Subject
from audit.yaml_file import InputError
from reports.record import Input


@dataclass(frozen=True, eq=False)
class AttributeAudit:
    """Attribute attacks on one target.

    ``void``: the blind baseline told members from non-members without the target, so that no figure
    here speaks of it.
    """

    title: str
    target: str
    confidence: float
    results: tuple[AttributeResult, ...]
    blind: AttackResult
    void: bool
    inputs: tuple[Input, ...]


def measure_attribute(
    config: AuditConfig,
    questions: Sequence[Question],
    attacks: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AttributeAudit:
    """Run attribute attacks on the target of an AUDIT.yaml; by default those that use its access.

    Raises:
        InputError: if the target is no classifier of tables, or an input cannot be used.
    """
    if config.target is None or config.records is None:
        raise InputError(
            "target: attribute inference asks a model about records; the configuration names "
            + ("no target" if config.target is None else "scores that somebody computed")
        )
    if isinstance(config.target, TransformersTarget | ScoresTarget):
        raise InputError(
            "target: attribute inference needs records with columns, and a language model's are "
            "texts; name a model of tables"
        )
    records, names, inputs = read_membership(config.records, None, classes_of(config.target))
    model = load_model(config.target, records.members, names, records.classes, config.seed)
    tried = _attacks(model.target, attacks)
    results = _infer(config, model.target, records, names, questions, tried, progress)
    blind = blind_baseline(records, seed=config.seed)
    return AttributeAudit(
        config.title,
        model.description,
        config.confidence,
        results,
        blind,
        distribution_shift(blind, config.confidence),
        (*inputs, *model.inputs),
    )


@dataclass(frozen=True, eq=False)
class AttributeAttacks:
    """What the attribute attacks of an audit found, on the target and on the positive control.

    ``tried`` counts those on the target, with those that the time did not allow: ``unfinished``
    names their columns, and why.
    """

    results: tuple[AttributeResult, ...]
    controls: tuple[AttributeResult, ...]
    tried: int
    unfinished: tuple[tuple[str, OutOfTime], ...]


Plan = list[tuple[tuple[Question, ...], tuple[str, ...]]]
"""For each column what is asked about it, and the attacks that try."""


def attack_attributes(config: AuditConfig, loaded: Loaded, watch: Watch) -> AttributeAttacks:
    """Run the attribute attacks of the configuration on its target, then on the positive control.

    Raises:
        InputError: if a column, an attack or a record cannot be used.
    """
    target, control = loaded.model.target, loaded.control
    plan = [(_questions(x), _attacks(target, x.attacks)) for x in config.attributes]
    results, unfinished = _run(config, loaded, target, "target", plan, watch)
    controls: tuple[AttributeResult, ...] = ()
    if control is not None:
        access = control.target.access
        possible = [(q, tuple(n for n in a if allows(access, find(n).access))) for q, a in plan]
        controls, _ = _run(config, loaded, control.target, "positive control", possible, watch)
    tried = sum(len(questions) * len(attacks) for questions, attacks in plan)
    return AttributeAttacks(results, controls, tried, unfinished)


def _run(
    config: AuditConfig, loaded: Loaded, target: Target, subject: Subject, plan: Plan, watch: Watch
) -> tuple[tuple[AttributeResult, ...], tuple[tuple[str, OutOfTime], ...]]:
    results: list[AttributeResult] = []
    unfinished: list[tuple[str, OutOfTime]] = []
    for questions, attacks in plan:
        column = questions[0].column
        if not attacks:
            continue
        progress = watch(f"{column}: {subject}")
        try:
            results += _infer(
                config, target, loaded.records, loaded.names, questions, attacks, progress
            )
        except OutOfTime as error:
            unfinished.append((column, error))
    return tuple(results), tuple(unfinished)


def write(audit: AttributeAudit, folder: Path, command: str) -> None:
    """The figures as JSON and the guesses as Parquet into an existing folder."""
    shift = auc(audit.blind.member_scores, audit.blind.non_member_scores, audit.confidence)
    about: dict[str, Any] = {
        "title": audit.title,
        "target": audit.target,
        "command": command,
        "versions": {name: metadata.version(name) for name in ("dpassay", "numpy", "scikit-learn")},
        "inputs": [dataclasses.asdict(read) for read in audit.inputs],
        "void": audit.void,
        "blind_baseline": {"auc": dataclasses.asdict(shift), "notes": audit.blind.notes},
    }
    figures, guesses = ATTRIBUTE_WRITTEN
    write_json(audit.results, folder / figures, audit.confidence, about)
    write_guesses(audit.results, folder / guesses)


def _questions(asked: Attribute) -> tuple[Question, ...]:
    """What AUDIT.yaml asks about one column."""
    questions = [Question(asked.column, tuple(names)) for names in asked.known]
    if asked.triples:
        names = [name for name in asked.triples if name != asked.column]
        try:
            questions += triples(asked.column, names)
        except ValueError as error:
            raise InputError(f"attributes: {asked.column}: {error}") from None
    return tuple(questions or [Question(asked.column)])


def _infer(
    config: AuditConfig,
    target: Target,
    records: Membership,
    names: tuple[str, ...],
    questions: Sequence[Question],
    attacks: tuple[str, ...],
    progress: Callable[[int, int], None],
) -> tuple[AttributeResult, ...]:
    assert config.records is not None
    try:
        return infer(
            target,
            records,
            questions,
            names=names,
            attacks=attacks,
            seed=config.seed,
            progress=progress,
        )
    except AccessDenied as error:
        raise InputError(str(error)) from None
    except ValueError as error:
        raise InputError(f"{config.records.members}: {error}") from None


def _attacks(target: Target, named: Sequence[str]) -> tuple[str, ...]:
    """The attacks named; where none is, those that use all of the access that there is."""
    try:
        for name in named:
            find(name)
    except ValueError as error:
        raise InputError(str(error)) from None
    level = "label" if target.access == "label" else "scores"
    fitting = (name for name, method in METHODS.items() if method.access == level)
    return tuple(named) or tuple(fitting)
