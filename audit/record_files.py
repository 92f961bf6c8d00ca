"""Reads member and non-member files (CSV, Parquet, npz) into the records that attacks work on."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attacks.records import Membership, Records
from audit.config import Records as RecordsSection
from audit.config import ScoresTarget
from audit.yaml_file import InputError
from reports.record import Input

if TYPE_CHECKING:
    import pandas as pd

NPZ_FEATURES = "features"


def digest(path: Path, role: str, rows: int | None = None) -> Input:
    """The record's line about a file that was read: its SHA-256, size and number of rows.

    A folder's digest is that over the sorted names and digests of its files.
    """
    total = 0
    if path.is_dir():
        whole = hashlib.sha256()
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            part = digest(file, role)
            whole.update(f"{file.relative_to(path).as_posix()}\0{part.sha256}\n".encode())
            total += part.bytes
        return Input(role, str(path), whole.hexdigest(), total, rows)
    with path.open("rb") as file_:
        sha = hashlib.file_digest(file_, "sha256").hexdigest()
    return Input(role, str(path), sha, path.stat().st_size, rows)


def read_membership(
    section: RecordsSection, text: str | None = None, classes: Any = None
) -> tuple[Membership, tuple[str, ...], tuple[Input, ...]]:
    """Both files as one ``Membership``, the names of the feature columns, and what was read.

    ``text`` names the one column that is the record, for language models. ``classes`` are those
    of the target, so that a label the target does not know is refused.

    Raises:
        InputError: names the file, the column and the row of what cannot be used.
    """
    paths = [section.members, section.non_members, section.auxiliary]
    frames = _frames([path for path in paths if path and path.suffix != ".npz"], section, text)
    members, names = _read(section.members, frames, section, text, None)
    others, _ = _read(section.non_members, frames, section, text, names)
    inputs = [
        digest(section.members, "members", len(members)),
        digest(section.non_members, "non-members", len(others)),
    ]
    extra = None
    if section.auxiliary is not None:
        extra, _ = _read(section.auxiliary, frames, section, text, names)
        inputs.append(digest(section.auxiliary, "auxiliary", len(extra)))
    try:
        both = Membership.of(members, others, classes=classes, split=section.split, auxiliary=extra)
    except ValueError as error:
        raise InputError(f"{section.members}, {section.non_members}: {error}") from None
    return both, names, tuple(inputs)


def read_scores(target: ScoresTarget) -> tuple[Any, Any, Any, Input]:
    """Scores, truth (bool) and ids (str) of a scores file, and what was read.

    Raises:
        InputError: if a column is missing, a score is not a number, the truth is not 0/1, or one
            side is empty.
    """
    frame = _frame(target.file)
    score = _column(frame, target.score, target.file, "target.score")
    member = _column(frame, target.member, target.file, "target.member")
    truth = _truth(member, target)
    try:
        scores = np.asarray(score.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{target.file}: column {target.score!r}: not all numbers") from None
    if (bad := ~np.isfinite(scores)).any():
        row = int(np.flatnonzero(bad)[0]) + 1
        raise InputError(
            f"{target.file}: column {target.score!r}, record {row}: {scores[bad][0]} is no finite "
            "score; drop the record or give it a score"
        )
    if np.ptp(scores) == 0:
        raise InputError(
            f"{target.file}: column {target.score!r}: every record has the score {scores[0]:g}, "
            "which tells nothing apart; name the column that the attack wrote"
        )
    if truth.all() or not truth.any():
        missing = "non-members" if truth.all() else "members"
        raise InputError(f"{target.file}: column {target.member!r}: there are no {missing}")
    if target.id is None:
        ids = np.arange(1, len(scores) + 1).astype(np.str_)
    else:
        ids = _column(frame, target.id, target.file, "target.id").to_numpy().astype(np.str_)
        if len(np.unique(ids)) != len(ids):
            raise InputError(f"{target.file}: column {target.id!r}: an id stands twice")
    return scores, truth, ids, digest(target.file, "scores", len(scores))


def _truth(column: pd.Series[Any], target: ScoresTarget) -> Any:
    values = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}
    text = column.astype(str).str.strip().str.lower()
    if not (known := text.isin(list(values))).all():
        row = int(np.flatnonzero(~known)[0])
        raise InputError(
            f"{target.file}: column {target.member!r}, record {row + 1}: {column.iloc[row]!r} is "
            "neither 0 nor 1"
        )
    return text.map(values).to_numpy(dtype=bool)


def _read(
    path: Path,
    frames: dict[Path, pd.DataFrame],
    section: RecordsSection,
    text: str | None,
    names: tuple[str, ...] | None,
) -> tuple[Records, tuple[str, ...]]:
    if path.suffix == ".npz":
        return _read_npz(path, section, names)
    frame = frames[path]
    label = _column(frame, section.label, path, "records.label")
    if (unlabelled := label.isna()).any():
        row = int(np.flatnonzero(unlabelled)[0]) + 1
        raise InputError(
            f"{path}: column {section.label!r}, record {row}: no label; fill it or drop the record"
        )
    labels = label.to_numpy()
    ids = _column(frame, section.id, path, "records.id").to_numpy() if section.id else None
    users = _column(frame, section.user, path, "records.user") if section.user else None
    if users is not None and (unnamed := users.isna()).any():
        row = int(np.flatnonzero(unnamed)[0]) + 1
        raise InputError(
            f"{path}: column {section.user!r}, record {row}: no person; fill it or drop the record"
        )
    if text is not None:
        texts = _column(frame, text, path, "target.text")
        if missing := int(texts.isna().sum()):
            raise InputError(f"{path}: column {text!r}: {missing} texts are missing; drop them")
        return _records(path, texts.to_numpy(dtype=object), labels, ids, users), (text,)
    features = frame.drop(columns=[c for c in (section.label, section.id, section.user) if c])
    found = tuple(map(str, features.columns))
    if not found:
        raise InputError(f"{path}: no columns beside the label; records need features")
    if names is not None and found != names:
        _refuse_other_columns(path, found, names)
        features = features[list(names)]
    _refuse_gaps(path, features)
    records = _records(path, features.to_numpy(), labels, ids, users)
    return records, found if names is None else names


def _read_npz(
    path: Path, section: RecordsSection, names: tuple[str, ...] | None
) -> tuple[Records, tuple[str, ...]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not an npz file of plain arrays ({error})") from None
    for name in filter(None, (NPZ_FEATURES, section.label, section.id, section.user)):
        if name not in arrays:
            raise InputError(f"{path}: no array {name!r}; it holds {', '.join(arrays) or 'none'}")
    features = arrays[NPZ_FEATURES]
    if not features.ndim:
        raise InputError(f"{path}: features: one number; give an array with a row for each record")
    if features.dtype.kind == "f" and (bad := ~np.isfinite(features)).any():
        row = int(np.argwhere(bad)[0][0]) + 1
        raise InputError(f"{path}: features, record {row}: NaN or infinite; fill or drop it")
    ids = arrays[section.id] if section.id else None
    users = arrays[section.user].astype(np.str_) if section.user else None
    return _records(path, features, arrays[section.label], ids, users), names or ()


def _records(path: Path, features: Any, labels: Any, ids: Any, users: Any) -> Records:
    if ids is None:
        ids = [f"{path.stem}:{row}" for row in range(1, len(features) + 1)]
    try:
        users = None if users is None else np.asarray(users, dtype=np.str_)
        return Records(features, labels, np.asarray(ids), users)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _frames(
    paths: list[Path], section: RecordsSection, text: str | None
) -> dict[Path, pd.DataFrame]:
    """The files with each column of one type in all of them.

    Typed file by file, a code such as 00085 would be a number in the one and text in the other, and
    so tell members from non-members. Ids, persons and texts stay as they are written.
    """
    import pandas as pd

    frames = {path: _frame(path, dtype=str) for path in paths}
    written = {section.id, section.user, text}
    for name in dict.fromkeys(name for frame in frames.values() for name in frame.columns):
        having = [frame for frame in frames.values() if name in frame.columns]
        if name in written:
            continue
        whole = pd.concat([frame[name] for frame in having], ignore_index=True)
        typed = _typed(whole)
        ends = np.cumsum([0, *map(len, having)])
        for frame, start, end in zip(having, ends[:-1], ends[1:], strict=True):
            frame[name] = typed.iloc[start:end].set_axis(frame.index)
    return frames


def _typed(column: pd.Series[Any]) -> pd.Series[Any]:
    """Truth values, numbers, or text: the first that every value is."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return column
    text = column.dropna().astype(str).str.strip()
    if len(text) and text.str.lower().isin(["true", "false"]).all() and len(text) == len(column):
        return text.str.lower() == "true"
    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        return column


