"""What the attacks of an audit found, in the record's vocabulary, and their scores on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attacks import registry
from attacks.attribute.result import write_guesses
from attacks.precomputed import precomputed
from attacks.records import Membership
from attacks.result import AttackResult, write_scores
from audit import to_record
from audit.attribute import AttributeAttacks, attack_attributes
from audit.config import AuditConfig, ScoresTarget
from audit.membership import Watch, attack_target, load, shared_confidence
from audit.record_files import read_scores
from reports.record import Attack, Finding, FindingState, Input, Subject


@dataclass(frozen=True)
class Measured:
    """What was attacked, and what came of it."""

    subject: Subject
    attacks: tuple[Attack, ...] = ()
    findings: tuple[Finding, ...] = ()
    inputs: tuple[Input, ...] = ()


def measure(
    config: AuditConfig, folder: Path, watch: Watch, shadow_folder: Path | None = None
) -> Measured:
    """Run every attack of the configuration; scores go to ``folder`` as Parquet.

    ``shadow_folder`` keeps what shadow models answered, so that an audit that was interrupted
    trains only those that are missing.

    Every interval pays for the number of attacks tried (Bonferroni), those on membership and those
    on attributes, so that all of them hold together at the configured confidence.

    Raises:
        InputError: if an input cannot be used, or an attack cannot run on this kind of target.
    """
    if config.target is None:
        return Measured(Subject(config.title, "claims", config.description, None, 0, 0))
    if isinstance(config.target, ScoresTarget):
        return _measure_scores(config, config.target, folder)
    loaded = load(config)
    # before the fleets: a column that cannot be guessed is refused before anybody waits for them
    guessed = attack_attributes(config, loaded, watch)
    done = attack_target(config, watch, shadow_folder, loaded=loaded)
    confidence = shared_confidence(config, guessed.tried)
    records = done.records
    shift = _blind(done.blind, done.void, config.confidence)
    attacks, findings = [shift[0]], [*_about(records), shift[1]]
    for name, error in done.unfinished:
        title = registry.find(name).title
        findings.append(to_record.failed(f"attack/{name}", "attack.membership", title, error))
    results = folder / "scores"
    results.mkdir()
    for subject, result in done.results:
        attacks.append(_keep(result, subject, results, confidence))
        if subject == "target":
            findings.append(to_record.attack_finding(attacks[-1], done.void))
    findings += _attributes(guessed, results, confidence, done.void)
    subject_ = Subject(
        config.title,
        config.target.kind,
        config.description or done.model.description,
        done.model.target.access,
        len(records.members),
        len(records.non_members),
    )
    return Measured(subject_, tuple(attacks), tuple(findings), done.inputs)


def _blind(result: AttackResult, void: bool, confidence: float) -> tuple[Attack, Finding]:
    measured = to_record.attack(result, "blind baseline", confidence)
    auc = measured.metric("auc")
    assert auc is not None
    state: FindingState = "void" if void else "supported"
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


def _attributes(
    guessed: AttributeAttacks, folder: Path, confidence: float, void: bool
) -> list[Finding]:
    for subject, results in (("target", guessed.results), ("positive-control", guessed.controls)):
        if results:
            write_guesses(results, folder / f"attribute.{subject}.parquet")
    return [
        *to_record.attribute_findings(guessed.results, guessed.controls, confidence, void),
        *(
            to_record.failed(f"attack/attribute/{column}", "attack.attribute", column, error)
            for column, error in guessed.unfinished
        ),
    ]


def _keep(
    result: AttackResult, subject: to_record.Subject, folder: Path, confidence: float
) -> Attack:
    write_scores(result, folder / f"{result.name}.{subject.replace(' ', '-')}.parquet")
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
        attacks.append(_keep(result, subject, scores, shared_confidence(config)))
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
