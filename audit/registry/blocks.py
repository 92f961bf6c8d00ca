"""Blocks of marks: a batch's table cut into Parquet files of at most 4096 records each."""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from audit.registry.statements import BLOCK_RECORDS, Block
from audit.yaml_file import InputError

RECORD_ID, TAG, DIGEST = "record_id", "tag", "digest"
_TYPES = {RECORD_ID: pa.string(), TAG: pa.binary(8), DIGEST: pa.binary(32)}


class Damaged(InputError):
    """A block is missing or is not what its entry signed; the message names the entry."""


def checked(table: Any, records: int) -> Any:
    """A batch's table with its three first columns in their types.

    Raises:
        InputError: if one is missing or of another type, if a record id or digest is null, if a
            record id stands there twice, or if the number of rows is not ``records``.
    """
    if table.num_rows != records:
        raise InputError(f"records: {records} are announced, the table has {table.num_rows}")
    for number, (name, kind) in enumerate(_TYPES.items()):
        at = table.schema.get_field_index(name)
        if at < 0:
            raise InputError(f"{name}: the table has no such column, or has it twice")
        try:
            column = table.column(at).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(f"{name}: is not {kind}: {error}") from None
        if name != TAG and column.null_count:
            raise InputError(f"{name}: a value is missing")
        table = table.remove_column(at).add_column(number, name, column)
    ids = table.column(RECORD_ID)
    if len(ids.unique()) != len(ids):
        raise InputError(f"{RECORD_ID}: an id stands there twice; give each record its own")
    return table


def cut(batch: str, table: Any) -> Iterator[tuple[Block, bytes]]:
    """The table's blocks in order, each with its content."""
    for first in range(0, table.num_rows, BLOCK_RECORDS):
        part = table.slice(first, BLOCK_RECORDS)
        file = io.BytesIO()
        pq.write_table(part, file, compression="zstd", use_dictionary=False, write_statistics=False)
        content = file.getvalue()
        sha256 = hashlib.sha256(content).hexdigest()
        yield Block(batch, first, part.num_rows, sha256), content


def index_rows(entry: int, table: Any) -> list[tuple[int, int, bytes | None, bytes]]:
    """What the index has of a block: entry, row, tag, digest."""
    tags, digests = table.column(TAG).to_pylist(), table.column(DIGEST).to_pylist()
    return [(entry, row, tag, d) for row, (tag, d) in enumerate(zip(tags, digests, strict=True))]


def opened(
    entry: int, block: Block, content: bytes | None, columns: Sequence[str] | None = None
) -> Any:
    """The table in a block's content, after a check of its SHA-256.

    Raises:
        Damaged: if it is missing, was changed, or holds another number of records.
        InputError: if it has no such column.
    """
    where = f"entry {entry}, batch {block.batch}: its block"
    if not isinstance(content, bytes):
        raise Damaged(f"{where} is missing")
    if hashlib.sha256(content).hexdigest() != block.sha256:
        raise Damaged(f"{where} is not what was signed: it was edited")
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        names = file.schema_arrow.names
        if strange := next((c for c in columns or () if c not in names), None):
            raise InputError(f"{where} has no column {strange}; it has {', '.join(names)}")
        table = file.read(columns=list(columns) if columns is not None else None)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{where} is no Parquet: {error}") from None
    if table.num_rows != block.records:
        raise Damaged(f"{where} holds {table.num_rows} records where {block.records} were signed")
    return table


class Cache:
    """Tables read lately, up to so many bytes; those not used for longest make room."""

    def __init__(self, most: int = 128 << 20) -> None:
        self._most = most
        self._size = 0
        self._tables: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any | None:
        """The table kept under this key, or None."""
        if key in self._tables:
            self._tables.move_to_end(key)
        return self._tables.get(key)

    def put(self, key: Any, table: Any) -> None:
        """Keep a table, unless it alone is too large."""
        if key in self._tables or table.nbytes > self._most:
            return
        self._tables[key] = table
        self._size += table.nbytes
        while self._size > self._most:
            self._size -= self._tables.popitem(last=False)[1].nbytes
