"""Runs again what an audit's record can be recomputed from cheaply, and compares every figure.

The budget follows from the ledger, the verdict on each claim from that budget and the measured
figures, the gate's decisions from the findings and the policy. Attacks are not run again: their
figures are taken as the record has them.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from audit import to_record
from audit.budget import Accounted, recomputed
from audit.claims import judge
from audit.claims.context import Context
from audit.config import AuditConfig
from audit.folder_files import sha256_of
from audit.gate.decide import decide
from audit.gate.policy import Policy
from audit.ledger_format import LedgerError
from audit.ledger_readers import read
from audit.located import Located, locate
from audit.seal import Check
from audit.yaml_file import InputError, parse
from reports.record import Claim, Finding, Input, Record, from_json

TOLERANCE = 1e-6
"""Relative: the same formula on another machine; four digits are shown."""
_WORDS = ("meaning", "remedy", "power")  # another version may say the same in other words


def reproduce(
    record: Record, texts: Mapping[str, str], inputs: Path | None = None
) -> tuple[Check, ...]:
    """Compare an audit's record with what is recomputed.

    Args:
        record: the audit's.
        texts: sealed texts of the configuration and the policy by SHA-256.
        inputs: a folder to look for the audit's inputs in, by content and under any name; without
            it they are looked for where the audit read them.

    Raises:
        InputError: if ``inputs`` is no folder.
    """
    located = locate(record.provenance.inputs, inputs)
    checks = [found.check for found in located.values()]
    twice = [name for name, n in Counter(f.id for f in record.findings).items() if n > 1]
    checks += [Check("record", name, "differs", "two findings share this id") for name in twice]
    config = _config(record, located, texts)
    if isinstance(config, str):
        return (*checks, Check("claim", "configuration", "not at hand", config))
    claims = tuple(entry.to_claim(_path(record, "configuration")) for entry in config.claims)
    checks.append(_compared("claim", "as configured", record.claims, claims, texts=True))
    accounted = _accounted(record, located, config, checks)
    checks += _claims(record, accounted, _base(record, located))
    checks += _gate(record, located, config, texts)
    return tuple(checks)


def _config(
    record: Record, located: Mapping[str, Located], texts: Mapping[str, str]
) -> AuditConfig | str:
    """The configuration, or why it is not at hand."""
    text = _text(record, "configuration", located, texts)
    if text is None:
        return "neither the seal nor the inputs hold the configuration"
    try:
        return parse(text, Path(_path(record, "configuration")), AuditConfig)
    except InputError as error:
        return f"this version does not read it: {error}"


def _policy(
    record: Record, config: AuditConfig, located: Mapping[str, Located], texts: Mapping[str, str]
) -> Policy | None:
    if not isinstance(config.policy, Path):
        return config.policy or Policy()
    text = _text(record, "policy", located, texts)
    if text is None:
        return None
    try:
        return parse(text, config.policy, Policy)
    except InputError:
        return None


def _text(
    record: Record, role: str, located: Mapping[str, Located], texts: Mapping[str, str]
) -> str | None:
    """The text of an input: as sealed, if it has the digest that the record names, or as found."""
    read = _input(record, role)
    if read is None:
        return None
    sealed = texts.get(read.sha256)
    if sealed is not None and hashlib.sha256(sealed.encode()).hexdigest() == read.sha256:
        return sealed
    path = located[role].path if role in located else None
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _input(record: Record, role: str) -> Input | None:
    return next((i for i in record.provenance.inputs if i.role == role), None)


def _path(record: Record, role: str) -> str:
    read = _input(record, role)
    return "" if read is None else read.path


def _base(record: Record, located: Mapping[str, Located]) -> Path:
    """Where relative paths in claims start."""
    found = located.get("configuration")
    path = found.path if found and found.path else Path(_path(record, "configuration"))
    return path.parent


def _accounted(
    record: Record, located: Mapping[str, Located], config: AuditConfig, checks: list[Check]
) -> Accounted | None:
    """The account of the ledger, compared with the record; None where the ledger is not at hand."""
    folder = _base(record, located)
    wanted = _input(record, "ledger")
    if config.ledger is None:
        if wanted is not None or record.budgets:
            said = "the configuration names no ledger, the record accounts for one"
            checks.append(Check("accounting", "ledger", "differs", said))
        return Accounted(Context(attacks=record.attacks, folder=folder))
    found = located.get("ledger")
    if wanted is None or found is None or found.path is None:
        said = "needs the ledger that the audit read"
        checks.append(Check("accounting", "ledger", "not at hand", said))
        return None
    try:
        ledger = dataclasses.replace(read(found.path), path=Path(wanted.path))
    except LedgerError as error:
        checks.append(Check("accounting", "ledger", "not at hand", str(error)))
        return None
    files = [e for f in record.findings if f.check == "ledger.file" for e in f.evidence]
    accounted = recomputed(ledger, wanted, files, record.claims, record.attacks, folder)
    checks += _budgets(record, accounted)
    recorded = {f.id: f for f in record.findings if f.check.startswith("ledger.") and not f.claim}
    checks += _findings("accounting", recorded, accounted.findings, record)
    return accounted


def _budgets(record: Record, accounted: Accounted) -> Iterator[Check]:
    """Each accountant's ε, and whether it is about the same events."""
    before, now = (
        {
            f"ε at δ = {g.delta:g}, {g.unit}, {g.relation}, {g.accountant}": (b.events, g)
            for b in budgets
            for g in b.guarantees
        }
        for budgets in (record.budgets, accounted.budgets)
    )
    for subject in dict.fromkeys((*before, *now)):
        check = _compared("accounting", subject, before.get(subject), now.get(subject), texts=True)
        if check.state == "same":
            check = dataclasses.replace(check, detail=f"{now[subject][1].epsilon.high:.6g}")
        yield check


