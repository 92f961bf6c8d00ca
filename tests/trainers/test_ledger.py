"""The writer: chain, fingerprint, kill -9, resumption. The reader shares no code with it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from audit.ledger import read
from audit.ledger_checks import fingerprint as recomputed_fingerprint
from audit.ledger_checks import verify
from trainers.ledger import Header, LedgerWriter, fingerprint

HEADER = Header("a" * 64, 1000, "poisson", 0.1, 100, "per_sample", 1.0, 1.1, "secure")


def _step(ledger: LedgerWriter, batch_size: int = 100) -> int:
    return ledger.step(
        batch_size=batch_size, expected_batch_size=100, noise_multiplier=1.1, clipping_norm=1.0
    )


def test_every_line_holds_the_digest_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, HEADER) as ledger:
        for size in (90, 110, 0):
            _step(ledger, size)
        ledger.end()
    head = "0" * 64
    lines = path.read_bytes().split(b"\n")[:-1]
    for line in lines:
        assert json.loads(line)["prev"] == head
        head = hashlib.sha256(line).hexdigest()
    assert [json.loads(line)["kind"] for line in lines] == ["header", *["step"] * 3, "end"]


def test_a_ledger_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerWriter.create(path, HEADER).close()
    with pytest.raises(FileExistsError):
        LedgerWriter.create(path, HEADER)


KILLED = """
import sys
from pathlib import Path
from tests_support import HEADER, LedgerWriter
ledger = LedgerWriter.create(Path(sys.argv[1]), HEADER, fsync_every=1000)
while True:
    ledger.step(batch_size=100, expected_batch_size=100, noise_multiplier=1.1, clipping_norm=1.0)
    print(ledger.steps, flush=True)  # stands for the update: it follows the record
"""


def test_kill_9_loses_no_applied_step_and_a_resumed_run_counts_them_all(tmp_path: Path) -> None:
    (tmp_path / "tests_support.py").write_text(
        "from trainers.ledger import Header, LedgerWriter\n"
        "HEADER = Header('a' * 64, 1000, 'poisson', 0.1, 100, 'per_sample', 1.0, 1.1, 'secure')\n"
    )
    path = tmp_path / "ledger.jsonl"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    applied = [int(process.stdout.readline()) for _ in range(500)]
    process.send_signal(signal.SIGKILL)
    applied += [int(line) for line in process.stdout.read().split()]
    process.wait()
    killed = read(path)
    assert killed.steps >= applied[-1] >= 500
    assert killed.end is None
    assert killed.problem("chain") is None

    with LedgerWriter.resume(path, checkpoint_step=400) as ledger:
        assert ledger.steps == killed.steps
        for _ in range(10):
            _step(ledger)
        ledger.end()
    whole = read(path)
    assert whole.steps == killed.steps + 10  # the steps after the checkpoint have been spent
    assert [r.checkpoint_step for r in whole.resumes] == [400]
    states = {f.check: f.state for f in verify(whole)}
    assert all(states[f"ledger.{c}"] == "supported" for c in ("chain", "steps", "end", "drift"))


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_line_is_dropped_and_reported(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, HEADER) as ledger:
        for _ in range(5):
            _step(ledger)
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[:last] + whole[last:][:kept])
    torn = read(path)
    assert torn.steps == 4
    assert torn.problem("torn") is not None
    assert {f.message for f in verify(torn)} >= {"ledger.end.refuted.torn"}
    with LedgerWriter.resume(path, checkpoint_step=4) as ledger:
        assert _step(ledger) == 5
        ledger.end()
    resumed = read(path)
    assert resumed.problems == ()
    assert resumed.resumes[0].torn_bytes == len(whole[last:][:kept])


def test_resume_refuses_what_is_not_this_runs_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, HEADER) as ledger:
        _step(ledger)
    with pytest.raises(ValueError, match="holds 1 steps, the checkpoint 2"):
        LedgerWriter.resume(path, checkpoint_step=2)
    with LedgerWriter.resume(path, checkpoint_step=1) as ledger:
        ledger.end()
    with pytest.raises(ValueError, match="end mark"):
        LedgerWriter.resume(path, checkpoint_step=1)
    strange = tmp_path / "strange.jsonl"
    strange.write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"strange\.jsonl: line 1: is no line of a ledger"):
        LedgerWriter.resume(strange, checkpoint_step=0)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ValueError, match="no ledger"):
        LedgerWriter.resume(empty, checkpoint_step=0)


def test_the_fingerprint_is_of_the_set_of_records() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2, 3)), rng.integers(0, 3, 50)
    order = rng.permutation(50)
    mark = fingerprint(x, y)
    assert mark == fingerprint(x[order], y[order])
    assert mark == recomputed_fingerprint(x, y)  # two implementations, no shared code
    changed = x.copy()
    changed[7, 0, 0] = np.nextafter(changed[7, 0, 0], 9)
    assert mark != fingerprint(changed, y)
    assert mark != fingerprint(x, np.roll(y, 1))
    assert fingerprint(np.array([[0.0]]), np.array([1])) == fingerprint(
        np.array([[-0.0]]), np.array([1])
    )
    by_hand = hashlib.sha256(
        hashlib.sha256(np.float64(2.5).tobytes() + np.int64(1).tobytes()).digest()
    )
    assert fingerprint(np.array([[2.5]]), np.array([1])) == by_hand.hexdigest()
