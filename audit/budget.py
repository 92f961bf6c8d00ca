"""Reads the ledger, verifies it, and recomputes the budget by accountants of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audit import to_record
from audit.accounting.events import UnsupportedEvent, released
from audit.accounting.guarantee import guarantees
from audit.claims.context import Context, of_ledger
from audit.config import AuditConfig, SklearnTarget, TorchTarget, TrainedTarget
from audit.ledger import Ledger
from audit.ledger_checks import verify
from audit.ledger_readers import read
from audit.record_files import digest
from reports.record import Attack, Budget, Claim, Evidence, Finding, Input, Relation
from reports.sentence import finish

USUAL_DELTA = 1e-5


@dataclass(frozen=True)
class Accounted:
    """The budget as recomputed, and what the claims may rest on."""

    context: Context
    budgets: tuple[Budget, ...] = ()
    findings: tuple[Finding, ...] = ()
    inputs: tuple[Input, ...] = ()


def account(
    config: AuditConfig, claims: Sequence[Claim], attacks: tuple[Attack, ...], folder: Path
) -> Accounted:
    """The account of the configured ledger at each claim's δ and relation; empty without one.

    Args:
        config: of the audit.
        claims: what is asserted; their δ and relation say where ε is asked for.
        attacks: what was measured, for claims about an attack's figure.
        folder: where relative paths in claims start.

    Raises:
        LedgerError: if the file is no ledger at all.
    """
    if config.ledger is None:
        return Accounted(Context(attacks=attacks, folder=folder))
    ledger = read(config.ledger)
    read_file = digest(config.ledger, "ledger", ledger.lines or None)
    files = _model_files(config, ledger)
    found = recomputed(ledger, read_file, files, claims, attacks, folder)
    named = (digest(file, "model file") for file in config.model_files)
    return dataclasses.replace(found, inputs=(read_file, *named))


def recomputed(
    ledger: Ledger,
    read_file: Input,
    files: Sequence[Path | Evidence],
    claims: Sequence[Claim],
    attacks: tuple[Attack, ...],
    folder: Path,
) -> Accounted:
    """The account of a ledger that was read; ``files`` are said to be models of its run."""
    checks = tuple(finish(finding) for finding in verify(ledger, files))
    refuted = [
        f"{finding.check}: {finding.meaning}" for finding in checks if finding.state == "refuted"
    ]
    context = of_ledger(
        ledger,
        "; ".join(refuted),
        Evidence(read_file.path, read_file.sha256),
        attacks=attacks,
        folder=folder,
    )
    budgets, failed = [], []
    for delta, relation in _asked(claims, ledger):
        try:
            budgets.append(_budget(ledger, delta, relation, context.group_size))
        except (UnsupportedEvent, ArithmeticError, MemoryError) as error:
            failed.append(to_record.failed("ledger/account", "ledger.account", "account", error))
    return Accounted(context, tuple(budgets), (*checks, *failed), (read_file,))


def _model_files(config: AuditConfig, ledger: Ledger) -> list[Path]:
    """The files that must be this run's: those named, and the target's own.

    A ledger that released nothing (other formats never say what they did) names no file to compare
    the target with.
    """
    files = list(config.model_files)
    match config.target:
        case SklearnTarget(model=own) | TorchTarget(weights=own):
            pass
        case TrainedTarget(folder=folder):
            own = folder / "model.safetensors"
        case _:
            return files
    known = own.resolve() in [file.resolve() for file in files]
    return [*files, own] if ledger.checkpoints and not known else files


def _asked(claims: Sequence[Claim], ledger: Ledger) -> list[tuple[float, Relation]]:
    """Every (δ, relation) of a claimed guarantee; without one the ledger's own δ, or 1e-5."""
    asked: dict[tuple[float, Relation], None] = {}
    for claim in claims:
        delta = claim.figures.get("delta")
        if claim.family == "dp_guarantee" and isinstance(delta, float):
            asked[delta, claim.relation] = None
    if not asked:
        promised = ledger.header.delta if ledger.header else None
        asked[promised or USUAL_DELTA, _usual_relation(ledger)] = None
    return list(asked)


def _usual_relation(ledger: Ledger) -> Relation:
    """Batches of fixed size are accounted under replace-one only, all others under add-remove."""
    fixed = any(getattr(e, "sampling", "") == "without_replacement" for e in ledger.events())
    return "replace-one" if fixed else "add-remove"


def _budget(ledger: Ledger, delta: float, relation: Relation, group: int) -> Budget:
    found = guarantees(
        ledger.events(),
        delta,
        relation=relation,
        unit=ledger.header.unit if ledger.header else "record",
        group_size=group,
    )
    return Budget(
        ledger=str(ledger.path),
        events=(*(released(event) for event in ledger.events()), *ledger.notes),
        guarantees=tuple(to_record.guarantee(g) for g in found),
    )
