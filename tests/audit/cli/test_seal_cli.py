"""``dpassay seal`` and ``dpassay verify`` as a user meets them: one-line errors and exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from audit.cli.seal import command as seal
from audit.cli.verify import command as verify
from audit.keys import Keys
from audit.seal import SEAL
from tests.audit.sealing import KEY, OTHER, PUBLIC, ledger, make


def pem(path: Path, key: Ed25519PrivateKey) -> str:
    kind = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    path.write_bytes(key.private_bytes(*kind))
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("audit"))


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(seal, ["out", "--sign", pem(tmp_path / "key.pem", KEY)])
    assert result.exit_code == 0, result.output
    assert result.output == f"sealed: out/{SEAL}\npublic key: {PUBLIC.hex()}\n"
    return tmp_path


def run(*options: str) -> Result:
    return CliRunner().invoke(verify, ["out", *options], env={"COLUMNS": "160"})


def refused(result: Result, *said: str) -> None:
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in said:
        assert word in result.stderr


def test_all_the_same(here: Path) -> None:
    result = run("--public-key", PUBLIC.hex())
    assert result.exit_code == 0, result.output
    assert "all that was compared is the same" in result.output
    assert "3 files" in result.output


def test_the_key_in_each_form(here: Path) -> None:
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (here / "key.pub").write_bytes(public)
    (here / "key.hex").write_text(PUBLIC.hex() + "\n")
    for name in ("key.pub", "key.hex"):
        assert run("--public-key-file", name).exit_code == 0
    assert run().exit_code == 3  # nobody said whose key it should be
    assert PUBLIC.hex() in run("--json").output
    assert run("--public-key", OTHER.public_key().public_bytes_raw().hex()).exit_code == 1


def test_a_key_folder_before_and_after_a_rotation(here: Path) -> None:
    root = Keys.create(here / "keys").public.hex()
    force = ["out", "--keys", "keys", "--force"]
    assert CliRunner().invoke(seal, force).exit_code == 0
    assert run("--public-key-file", "keys/public.json").exit_code == 0
    Keys.rotate(here / "keys")
    for options in (["--public-key-file", "keys/public.json"], ["--public-key", root]):
        assert run(*options).exit_code == 0  # sealed before
    assert CliRunner().invoke(seal, force).exit_code == 0
    for options in (["--public-key-file", "keys/public.json"], ["--public-key", root]):
        assert run(*options).exit_code == 0  # sealed after
    assert run("--public-key", PUBLIC.hex()).exit_code == 1


def test_every_figure_as_json(here: Path) -> None:
    result = run("--public-key", PUBLIC.hex(), "--json")
    shown = json.loads(result.output)
    assert shown["outcome"] == "pass"
    parts = {check["part"] for check in shown["checks"]}
    assert parts == {"signature", "file", "record", "input", "accounting", "claim", "gate"}


def test_an_edited_record_says_what_it_should_be(here: Path) -> None:
    path = here / "out" / "audit.json"
    record = json.loads(path.read_text())
    (budget,) = record["budgets"]
    budget["guarantees"][0]["epsilon"] |= {"low": 0.1, "value": 0.5, "high": 0.5}
    path.write_text(json.dumps(record))
    # as it lies there, and sealed again by somebody else, and even by the owner of the key
    result = run("--public-key", PUBLIC.hex())
    assert result.exit_code == 1
    assert "epsilon.high: 0.5 recorded" in " ".join(result.output.split())
    for key, states in ((OTHER, {"signature", "accounting"}), (KEY, {"accounting"})):
        CliRunner().invoke(seal, ["out", "--force", "--sign", pem(here / "k.pem", key)])
        result = run("--public-key", PUBLIC.hex(), "--json")
        assert result.exit_code == 1
        found = [c for c in json.loads(result.output)["checks"] if c["state"] == "differs"]
        assert {check["part"] for check in found} == states


def test_a_swapped_ledger_and_one_that_is_elsewhere(here: Path) -> None:
    (here / "kept").mkdir()
    shutil.move(here / "ledger.jsonl", here / "kept" / "old.jsonl")
    assert run("--public-key", PUBLIC.hex()).exit_code == 3
    ledger(here / "ledger.jsonl", noise=4.0)
    result = run("--public-key", PUBLIC.hex())
    assert result.exit_code == 1
    assert "ledger.jsonl" in result.output
    assert run("--public-key", PUBLIC.hex(), "--inputs", "kept").exit_code == 0


def test_a_page_and_scores_that_were_edited(here: Path) -> None:
    for path in (here / "out" / "index.html", *(here / "out" / "scores").iterdir()):
        before = path.read_bytes()
        path.write_bytes(before[:-1])
        result = run("--public-key", PUBLIC.hex())
        assert result.exit_code == 1, path
        path.write_bytes(before)
    assert run("--public-key", PUBLIC.hex()).exit_code == 0


def test_bad_input_is_one_line(here: Path) -> None:
    runner = CliRunner()
    refused(runner.invoke(seal, ["out", "--sign", "key.pem"]), SEAL, "--force")
    refused(runner.invoke(seal, ["out"]), "--keys", "--sign")
    refused(runner.invoke(seal, ["out", "--sign", "key.pem", "--keys", "x"]), "--keys")
    refused(runner.invoke(seal, ["out", "--keys", "none"]), "none")
    refused(runner.invoke(seal, ["nowhere", "--sign", "key.pem"]), "nowhere")
    refused(run("--public-key", "abc"), "--public-key", "64")
    refused(run("--public-key-file", "none"), "none")
    refused(run("--public-key-file", "key.pem"), "key.pem", "-pubout")
    (here / "broken.json").write_text("{}")
    refused(run("--public-key-file", "broken.json"), "broken.json")
    refused(run("--inputs", "nowhere"), "nowhere", "--inputs")
    (here / "out" / SEAL).write_text("{}")
    refused(run(), SEAL, "signatures")
    (here / "out" / SEAL).unlink()
    refused(run(), SEAL, "no such file")


def test_sealed_from_elsewhere_says_what_is_missing(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here / "out")
    result = CliRunner().invoke(seal, [".", "--sign", "../key.pem", "--force"])
    assert result.exit_code == 0
    assert "AUDIT.yaml" in result.stderr
    assert "policy.yaml" in result.stderr


def test_a_hostile_name_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("")
    CliRunner().invoke(seal, [str(folder), "--sign", pem(tmp_path / "key.pem", KEY)])
    (folder / "\x1b[2J[bold]b").write_text("")
    result = CliRunner().invoke(verify, [str(folder), "--public-key", PUBLIC.hex()])
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "[bold]b" in result.output


def test_a_plain_folder_is_verified_without_numpy() -> None:
    code = (
        "import sys, audit.cli.seal, audit.cli.verify, audit.seal\n"
        "print(sorted({'torch', 'sklearn', 'pandas', 'scipy', 'numpy'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
