"""The reader: events, infinite budgets, refusals, and two million lines."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.accounting import rdp
from audit.accounting.events import ApproximateDP, SampledGaussian
from audit.ledger import Ledger, read
from audit.ledger_checks import verify
from audit.ledger_format import LedgerError
from trainers.ledger import Header, LedgerWriter

HEADER = Header("a" * 64, 2000, "poisson", 0.128, 256, "per_sample", 1.0, 1.41, "secure")


def _written(path: Path, header: Header, steps: int, sigmas: tuple[float, ...] = ()) -> Ledger:
    with LedgerWriter.create(path, header) as ledger:
        before = header.noise_multiplier
        for sigma in sigmas or (before,):
            setting: Any = {
                "expected_batch_size": header.expected_batch_size,
                "noise_multiplier": sigma,
                "clipping_norm": header.clipping_norm,
            }
            if sigma != before:
                ledger.change(**setting, reason="schedule")
                before = sigma
            for _ in range(steps):
                ledger.step(batch_size=250, **setting)
        ledger.end()
    return read(path)


def test_a_ledgers_events_give_the_published_account(tmp_path: Path) -> None:
    ledger = _written(tmp_path / "l.jsonl", HEADER, 100)
    assert ledger.events() == (SampledGaussian(1.41, 0.128, 100),)
    assert ledger.private
    # q = 0.128, T = 100, σ = 1.41, δ = 1e-5: 5.626 by RDP (oracle value)
    assert rdp.epsilon(ledger.events(), 1e-5).epsilon == pytest.approx(5.626, abs=2e-3)


def test_equal_steps_are_merged_wherever_they_stand(tmp_path: Path) -> None:
    ledger = _written(tmp_path / "l.jsonl", HEADER, 3, (1.41, 2.0, 1.41))
    assert ledger.problem("drift") is None
    assert ledger.events() == (SampledGaussian(1.41, 0.128, 6), SampledGaussian(2.0, 0.128, 3))


def test_phases_that_look_alike_to_the_accountant_are_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    header = replace(HEADER, sampler="full_batch", sample_rate=1.0, expected_batch_size=2000)
    with LedgerWriter.create(path, header) as ledger:
        for expected in (2000, 1999):  # the same rate, 1, under full batches
            ledger.step(
                batch_size=2000,
                expected_batch_size=expected,
                noise_multiplier=1.41,
                clipping_norm=1.0,
            )
    assert sum(e.steps for e in read(path).events() if isinstance(e, SampledGaussian)) == 2


@pytest.mark.parametrize(
    "header",
    [
        replace(HEADER, clipping="none", clipping_norm=None, noise_multiplier=0.0),
        replace(HEADER, noise_multiplier=0.0),
        replace(HEADER, clipping="none", clipping_norm=None),
    ],
)
def test_without_noise_or_clipping_the_budget_is_infinite(tmp_path: Path, header: Header) -> None:
    ledger = _written(tmp_path / "l.jsonl", header, 5)
    assert not ledger.private
    assert ApproximateDP(math.inf) in ledger.events()
    assert rdp.epsilon(ledger.events(), 1e-5).epsilon == math.inf
    (finding,) = (f for f in verify(ledger) if f.check == "ledger.private")
    assert finding.state == "measured"
    assert finding.figures["epsilon"].low == math.inf


def test_one_bare_step_among_many_makes_the_budget_infinite(tmp_path: Path) -> None:
    ledger = _written(tmp_path / "l.jsonl", HEADER, 1, (1.41, 0.0, 1.41))
    assert not ledger.private
    assert ledger.steps == 3


def test_of_two_sample_rates_the_larger_is_accounted(tmp_path: Path) -> None:
    for stated in (0.125, 0.2):
        header = replace(HEADER, sample_rate=stated)
        (event,) = _written(tmp_path / f"{stated}.jsonl", header, 1).events()
        assert isinstance(event, SampledGaussian)
        assert event.sample_rate == max(stated, 0.128)


def _lines(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "l.jsonl"
    _written(path, HEADER, 2)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (1, {"kind": "teleport"}, "line 2: kind"),
        (1, {"kind": ["step"]}, "line 2: kind"),
        (1, {"mood": 1}, "line 2: mood: step has no such field"),
        (1, {"batch_size": None}, "line 2: batch_size"),
        (1, {"batch_size": True}, "line 2: batch_size"),
        (1, {"batch_size": 2.5}, "line 2: batch_size"),
        (1, {"step": 10**400}, "line 2: step"),
        (1, {"noise_multiplier": -1}, "line 2: noise_multiplier"),
        (1, {"noise_multiplier": 1e300}, "line 2: noise_multiplier"),
        (1, {"expected_batch_size": 5e-324}, "line 2: expected_batch_size"),
        (1, {"noise_multiplier": math.nan}, "line 2: is no JSON: NaN"),
        (1, {"prev": "xyz"}, "line 2: prev"),
        (0, {"schema": "dpassay.ledger/2"}, "schema: this program reads"),
        (0, {"sampler": "guess"}, "line 1: sampler"),
        (0, {"sample_rate": 1.5}, "line 1: sample_rate"),
        (0, {"records": 0}, "line 1: records"),
        (0, {"orders": [1.0]}, "line 1: orders"),
        (2, {"kind": "header"}, "line 3"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, line: int, change: dict[str, Any], said: str
) -> None:
    events = _lines(tmp_path)
    events[line] |= change
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in events))
    with pytest.raises(LedgerError, match=re.escape(said)) as refusal:
        read(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no whole line"),
        (b"hello\n", "line 1: is no JSON"),
        (b"\xff\xfe\n", "line 1: is no JSON"),
        (b"[" * 100_000 + b"\n", "line 1"),
        (b'{"kind":"step"}\n', "line 1"),
        (b"x" * (1 << 21), "line 1: is too long"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=re.escape(said)):
        read(path)


def test_a_missing_file_and_lines_after_the_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    path = tmp_path / "l.jsonl"
    _written(path, HEADER, 1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]))
    with pytest.raises(LedgerError, match="after the end mark"):
        read(path)


def test_the_example_in_the_docs_is_a_whole_ledger(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
    path = tmp_path / "docs.jsonl"
    path.write_text(text.split("```json\n")[1].split("```")[0], encoding="utf-8")
    ledger = read(path)
    assert ledger.problems == ()
    assert ledger.events() == (SampledGaussian(1.5, 0.5, 2), SampledGaussian(1.2, 0.5, 1))


MEASURED = """
import resource, sys, time
from pathlib import Path
from audit.ledger import read
start = time.perf_counter()
ledger = read(Path(sys.argv[1]))
seconds = time.perf_counter() - start
status = Path("/proc/self/status")
if status.exists():  # ru_maxrss begins with the parent's peak, from which this process was forked
    peak = int(status.read_text().split("VmHWM:")[1].split()[0])
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(ledger.steps, seconds, peak / 1024)
"""


@pytest.mark.slow
def test_two_million_lines_within_a_minute_and_300_mb(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with LedgerWriter.create(path, HEADER, fsync_every=1_000_000) as ledger:
        for size in range(2_000_000):
            ledger.step(
                batch_size=200 + size % 100,
                expected_batch_size=256,
                noise_multiplier=1.41,
                clipping_norm=1.0,
                rdp=[[1.2e-5, 2.3e-5, 4.6e-5, 1e-4, 3.2e-4]],
            )
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    steps, seconds, megabytes = map(float, run.stdout.split())
    assert steps == 2_000_000
    assert seconds < 60
    assert megabytes < 300
