"""A registry: runs, batches and marks in a signed, append-only chain that many may write."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from audit.keys import Keys
from audit.registry import blocks as block_files
from audit.registry import database, index, schema
from audit.registry.blocks import Cache, Damaged
from audit.registry.chain import Chain
from audit.registry.database import Database
from audit.registry.entries import Batch, BatchState, Entry, Legacy, Place, Problem, Run
from audit.registry.statements import Block
from audit.yaml_file import InputError

TOGETHER = 16  # blocks in one transaction: an index is cheaper to extend in larger parts

__all__ = ["Damaged", "Registry", "create", "open", "upgrade"]


def create(url: str, keys: Keys, timeout: float = 30.0) -> Registry:
    """A new registry, resting on the root of these keys. ``url``: PostgreSQL's, or a file's path.

    Raises:
        InputError: if there is a registry or anything else already, or the database cannot be used.
    """
    place = Database(url, timeout, creating=True)
    with place.writing(lock=None) as connection:
        if database.version(connection) is not None:
            raise InputError(f"{place.name}: is a registry already")
        taken = set(sa.inspect(connection).get_table_names()) & schema.metadata.tables.keys()
        if taken:
            raise InputError(f"{place.name}: has a table {min(taken)!r} of something else")
        database.migrate(connection)
        first = Chain().begun(uuid.uuid4().hex, _now(), keys)
        connection.execute(schema.entries.insert(), vars(first))
    place.close()
    return open(url, timeout)


def open(url: str, timeout: float = 30.0) -> Registry:
    """The registry at a URL or file path. Its entries are read and checked once, no blocks.

    Raises:
        InputError: if there is none, or it cannot be used; nothing is created.
    """
    return Registry(Database(url, timeout))


def upgrade(url: str, timeout: float = 30.0) -> tuple[str, str]:
    """Bring a registry's tables to this program's version; the versions before and after.

    Raises:
        InputError: if there is no registry, it is newer, or it cannot be written.
    """
    place = Database(url, timeout)
    with place.reading() as connection:
        before = database.version(connection)
        if before not in schema.VERSIONS[:-1]:
            database.require_current(connection, place.name)
            return schema.VERSIONS[-1], schema.VERSIONS[-1]
    with place.writing() as connection:
        database.migrate(connection)
    place.close()
    return str(before), schema.VERSIONS[-1]


class Registry:
    """What one registry says. Reading follows the entries once; ``refresh`` follows those added.

    Runs, batches and codes come only from entries that the key in force signed: what else stands
    in the tables is in ``verify_chain``. A context manager: it closes connections.

    Attributes:
        name: the file, or the URL without its password.
    """

    def __init__(self, place: Database) -> None:
        self._place = place
        self._chain = Chain()
        self._cache = Cache()
        self.name = place.name
        with place.reading() as connection:
            database.require_current(connection, self.name)
            self._follow(connection)

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the database."""
        self._place.close()

    @property
    def entries(self) -> Mapping[int, Entry]:
        """All entries by position, sound or not."""
        return self._chain.entries

    @property
    def runs(self) -> Mapping[str, Run]:
        """Runs by id."""
        return self._chain.said.runs

    @property
    def batches(self) -> Mapping[str, Batch]:
        """Batches by id, whatever their state."""
        return self._chain.said.batches

    @property
    def legacy(self) -> Mapping[str, tuple[Legacy, ...]]:
        """What a code of the older recipe was given to: more than one if codes collide."""
        return self._chain.said.legacy

    @property
    def head(self) -> str:
        """Hash of the last entry: who keeps it can tell whether entries were dropped later."""
        return self._chain.head

    @property
    def root(self) -> bytes:
        """The public key that the registry says it rests on (32 bytes); empty if it says none."""
        return self._chain.root

    @property
    def folder(self) -> Path:
        """Where relative paths of ledgers start: the SQLite file's folder, else the current one."""
        return self._place.path.absolute().parent if self._place.path else Path()

    def state(self, batch: str) -> BatchState:
        """Whether a batch is closed, which it is when all its marks were written.

        Raises:
            InputError: if it is not registered.
        """
        if batch not in self.batches:
            raise InputError(f"{self.name}: batch {batch} is not registered")
        return self._chain.said.states[batch]

    def run_entry(self, run: str) -> Entry:
        """The signed entry that states a run. InputError if it is not registered."""
        return self._entry_of("run", run)

    def batch_entry(self, batch: str) -> Entry:
        """The signed entry that states a batch. InputError if it is not registered."""
        return self._entry_of("batch", batch)

    def public_key(self, key_id: str) -> bytes:
        """A signing key (32 bytes) that follows from the root. InputError for any other."""
        if key_id not in self._chain.keys:
            raise InputError(f"{self.name}: key {key_id} does not follow from its root")
        return self._chain.keys[key_id]

    def add_run(self, run: Run, keys: Keys) -> Run:
        """Register a run.

        Raises:
            InputError: if its id is taken, a number is not finite, the keys are not this
                registry's, or it cannot be written.
        """
        run = replace(run, registered=run.registered or _now())
        self._append([("run", vars(run))], keys)
        return run

    def add_legacy(self, legacy: Legacy, keys: Keys) -> Legacy:
        """Register a code of the older recipe. Errors as ``add_run``, or if it is no code."""
        legacy = replace(legacy, registered=legacy.registered or _now())
        self._append([("legacy", vars(legacy))], keys)
        return legacy

    def add_batch(self, batch: Batch, table: Any, keys: Keys) -> Batch:
        """Register a batch with its marks.

        The batch's entry is written first, then its blocks, ``TOGETHER`` at a time, and with the
        last of them the entry that closes it. A writer that dies leaves a batch that is open.

        Args:
            table: a ``pyarrow.Table`` of ``batch.records`` rows with ``record_id`` (text, each
                once), ``tag`` (8 bytes or null), ``digest`` (32 bytes), and any further columns.

        Raises:
            InputError: as ``add_run``, or if the table is not so.
        """
        batch = replace(batch, created=batch.created or _now())
        table = block_files.checked(table, batch.records)
        self._append([("batch", vars(batch))], keys)
        parts = block_files.cut(batch.id, table)
        closing = ("closed", {"batch": batch.id, "records": batch.records})
        left = batch.records
        while True:
            some = list(islice(parts, TOGETHER))
            left -= sum(block.records for block, _ in some)
            marks = [("marks", vars(block)) for block, _ in some]

            def fill(
                connection: sa.Connection,
                entries: Sequence[Entry],
                some: Sequence[tuple[Block, bytes]] = some,
            ) -> None:
                for entry, (block, content) in zip(entries, some, strict=False):
                    part = table.slice(block.first, block.records)
                    index.write(connection, entry.position, content, part)

            self._append(marks if left else [*marks, closing], keys, fill)
            if not left:
                return batch
            if self._place.sqlite:
                time.sleep(2 * database.PATIENCE)  # its lock has no queue: let others have it

    def abandon(self, batch: str, keys: Keys) -> None:
        """State of an open batch that it will never be closed: its writer is dead.

        Raises:
            InputError: as ``add_run``, or if the batch is not open.
        """
        self._append([("abandoned", {"batch": batch})], keys)

    def hand_over(self, keys: Keys) -> bool:
        """Put a rotated key in force now rather than with the next entry; False if it is.

        Raises:
            InputError: as ``add_run``.
        """
        before = self._chain.in_force
        self._append([], keys)
        return self._chain.in_force != before

    def by_tag(self, tags: Iterable[bytes]) -> dict[bytes, list[Place]]:
        """Where the index says that tags stand; tags that it lacks are left out.

        The index is not signed: ``rows`` gives what is.
        """
        return self._places(schema.marks.c.tag, tags)

    def by_digest(self, digests: Iterable[bytes]) -> dict[bytes, list[Place]]:
        """Where the index says that digests stand, as ``by_tag``."""
        return self._places(schema.marks.c.digest, digests)

    def block(self, entry: int, columns: Sequence[str] | None = None) -> Any:
        """The table that a "marks" entry signed, or some of its columns.

        Raises:
            Damaged: if its content is missing or another.
            InputError: if no sound entry signed it, or it has no such column.
        """
        if entry not in self._chain.said.blocks:
            raise Damaged(f"{self.name}: entry {entry}: is no signed block of marks")
        key = (entry, None if columns is None else tuple(columns))
        table = self._cache.get(key)
        if table is None:
            with self._place.reading() as connection:
                content = index.content(connection, entry)
            signed = self._chain.said.blocks[entry]
            table = block_files.opened(entry, signed, content, columns)
            self._cache.put(key, table)
        return table

    def rows(self, places: Sequence[Place], columns: Sequence[str]) -> list[dict[str, Any] | None]:
        """The signed rows at these places, in their order; each block is read once.

        None stands where there is no such row, or where its block is damaged.

        Raises:
            InputError: if a block has no such column.
        """
        found: list[dict[str, Any] | None] = [None] * len(places)
        asked: dict[int, list[int]] = {}
        for number, place in enumerate(places):
            asked.setdefault(place.entry, []).append(number)
        for entry in sorted(asked):
            try:
                table = self.block(entry, columns)
            except Damaged:
                continue
            here = [n for n in asked[entry] if 0 <= places[n].row < table.num_rows]
            if not here:
                continue
            taken = table.take([places[n].row for n in here]).to_pylist()
            for number, row in zip(here, taken, strict=True):
                found[number] = row
        return found

    def blocks(self, batch: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
        """Position and table of each block of a batch, in order. Errors as ``block``."""
        for entry, signed in list(self._chain.said.blocks.items()):
            if signed.batch == batch:
                with self._place.reading() as connection:
                    content = index.content(connection, entry)
                yield entry, block_files.opened(entry, signed, content, columns)

    def verify_chain(
        self, public_key: bytes | None = None, head: str | None = None
    ) -> tuple[Problem, ...]:
        """What does not hold of the entries: root, signatures, order, content, open batches.

        Blocks and index are left out, but for the number of marks. Entries dropped from the end
        show only in a head (hash of an entry) that was kept elsewhere.
        """
        with self._place.reading() as connection:
            counted = tuple(index.count_problems(connection, self._chain))
        return (*self._chain.verify(public_key, head), *counted)

    def verify(
        self, public_key: bytes | None = None, head: str | None = None
    ) -> tuple[Problem, ...]:
        """All that does not hold: ``verify_chain``, every block, and every row of the index."""
        found = list(self._chain.verify(public_key, head))
        found += index.problems(self._place.reading, self._chain)
        return tuple(found)

    def refresh(self) -> None:
        """Follow the entries that others have added since."""
        with self._place.reading() as connection:
            self._follow(connection)

    def _entry_of(self, kind: str, id: str) -> Entry:
        position = self._chain.said.positions.get((kind, id))
        if position is None:
            raise InputError(f"{self.name}: {kind} {id} is not registered")
        return self._chain.entries[position]

    def _places(self, column: Any, wanted: Iterable[bytes]) -> dict[bytes, list[Place]]:
        with self._place.reading() as connection:
            found = index.find(connection, column, wanted)
            if any(entry > self._chain.last for _, entry, _ in found):
                self._follow(connection)
        places: dict[bytes, list[Place]] = {}
        for value, entry, row in found:
            if signed := self._chain.said.blocks.get(entry):
                places.setdefault(value, []).append(Place(signed.batch, entry, row))
        return places

    def _follow(self, connection: sa.Connection) -> None:
        table = schema.entries
        query = sa.select(table).order_by(table.c.position)
        if self._chain.last:
            query = query.where(table.c.position > self._chain.last)
        self._chain.take(Entry(p, *map(_text, rest)) for p, *rest in connection.execute(query))

    def _append(
        self,
        statements: Sequence[tuple[str, Mapping[str, Any]]],
        keys: Keys,
        fill: Callable[[sa.Connection, Sequence[Entry]], None] | None = None,
    ) -> None:
        """Write entries in one transaction; ``fill`` writes what belongs to them."""
        with self._restored_on_failure(), self._place.writing() as connection:
            self._follow(connection)
            written = []
            if handover := self._chain.handed_over(keys):
                self._write(connection, handover)
            for kind, body in statements:
                entry = self._chain.stated(kind, body, keys)
                self._write(connection, entry)
                written.append(entry)
            if fill is not None:
                fill(connection, written)

    def _write(self, connection: sa.Connection, entry: Entry) -> None:
        connection.execute(schema.entries.insert(), vars(entry))
        self._chain.take([entry])

    @contextmanager
    def _restored_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._chain = Chain()  # what was taken in may not have been written
            self.refresh()
            raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text(value: Any) -> str:
    """A column's value; SQLite lets others put numbers and bytes there, which nobody signed."""
    return value if isinstance(value, str) else repr(value)
