"""Seals a folder: an in-toto statement over every file's SHA-256, signed, and its verification.

The statement is in-toto's Statement v1 with a predicate of our own: what an audit read, how it was
asked for, and what came of it. Names in a seal are compared with what the folder holds and never
opened, so that no seal can lead a reader out of the folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from audit import dsse, keys
from audit.folder_files import check_names, look, sha256_of
from audit.output import RECORD
from audit.yaml_file import InputError
from reports.record import Input, Record, from_json

SEAL = "seal.dsse.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:dpassay:seal:1"
LARGEST_SEAL = 256 << 20
LONGEST_TEXT = 1 << 20
IN_WORDS = ("configuration", "policy")  # inputs whose text is sealed too: small, and they decide

State = Literal["same", "differs", "not at hand"]
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Check:
    """What one comparison found.

    ``part`` is ``signature``, ``file``, ``record``, ``input``, ``accounting``, ``claim`` or
    ``gate``; ``subject`` is what was compared; ``detail`` says how it differs, or why it was not
    compared.
    """

    part: str
    subject: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class Verified:
    """The checks of a seal, and of an audit its record and the texts that were sealed, by SHA-256.

    ``record`` is None where there is none, or nobody vouches for what the seal says.
    """

    checks: tuple[Check, ...]
    record: Record | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def seal(
    folder: Path,
    public_key: bytes,
    sign: Callable[[bytes], bytes],
    *,
    succession: Sequence[keys.Link] = (),
    force: bool = False,
) -> tuple[Path, tuple[str, ...]]:
    """Write the seal of a folder into it, whole or not at all.

    Returns:
        The seal's path, and the paths of a configuration or policy that is sealed by its digest
        alone, since its text was not found where the audit read it.

    Args:
        folder: an audit's folder, or any other with files.
        public_key: the 32 raw bytes of the Ed25519 key that signs.
        sign: from a message to its signature by that key.
        succession: how the key follows from earlier ones, so that who knows one of those can tell.
        force: replace an earlier seal.

    Raises:
        InputError: if there is a seal already, the folder is empty or cannot be read, holds a link
            or something that is no file, a name that other systems read otherwise, or an
            ``audit.json`` that is no record; or if the key does not fit the signature.
    """
    target = folder / SEAL
    _check_place(folder, target, force)
    said = statement(folder)
    said["predicate"]["succession"] = [dataclasses.asdict(link) for link in succession]
    body = json.dumps(said, separators=(",", ":")).encode()
    if len(body) > LARGEST_SEAL // 2:
        raise InputError(f"{folder}: holds too many files for one seal; seal its folders each")
    signature = dsse.Signature(public_key.hex(), sign(dsse.pae(PAYLOAD_TYPE, body)))
    envelope = dsse.Envelope(PAYLOAD_TYPE, body, (signature,))
    if envelope.signature_by(public_key) is None:
        raise InputError("the public key does not fit the signature; give the keys of one pair")
    _write(target, dsse.to_json(envelope))
    predicate = said["predicate"]
    inputs = (predicate["audit"] or {}).get("inputs", ())
    return target, tuple(
        read["path"]
        for read in inputs
        if read["role"] in IN_WORDS and read["sha256"] not in predicate["texts"]
    )


def statement(folder: Path) -> dict[str, Any]:
    """The in-toto statement over a folder as it is now.

    Raises:
        InputError: as ``seal``.
    """
    files, odd = _content(folder)
    for name, reason in odd.items():
        raise InputError(f"{folder / name}: {reason}; a seal covers plain files only")
    if not files:
        raise InputError(f"{folder}: holds no file that could be sealed")
    _refuse_names(folder, files)
    record = read_record(folder) if RECORD in files else None
    subjects = [
        {"name": name, "digest": {"sha256": sha256_of(path)}} for name, path in files.items()
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "sealed": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "program": f"dpassay {metadata.version('dpassay')}",
            "audit": None if record is None else about(record),
            "texts": {} if record is None else _texts(record.provenance.inputs),
        },
    }


def about(record: Record) -> dict[str, Any]:
    """What a seal says of an audit beside its files."""
    made = record.provenance
    return {
        "title": record.title,
        "outcome": record.verdict.outcome,
        "command": made.command,
        "seed": made.seed,
        "started": made.started,
        "versions": dict(made.versions),
        "platform": made.platform,
        "inputs": [dataclasses.asdict(read) for read in made.inputs],
    }


def verify(folder: Path, public_keys: Sequence[bytes] = ()) -> Verified:
    """Check the seal of a folder: signature, key, and every file.

    Where the signature is wrong nothing else in the seal is looked at.

    Args:
        folder: what was sealed.
        public_keys: raw Ed25519 keys, one of which must have signed; without any the key is named
            and not judged.

    Raises:
        InputError: if there is no seal, it is none of ours, or it names a file in a way that could
            lead out of the folder, twice, or alike but for case or composition.
    """
    path = folder / SEAL
    try:
        envelope = dsse.read(_read(path))
    except ValueError as error:
        raise InputError(f"{path}: is no seal: {error}") from None
    signer = _signer(envelope, public_keys)
    if signer is None:
        wrong = Check("signature", SEAL, "differs", "no signature fits: the seal was changed")
        return Verified((wrong,))
    if envelope.payload_type != PAYLOAD_TYPE:
        raise InputError(f"{path}: payloadType: is {envelope.payload_type!r}, not {PAYLOAD_TYPE}")
    try:
        digests, predicate = _parsed(dsse.strict_json(envelope.payload))
    except ValueError as error:
        raise InputError(f"{path}: payload: {error}") from None
    checks = [_signed(signer, public_keys, predicate), *_files(folder, digests)]
    if predicate.get("audit") is None and RECORD not in digests:
        return Verified(tuple(checks))
    try:
        record = read_record(folder)
    except InputError as error:
        return Verified((*checks, Check("record", RECORD, "differs", str(error))))
    checks.append(_record(record, predicate))
    return Verified(tuple(checks), record, _sealed_texts(predicate))


def read_record(folder: Path) -> Record:
    """The record of an audit's folder.

    Raises:
        InputError: if its ``audit.json`` is none.
    """
    path = folder / RECORD
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path}: is no plain file")
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no record: {error}") from None


def _check_place(folder: Path, target: Path, force: bool) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: is no folder; give the folder of an audit")
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_file():
        raise InputError(f"{target}: is no plain file; remove it")
    if not force:
        raise InputError(f"{target}: the folder is sealed already; --force replaces the seal")


def _write(target: Path, text: str) -> None:
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="ascii", dir=target.parent, prefix=f".{SEAL}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _content(folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    files, odd = look(folder)
    files.pop(SEAL, None)
    return files, odd


def _refuse_names(folder: Path, names: Iterable[str]) -> None:
    try:
        check_names((SEAL, *names))
    except ValueError as error:
        raise InputError(f"{folder}: {error}; rename it") from None


def _texts(inputs: Iterable[Input]) -> dict[str, str]:
    """The texts of what decided, by digest; one that changed since has only its digest."""
    found = {}
    for read in inputs:
        if read.role not in IN_WORDS or read.bytes > LONGEST_TEXT:
            continue
        try:
            content = Path(read.path).read_bytes()
            if hashlib.sha256(content).hexdigest() == read.sha256:
                found[read.sha256] = content.decode()
        except (OSError, ValueError):
            continue
    return found


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink() or not path.is_file():
            raise InputError(f"{path}: no such file; `dpassay seal` writes it")
        if path.stat().st_size > LARGEST_SEAL:
            raise InputError(f"{path}: is too large for a seal")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _signer(envelope: dsse.Envelope, public_keys: Sequence[bytes]) -> bytes | None:
    """The key that signed: one of those given, else the one that the seal names; None if none."""
    named = [s.key_id for s in envelope.signatures if _HEX.fullmatch(s.key_id)]
    tried = (*public_keys, *map(bytes.fromhex, named))
    return next((key for key in tried if envelope.signature_by(key)), None)


def _signed(signer: bytes, public_keys: Sequence[bytes], predicate: Mapping[str, Any]) -> Check:
    if not public_keys:
        said = f"signed by {signer.hex()}; give --public-key to say whose key it should be"
        return Check("signature", SEAL, "not at hand", said)
    if signer in public_keys:
        return Check("signature", SEAL, "same", f"signed by {signer.hex()}")
    links = _links(predicate)
    for key in public_keys:
        if any(signer in keys.succession(key, links[start:]) for start in range(len(links))):
            said = f"signed by {signer.hex()}, which follows from {key.hex()}"
            return Check("signature", SEAL, "same", said)
    return Check("signature", SEAL, "differs", f"signed by another key, {signer.hex()}")


def _links(predicate: Mapping[str, Any]) -> list[keys.Link]:
    try:
        return [
            keys.Link(str(x["public_key"]), str(x["endorsement"])) for x in predicate["succession"]
        ]
    except (KeyError, TypeError):
        return []


def _parsed(data: Any) -> tuple[dict[str, str], Mapping[str, Any]]:
    if not isinstance(data, dict) or data.get("_type") != STATEMENT_TYPE:
        raise ValueError(f"is no in-toto statement ({STATEMENT_TYPE})")
    if data.get("predicateType") != PREDICATE_TYPE:
        raise ValueError(f"predicateType: is not {PREDICATE_TYPE}")
    predicate, subjects = data.get("predicate"), data.get("subject")
    if not isinstance(predicate, dict) or not isinstance(subjects, list) or not subjects:
        raise ValueError("predicate or subject: missing")
    digests: dict[str, str] = {}
    for subject in subjects:
        name = subject.get("name") if isinstance(subject, dict) else None
        digest = subject.get("digest") if isinstance(subject, dict) else None
        sha = digest.get("sha256") if isinstance(digest, dict) else None
        if not isinstance(name, str) or not isinstance(sha, str) or not _HEX.fullmatch(sha):
            raise ValueError("subject: each needs a name and a SHA-256")
        if name in digests:
            raise ValueError(f"subject: {name!r} stands twice")
        digests[name] = sha
    check_names((SEAL, *digests))
    if SEAL in digests:
        raise ValueError(f"subject: {SEAL!r} cannot hold its own digest")
    return digests, predicate


def _files(folder: Path, digests: Mapping[str, str]) -> Iterator[Check]:
    files, odd = _content(folder)
    for name in sorted({*digests, *files, *odd}):
        if name in odd:
            yield Check("file", name, "differs", odd[name])
        elif name not in digests:
            yield Check("file", name, "differs", "was added: the seal does not name it")
        elif name not in files:
            yield Check("file", name, "differs", "is missing")
        else:
            yield _compared(name, files[name], digests[name])


def _compared(name: str, path: Path, sealed: str) -> Check:
    try:
        found = sha256_of(path)
    except InputError as error:
        return Check("file", name, "not at hand", str(error))
    if found == sealed:
        return Check("file", name, "same")
    return Check("file", name, "differs", f"SHA-256 {found[:16]}… where {sealed[:16]}… was sealed")


def _record(record: Record, predicate: Mapping[str, Any]) -> Check:
    """Whether the seal says of the audit what its record says."""
    found, sealed = about(record), predicate.get("audit")
    if not isinstance(sealed, dict):
        return Check("record", RECORD, "differs", "the seal says nothing of it")
    parts = [name for name in found if found[name] != sealed.get(name)]
    said = f"the seal says otherwise of: {', '.join(parts)}" if parts else ""
    return Check("record", RECORD, "differs" if parts else "same", said)


def _sealed_texts(predicate: Mapping[str, Any]) -> dict[str, str]:
    texts = predicate.get("texts")
    pairs = texts.items() if isinstance(texts, dict) else ()
    return {sha: text for sha, text in pairs if isinstance(text, str)}
