"""Several processes that write at once, and one that is killed as it writes."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit.keys import Keys
from audit.registry import store
from tests.audit.registry.made import BATCH, RUN, table

ROOT = Path(__file__).parents[3]


def _writer(url: str, keys: Keys, name: str, many: int, records: int) -> subprocess.Popen[bytes]:
    module = "tests.audit.registry.writer"
    arguments = [url, str(keys.folder), name, str(many), str(records)]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def _go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_two_processes_write_at_once(url: str, keys: Keys) -> None:
    store.create(url, keys).close()
    writers = [_writer(url, keys, name, 3, 20) for name in ("a", "b")]
    for writer in writers:
        _go(writer)
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with store.open(url) as registry:
        assert set(registry.runs) == {"a", "b"}
        assert set(registry.batches) == {f"{n}-{i}" for n in "ab" for i in range(3)}
        # 1 for the registry; each writer a run, and 3 batches of 5 blocks, opened and closed
        assert len(registry.entries) == 1 + 2 * (1 + 3 * 7)
        assert registry.verify(keys.root, registry.head) == ()


def test_a_killed_writer_leaves_a_chain_that_goes_on(url: str, keys: Keys) -> None:
    store.create(url, keys).close()
    random = np.random.default_rng(7)
    unfinished = 0
    for attempt in range(3):
        writer = _writer(url, keys, f"w{attempt}", 1, 2000)  # more blocks than it will see
        _go(writer)
        assert writer.stdout
        for _ in range(random.integers(0, 60)):
            assert writer.stdout.readline() == b"block\n"
        time.sleep(random.uniform(0, 0.02))
        writer.kill()
        writer.communicate()
        with store.open(url) as registry:
            problems = registry.verify(keys.root, registry.head)
            assert [p.kind for p in problems] == ["unfinished"] * len(problems)
            unfinished = max(unfinished, len(problems))
            for problem in problems:
                body = registry.entries[problem.entry].body
                assert f"w{attempt}-0" in body
                assert "of 2000 records" in problem.detail
                registry.abandon(f"w{attempt}-0", keys)
                assert registry.state(f"w{attempt}-0") == "abandoned"
            assert registry.verify(keys.root) == ()
    assert unfinished == 1  # at least one was hit in the middle of its batch
    with store.open(url) as registry:
        registry.add_run(replace(RUN, id="last"), keys)
        batch = replace(BATCH, id="last-0", run="last", records=20)
        registry.add_batch(batch, table(20, b"last"), keys)
        digest = table(20, b"last").column("digest")[19].as_py()
        (place,) = registry.by_digest([digest])[digest]
        assert place.batch == "last-0"
        assert registry.verify(keys.root) == ()


def test_a_long_batch_lets_others_write(
    url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.registry.blocks.BLOCK_RECORDS", 4)
    monkeypatch.setattr(store, "TOGETHER", 1)
    batch = replace(BATCH, records=200)
    with store.create(url, keys) as long, store.open(url) as short, ThreadPoolExecutor(1) as pool:
        long.add_run(RUN, keys)
        written = pool.submit(long.add_batch, batch, table(200), keys)
        while batch.id not in short.batches:
            short.refresh()
        short.add_run(replace(RUN, id="short"), keys)
        written.result()
        short.refresh()
        kinds = [entry.kind for entry in short.entries.values()]
        assert kinds.index("run", 2) < kinds.index("closed")
        assert short.verify(keys.root, long.head) == ()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_reader_after_a_kill_needs_no_writer(url: str, keys: Keys) -> None:
    """The journal of a torn transaction is rolled back by whoever comes next."""
    store.create(url, keys).close()
    place = store.Database(url)
    with place.reading() as connection:
        before = connection.exec_driver_sql("PRAGMA page_count").scalar()
    code = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size = 1')\n"  # so that it spills into the file
        "c.execute('BEGIN IMMEDIATE')\n"
        "c.execute('INSERT INTO blocks VALUES (1, zeroblob(4000000))')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=False)
    assert Path(f"{url}-journal").exists()
    assert Path(url).stat().st_size > 1_000_000
    with store.open(url) as registry:
        assert registry.verify(keys.root) == ()
    with place.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA page_count").scalar() == before
    place.close()
