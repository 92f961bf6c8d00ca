"""Contents of blocks, and the index of marks: where they are kept, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from audit.registry import blocks as block_files
from audit.registry import schema
from audit.registry.blocks import DIGEST, TAG
from audit.registry.chain import Chain
from audit.registry.entries import Problem
from audit.yaml_file import InputError

_AT_ONCE = 500  # values in one query

Row = tuple[int, int, bytes | None, bytes]
Reading = Callable[[], AbstractContextManager[sa.Connection]]


def write(connection: sa.Connection, entry: int, content: bytes, table: Any) -> None:
    """Put a block's content and its rows of the index."""
    connection.execute(schema.blocks.insert(), {"entry": entry, "content": content})
    rows = block_files.index_rows(entry, table)
    names = ("entry", "row", "tag", "digest")
    connection.execute(schema.marks.insert(), [dict(zip(names, r, strict=True)) for r in rows])


def content(connection: sa.Connection, entry: int) -> bytes | None:
    """A block's content as it is stored; None if there is none."""
    query = sa.select(schema.blocks.c.content).where(schema.blocks.c.entry == entry)
    found = connection.execute(query).scalar()
    return found if isinstance(found, bytes) else None


def find(
    connection: sa.Connection, column: Any, wanted: Iterable[bytes]
) -> list[tuple[bytes, int, int]]:
    """Value, entry and row of every mark whose column has one of these values."""
    values = sorted(set(wanted))  # neighbours in the index are read together
    found: list[tuple[bytes, int, int]] = []
    for first in range(0, len(values), _AT_ONCE):
        query = sa.select(column, schema.marks.c.entry, schema.marks.c.row).where(
            column.in_(values[first : first + _AT_ONCE])
        )
        found += [(bytes(v), e, r) for v, e, r in connection.execute(query)]
    return found


def count_problems(connection: sa.Connection, chain: Chain) -> Iterator[Problem]:
    """Whether the index has as many rows as blocks were signed for: cheap, and not all."""
    table = schema.marks
    query = sa.select(sa.func.count()).where(table.c.entry <= chain.last)
    counted = connection.execute(query.select_from(table)).scalar_one()
    signed = sum(block.records for block in chain.said.blocks.values())
    if counted != signed:
        yield Problem("index", 0, f"the index has {counted} marks where {signed} were signed")


def problems(reading: Reading, chain: Chain) -> Iterator[Problem]:
    """Blocks that are not what was signed, and rows of the index that no block bears out.

    Blocks are read one at a time, so that writers are not kept waiting; what they add meanwhile is
    left out.
    """
    signed = dict(chain.said.blocks)
    for entry, block in signed.items():
        with reading() as connection:
            kept, rows = content(connection, entry), _rows(connection, entry)
        try:
            table = block_files.opened(entry, block, kept, (TAG, DIGEST))
            expected = block_files.index_rows(entry, table)
        except InputError as error:
            yield Problem("block", entry, str(error))
            continue
        if rows != expected:
            yield Problem("index", entry, f"batch {block.batch}: {_difference(rows, expected)}")
    with reading() as connection:
        for entry, count in _counts(connection, schema.blocks, chain.last):
            if entry not in signed:
                yield Problem("block", entry, f"{count} block stands there that nobody signed")
        for entry, count in _counts(connection, schema.marks, chain.last):
            if entry not in signed:
                yield Problem("index", entry, f"{count} marks stand there for no signed block")


def _counts(connection: sa.Connection, table: sa.Table, last: int) -> Iterator[tuple[int, int]]:
    query = sa.select(table.c.entry, sa.func.count()).group_by(table.c.entry)
    found = connection.execute(query.where(table.c.entry <= last))
    yield from ((entry, count) for entry, count in found)


def _rows(connection: sa.Connection, entry: int) -> list[Row]:
    table = schema.marks
    query = sa.select(table.c.entry, table.c.row, table.c.tag, table.c.digest)
    found = connection.execute(query.where(table.c.entry == entry).order_by(table.c.row))
    return [tuple(row) for row in found]


def _difference(rows: list[Row], expected: list[Row]) -> str:
    """The first row of the index that is not as the block says."""
    here, there = {r[1]: r for r in rows}, {r[1]: r for r in expected}
    numbers = sorted(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
    if numbers[0] not in here:
        what = "is missing in the index"
    elif numbers[0] not in there:
        what = "stands in the index, and not in the block"
    else:
        what = "is another in the index than in the block"
    more = f" (and {len(numbers) - 1} more)" if len(numbers) > 1 else ""
    return f"row {numbers[0]} {what}{more}"
