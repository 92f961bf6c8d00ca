"""Config in, Record out: the order of an audit, and nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from audit import to_record
from audit.budget import account
from audit.claims import judge
from audit.config import AuditConfig, policy_file
from audit.gate.decide import decide
from audit.gate.policy import Policy
from audit.measure import measure
from audit.membership import OutOfTime
from audit.record_files import digest
from reports.record import Input, Provenance, Record, Verdict
from reports.sentence import finish

Progress = Callable[[str, int, int], None]
"""Called as (what is being done, how much of it is done, of how much)."""

PACKAGES = (
    "dpassay",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "torch",
    "opacus",
    "dp-accounting",
)


def run(
    config: AuditConfig,
    source: Path,
    folder: Path,
    *,
    command: str = "",
    progress: Progress = lambda stage, done, total: None,
    baseline: Record | None = None,
    baseline_file: Path | None = None,
    shadow_folder: Path | None = None,
) -> Record:
    """Run one audit and return its record.

    Args:
        config: what to do, from ``audit.config.load_config(source)``.
        source: the AUDIT.yaml it came from; claims and digests name it.
        folder: an empty folder for evidence files.
        command: what reproduces the audit.
        progress: called while attacks run.
        baseline: the record of an earlier release, for limits on how much worse it may become.
        baseline_file: where that record was read.
        shadow_folder: keeps what each finished shadow model answered; an audit that is run again
            with it goes on where it was interrupted.

    Raises:
        InputError: if an input cannot be used.
    """
    clock, started = time.monotonic(), datetime.datetime.now(datetime.UTC)

    def watch(stage: str) -> Callable[[int, int], None]:
        def report(done: int, total: int) -> None:
            progress(stage, done, total)
            limit = config.budget.seconds
            if limit is not None and done < total and time.monotonic() - clock > limit:
                raise OutOfTime(f"the {limit:g} seconds of budget.seconds were used up")

        return report

    decided_by = _inputs(source, baseline_file)
    claims = tuple(entry.to_claim(str(source)) for entry in config.claims)
    measured = measure(config, folder, watch, shadow_folder)
    accounted = account(config, claims, measured.attacks, source.parent)
    judged = judge(claims, accounted.context)
    policy = config.policy if isinstance(config.policy, Policy) else Policy()
    findings = (*measured.findings, *accounted.findings, *judged)
    record = Record(
        title=config.title,
        subject=measured.subject,
        claims=claims,
        findings=tuple(finish(finding) for finding in findings),
        attacks=measured.attacks,
        budgets=accounted.budgets,
        policy=to_record.rules(policy),
        verdict=Verdict("error", ()),
        provenance=Provenance(
            command=command,
            seed=config.seed,
            started=started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - clock, 1),
            versions={name: _version(name) for name in PACKAGES},
            platform=f"Python {platform.python_version()} on {platform.system()} "
            f"{platform.machine()}",
            inputs=(*decided_by, *measured.inputs, *accounted.inputs),
            notes=(f"SHA-256 of the policy: {policy.digest()}",),
        ),
    )
    return dataclasses.replace(record, verdict=decide(record, policy, baseline, started.date()))


def _inputs(source: Path, baseline_file: Path | None) -> tuple[Input, ...]:
    """What decides beside the data: the configuration, the policy's own file, the baseline."""
    named = {"policy": policy_file(source), "baseline": baseline_file}
    read = (digest(path, role) for role, path in named.items() if path is not None)
    return digest(source, "configuration"), *read


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
