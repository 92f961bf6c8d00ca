"""A registry on both databases: what goes in comes out, and nothing is ever changed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import pyarrow as pa
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from audit.keys import Keys, read
from audit.registry import database, schema, store
from audit.registry.blocks import Damaged
from audit.registry.chain import signed_by
from audit.registry.database import Database
from audit.registry.entries import Legacy, Place
from audit.yaml_file import InputError
from tests.audit.registry.made import BATCH, RUN, table


def test_what_goes_in_comes_out(url: str, keys: Keys) -> None:
    marks = table(10_000)
    batch = replace(BATCH, records=10_000)
    with store.create(url, keys) as made:
        run = made.add_run(RUN, keys)
        batch = made.add_batch(batch, marks, keys)
        code = made.add_legacy(Legacy("deadbeef", "old", "r1"), keys)
    with store.open(url) as registry:
        assert registry.runs == {"r1": run}
        assert run.registered.endswith("+00:00")
        assert registry.batches == {batch.id: batch}
        assert registry.legacy == {"deadbeef": (code,)}
        assert registry.state(batch.id) == "closed"
        assert [t.num_rows for _, t in registry.blocks(batch.id)] == [4096, 4096, 1808]
        assert (
            pa.concat_tables(t for _, t in registry.blocks(batch.id, ["sketch"]))
            .column("sketch")
            .to_pylist()
            == marks.column("sketch").to_pylist()
        )
        wanted = marks.column("digest").to_pylist()[::7]
        places = registry.by_digest([*wanted, bytes(32)])
        assert set(places) == set(wanted)
        rows = registry.rows([places[d][0] for d in wanted], ["record_id", "digest"])
        assert [r and r["digest"] for r in rows] == wanted
        assert [r and r["record_id"] for r in rows] == marks.column("record_id").to_pylist()[::7]
        tag = marks.column("tag")[5000].as_py()
        assert registry.by_tag([tag, bytes(8)]) == {tag: [Place(batch.id, 5, 904)]}
        assert registry.verify(keys.root, registry.head) == ()
        assert registry.verify_chain(keys.root, registry.head) == ()


def test_anybody_can_check_the_entry_of_a_record(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        registry.add_batch(BATCH, table(3), keys)
        digest = hashlib.sha256(b"1").digest()
        (place,) = registry.by_digest([digest])[digest]
        entry = registry.entries[place.entry]
    # by hand, from the text of docs/registry.md alone
    kind = entry.kind.encode()
    hashed = hashlib.sha256(
        b"dpassay.registry/1\0" + entry.previous.encode() + entry.position.to_bytes(8, "big")
        + bytes([len(kind)]) + kind + entry.body.encode()
    )  # fmt: skip
    assert entry.hash == hashed.hexdigest()
    public = Ed25519PublicKey.from_public_bytes(keys.root)
    public.verify(bytes.fromhex(entry.signature), b"dpassay.registry-entry/1\0" + hashed.digest())
    assert signed_by(entry, keys.root)
    assert not signed_by(
        replace(entry, body=entry.body.replace('"first":0', '"first":1')), keys.root
    )
    assert registry.public_key(entry.key_id) == keys.root


@pytest.mark.parametrize("statement", [
    "UPDATE entries SET body = '{}' WHERE position = 2", "DELETE FROM entries WHERE position = 2",
    "UPDATE blocks SET content = content", "DELETE FROM blocks",
    "UPDATE marks SET tag = NULL", "DELETE FROM marks",
])  # fmt: skip
def test_the_tables_refuse_changes(url: str, keys: Keys, intruder, statement: str) -> None:
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        registry.add_batch(BATCH, table(3), keys)
    with pytest.raises(sa.exc.DatabaseError, match="append-only"):
        intruder.try_plainly(statement)
    with store.open(url) as registry:
        assert registry.verify(keys.root) == ()


def test_old_entries_verify_after_two_rotations(url: str, keys: Keys) -> None:
    first, secret = keys.marking
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        Keys.rotate(keys.folder)
        newer = Keys.rotate(keys.folder)  # the key between signed nothing here
        with pytest.raises(InputError, match="do not follow"):
            registry.add_run(replace(RUN, id="x"), Keys.create(keys.folder.parent / "others"))
        registry.add_batch(BATCH, table(3), newer)
        assert not registry.hand_over(newer)
        assert registry.verify(keys.root, registry.head) == ()
        assert {e.key_id for e in registry.entries.values()} == {keys.id, newer.id}
    newest = Keys.rotate(keys.folder)
    with store.open(url) as registry:
        assert registry.hand_over(newest)
        assert [e.kind for e in registry.entries.values()].count("key") == 2
        assert registry.verify(keys.root) == ()
        with pytest.raises(InputError, match="do not follow"):
            registry.add_run(replace(RUN, id="r2"), keys)  # a copy of the folder from before
        assert registry.verify(keys.root) == ()
    assert read(keys.folder).secret(first) == secret


def test_a_registry_of_later_keys_rests_on_the_same_root(url: str, keys: Keys) -> None:
    newer = Keys.rotate(keys.folder)
    with store.create(url, newer) as registry:
        registry.add_run(RUN, newer)
        assert registry.root == keys.root
        assert registry.verify(keys.root) == ()


def test_what_cannot_be_stated_is_refused_and_leaves_nothing(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        registry.add_batch(BATCH, table(3), keys)
        head = registry.head
        other = replace(BATCH, id="x")
        same = pa.concat_tables([table(1)] * 3)
        for fault, said in [
            (lambda: registry.add_run(RUN, keys), "r1: is registered already"),
            (lambda: registry.add_run(replace(RUN, id="x", epsilon=math.inf), keys), "cannot be"),
            (lambda: registry.add_batch(BATCH, table(3), keys), "is registered already"),
            (lambda: registry.add_batch(replace(other, run="?"), table(3), keys), "run ?"),
            (lambda: registry.add_batch(other, table(2), keys), "3 are announced"),
            (lambda: registry.add_batch(other, same, keys), "twice"),
            (lambda: registry.add_batch(other, table(3).drop(["tag"]), keys), "tag: the table"),
            (lambda: registry.add_batch(replace(other, details={"a": {1}}), table(3), keys), "not"),
            (lambda: registry.add_legacy(Legacy("DEADBEEF", "b", "r1"), keys), "8 hexadecimal"),
            (lambda: registry.abandon(BATCH.id, keys), "is closed"),
            (lambda: registry.abandon("?", keys), "is not registered"),
        ]:
            with pytest.raises(InputError, match=said.replace("?", r"\?")):
                fault()
            assert registry.head == head
        assert registry.verify(keys.root, head) == ()


def test_an_empty_batch_is_closed(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        empty = table(1).slice(1)
        registry.add_batch(replace(BATCH, records=0), empty, keys)
        assert registry.state(BATCH.id) == "closed"
        assert registry.verify(keys.root) == ()


def test_a_second_registry_is_not_made_over_the_first(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
    with pytest.raises(InputError, match="is a registry already"):
        store.create(url, keys)
    with store.open(url) as registry:
        assert list(registry.runs) == ["r1"]


def test_one_who_looks_sees_what_others_add(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry, store.open(url) as other:
        registry.add_run(RUN, keys)
        registry.add_batch(BATCH, table(3), keys)
        tag = table(3).column("tag")[0].as_py()
        assert other.by_tag([tag]) == registry.by_tag([tag]) == {tag: [Place(BATCH.id, 4, 0)]}
        assert other.head == registry.head


def test_migrations_make_the_tables_that_the_program_uses(url: str, keys: Keys) -> None:
    store.create(url, keys).close()
    place = Database(url)
    with place.reading() as connection:
        found = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(found, schema.metadata) == []
        assert found.get_current_revision() == schema.VERSIONS[-1]
    place.close()


def test_an_older_registry_is_upgraded(url: str, keys: Keys, intruder) -> None:
    place = Database(url, creating=True)
    with place.writing(lock=None) as connection:
        database.migrate(connection, "1")
        first = store.Chain().begun("0" * 32, "2026-01-01T00:00:00+00:00", keys)
        connection.execute(schema.entries.insert(), vars(first))
    place.close()
    with pytest.raises(InputError, match="run: dpassay registry upgrade"):
        store.open(url)
    assert store.upgrade(url) == ("1", "2")
    assert store.upgrade(url) == ("2", "2")
    with store.open(url) as registry:
        registry.add_run(RUN, keys)
        assert registry.verify(keys.root) == ()
    with pytest.raises(sa.exc.DatabaseError, match="append-only"):
        intruder.try_plainly("DELETE FROM entries")
    intruder.run("UPDATE registry_version SET version_num = '99'")
    for use in (store.open, store.upgrade):
        with pytest.raises(InputError, match=r"version 99, newer than .* install a newer dpassay"):
            use(url)


def test_the_cache_of_blocks_is_bounded() -> None:
    cache = store.Cache(most=3 * table(100).nbytes)
    for number in range(10):
        cache.put(number, table(100))
    assert [n for n in range(10) if cache.get(n) is not None] == [7, 8, 9]


def test_a_block_that_is_none(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        registry.add_batch(BATCH, table(3), keys)
        with pytest.raises(Damaged, match="entry 2: is no signed block"):
            registry.block(2)
        with pytest.raises(InputError, match=r"entry 4, .* has no column words"):
            registry.block(4, ["words"])
        assert registry.rows([Place(BATCH.id, 4, 3), Place(BATCH.id, 2, 0)], ["tag"]) == [
            None,
            None,
        ]
        body = json.loads(registry.entries[3].body)
        assert body["details"] == {"words": "é\ud800", "n": 2}
