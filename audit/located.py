"""Finds the inputs of an audit again, by what they hold: a name alone proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.folder_files import look, sha256_of
from audit.record_files import digest
from audit.seal import Check
from audit.yaml_file import InputError
from reports.record import Input


@dataclass(frozen=True)
class Located:
    """Where an input lies; None where no file of its digest was found."""

    path: Path | None
    check: Check


def locate(inputs: Sequence[Input], folder: Path | None) -> dict[str, Located]:
    """Each input by its role; the second of a role by role and path.

    Without a folder an input is looked for at the path that the audit read. With one it may lie
    there under any name, or else at that path. A file with an input's name and other content is
    reported as different.

    Raises:
        InputError: if ``folder`` is none.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: is no folder; give --inputs the folder of the audit's inputs")
    by_size: dict[int, list[Path]] = {}
    for path in look(folder)[0].values() if folder else ():
        by_size.setdefault(path.stat().st_size, []).append(path)
    found: dict[str, Located] = {}
    for read in inputs:
        key = read.role if read.role not in found else f"{read.role} {read.path}"
        found[key] = _locate(read, folder, by_size)
    return found


def _locate(read: Input, folder: Path | None, by_size: dict[int, list[Path]]) -> Located:
    subject = f"{read.role} {read.path}"
    for path in by_size.get(read.bytes, []):
        if sha256_of(path) == read.sha256:
            return Located(path, Check("input", subject, "same", f"found at {path}"))
    at_path = Path(read.path)
    if (at_audit := _digest(at_path, read)) == read.sha256:
        return Located(at_path, Check("input", subject, "same"))
    # with a folder given, the path itself may be anything: this is another place than the audit's
    named = at_path if folder is None else _same_name(at_path, folder)
    other = at_audit if named == at_path else _digest(named, read) if named else ""
    if named is None or not other:
        return Located(None, Check("input", subject, "not at hand", "no file with its digest"))
    if other == read.sha256:
        return Located(named, Check("input", subject, "same", f"found at {named}"))
    return Located(None, Check("input", subject, "differs", f"{named}: {other}"))


def _digest(path: Path, read: Input) -> str:
    """The SHA-256 of a file or, as a record has it, a folder; what else it is; "" for nothing.

    A file of another size, or a device, is not read at all.
    """
    try:
        if not path.exists():
            return ""
        if not path.is_dir() and (not path.is_file() or path.stat().st_size != read.bytes):
            return f"{path.stat().st_size} bytes where the audit read {read.bytes}"
        sha = digest(path, read.role).sha256
    except (OSError, ValueError):  # no right to look, a name of nulls
        return ""
    return sha if sha == read.sha256 else f"SHA-256 {sha[:16]}…, not {read.sha256[:16]}…"


def _same_name(path: Path, folder: Path) -> Path | None:
    """The file in the folder that shares the longest end of its path."""
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    for start in range(len(parts)):
        candidate = folder.joinpath(*parts[start:])
        if candidate.exists():
            return candidate
    return None