def _findings(
    part: str, recorded: Mapping[str, Finding], again: Sequence[Finding], record: Record
) -> Iterator[Check]:
    now = {finding.id: finding for finding in again}
    for name in dict.fromkeys((*recorded, *now)):
        check = _compared(part, name, recorded.get(name), now.get(name), texts=_same_words(record))
        if check.state == "same":
            check = dataclasses.replace(check, detail=now[name].state)
        yield check


def _claims(record: Record, accounted: Accounted | None, folder: Path) -> Iterator[Check]:
    recorded = {finding.claim: finding for finding in record.findings if finding.claim}
    for claim in record.claims:
        if accounted is None and claim.family == "dp_guarantee":
            said = "needs the ledger that the audit read"
            yield Check("claim", claim.id, "not at hand", said)
            continue
        context = accounted.context if accounted else Context(None, attacks=record.attacks)
        context = dataclasses.replace(context, folder=folder)
        if claim.id in recorded:
            yield _claim(claim, recorded[claim.id], context, record)
        else:
            yield Check("claim", claim.id, "differs", "the record has no finding on it")
    for name in sorted(recorded.keys() - {claim.id for claim in record.claims}):
        yield Check("claim", name, "differs", "a finding on a claim that nobody made")


def _claim(claim: Claim, before: Finding, context: Context, record: Record) -> Check:
    path = claim.figures.get("file") if claim.family == "snippet" else None
    if path is not None and (absent := _other_code(before, context.folder / str(path))):
        return Check("claim", claim.id, "not at hand", absent)
    try:
        (now,) = judge([claim], context)
    except InputError as error:
        return Check("claim", claim.id, "not at hand", str(error))
    check = _compared("claim", claim.id, before, now, texts=_same_words(record))
    return dataclasses.replace(check, detail=now.state) if check.state == "same" else check


def _other_code(before: Finding, path: Path) -> str:
    """Why the code that a claim is about cannot be read again; "" if it is there."""
    if not before.evidence:
        return "the record does not say which code was read"
    try:
        same = sha256_of(path) == before.evidence[0].sha256
    except InputError as error:
        return str(error)
    return "" if same else f"{path}: is another file than the audit read"


