"""Exact copies in tables that do not fit into memory: read in pieces, kept as one hash a record."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks.metrics import Figure, advantage, clopper_pearson
from attacks.synthetic.columns import (
    Kind,
    common_kind,
    floats,
    has_zone,
    own_kind,
    seconds,
    texts,
)
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.rows import Hashes, cell_hashes, find, row_hashes
from attacks.synthetic.tables import named, named_fields, reading, same_columns

PIECE = 100_000  # records in memory at once
# how pandas may find them written in a column of nothing else
_YES_AND_NO = {"TRUE": "True", "true": "True", "FALSE": "False", "false": "False"}


def exact_copies(
    files: Mapping[str, Path], *, confidence: float = 0.95, piece: int = PIECE
) -> SyntheticResult:
    """``copies`` for files of any length, of exact copies alone: 8 bytes a record in memory.

    The files are read twice: what each column is must be known of all tables before the first value
    is compared, as in ``tables.code``. Words of a column that is a category are compared as they
    stand in the file, but TRUE and true are True.

    Args:
        files: CSV or Parquet, of the tables train, holdout and synthetic.
        piece: records read at once.

    Raises:
        ValueError: naming file or table, column and fix, as ``read_table`` and ``tables.code`` do.
    """
    started = time.monotonic()
    kinds = _kinds(files, piece)
    hashes = {table: _hashes(table, path, kinds, piece) for table, path in files.items()}
    rows = find(hashes["synthetic"], hashes["train"])
    copied = {side: find(hashes[side], hashes["synthetic"]) >= 0 for side in ("train", "holdout")}
    found = np.flatnonzero(rows >= 0)
    sides = [copied[side].astype(np.float64) for side in ("train", "holdout")]
    shares = copied | {"synthetic": rows >= 0}
    return SyntheticResult(
        "copies",
        "Exact copies of training records, streamed",
        "samples",
        (
            Figure("excess:exact", advantage(sides[0], sides[1], 0.5, confidence)),
            *(
                Figure(f"copied:{side}", clopper_pearson(int(hit.sum()), len(hit), confidence))
                for side, hit in shares.items()
            ),
        ),
        {
            "synthetic_row": found,
            "train_row": rows[found],
            "by_chance": find(hashes["synthetic"][found], hashes["holdout"]) >= 0,
        },
        ("edited and near copies are not looked for: that needs all tables in memory",),
        "join of hashes: Zobrist 1970; differences of shares: Newcombe 1998",
        seconds=time.monotonic() - started,
    )


def _kinds(files: Mapping[str, Path], piece: int) -> dict[str, Kind]:
    """What each column is, from a first reading of all files."""
    seen: dict[str, dict[str, Kind | None]] = {}
    zones: dict[str, set[bool]] = {}
    for table, path in files.items():
        own: dict[str, Kind | None] = {}
        for part in _pieces(table, path, piece):
            for name, series in part.items():
                kind, before = own_kind(table, str(name), series), own.get(str(name))
                if kind == "date":
                    zones.setdefault(str(name), set()).add(has_zone(series))
                mixed = kind is not None and before is not None and kind != before
                own[str(name)] = "category" if mixed else kind or before
        if not own:
            raise ValueError(f"{path}: holds no records")
        seen[table] = own
    same_columns(seen)
    kinds = {name: common_kind(name, {t: own[name] for t, own in seen.items()}) for name in own}
    for name, kind in kinds.items():
        if kind == "date" and len(zones[name]) > 1:
            raise ValueError(f"column {name!r}: dates with and without a time zone; give all one")
    return kinds


def _hashes(table: str, path: Path, kinds: Mapping[str, Kind], piece: int) -> Hashes:
    words = [name for name, kind in kinds.items() if kind == "category"]
    numbers = [name for name in kinds if name not in words]
    found: list[Hashes] = []
    for part in _pieces(table, path, piece, words):
        values = [(seconds if kinds[n] == "date" else floats)(part[n]) for n in numbers]
        for name, column in zip(numbers, values, strict=True):
            if np.isinf(column).any():
                row = sum(len(before) for before in found) + int(
                    np.flatnonzero(np.isinf(column))[0]
                )
                raise ValueError(f"{table}: column {name!r}, record {row}: is infinite")
        codes = [_codes(part[name]) for name in words]
        empty = np.empty((len(part), 0))
        cells = cell_hashes(
            np.column_stack(values) if values else empty,
            np.column_stack(codes) if codes else empty.astype(np.int64),
        )
        found.append(row_hashes(cells))
    return np.concatenate(found)


def _codes(series: pd.Series) -> NDArray[np.int64]:
    """A number for each word, the same in every piece; -1 is missing."""
    said = texts(series).replace(_YES_AND_NO)
    plain = said.fillna("").to_numpy(dtype=object)
    codes = pd.util.hash_array(plain).view(np.int64)
    return np.where(said.isna(), -1, codes)


def _pieces(
    table: str, path: Path, piece: int, words: list[str] | None = None
) -> Iterator[pd.DataFrame]:
    """The file's records in order; columns of a CSV file that are ``words`` are read as text."""
    with reading(path):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            parts: Iterator[pd.DataFrame] = (
                batch.to_pandas() for batch in pq.ParquetFile(path).iter_batches(piece)
            )
        else:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                header = next(csv.reader(lines), [])
            named(table, pd.DataFrame([header], columns=header))  # pandas would rename doubles
            parts = pd.read_csv(
                path,
                index_col=False,
                encoding="utf-8-sig",
                chunksize=piece,
                dtype=dict.fromkeys(words or [], "str"),
            )
        while True:
            with named_fields():
                part = next(parts, None)
            if part is None:
                return
            if len(part):
                yield named(table, part)