def _frame(path: Path, dtype: type | None = None) -> pd.DataFrame:
    """A table; ``dtype`` is what CSV cells are read as, guessed where None."""
    import pandas as pd

    from attacks.synthetic.tables import named_fields

    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            with named_fields():
                frame = pd.read_csv(path, index_col=False, dtype=dtype)
        else:
            raise InputError(f"{path}: unknown kind {path.suffix!r}; give .csv, .parquet or .npz")
    except (OSError, ValueError, pd.errors.ParserError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if frame.empty:
        raise InputError(f"{path}: no records")
    if (twice := frame.columns[frame.columns.duplicated()]).size:
        raise InputError(f"{path}: column {twice[0]!r} stands twice; rename one")
    return frame


def _column(frame: pd.DataFrame, name: str, path: Path, field: str) -> pd.Series[Any]:
    if name not in frame.columns:
        listed = ", ".join(map(str, frame.columns[:20]))
        raise InputError(f"{path}: no column {name!r} (named by {field}); it has: {listed}")
    return frame[name]


def _refuse_other_columns(path: Path, found: tuple[str, ...], names: tuple[str, ...]) -> None:
    lacking = [name for name in names if name not in found]
    strange = [name for name in found if name not in names]
    if lacking or strange:
        said = [f"lacks {', '.join(lacking)}"] if lacking else []
        said += [f"has {', '.join(strange)} beyond them"] if strange else []
        raise InputError(f"{path}: columns differ from the members': {' and '.join(said)}")


def _refuse_gaps(path: Path, features: pd.DataFrame) -> None:
    for name, column in features.items():
        bad = column.isna().to_numpy()
        if column.dtype.kind == "f":
            bad = ~np.isfinite(column.to_numpy())
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"{path}: column {name!r}, record {row + 1}: {column.iloc[row]} is no usable "
                "value; fill it or drop the record"
            )
