"""``dpassay ledger verify``: exit codes, the table, and one-line refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.cli.ledger import command
from trainers.ledger import Header, LedgerWriter

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw().hex()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished, signed run of 60 steps with its model."""
    header = Header("a" * 64, 1000, "poisson", 0.1, 100, "per_sample", 1.0, 1.1, "secure")
    with LedgerWriter.create(tmp_path / "ledger.jsonl", header) as ledger:
        for size in np.random.default_rng(1).binomial(1000, 0.1, 60).tolist():
            ledger.step(
                batch_size=size, expected_batch_size=100, noise_multiplier=1.1, clipping_norm=1.0
            )
        (tmp_path / "model.safetensors").write_bytes(b"model")
        ledger.checkpoint(tmp_path / "model.safetensors")
        ledger.end(key=KEY)
    return tmp_path


def _verify(path: Path, *options: str) -> Result:
    return CliRunner().invoke(command, ["verify", str(path), *options], env={"COLUMNS": "160"})


def test_a_whole_ledger_passes(run: Path) -> None:
    model = run / "model.safetensors"
    result = _verify(run / "ledger.jsonl", "--model", str(model), "--public-key", PUBLIC)
    assert result.exit_code == 0, result.output
    assert "SampledGaussian(noise_multiplier=1.1, sample_rate=0.1, steps=60" in result.stdout
    assert "model.safetensors is the model that the run released after step 60" in result.stdout
    assert "nine times in ten" in result.stdout


def test_a_signature_by_somebody_stays_open(run: Path) -> None:
    result = _verify(run / "ledger.jsonl")
    assert result.exit_code == 3
    assert "inconclusive" in result.stdout


@pytest.mark.parametrize("fault", ["edited", "cut", "other key", "other model"])
def test_a_fault_fails(run: Path, fault: str) -> None:
    path, options = run / "ledger.jsonl", ["--public-key", PUBLIC]
    lines = path.read_bytes().splitlines(keepends=True)
    if fault == "edited":
        lines[5] = lines[5].replace(b'"clipping_norm":1.0', b'"clipping_norm":1.5')
    if fault == "cut":
        lines = lines[:-1]
    if fault == "other key":
        options = ["--public-key", "ab" * 32]
    if fault == "other model":
        (run / "other").write_bytes(b"other")
        options += ["--model", str(run / "other")]
    path.write_bytes(b"".join(lines))
    result = _verify(path, *options)
    assert result.exit_code == 1, result.output
    assert "refuted" in result.stdout


def test_findings_in_chinese(run: Path) -> None:
    result = _verify(run / "ledger.jsonl", "--locale", "zh")
    assert "哈希链完整" in result.stdout


def test_other_formats_are_read_and_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.txt"
    path.write_text("noise_multiplier,sample_rate,steps\n1.1,0.01,50\n")
    for options in ([], ["--format", "csv"]):
        result = _verify(path, *options)
        assert result.exit_code == 3  # nothing in a table can be checked
        assert "steps=50" in result.stdout
        assert "note: No column says how batches were drawn" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--public-key", "xyz"], "--public-key: needs the 64 hexadecimal digits"),
        (["--public-key", "ab"], "--public-key: needs the 64"),
        (["--model", "missing.bin"], "missing.bin: cannot be read"),
        (["--format", "sonnet"], "format: 'sonnet' is none of"),
        (["--format", "yaml"], "ledger.jsonl"),
    ],
)
def test_bad_options(run: Path, options: list[str], said: str) -> None:
    result = _verify(run / "ledger.jsonl", *options)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert said in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is no record of training"),
        (b'{"kind":"header"}\n', "line 1: schema: this program reads"),
        (b'{"kind":"header","schema":"dpassay.ledger/1"}\n', "line 1: clipping: header needs"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    result = _verify(path)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert said in result.stderr
    assert "Traceback" not in result.output
