"""What a folder holds: the names and digests of its files, without following any link."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from audit.yaml_file import InputError

LONGEST_NAME = 4096
_DRIVE = re.compile(r"[A-Za-z]:")


def look(folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The files below a folder by their names with "/", sorted; and what is no file.

    Links are not followed. What is no file comes with the reason.

    Raises:
        InputError: if the folder or one below it cannot be read.
    """
    files: dict[str, Path] = {}
    odd: dict[str, str] = {}
    left = [folder]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                found = list(entries)
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
        for entry in found:
            path = Path(entry.path)
            name = path.relative_to(folder).as_posix()
            if entry.is_symlink():
                odd[name] = "is a link"
            elif entry.is_dir(follow_symlinks=False):
                left.append(path)
            elif not entry.is_file(follow_symlinks=False):
                odd[name] = "is no plain file"
            else:
                files[name] = path
    return dict(sorted(files.items())), dict(sorted(odd.items()))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a plain file, read in pieces.

    Raises:
        InputError: if it is a link or no file, cannot be read, or changes meanwhile.
    """
    try:
        flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, os.O_RDONLY | flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise InputError(f"{path}: is no plain file")
            found = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InputError(f"{path}: changed while it was read; wait until nobody writes it")
    return found


def check_names(names: Iterable[str]) -> None:
    """Refuse names that lead out of a folder on some system, or that some system takes for one.

    Raises:
        ValueError: names the first of them.
    """
    seen: dict[str, str] = {}
    for name in names:
        if problem := _problem(name):
            raise ValueError(f"file {name!r}: {problem}")
        if (other := seen.setdefault(_folded(name), name)) != name:
            raise ValueError(f"file {name!r}: is {other!r} where case or composition do not count")


def _problem(name: str) -> str:
    if len(name) > LONGEST_NAME:
        return "the name is too long"
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        return "the name holds what is no printable text"
    if "\\" in name or _DRIVE.match(name):
        return "the name is a path on Windows"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "the name leads out of the folder"
    return ""


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())
