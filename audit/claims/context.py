"""What is known beside the claims: the ledger of the run, and what an audit measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from audit.accounting.events import MechanismEvent
from audit.yaml_file import InputError
from reports.record import Attack, Evidence, Interval
from reports.sentence import finish

if TYPE_CHECKING:
    from audit.ledger import Ledger


@dataclass(frozen=True)
class Context:
    """The evidence that checks may use.

    Attributes:
        events: what the ledger says has spent budget; None where there is no ledger.
        ledger_problem: why the ledger cannot be relied on; "" if it can.
        group_size: how many records one user has, by the ledger; 1 where the unit is the record.
        records: how many records it was trained on; None where that is not known.
        seeded_noise: whether the ledger's noise can be computed again from a seed.
        released: the checkpoints that the ledger lists: their names and SHA-256.
        evidence: the ledger with its digest.
        attacks: what the audit's attacks measured.
        epsilon_lower: lower bounds on ε by audits, each with its confidence; name -> interval.
        folder: where relative paths in claims start.
    """

    events: tuple[MechanismEvent, ...] | None = None
    ledger_problem: str = ""
    group_size: int = 1
    records: int | None = None
    seeded_noise: bool = False
    released: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    attacks: tuple[Attack, ...] = ()
    epsilon_lower: Mapping[str, Interval] = field(default_factory=dict)
    folder: Path = Path()


def of_ledger(
    ledger: Ledger,
    problem: str,
    evidence: Evidence,
    *,
    attacks: tuple[Attack, ...] = (),
    folder: Path = Path(),
) -> Context:
    """What a ledger that was read says; ``problem`` is what its verification found, or ""."""
    header = ledger.header
    return Context(
        events=ledger.events(),
        ledger_problem=problem or ("" if ledger.steps else "it records no step that ran"),
        group_size=header.group_size if header else 1,
        records=header.records if header else None,
        seeded_noise=header is not None and header.noise_source == "seeded",
        released=tuple(name for c in ledger.checkpoints for name in (Path(c.file).name, c.sha256)),
        evidence=(evidence,),
        attacks=attacks,
        folder=folder,
    )


def read_ledger(path: Path, folder: Path = Path()) -> Context:
    """A training ledger, read and verified.

    Raises:
        InputError: if the file is no ledger that can be read.
    """
    from audit import ledger_checks, ledger_readers
    from audit.ledger_format import LedgerError

    try:
        ledger = ledger_readers.read(path)
        findings = [finish(f) for f in ledger_checks.verify(ledger)]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (LedgerError, OSError) as error:
        raise InputError(str(error)) from None
    faults = [f.meaning for f in findings if f.state == "refuted"]
    return of_ledger(ledger, " ".join(faults), Evidence(str(path), digest), folder=folder)


def for_file(path: Path, ledger: Path | None) -> Context:
    """The context of a CLAIMS.yaml: its folder, and the ledger that it names.

    Raises:
        InputError: if the ledger cannot be read at all.
    """
    if ledger is None:
        return Context(folder=path.parent)
    return read_ledger(path.parent / ledger, path.parent)
