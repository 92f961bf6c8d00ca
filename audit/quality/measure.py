"""From files of real and synthetic records to every figure of quality, and to the file of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pandas as pd

from attacks.files import whole_file
from attacks.synthetic.tables import Tables, code, read_table
from audit.quality.associations import Associations, compare_associations
from audit.quality.columns import ColumnResult, compare_columns
from audit.quality.detection import detect
from audit.quality.rules import RuleResult, check_rules
from audit.quality.rules_file import read_rules
from audit.quality.text import compare_texts, sentence_encoder
from audit.quality.utility import Utility, compare_utility
from audit.record_files import digest
from audit.yaml_file import InputError
from reports.record import Input, Metric

WRITTEN = ("quality.json",)
LIBRARIES = ("dpassay", "numpy", "pandas", "scikit-learn", "scipy")
LIBRARIES_OF_TEXT = ("rouge-score", "sacrebleu")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Asked:
    """What to measure, and on which files (CSV or Parquet).

    Attributes:
        holdout: real records that the generator never saw; needed for ``label``.
        label: the column that a model is to predict.
        text: a column of texts; it is judged as text alone.
        encoder: a local folder with a sentence-transformers model, in place of TF-IDF.
    """

    real: Path
    synthetic: Path
    holdout: Path | None = None
    label: str | None = None
    rules: Path | None = None
    text: str | None = None
    encoder: Path | None = None
    threshold: float = 0.1
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Quality:
    """Every figure of one release. What was not asked for, or has no columns, is None or empty."""

    asked: Asked
    columns: tuple[ColumnResult, ...]
    associations: Associations | None
    detection: tuple[Metric, ...]
    utility: Utility | None
    rules: tuple[RuleResult, ...]
    text: tuple[Metric, ...]
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]


def measure_quality(asked: Asked, progress: Progress = lambda done, total: None) -> Quality:
    """Read the files and measure all that is asked; ``progress`` counts the parts done.

    Raises:
        InputError: naming the file or table and the column of what cannot be used.
    """
    if asked.label is not None and asked.holdout is None:
        raise InputError(
            "label: needs a holdout of real records that the generator never saw; on those that "
            "it saw, a copy of them would look useful"
        )
    if asked.encoder is not None and asked.text is None:
        raise InputError("encoder: needs a column of texts; name it, or leave the encoder out")
    rules = read_rules(asked.rules) if asked.rules else None
    roles = {"real": asked.real, "synthetic": asked.synthetic, "holdout": asked.holdout}
    paths = {role: path for role, path in roles.items() if path is not None}
    try:
        frames = {role: read_table(path) for role, path in paths.items()}
        texts, notes = _texts(frames, asked.text)
        tables = code(frames) if len(frames["real"].columns) else None
    except ValueError as error:
        raise InputError(str(error)) from None
    inputs = tuple(digest(path, role, len(frames[role])) for role, path in paths.items())
    inputs += (digest(asked.rules, "rules"),) if asked.rules else ()
    parts = 6
    progress(0, parts)
    checked: tuple[RuleResult, ...] = ()
    if rules is not None and asked.rules is not None:
        if tables is None:
            raise InputError(f"{asked.rules}: there is no column but the texts to check")
        checked = check_rules(
            rules, asked.rules, tables, "real", "synthetic", confidence=asked.confidence
        )
    progress(1, parts)
    utility = _utility(asked, tables)
    progress(2, parts)
    told: tuple[Metric, ...] = ()
    if texts:
        embed = sentence_encoder(asked.encoder) if asked.encoder else None
        told = compare_texts(**texts, embed=embed, confidence=asked.confidence, seed=asked.seed)
    progress(3, parts)
    columns: tuple[ColumnResult, ...] = ()
    associations: Associations | None = None
    detection: tuple[Metric, ...] = ()
    if tables is not None:
        common = (tables, "real", "synthetic")
        columns = compare_columns(*common, threshold=asked.threshold, confidence=asked.confidence)
        progress(4, parts)
        associations = compare_associations(*common, confidence=asked.confidence, seed=asked.seed)
        progress(5, parts)
        detection = detect(*common, confidence=asked.confidence, seed=asked.seed)
    progress(parts, parts)
    return Quality(
        asked, columns, associations, detection, utility, checked, told, inputs, tuple(notes)
    )


def write(quality: Quality, folder: Path, command: str) -> None:
    """``quality.json`` into a folder: whole or not at all."""
    libraries = LIBRARIES + (LIBRARIES_OF_TEXT if quality.text else ())
    told = {"command": command, "versions": {name: metadata.version(name) for name in libraries}}
    told |= dataclasses.asdict(quality)
    text = json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False, default=str)
    with whole_file(folder / WRITTEN[0]) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _texts(
    frames: dict[str, pd.DataFrame], column: str | None
) -> tuple[dict[str, list[str]], list[str]]:
    """Take the column of texts out of every frame: each table's texts, and what was left out."""
    texts: dict[str, list[str]] = {}
    notes: list[str] = []
    if column is None:
        return texts, notes
    for role, frame in frames.items():
        if column not in frame.columns:
            raise InputError(f"{role}: no column {column!r}; name the column of texts")
        found = frame[column].dropna().astype(str)
        texts[role] = [text for text in found if text.strip()]
        if gone := len(frame) - len(texts[role]):
            notes.append(f"{role}: {gone} records without a text")
        frames[role] = frame.drop(columns=column)
    return texts, notes


def _utility(asked: Asked, tables: Tables | None) -> Utility | None:
    if asked.label is None:
        return None
    if tables is None:
        raise InputError(f"label: no column {asked.label!r}; there are only texts")
    try:
        return compare_utility(
            tables,
            "real",
            "synthetic",
            "holdout",
            asked.label,
            confidence=asked.confidence,
            seed=asked.seed,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
