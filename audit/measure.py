"""Attacks the target, its positive control and nothing: the only place where attacks are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attacks import registry
from attacks.baselines import blind_baseline, distribution_shift
from attacks.precomputed import precomputed
from attacks.records import Membership
from attacks.result import AttackResult, write_scores
from attacks.shadows.fleet import Shadows
from audit import to_record
from audit.config import AuditConfig, ScoresTarget, TransformersTarget
from audit.models import Model, builtin_control, classes_of, load_model
from audit.record_files import read_membership, read_scores
from audit.yaml_file import InputError
from reports.record import Attack, Finding, FindingState, Input, Subject

Watch = Callable[[str], Callable[[int, int], None]]
"""From the name of a stage to its progress callback, called as (done, of how many)."""


class OutOfTime(Exception):
    """The seconds that the configuration allows are used up."""


@dataclass(frozen=True)
class Measured:
    """What was attacked, and what came of it."""

    subject: Subject
    attacks: tuple[Attack, ...] = ()
    findings: tuple[Finding, ...] = ()
    inputs: tuple[Input, ...] = ()


def measure(config: AuditConfig, folder: Path, watch: Watch) -> Measured:
    """Run every attack of the configuration; scores go to ``folder`` as Parquet.

    Every interval pays for the number of attacks tried (Bonferroni), so that all of them hold
    together at the configured confidence.

    Raises:
        InputError: if an input cannot be used, or an attack cannot run on this kind of target.
    """
    if config.target is None:
        return Measured(Subject(config.title, "claims", config.description, None, 0, 0))
    if isinstance(config.target, ScoresTarget):
        return _measure_scores(config, config.target, folder)
    assert config.records is not None
    text = config.target.text if isinstance(config.target, TransformersTarget) else None
    records, names, inputs = read_membership(config.records, text, classes_of(config.target))
    model = load_model(config.target, records.members, names, records.classes, config.seed)
    for name in config.attacks:
        _check(name, model)
    control = _control(config, records, names)
    blind = _blind(config, records, watch("blind baseline"))
    attacks, findings = [blind[0]], [*_about(records), blind[1]]
    results = folder / "scores"
    results.mkdir()
    attackable: list[tuple[to_record.Subject, Model | None]] = [
        ("target", model),
        ("positive control", control),
    ]
    for subject, attacked in attackable:
        if attacked is None:
            continue
        shadows = _shadows(config, attacked)
        for name in config.attacks:
            title = registry.find(name).title
            if registry.find(name).needs_shadows and shadows is None:
                continue  # a control that nobody can train again; the target was checked before
            try:
                result = registry.run(
                    name,
                    attacked.target,
                    records,
                    shadows=shadows,
                    seed=config.seed,
                    progress=watch(f"{name}: {subject}"),
                )
            except OutOfTime as error:
                if subject == "target":
                    id_ = f"attack/{name}"
                    findings.append(to_record.failed(id_, "attack.membership", title, error))
                continue
            except ValueError as error:  # records that this model cannot take, too few to train on
                raise InputError(f"attacks: {name} on the {subject}: {error}") from None
            attacks.append(_keep(config, result, subject, results))
            if subject == "target":
                findings.append(to_record.attack_finding(attacks[-1], blind[1].state == "void"))
    subject_ = Subject(
        config.title,
        config.target.kind,
        config.description or model.description,
        model.target.access,
        len(records.members),
        len(records.non_members),
    )
    read = (*inputs, *model.inputs, *(control.inputs if control else ()))
    return Measured(subject_, tuple(attacks), tuple(findings), read)


def _check(name: str, model: Model) -> None:
    try:
        entry = registry.find(name)
    except ValueError as error:
        raise InputError(str(error)) from None
    if entry.needs_shadows and model.fit is None:
        raise InputError(
            f"attacks: {name} trains shadow models, and the target does not say how; give "
            "target.training (a torch target) or leave the attack out"
        )


def _control(config: AuditConfig, records: Membership, names: tuple[str, ...]) -> Model | None:
    """The model that is known to leak, trained on or loaded for the same members."""
    if config.positive_control == "none":
        return None
    if config.positive_control == "builtin":
        if records.members.features.dtype.kind not in "biuf":
            return None  # no forest on texts; the gate then says that nothing showed its power
        return builtin_control(records.members, config.seed)
    return load_model(config.positive_control, records.members, names, records.classes, config.seed)


def _shadows(config: AuditConfig, model: Model) -> Shadows | None:
    if model.fit is None:
        return None
    return Shadows(
        model.fit,
        models=config.budget.shadow_models,
        seed=config.seed,
        fit_many=model.fit_many,
    )


def _blind(
    config: AuditConfig, records: Membership, progress: Callable[[int, int], None]
) -> tuple[Attack, Finding]:
    result = blind_baseline(records, seed=config.seed)
    progress(1, 1)  # only now: no shortage of time may cost the check of the records
    measured = to_record.attack(result, "blind baseline", config.confidence)
    auc = measured.metric("auc")
    assert auc is not None
    state: FindingState = "void" if distribution_shift(result, config.confidence) else "supported"
    finding = Finding(
        id="records/exchangeable",
        check="records.exchangeable",
        state=state,
        message=f"records.exchangeable.{state}",
        values={"low": auc.low, "auc": auc.value, "high": auc.high, "n": auc.n},
        figures={"auc": auc},
    )
    return measured, finding


def _about(records: Membership) -> list[Finding]:
    """What a reader must know of the records before any figure."""
    findings = [_split(records.split, len(records.members), len(records.non_members))]
    if records.notes:
        findings.append(
            Finding(
                id="records/overlap",
                check="records.overlap",
                state="measured",
                message="records.overlap.measured",
                values={"notes": "; ".join(records.notes)},
            )
        )
    return findings


def _split(split: str, members: int, non_members: int) -> Finding:
    state: FindingState = "supported" if split == "randomised" else "inconclusive"
    return Finding(
        id="records/split",
        check="records.split",
        state=state,
        message=f"records.split.{state}",
        values={"members": members, "non_members": non_members},
    )


def _keep(
    config: AuditConfig, result: AttackResult, subject: to_record.Subject, folder: Path
) -> Attack:
    write_scores(result, folder / f"{result.name}.{subject.replace(' ', '-')}.parquet")
    confidence = 1 - (1 - config.confidence) / max(1, len(config.attacks))
    return to_record.attack(result, subject, confidence)


def _measure_scores(config: AuditConfig, target: ScoresTarget, folder: Path) -> Measured:
    scores = folder / "scores"
    scores.mkdir()
    attacks, inputs = [], []
    given: list[tuple[to_record.Subject, ScoresTarget]] = [("target", target)]
    if isinstance(config.positive_control, ScoresTarget):
        given.append(("positive control", config.positive_control))
    for subject, spec in given:
        values, truth, ids, read = read_scores(spec)
        result = precomputed(
            values[truth],
            values[~truth],
            higher_means=spec.higher_means,
            member_ids=ids[truth],
            non_member_ids=ids[~truth],
            title=f"Scores from {spec.file.name}",
        )
        attacks.append(_keep(config, result, subject, scores))
        inputs.append(read)
    measured = attacks[0]
    findings = (
        _split(target.split, measured.members, measured.non_members),
        to_record.attack_finding(measured),
    )
    subject_ = Subject(
        config.title,
        "scores",
        config.description or f"scores that somebody else computed, from {target.file.name}",
        "scores",
        measured.members,
        measured.non_members,
    )
    return Measured(subject_, tuple(attacks), findings, tuple(inputs))
