"""``dpassay train classifier``: what it writes, what it says, and what it refuses in one line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.accounting.events import SampledGaussian
from audit.cli.ledger import command as ledger_command
from audit.cli.train import command
from audit.ledger import read


def _frame(n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, 3))
    return pd.DataFrame(x, columns=list("abc")).assign(label=(x[:, 0] > 0).astype(int))


def _run(data: Path, out: Path, *options: str) -> Result:
    arguments = ["classifier", str(data), "--label", "label", "--out", str(out), *options]
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    _frame().to_csv(path, index=False)
    return path


def test_a_dp_run_is_signed_verified_and_accounted(tmp_path: Path, data: Path) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "key.pem").write_bytes(pem)
    out = tmp_path / "m"
    options = ["--noise-multiplier", "1.5", "--epochs", "4", "--batch-size", "24"]
    result = _run(data, out, *options, "--sign", str(tmp_path / "key.pem"))
    assert result.exit_code == 0, result.output
    assert "ε = " in result.stdout
    assert "at δ = 1e-05 (add-remove, per record, by Opacus' RDP accountant" in result.stdout
    public = key.public_key().public_bytes_raw().hex()
    assert public in result.stdout
    assert read(out / "ledger.jsonl").events() == (SampledGaussian(1.5, 0.2, 20),)
    verified = CliRunner().invoke(
        ledger_command,
        f"verify {out / 'ledger.jsonl'} --model {out / 'model.safetensors'} --public-key {public}",
    )
    assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_other_files_and_no_dp(tmp_path: Path, kind: str) -> None:
    frame, path = _frame(), tmp_path / f"records.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    else:
        np.savez(path, features=frame[list("abc")].to_numpy(), label=frame["label"].to_numpy())
    result = _run(path, tmp_path / "m", "--epochs", "2")
    assert result.exit_code == 0, result.output
    assert "no DP: ε = ∞" in result.stdout
    assert not read(tmp_path / "m" / "ledger.jsonl").private


def test_a_run_goes_on_with_resume(tmp_path: Path, data: Path) -> None:
    from trainers.classifier import ClassifierConfig, Privacy, train

    frame = _frame()
    options = {"epochs": 4, "batch_size": 24, "learning_rate": 5e-3, "hidden": (64,)}
    config = ClassifierConfig(classes=2, privacy=Privacy(noise_multiplier=1.5), **options)

    def stop(step: int, *_: Any) -> None:
        if step == 11:
            raise KeyboardInterrupt

    saved = pd.read_csv(data)
    with pytest.raises(KeyboardInterrupt):
        train(
            config,
            saved[list("abc")].to_numpy(),
            frame["label"].to_numpy(),
            tmp_path / "m",
            on_step=stop,
            checkpoint_every=5,
        )
    common = ["--noise-multiplier", "1.5", "--epochs", "4", "--batch-size", "24"]
    again = _run(data, tmp_path / "m", *common)
    assert again.exit_code == 2
    assert "resume its run" in again.stderr
    result = _run(data, tmp_path / "m", *common, "--resume")
    assert result.exit_code == 0, result.output
    ledger = read(tmp_path / "m" / "ledger.jsonl")
    assert ledger.steps == 20
    assert [(r.after_step, r.checkpoint_step) for r in ledger.resumes] == [(11, 10)]


def test_an_interrupted_run_says_what_stays(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainers.ledger import LedgerWriter

    original = LedgerWriter.step

    def step(self: LedgerWriter, **fields: Any) -> int:
        if original(self, **fields) == 3:
            raise KeyboardInterrupt
        return self.steps

    monkeypatch.setattr(LedgerWriter, "step", step)
    with pytest.raises((KeyboardInterrupt, click.Abort)):
        command.main(
            f"classifier {data} --label label --out {tmp_path / 'm'} --epsilon 3".split(),
            standalone_mode=False,
        )
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["ledger.jsonl"]
    assert read(tmp_path / "m" / "ledger.jsonl").steps == 3


def _refused(result: Result, out: Path, said: str) -> None:
    assert result.exit_code == 2, result.output
    last = result.stderr.strip().splitlines()
    assert len(last) == 1, result.stderr
    assert said in last[0]
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--epsilon", "-1"], "epsilon: must be positive"),
        (["--epsilon", "1", "--noise-multiplier", "1"], "give either epsilon or noise_multiplier"),
        (["--noise-multiplier", "0"], "noise_multiplier: must lie"),
        (["--epsilon", "1", "--delta", "1"], "delta: must lie"),
        (["--batch-size", "500"], "batch_size: 500 is more than the 120 records"),
        (["--hidden", "64,x"], "--hidden: '64,x'"),
        (["--classes", "0"], "classes: must be at least 2"),
        (["--epochs", "0"], "epochs: must be at least 1"),
        (["--architecture", "cnn"], "inputs: a cnn needs"),
        (["--low", "1"], "low, high: every upper bound"),
        (["--sign", "missing.pem"], "missing.pem: cannot be read"),
        (["--resume"], "only DP runs"),
        (["--resume", "--epsilon", "1"], "there is no run to resume"),
    ],
)
def test_bad_options(tmp_path: Path, data: Path, options: list[str], said: str) -> None:
    _refused(_run(data, tmp_path / "m", *options), tmp_path / "m", said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": "cat"}, "label: must hold whole numbers"),
        ({"label": 0.5}, "label: must hold whole numbers"),
        ({"label": 0}, "classes: must be at least 2"),
        ({"label": -1}, "classes: must be at least 2"),
        ({"a": np.nan}, "records.csv: features: record 0 holds NaN"),
        ({"a": np.inf}, "record 0 holds NaN or an infinite"),
        ({"a": "red"}, "a: must hold numbers"),
    ],
)
def test_bad_records(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "records.csv"
    _frame().assign(**change).to_csv(path, index=False)
    _refused(_run(path, tmp_path / "m"), tmp_path / "m", said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("records.csv", None, "records.csv: cannot be read: No such file"),
        ("records.csv", b"", "records.csv: cannot be read: No columns"),
        ("records.csv", b"a,b\n1,2\n", "column 'label' is missing"),
        ("records.csv", b"a,label\n", "holds no records"),
        ("records.csv", b"a,label\n1,0,5,6\n1,0\n1\n1,2,3,4,5,6\n", "cannot be read"),
        ("records.csv", b"\xff\xfe\x00", "cannot be read"),
        ("records.parquet", b"PAR1", "cannot be read"),
        ("records.npz", b"PK\x03\x04", "cannot be read"),
        ("records.npz", pickle.dumps([1]), "cannot be read"),
        ("records.txt", b"a,label\n1,0\n", "unknown kind '.txt'"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    _refused(_run(path, tmp_path / "m"), tmp_path / "m", said)


def test_an_npz_with_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.npz"
    np.savez(path, features=np.array([[{}]], dtype=object), label=np.array([0]))
    _refused(_run(path, tmp_path / "m"), tmp_path / "m", "cannot be read: Object arrays")


def test_a_file_where_the_folder_should_be(tmp_path: Path, data: Path) -> None:
    (tmp_path / "m").write_text("mine")
    result = _run(data, tmp_path / "m", "--epochs", "1")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert (tmp_path / "m").read_text() == "mine"


def test_a_key_of_another_kind_is_refused(tmp_path: Path, data: Path) -> None:
    pem = tmp_path / "key.pem"
    pem.write_text("no key")
    result = _run(data, tmp_path / "m", "--sign", str(pem))
    _refused(result, tmp_path / "m", "is no open Ed25519 key")
