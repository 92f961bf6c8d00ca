"""Somebody with the database and no key changes it: every change is named by its entry."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.keys import Keys, key_id
from audit.registry import chain, store
from audit.registry.entries import Entry, Place, Problem
from tests.audit.registry import made
from tests.audit.registry.made import RUN, table

BATCH = replace(made.BATCH, records=6)
# entries: 1 registry, 2 run, 3 batch, 4 marks, 5 marks, 6 closed, 7 run


@pytest.fixture
def filled(url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("audit.registry.blocks.BLOCK_RECORDS", 4)
    with store.create(url, keys) as registry:
        registry.add_run(RUN, keys)
        registry.add_batch(BATCH, table(6), keys)
        registry.add_run(replace(RUN, id="r2"), keys)
        assert registry.verify(keys.root, registry.head) == ()
    return url


def _found(url: str, keys: Keys, head: str | None = None) -> list[tuple[str, int]]:
    with store.open(url) as registry:
        problems = registry.verify(keys.root, head)
    assert all(isinstance(p, Problem) and p.detail for p in problems)
    return [(p.kind, p.entry) for p in problems]


def _head(url: str) -> str:
    with store.open(url) as registry:
        return registry.head


INSERT = (
    "INSERT INTO entries (position, kind, body, previous, hash, key_id, signature) "
    "VALUES (:position, :kind, :body, :previous, :hash, :key_id, :signature)"
)


def _forged(url: str, kind: str, body: dict, position: int | None = None, **more: str) -> Entry:
    """An entry whose hash is right; only the key is missing."""
    with store.open(url) as registry:
        last = registry.entries[max(registry.entries)]
    position = position or last.position + 1
    text = chain.canonical(body)
    hash = chain.digest(last.hash, position, kind, text)
    entry = Entry(position, kind, text, last.hash, hash, last.key_id, last.signature)
    return replace(entry, **more)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        # the ledger of a run replaced by a better one, and a smaller budget claimed for it
        (["UPDATE entries SET body = replace(body, 'aaaaaaaa', 'dddddddd') WHERE position = 2"],
         [("hash", 2)]),
        (["UPDATE entries SET body = replace(body, '3.0', '1.0') WHERE position = 2"],
         [("hash", 2)]),
        (["UPDATE entries SET kind = 'closed' WHERE position = 2"], [("hash", 2)]),
        (["UPDATE entries SET hash = 'ab' WHERE position = 2"], [("hash", 2), ("chain", 3)]),
        (["UPDATE entries SET key_id = 'ab' WHERE position = 2"], [("signature", 2)]),
        (["UPDATE entries SET signature = 'nonsense' WHERE position = 7"], [("signature", 7)]),
        (["UPDATE entries SET body = '[' WHERE position = 7"], [("hash", 7)]),
        (["DELETE FROM entries WHERE position = 7"], [("head", 6)]),
        (["DELETE FROM entries WHERE position = 6"], [("missing", 6), ("unfinished", 3)]),
        (["UPDATE entries SET position = 70 WHERE position = 7"], [("missing", 7), ("hash", 70)]),
        (["UPDATE entries SET position = 80 WHERE position = 2",
          "UPDATE entries SET position = 2 WHERE position = 7",
          "UPDATE entries SET position = 7 WHERE position = 80"],
         [("hash", 2), ("hash", 7)]),
        (["UPDATE entries SET position = -1 WHERE position = 7"], [("hash", -1)]),
        (["DELETE FROM entries WHERE position = 1"], [("root", 1), ("missing", 1)]),
        (["UPDATE blocks SET content = (SELECT content FROM blocks WHERE entry = 4)"],
         [("block", 5)]),
        (["DELETE FROM blocks WHERE entry = 5"], [("block", 5)]),
        (["INSERT INTO blocks SELECT 6, content FROM blocks WHERE entry = 5"], [("block", 6)]),
        (["UPDATE marks SET tag = NULL WHERE entry = 5 AND row = 1",], [("index", 5)]),
        (["UPDATE marks SET digest = (SELECT digest FROM marks WHERE entry = 4 AND row = 0) "
          "WHERE entry = 5 AND row = 1"], [("index", 5)]),
        (["UPDATE marks SET row = 9 WHERE entry = 5 AND row = 1"], [("index", 5)]),
        (["UPDATE marks SET entry = 5, row = 2 WHERE entry = 4 AND row = 3"],
         [("index", 4), ("index", 5)]),
        (["DELETE FROM marks WHERE entry = 4 AND row = 2"], [("index", 4)]),
        (["INSERT INTO marks SELECT 5, 2, tag, digest FROM marks WHERE entry = 4 AND row = 1"],
         [("index", 5)]),
        (["INSERT INTO marks SELECT 6, 0, tag, digest FROM marks WHERE entry = 4 AND row = 1"],
         [("index", 6)]),
    ],
)  # fmt: skip
def test_each_change_is_named(
    filled: str, keys: Keys, intruder, statements: list[str], expected: list[tuple[str, int]]
) -> None:
    head = _head(filled)
    intruder.run(*statements)
    found = _found(filled, keys, head)
    assert set(expected) <= set(found)
    # what else is said follows from it: what was stated by the entry is no longer known
    entry = {e for _, e in expected}
    rest = [f for f in found if f not in expected]
    assert all(
        kind in ("chain", "content", "unfinished", "head", "index", "block") for kind, _ in rest
    )
    assert len(found) <= 1 + 2 * 7
    assert entry <= {e for _, e in found}


def test_dropped_entries_show_only_in_a_pinned_head(filled: str, keys: Keys, intruder) -> None:
    head = _head(filled)
    intruder.run("DELETE FROM entries WHERE position = 7")
    assert _found(filled, keys) == []  # honestly: nothing in what is left can show it
    assert _found(filled, keys, head) == [("head", 6)]


def test_the_block_and_its_digest_replaced(filled: str, keys: Keys, intruder) -> None:
    """A better forger: content, its SHA-256 in the body, and the hash all agree."""
    with store.open(filled) as registry:
        entry = registry.entries[5]
    file = io.BytesIO()
    pq.write_table(table(2, b"other"), file)
    body = {**json.loads(entry.body), "sha256": hashlib.sha256(file.getvalue()).hexdigest()}
    text = chain.canonical(body)
    hash = chain.digest(entry.previous, 5, "marks", text)
    intruder.run(
        "UPDATE blocks SET content = :content WHERE entry = 5",
        "UPDATE entries SET body = :body, hash = :hash WHERE position = 5",
        "UPDATE entries SET previous = :hash WHERE position = 6",
        content=file.getvalue(), body=text, hash=hash,
    )  # fmt: skip
    found = _found(filled, keys)
    assert ("signature", 5) in found
    assert ("hash", 6) in found
    with store.open(filled) as registry:
        assert registry.rows([Place(BATCH.id, 5, 0)], ["record_id"]) == [None]


def test_forged_entries_are_named_and_count_for_nothing(filled: str, keys: Keys, intruder) -> None:
    mine = Ed25519PrivateKey.generate()
    public = mine.public_key().public_bytes_raw()

    def signed(entry: Entry) -> Entry:
        signature = mine.sign(b"dpassay.registry-entry/1\0" + bytes.fromhex(entry.hash))
        return replace(entry, key_id=key_id(public), signature=signature.hex())

    better = {**vars(RUN), "id": "r3", "ledger_sha256": "d" * 64, "registered": ""}
    link = {
        "public_key": public.hex(),
        "endorsement": mine.sign(b"dpassay.key-endorsement/1\0" + public).hex(),
    }
    makers: list[Callable[[], Entry]] = [
        lambda: _forged(filled, "run", better),  # without the key
        lambda: signed(_forged(filled, "run", better)),  # by a key of one's own
        lambda: signed(
            _forged(filled, "key", {"succession": [link]})
        ),  # which is then put in force
        lambda: signed(_forged(filled, "run", better)),
        lambda: _forged(filled, "key", {"succession": []}),
        lambda: _forged(filled, "key", {"succession": [{"a": 1}, 7]}),
        lambda: _forged(filled, "registry", {"root": public.hex()}),
        lambda: _forged(filled, "nonsense", {}),
    ]
    for number, make in enumerate(makers, 8):
        intruder.run(INSERT, **vars(make()))
        assert _found(filled, keys) == [("signature", n) for n in range(8, number + 1)]
    with store.open(filled) as registry:
        assert list(registry.runs) == ["r1", "r2"]
        registry.add_run(replace(RUN, id="r4"), keys)  # and the owner still can go on
    assert _found(filled, keys) == [("signature", n) for n in range(8, 16)]


def test_a_forged_block_leads_nowhere(filled: str, keys: Keys, intruder) -> None:
    file = io.BytesIO()
    pq.write_table(table(2, b"other"), file)
    body = {"batch": BATCH.id, "first": 6, "records": 2, "sha256": "0" * 64}
    intruder.run(INSERT, **vars(_forged(filled, "marks", body)))
    intruder.run("INSERT INTO blocks VALUES (8, :content)", content=file.getvalue())
    intruder.run("INSERT INTO marks SELECT 8, row, NULL, digest FROM marks WHERE entry = 4")
    assert set(_found(filled, keys)) == {("signature", 8), ("block", 8), ("index", 8)}
    with store.open(filled) as registry:
        digest = table(1).column("digest")[0].as_py()
        assert registry.by_digest([digest]) == {digest: [Place(BATCH.id, 4, 0)]}


def test_a_rotated_key_signs_nothing_new(filled: str, keys: Keys, intruder, tmp_path: Path) -> None:
    newer = Keys.rotate(keys.folder)
    with store.open(filled) as registry:
        registry.hand_over(newer)
    body = {**vars(RUN), "id": "r3", "registered": ""}
    entry = _forged(filled, "run", body)
    id, signature = keys.sign(b"dpassay.registry-entry/1\0" + bytes.fromhex(entry.hash))
    intruder.run(INSERT, **vars(replace(entry, key_id=id, signature=signature.hex())))
    with store.open(filled) as registry:
        (problem,) = registry.verify(keys.root)
        assert (problem.kind, problem.entry) == ("signature", 9)
        assert "rotated out" in problem.detail
        assert "r3" not in registry.runs
    # nor does it come back by its own endorsement
    again = {
        "public_key": keys.public.hex(),
        "endorsement": newer.sign(b"dpassay.key-endorsement/1\0" + keys.public)[1].hex(),
    }
    entry = _forged(filled, "key", {"succession": [again]})
    id, signature = keys.sign(b"dpassay.registry-entry/1\0" + bytes.fromhex(entry.hash))
    intruder.run(INSERT, **vars(replace(entry, key_id=id, signature=signature.hex())))
    assert _found(filled, keys) == [("signature", 9), ("signature", 10)]


def test_a_registry_written_anew_rests_on_another_root(
    url: str, keys: Keys, tmp_path: Path
) -> None:
    others = Keys.create(tmp_path / "others")
    with store.create(url, others) as registry:
        registry.add_run(RUN, others)
        assert registry.verify(None) == ()
        (problem,) = registry.verify(keys.root)
        assert (problem.kind, problem.entry) == ("root", 1)
        assert [p.kind for p in registry.verify_chain(keys.root, "e" * 64)] == ["root", "head"]


def test_the_owner_cannot_state_twice_either(filled: str, keys: Keys, intruder) -> None:
    """Signed by the right key, past this program: a second, better run of the same id."""
    entry = _forged(filled, "run", {**vars(RUN), "ledger_sha256": "d" * 64, "registered": ""})
    id, signature = keys.sign(b"dpassay.registry-entry/1\0" + bytes.fromhex(entry.hash))
    intruder.run(INSERT, **vars(replace(entry, key_id=id, signature=signature.hex())))
    assert _found(filled, keys) == [("content", 8)]
    with store.open(filled) as registry:
        assert registry.runs["r1"].ledger_sha256 == "a" * 64


def test_marks_that_are_gone_show_in_the_cheap_check(filled: str, keys: Keys, intruder) -> None:
    intruder.run("DELETE FROM marks WHERE entry = 4 AND row = 2")
    with store.open(filled) as registry:
        assert [(p.kind, p.entry) for p in registry.verify_chain(keys.root)] == [("index", 0)]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["kind", "body", "previous", "hash", "key_id", "signature"])
@pytest.mark.parametrize("value", ["X'ff00'", "7", "CAST(X'ff' AS TEXT)", "'" + "[" * 5000 + "'"])
def test_sqlite_values_that_are_no_text(
    filled: str, keys: Keys, intruder, column: str, value: str
) -> None:
    intruder.run(f"UPDATE entries SET {column} = {value} WHERE position = 7")  # noqa: S608
    assert {e for _, e in _found(filled, keys)} == {7}
