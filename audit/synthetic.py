"""From three files of records to the attacks on a synthetic release, and to their files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from attacks.attribute.result import shared_confidence
from attacks.files import whole_file
from attacks.metrics import Estimate, Figure
from attacks.synthetic.blind import told_apart
from attacks.synthetic.distances import points
from attacks.synthetic.registry import ENTRIES, find, run
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.rows import cell_hashes, row_hashes
from attacks.synthetic.rows import find as find_rows
from attacks.synthetic.streaming import exact_copies
from attacks.synthetic.tables import Tables, code, read_table
from attacks.synthetic.text import embed
from audit.record_files import digest
from audit.yaml_file import InputError
from reports.record import Input

DEFAULT = tuple(name for name, entry in ENTRIES.items() if not entry.generator)


@dataclass(frozen=True, eq=False)
class SyntheticAudit:
    """Attacks on one release.

    Attributes:
        confidence: of all intervals together; each attack has its part of it.
        results: of the attacks that ran.
        refused: those that could not, each with the reason.
        blind: the AUC of telling train from holdout without the release; None where nobody tried.
        shared: how many holdout records equal a training record; None where nobody counted.
        void: it told them apart, so that no figure speaks of the release.
        inputs: the files.
    """

    confidence: float
    results: tuple[SyntheticResult, ...]
    refused: Mapping[str, str]
    blind: Estimate | None
    shared: int | None
    void: bool
    inputs: tuple[Input, ...]

    @property
    def leaks(self) -> tuple[tuple[SyntheticResult, Figure], ...]:
        """Every figure whose interval leaves out what it would be where nothing leaks."""
        if self.void:
            return ()
        return tuple((r, f) for r in self.results for f in r.figures if leaks(r.attack, f))


def leaks(attack: str, figure: Figure) -> bool:
    """Whether a figure's interval leaves out the value that it has where nothing leaks.

    On either side: a release that avoids the training records tells of them as well. Only a TPR
    must be above: one below its FPR is an attack that does not see the leak.
    """
    kind, found = figure.name.partition(":")[0], figure.estimate
    null = find(attack).no_leak.get(kind)
    if null is None or found is None:
        return False
    return found.low > null or (found.high < null and not kind.startswith("tpr"))


def measure_synthetic(
    files: Mapping[str, Path],
    *,
    attacks: Sequence[str] = (),
    secrets: Sequence[str] = (),
    parts: Sequence[Sequence[str]] = (),
    text: Sequence[str] = (),
    seed: int = 0,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SyntheticAudit:
    """Read the files of train, holdout and synthetic, and attack; by default with every attack.

    All intervals hold together at ``confidence``: each attack gets an equal part of the error
    (Bonferroni). By default an attack that cannot use the tables is noted; one that was named must.

    Args:
        files: by table name.
        secrets: columns to guess (inference), or whose spread in each class counts (uniqueness).
        parts: two lists of columns that different sources hold (linkability).
        text: columns of free text, to be compared by their words and not as a whole.

    Raises:
        InputError: naming file, field and fix, if an input cannot be used.
    """
    try:
        for name in attacks:
            if find(name).generator:
                raise ValueError(f"attacks: {name} trains the generator again; it has no files")
        frames = {name: read_table(path) for name, path in files.items()}
        plain = code(frames)
        numbers = code(embed(frames, text)) if text else plain
        _check_columns(plain, {"--secret": secrets, "--part": [c for part in parts for c in part]})
    except ValueError as error:
        raise InputError(str(error)) from None
    inputs = tuple(digest(path, name, len(frames[name])) for name, path in files.items())
    _refuse_one_file(inputs)
    chosen = tuple(dict.fromkeys(attacks)) or DEFAULT
    options: dict[str, Any] = {}
    if secrets:
        options |= {"secrets": tuple(secrets), "sensitive": tuple(secrets)}
    if parts:
        options["parts"] = tuple(tuple(part) for part in parts)
    each = shared_confidence(confidence, len(chosen))
    results: list[SyntheticResult] = []
    refused: dict[str, str] = {}
    progress(0, len(chosen))
    for done, name in enumerate(chosen):
        tables = numbers if find(name).text_as_numbers else plain
        try:
            results.append(run(name, tables, seed=seed, confidence=each, options=options))
        except ValueError as error:
            if attacks:
                raise InputError(str(error)) from None
            refused[name] = str(error)
        progress(done + 1, len(chosen))
    places = points(numbers)
    blind = told_apart(places["train"], places["holdout"], seed=seed, confidence=confidence)
    rows = {
        side: row_hashes(cell_hashes(plain[side].numbers, plain[side].codes))
        for side in ("train", "holdout")
    }
    shared = int((find_rows(rows["holdout"], rows["train"]) >= 0).sum())
    void = blind.low > 0.5
    return SyntheticAudit(confidence, tuple(results), refused, blind, shared, void, inputs)


def stream_synthetic(files: Mapping[str, Path], confidence: float = 0.95) -> SyntheticAudit:
    """Exact copies alone, from files that need not fit into memory.

    Raises:
        InputError: naming file, field and fix, if an input cannot be used.
    """
    try:
        result = exact_copies(files, confidence=confidence)
    except ValueError as error:
        raise InputError(str(error)) from None
    inputs = tuple(digest(path, name) for name, path in files.items())
    _refuse_one_file(inputs)
    return SyntheticAudit(confidence, (result,), {}, None, None, False, inputs)


def write(audit: SyntheticAudit, folder: Path, command: str) -> None:
    """``synthetic.json`` and, for each attack with evidence, ``ATTACK.parquet``."""
    told = {
        "command": command,
        "versions": {name: metadata.version(name) for name in ("dpassay", "numpy", "scikit-learn")},
        "inputs": [dataclasses.asdict(read) for read in audit.inputs],
        "confidence": audit.confidence,
        "void": audit.void,
        "holdout_records_in_train": audit.shared,
        "blind_baseline": {"auc": dataclasses.asdict(audit.blind)} if audit.blind else None,
        "leaks": [{"attack": r.attack, "figure": f.name} for r, f in audit.leaks],
        "refused": dict(audit.refused),
        "results": [_plain(result) for result in audit.results],
    }
    with whole_file(folder / written()[0]) as temporary:
        text = json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    for result in audit.results:
        if result.rows:
            with whole_file(folder / f"{result.attack}.parquet") as temporary:
                pd.DataFrame(dict(result.rows)).to_parquet(temporary, index=False)


def written() -> tuple[str, ...]:
    """The files that ``write`` may write, the one that is never missing first."""
    return ("synthetic.json", *(f"{name}.parquet" for name in DEFAULT))


def _refuse_one_file(inputs: Sequence[Input]) -> None:
    digests = {read.role: read for read in inputs}
    if digests["train"].sha256 == digests["holdout"].sha256:
        raise InputError(
            f"{digests['holdout'].path}: holdout is the same file as train; give records that the "
            "generator never saw"
        )


def _check_columns(tables: Tables, named: Mapping[str, Sequence[str]]) -> None:
    for option, columns in named.items():
        for column in columns:
            if column not in tables.names:
                raise ValueError(f"{option}: {column!r}: there is none; train has {_few(tables)}")


def _few(tables: Tables) -> str:
    names = tables.names
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _plain(result: SyntheticResult) -> dict[str, Any]:
    told = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if field.name not in ("figures", "rows")
    }
    told["rows"] = len(next(iter(result.rows.values()), ()))
    told["figures"] = [dataclasses.asdict(figure) for figure in result.figures]
    return told