def _gate(
    record: Record,
    located: Mapping[str, Located],
    config: AuditConfig,
    texts: Mapping[str, str],
) -> Iterator[Check]:
    policy = _policy(record, config, located, texts)
    if policy is None:
        said = "neither the seal nor the inputs hold a policy that this version reads"
        yield Check("gate", "policy", "not at hand", said)
        return
    stated = f"SHA-256 of the policy: {policy.digest()}"
    other = stated not in record.provenance.notes
    said = "the record was decided by another" if other else policy.digest()[:16]
    yield Check("gate", "policy", "differs" if other else "same", said)
    yield _compared("gate", "rules", record.policy, to_record.rules(policy), texts=True)
    baseline, absent = _baseline(record, located)
    try:
        today = datetime.datetime.fromisoformat(record.provenance.started).date()
    except ValueError:
        yield Check("gate", "started", "differs", f"{record.provenance.started!r} is no time")
        return
    now = decide(record, policy, baseline, today)
    before, again = _decisions(record.verdict.decisions), _decisions(now.decisions)
    for name in dict.fromkeys((*before, *again)):
        if absent and name.startswith("baseline."):
            yield Check("gate", name, "not at hand", absent)
            continue
        check = _compared("gate", name, before.get(name), again.get(name), texts=True)
        if check.state == "same":
            check = dataclasses.replace(check, detail=again[name].outcome)
        yield check
    if absent and record.verdict.outcome != now.outcome:
        yield Check("gate", "verdict", "not at hand", absent)
    else:
        before_, now_ = (record.verdict.outcome, now.outcome) if absent else (record.verdict, now)
        check = _compared("gate", "verdict", before_, now_, texts=True)
        yield dataclasses.replace(check, detail=check.detail or now.outcome)


def _decisions(decisions: Sequence[Any]) -> dict[str, Any]:
    return {f"{d.rule} {d.finding}".strip(): d for d in decisions}


def _baseline(record: Record, located: Mapping[str, Located]) -> tuple[Record | None, str]:
    """The record of the earlier release, or why there is none though the audit had one."""
    had = any(d.rule.startswith("baseline.") for d in record.verdict.decisions)
    if _input(record, "baseline") is None:
        return None, "the record does not say which baseline it had" if had else ""
    found = located.get("baseline")
    if found is None or found.path is None:
        return None, "needs the baseline that the audit read"
    try:
        return from_json(found.path.read_text(encoding="utf-8")), ""
    except (OSError, ValueError) as error:
        return None, f"{found.path}: {error}"


def _same_words(record: Record) -> bool:
    from importlib import metadata

    return record.provenance.versions.get("dpassay") == metadata.version("dpassay")


def _compared(part: str, subject: str, before: Any, now: Any, *, texts: bool) -> Check:
    """``before`` is what the record says, ``now`` what was recomputed; None where there is none."""
    if before is None or now is None:
        said = "is not in the record" if before is None else "does not come out again"
        return Check(part, subject, "differs", said)
    found = list(_differences(before, now, "", () if texts else _WORDS))
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    state = Check(part, subject, "differs", "; ".join(found[:3]) + more)
    return state if found else Check(part, subject, "same")


def _differences(before: Any, now: Any, where: str, skipped: Sequence[str]) -> Iterator[str]:
    """Every leaf that differs, as "name: recorded, recomputed, by how much"."""
    if dataclasses.is_dataclass(before) and type(before) is type(now):
        for field in dataclasses.fields(before):
            if field.name not in skipped:
                old, new = getattr(before, field.name), getattr(now, field.name)
                yield from _differences(old, new, f"{where}.{field.name}".lstrip("."), skipped)
    elif isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*before, *now)):
            old, new = before.get(key), now.get(key)
            yield from _differences(old, new, f"{where}.{key}".lstrip("."), skipped)
    elif isinstance(before, list | tuple) and isinstance(now, list | tuple):
        if len(before) != len(now):
            yield f"{where}: {len(before)} recorded, {len(now)} recomputed"
        for i, (old, new) in enumerate(zip(before, now, strict=False)):
            yield from _differences(old, new, f"{where}.{i}".lstrip("."), skipped)
    elif not _equal(before, now):
        yield f"{where}: {_shown(before)} recorded, {_shown(now)} recomputed{_by(before, now)}"


def _equal(before: Any, now: Any) -> bool:
    if _numbers(before, now):
        return math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=1e-12)
    return bool(before == now)


def _numbers(*values: Any) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)


def _by(before: Any, now: Any) -> str:
    if not _numbers(before, now) or not math.isfinite(now - before) or before == 0:
        return ""
    return f" ({(now - before) / abs(before):+.2%})"


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)[:80]
