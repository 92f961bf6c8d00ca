"""The folder an audit writes: built beside its place and moved there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit.yaml_file import InputError

RECORD = "audit.json"
REPORT = "index.html"
EVIDENCE = "scores"
WRITTEN = (RECORD, REPORT, EVIDENCE)
ATTRIBUTE_WRITTEN = ("attribute.json", "guesses.parquet")


def check_free(out: Path, force: bool, written: Sequence[str] = WRITTEN) -> None:
    """Refuse an output folder that would be overwritten, before any work is done.

    With ``force`` only an empty folder, or one that holds nothing but what the command writes, is
    replaced: a typing slip must not cost somebody their home. ``written`` are these names; the
    first is never missing.

    Raises:
        InputError: if ``out`` is a file, a link to nothing, a folder that may not be replaced, or
            cannot be looked at.
    """
    try:
        if not out.exists():
            if out.is_symlink():
                raise InputError(f"{out}: is a link to nothing; choose another --out")
            return
        if not out.is_dir():
            raise InputError(f"{out}: is a file; give --out a folder")
        if Path.cwd().is_relative_to(out.resolve()):
            raise InputError(f"{out}: you stand in this folder; give --out one of its own")
        found = {entry.name for entry in out.iterdir()}
    except OSError as error:
        raise InputError(
            f"{out}: cannot be used ({error.strerror}); choose another --out"
        ) from None
    if not found:
        return
    if not force:
        raise InputError(f"{out}: exists; choose another --out, or --force to replace it")
    if written[0] not in found:
        raise InputError(
            f"{out}: holds no {written[0]}, so this command did not write it and --force leaves it "
            "alone; choose another --out"
        )
    if strange := sorted(found - set(written)):
        raise InputError(
            f"{out}: holds {strange[0]!r}, which this command did not write, and --force would "
            "delete it; move it or choose another --out"
        )


def shadow_folder(out: Path) -> Path:
    """Where an unfinished audit keeps its shadow models' answers: beside ``out``, and hidden."""
    return out.parent / f".{out.name}.shadows"


@contextlib.contextmanager
def folder(out: Path, force: bool, written: Sequence[str] = WRITTEN) -> Iterator[Path]:
    """A temporary folder that becomes ``out`` when the block ends well, and vanishes when not.

    ``written`` as in ``check_free``.

    Raises:
        InputError: if ``out`` may not be written, or cannot be.
    """
    check_free(out, force, written)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written ({error.strerror}); choose another --out"
        ) from None
    try:
        yield building
        building.chmod(0o755)
        check_free(out, force, written)  # somebody may have put something there meanwhile
        if out.exists():
            _swap(building, out)
        else:
            os.replace(building, out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _swap(building: Path, out: Path) -> None:
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    try:
        os.replace(out, old / out.name)
        os.replace(building, out)
    except BaseException:
        if not out.exists():
            os.replace(old / out.name, out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
