"""Judges a ledger: one finding for each thing that an honest run's ledger must show.

Every check answers a question of fact: ``supported`` where it holds (or, for a statistical test,
where nothing speaks against it at the stated level and power), ``refuted`` where it does not.
A hash chain shows edits by people who did not write it again as a whole; a signature under a key
that the reader knows, or a head digest kept elsewhere, closes that gap. The findings say so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from audit.ledger import Header, Ledger
from audit.ledger_batches import LEVEL, poisson_test, shuffled_sizes
from reports.record import Evidence, Finding, FindingState, Interval, Value


def verify(
    ledger: Ledger,
    files: Sequence[Path | Evidence] = (),
    *,
    public_key: bytes | None = None,
    data_fingerprint: str | None = None,
) -> tuple[Finding, ...]:
    """Every check's finding on one ledger; ``reports.sentence.finish`` writes out their meaning.

    Args:
        ledger: what ``audit.ledger.read`` or ``audit.ledger_readers.read`` returned.
        files: model files that are said to come from this run, or their digests.
        public_key: the 32 raw bytes of the Ed25519 key that must have signed.
        data_fingerprint: ``fingerprint`` of the records that are said to be the training data.

    Raises:
        OSError: if one of the files cannot be read.
    """
    return tuple(_findings(ledger, files, public_key, data_fingerprint))


def fingerprint(features: np.ndarray, labels: np.ndarray) -> str:
    """The SHA-256 of a set of records in any order, as docs/ledger.md defines it.

    Args:
        features: numbers, one record a row (further axes are flattened).
        labels: whole numbers, one a record.
    """
    rows = np.asarray(features, "<f8").reshape(len(labels), -1) + 0.0  # -0.0 becomes 0.0
    ends = np.asarray(labels, "<i8")
    digests = [hashlib.sha256(rows[i].tobytes() + ends[i].tobytes()) for i in range(len(ends))]
    return hashlib.sha256(b"".join(sorted(d.digest() for d in digests))).hexdigest()


def _findings(
    ledger: Ledger,
    files: Sequence[Path | Evidence],
    public_key: bytes | None,
    data_fingerprint: str | None,
) -> Iterator[Finding]:
    yield _chain(ledger)
    if ledger.header is not None:
        yield _signature(ledger, public_key)
        yield _steps(ledger)
        yield _end(ledger)
        yield _rate(ledger, ledger.header)
        yield _batches(ledger, ledger.header)
        yield _drift(ledger)
        if data_fingerprint is not None:
            yield _data(ledger, ledger.header, data_fingerprint)
    yield _ranks(ledger)
    yield from _files(ledger, files)
    if not ledger.private:
        yield _not_private(ledger)
    elif ledger.header is not None:
        yield _noise(ledger, ledger.header)


def _chain(ledger: Ledger) -> Finding:
    values: dict[str, Value] = {"n": ledger.lines, "head": ledger.head, "format": ledger.format}
    if ledger.format != "ledger":
        return _finding("chain", "not checkable", values)
    if problem := ledger.problem("chain"):
        return _finding(
            "chain", "refuted", {**values, "line": problem.line, "count": problem.count}
        )
    return _finding("chain", "supported", values)


def _signature(ledger: Ledger, public_key: bytes | None) -> Finding:
    end = ledger.end
    if end is None or not end.signature:
        if public_key is not None:
            return _finding("signature", "refuted", {}, ".unsigned")
        return _finding("signature", "not checkable", {"head": ledger.head})
    values: dict[str, Value] = {"key": end.public_key[:16], "n": ledger.lines}
    if not _signed(end.public_key, end.signature, end.signed):
        return _finding("signature", "refuted", values)
    if public_key is None:
        return _finding("signature", "inconclusive", values)
    if public_key.hex() != end.public_key:
        return _finding("signature", "refuted", values, ".other_key")
    return _finding("signature", "supported", values)


def _signed(public_key: str, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _steps(ledger: Ledger) -> Finding:
    missing, repeated = ledger.problem("missing"), ledger.problem("repeated")
    values: dict[str, Value] = {
        "n": ledger.steps,
        "missing": missing.count if missing else 0,
        "repeated": repeated.count if repeated else 0,
        "resumes": len(ledger.resumes),
    }
    if faults := [p for p in (missing, repeated) if p]:
        values["line"] = min(p.line for p in faults)
        return _finding("steps", "refuted", values)
    return _finding("steps", "supported", values)


def _end(ledger: Ledger) -> Finding:
    values: dict[str, Value] = {"n": ledger.steps}
    if ledger.end is None:
        torn = ledger.problem("torn")
        return _finding("end", "refuted", values, ".torn" if torn else "")
    if ledger.end.steps != ledger.steps:
        return _finding("end", "refuted", {**values, "stated": ledger.end.steps}, ".count")
    return _finding("end", "supported", values)


def _rate(ledger: Ledger, header: Header) -> Finding:
    recomputed = header.expected_batch_size / header.records
    values: dict[str, Value] = {
        "stated": header.sample_rate,
        "recomputed": recomputed,
        "batch": header.expected_batch_size,
        "n": header.records,
    }
    holds = math.isclose(header.sample_rate, recomputed, rel_tol=1e-6)
    return _finding("rate", "supported" if holds else "refuted", values)


def _batches(ledger: Ledger, header: Header) -> Finding:
    values: dict[str, Value] = {"n": sum(sum(sizes.values()) for sizes in ledger.batches.values())}
    if not values["n"]:
        return _finding("batches", "inconclusive", values, ".none")
    if header.sampler == "poisson":
        return _poisson(header, ledger.batches)
    values["sampler"] = header.sampler.replace("_", " ")
    if header.sampler == "full_batch":
        holds = all(set(sizes) == {header.records} for sizes in ledger.batches.values())
    elif header.sampler == "without_replacement":
        holds = all(set(sizes) == {expected} for expected, sizes in ledger.batches.items())
    else:
        holds = all(shuffled_sizes(header.records, e, b) for e, b in ledger.batches.items())
    return _finding("batches", "supported" if holds else "refuted", values, ".sizes")


def _poisson(header: Header, batches: Mapping[float, Mapping[int, int]]) -> Finding:
    test = poisson_test(header.records, batches)
    low, high = test.seen_spread
    values: dict[str, Value] = {
        "n": test.steps,
        "p": test.p_value,
        "level": LEVEL,
        "mean": test.mean_ratio,
        "spread": test.spread_ratio,
    }
    state: FindingState = (
        "refuted" if test.p_value <= LEVEL else "inconclusive" if test.blind else "supported"
    )
    power = (
        "too few steps: even constant batch sizes would have passed"
        if test.blind
        else f"at level {LEVEL:g}, nine times in ten, it finds sizes whose variance is below "
        f"{low:.2g} or above {high:.2g} times the binomial's, or whose mean is off by "
        f"{100 * test.seen_mean:.2g} %"
    )
    return _finding("batches", state, values, power=power)


def _drift(ledger: Ledger) -> Finding:
    values: dict[str, Value] = {"n": ledger.steps}
    if problem := ledger.problem("drift"):
        values.update(count=problem.count, line=problem.line, detail=problem.detail)
        return _finding("drift", "refuted", values)
    return _finding("drift", "supported", values)


def _data(ledger: Ledger, header: Header, given: str) -> Finding:
    holds = header.data_fingerprint == given
    values: dict[str, Value] = {"n": header.records, "given": given[:16]}
    values["stated"] = header.data_fingerprint[:16]
    return _finding("data", "supported" if holds else "refuted", values)


def _ranks(ledger: Ledger) -> Finding:
    ranks = ledger.header.ranks if ledger.header else 0
    values: dict[str, Value] = {"n": ledger.steps, "ranks": ranks}
    if problem := ledger.problem("ranks"):
        values.update(count=problem.count, line=problem.line, detail=problem.detail)
        return _finding("ranks", "refuted", values)
    return _finding("ranks", "supported" if ranks > 1 else "not checkable", values)


def _files(ledger: Ledger, files: Sequence[Path | Evidence]) -> Iterator[Finding]:
    known = {c.sha256: c for c in ledger.checkpoints}
    values: dict[str, Value] = {"n": len(known)}
    if not files:
        yield _finding("file", "not checkable", values)
    for number, file in enumerate(files):
        read = file if isinstance(file, Evidence) else _digest(file)
        found = known.get(read.sha256)
        yield _finding(
            "file",
            "supported" if found else "refuted",
            {**values, "file": Path(read.path).name, "step": found.step if found else None},
            evidence=(read,),
            number=number,
        )


def _digest(path: Path) -> Evidence:
    with path.open("rb") as content:
        return Evidence(str(path), hashlib.file_digest(content, "sha256").hexdigest())


def _noise(ledger: Ledger, header: Header) -> Finding:
    state: FindingState = "inconclusive" if header.noise_source == "seeded" else "supported"
    suffix = ".unseeded" if header.noise_source == "unseeded" else ""
    return _finding("noise", state, {"n": ledger.steps}, suffix)


def _not_private(ledger: Ledger) -> Finding:
    infinite = Interval(math.inf, math.inf, math.inf, 1.0, "no noise or no clipping", ledger.steps)
    return _finding("private", "measured", {"n": ledger.steps}, figures={"epsilon": infinite})


def _finding(
    name: str,
    state: FindingState,
    values: Mapping[str, Value],
    suffix: str = "",
    *,
    power: str = "",
    figures: Mapping[str, Interval] | None = None,
    evidence: tuple[Evidence, ...] = (),
    number: int = 0,
) -> Finding:
    message = f"ledger.{name}.{state.replace(' ', '_')}{suffix}"
    return Finding(
        id=f"ledger.{name}" + (f".{number + 1}" if number else ""),
        check=f"ledger.{name}",
        state=state,
        message=message,
        values=values,
        figures=figures or {},
        power=power or ("every line was read" if state in ("supported", "refuted") else ""),
        evidence=evidence,
    )
