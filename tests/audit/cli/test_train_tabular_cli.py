"""``dpassay train tabular`` and ``dpassay generate``: what they write, say and refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.accounting.guarantee import best
from audit.cli.account import command as account_command
from audit.cli.generate import command as generate_command
from audit.cli.ledger import command as ledger_command
from audit.cli.train import command as train_command
from audit.ledger import read
from trainers.ledger import LedgerWriter

DOMAIN = """
columns:
  age: {kind: integer, low: 0, high: 110}
  weight: {kind: number, low: 30, high: 160, decimals: 1, missing: true}
  district: {kind: category, levels: ["007", "012", "113"], other: elsewhere}
  seen: {kind: date, low: 2020-01-01, high: 2024-12-31}
  ward: {kind: category, levels: [1]}
  died: {kind: category, levels: [0, 1]}
"""


def _frame(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1800, n), unit="D")
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, n),
            "weight": pd.Series(rng.normal(75, 12, n).round(1)).mask(rng.random(n) < 0.2),
            "district": rng.choice(["007", "012", "113", "200"], n),
            "seen": days,
            "ward": 1,
            "died": rng.integers(0, 2, n),
        }
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    _frame().to_csv(tmp_path / "records.csv", index=False)
    (tmp_path / "domain.yaml").write_text(DOMAIN, encoding="utf-8")
    return tmp_path / "records.csv"


def _train(data: Path, out: Path, *options: str) -> Result:
    arguments = ["tabular", str(data), "--domain", str(data.parent / "domain.yaml")]
    given = ["--out", str(out), *([] if "--epsilon" in options else ["--epsilon", "4"])]
    return CliRunner().invoke(train_command, [*arguments, *given, *options])


def _generate(folder: Path, out: Path, *options: str) -> Result:
    arguments = [str(folder), "--records", "500", "--out", str(out), *options]
    return CliRunner().invoke(generate_command, arguments)


def test_a_signed_run_is_verified_accounted_and_drawn_from(tmp_path: Path, data: Path) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "key.pem").write_bytes(pem)
    out, public = tmp_path / "g", key.public_key().public_bytes_raw().hex()
    result = _train(data, out, "--label", "died", "--sign", str(tmp_path / "key.pem"))
    assert result.exit_code == 0, result.output
    assert "at δ = 1e-05 (add-remove, per record" in result.stdout
    assert public in result.stdout
    verified = CliRunner().invoke(
        ledger_command,
        f"verify {out / 'ledger.jsonl'} --model {out / 'weights.safetensors'} "
        f"--model {out / 'generator.json'} --public-key {public}",
    )
    assert verified.exit_code == 0, verified.output
    counted = CliRunner().invoke(
        account_command, ["--ledger", str(out / "ledger.jsonl"), "--delta", "1e-5"]
    )
    assert counted.exit_code == 0
    upper = best(read(out / "ledger.jsonl").events(), 1e-5)
    assert 0 < upper.epsilon <= 4
    assert f"{upper.epsilon:.3f}" in counted.output

    for name in ("one.csv", "two.csv", "three.parquet"):
        drawn = _generate(out, tmp_path / name, "--seed", "3")
        assert drawn.exit_code == 0, drawn.output
    assert "500 records of 6 columns" in drawn.stdout
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    text = pd.read_csv(tmp_path / "one.csv", dtype=str)
    assert set(text["district"]) == {"007", "012", "113", "elsewhere"}
    assert text["age"].str.fullmatch(r"\d+").all()
    assert text["seen"].str.fullmatch(r"20\d\d-\d\d-\d\d").all()
    assert 0 < text["weight"].isna().mean() < 0.5
    typed = pd.read_parquet(tmp_path / "three.parquet")
    assert (typed["ward"] == 1).all()
    assert pd.api.types.is_datetime64_any_dtype(typed["seen"])
    assert not _frame()["weight"].equals(typed["weight"])


def test_a_seeded_run_says_that_it_protects_nobody(tmp_path: Path, data: Path) -> None:
    for name in ("a", "b"):
        assert not _train(data, tmp_path / name, "--seeded-noise", "--seed", "4").exit_code
    for file in ("generator.json", "weights.safetensors", "ledger.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    verified = CliRunner().invoke(ledger_command, f"verify {tmp_path / 'a' / 'ledger.jsonl'}")
    assert verified.exit_code == 3


def test_the_gan_is_trained_by_the_same_command(tmp_path: Path, data: Path) -> None:
    options = (
        "--method",
        "gan",
        "--quasi-identifier",
        "age",
        "--risk-weight",
        "0.1",
        "--steps",
        "9",
    )
    result = _train(data, tmp_path / "g", *options)
    assert result.exit_code == 0, result.output
    assert "gan" in result.stdout
    assert _generate(tmp_path / "g", tmp_path / "s.csv").exit_code == 0
    assert list(pd.read_csv(tmp_path / "s.csv")) == list(_frame())


def test_a_killed_gan_goes_on_with_resume(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LedgerWriter.step

    def step(self: LedgerWriter, **fields: Any) -> int:
        if original(self, **fields) == 11:
            raise KeyboardInterrupt
        return self.steps

    (data.parent / "domain.yaml").write_text(DOMAIN.replace(", missing: true", ""))
    _frame().assign(weight=70.0).to_csv(data, index=False)
    options = ("--method", "gan", "--steps", "20", "--checkpoint-every", "5")
    with monkeypatch.context() as patched:
        patched.setattr(LedgerWriter, "step", step)
        stopped = _train(data, tmp_path / "g", *options)
    assert stopped.exit_code == 1
    assert "keeps what was spent" in stopped.stderr
    again = _train(data, tmp_path / "g", *options)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    result = _train(data, tmp_path / "g", *options, "--resume")
    assert result.exit_code == 0, result.output
    found = read(tmp_path / "g" / "ledger.jsonl")
    assert [(r.after_step, r.checkpoint_step) for r in found.resumes] == [(11, 10)]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("low: 0, high: 110", "low: 110, high: 0", "low 110 lies above high 0; exchange"),
        ("levels: [0, 1]", "levels: [no, yes]", "in quotes"),
        ("levels: [1]", "levels: [2]", "records.csv: column 'ward': record 0 holds '1'"),
        (", missing: true", "", "records.csv: column 'weight': record"),
        ("kind: date", "kind: data", "domain.yaml:6: columns.seen"),
        ("  ward: {kind: category, levels: [1]}\n", "", "'ward' is not in the domain; describe"),
    ],
)
def test_a_domain_that_does_not_fit_is_one_line(
    tmp_path: Path, data: Path, was: str, now: str, said: str
) -> None:
    (tmp_path / "domain.yaml").write_text(DOMAIN.replace(was, now), encoding="utf-8")
    result = _train(data, tmp_path / "g")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--epsilon", "-1"), "--epsilon: must lie between 0.0001 and 10000, got -1.0"),
        (("--delta", "2"), "--delta: must lie between"),
        (("--label", "nobody"), "label: 'nobody' is no column"),
        (("--label", "died", "--method", "gan"), "--label: is for --method marginals"),
        (("--risk-weight", "1"), "are for --method gan"),
        (("--steps", "9"), "are for --method gan"),
        (("--resume",), "are for --method gan"),
        (("--sign", "nowhere.pem"), "nowhere.pem: cannot be read"),
    ],
)
def test_bad_options_are_one_line(
    tmp_path: Path, data: Path, options: tuple[str, ...], said: str
) -> None:
    result = _train(data, tmp_path / "g", *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "g").exists()


def test_files_that_cannot_be_read_or_written_are_one_line(tmp_path: Path, data: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("age,weight,district,seen,ward,died\n", encoding="utf-8")
    (tmp_path / "twice.csv").write_text("age,age\n1,2\n", encoding="utf-8")
    for path, said in (
        (empty, "empty.csv: holds no records"),
        (tmp_path / "twice.csv", "two columns are called 'age'"),
        (tmp_path / "none.csv", "none.csv: is missing"),
    ):
        result = _train(path, tmp_path / "g")
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert not _train(data, tmp_path / "g").exit_code
    again = _train(data, tmp_path / "g")
    assert again.exit_code == 2
    assert "exists; give a new run a folder of its own" in again.stderr
    for folder, out, said in (
        (tmp_path, "s.csv", "generator.json: is missing"),
        (tmp_path / "g", "s.xlsx", "give .csv or .parquet"),
        (tmp_path / "g", "records.csv/s.csv", "cannot be written"),
    ):
        result = _generate(folder, tmp_path / out)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
