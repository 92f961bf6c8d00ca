"""``dpassay registry``: from a real ledger to a verified registry, exit codes and refusals."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from audit.cli.registry import command
from audit.keys import Keys
from audit.registry import store
from audit.registry.entries import Batch
from tests.audit.registry.made import table
from trainers.ledger import Header, LedgerWriter


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, stood in, with keys, an empty registry, and a run with its ledger and model."""
    monkeypatch.chdir(tmp_path)
    Keys.create(tmp_path / "keys")
    header = Header(
        "a" * 64, 1000, "poisson", 0.1, 100, "per_sample", 1.0, 1.1, "secure",
        delta=1e-5, epsilon=4.0,
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    with LedgerWriter.create(tmp_path / "run" / "ledger.jsonl", header) as ledger:
        for size in (97, 104, 99):
            ledger.step(
                batch_size=size, expected_batch_size=100, noise_multiplier=1.1, clipping_norm=1.0
            )
        (tmp_path / "run" / "model.safetensors").write_bytes(b"model")
        ledger.checkpoint(tmp_path / "run" / "model.safetensors")
        ledger.end(epsilon=2.5)
    result = _call("create", "r.db", "--keys", "keys")
    assert result.exit_code == 0, result.output
    return tmp_path


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})


def _root(place: Path) -> str:
    return str(json.loads((place / "keys" / "public.json").read_text())["root"])


def test_a_run_is_registered_by_what_its_files_hold(place: Path) -> None:
    model = place / "run" / "model.safetensors"
    result = _call(
        "run", "r.db", "run/ledger.jsonl", "--keys", "keys",
        "--model", "run/model.safetensors",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = (place / "run" / "ledger.jsonl").read_bytes().splitlines()
    head = hashlib.sha256(lines[-1]).hexdigest()
    assert result.stdout == f"{head[:16]}\n"
    with store.open(str(place / "r.db")) as registry:
        run = registry.runs[head[:16]]
    whole = hashlib.sha256((place / "run" / "ledger.jsonl").read_bytes()).hexdigest()
    assert (run.ledger_sha256, run.ledger_head) == (whole, head)
    assert run.model_sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
    assert run.data_fingerprint == "a" * 64
    assert (run.epsilon, run.delta, run.unit, run.relation) == (2.5, 1e-5, "record", "add-remove")
    assert run.ledger_file == "run/ledger.jsonl"
    again = _call("run", "r.db", "run/ledger.jsonl", "--keys", "keys")
    assert again.exit_code == 2
    assert "is registered already" in again.stderr


def test_what_is_claimed_can_be_said(place: Path) -> None:
    result = _call(
        "run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--id", "mine",
        "--epsilon", "1.5", "--delta", "1e-6", "--name", "notes", "--model", "run",
        "--relation", "replace-one",
    )  # fmt: skip
    assert result.stdout == "mine\n", result.output
    shown = json.loads(_call("show", "r.db", "--json").stdout)
    (run,) = shown["runs"]
    assert (run["id"], run["name"], run["epsilon"], run["delta"]) == ("mine", "notes", 1.5, 1e-6)
    assert run["relation"] == "replace-one"
    assert len(run["model_sha256"]) == 64


def test_verify_says_what_it_could_not_see(place: Path) -> None:
    root = _root(place)
    alone = _call("verify", "r.db")
    assert alone.exit_code == 3
    assert "nobody vouches for the root" in alone.stdout
    whole = _call("verify", "r.db", "--public-key", root)
    assert whole.exit_code == 0, whole.output
    assert "keep the head" in whole.stdout
    head = json.loads(_call("show", "r.db", "--json").stdout)["head"]
    _call("run", "r.db", "run/ledger.jsonl", "--keys", "keys")
    pinned = _call("verify", "r.db", "--public-key", root, "--head", head)
    assert pinned.exit_code == 0
    assert "not seen" not in pinned.stdout
    other = _call("verify", "r.db", "--public-key", "ab" * 32, "--head", "cd" * 32)
    assert other.exit_code == 1
    assert "root: entry 1" in other.stdout
    assert "head: entry 2" in other.stdout


def test_a_changed_entry_fails_and_is_named(place: Path) -> None:
    _call("run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--id", "mine")
    with sqlite3.connect(place / "r.db") as connection:
        connection.execute("DROP TRIGGER entries_no_update")
        connection.execute("UPDATE entries SET body = replace(body, '2.5', '0.5')")
    result = _call("verify", "r.db", "--public-key", _root(place))
    assert result.exit_code == 1
    assert "hash: entry 2: run mine is not what its hash says" in result.stdout
    shown = _call("show", "r.db")
    assert shown.exit_code == 0
    assert "see dpassay registry verify" in shown.stderr


def test_a_batch_that_was_never_finished_stays_open(place: Path) -> None:
    _call("run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--id", "mine")
    keys = Keys.rotate(place / "keys")
    with store.open(str(place / "r.db")) as registry:
        registry._append([("batch", vars(Batch("b", "mine", "text", "k", "", 3)))], keys)
    result = _call("verify", "r.db", "--public-key", _root(place))
    assert result.exit_code == 3
    assert "unfinished: entry 4: batch b: 0 of 3 records" in result.stdout
    assert "open" in _call("show", "r.db").stdout
    assert _call("abandon", "r.db", "b", "--keys", "keys").exit_code == 0
    assert _call("verify", "r.db", "--public-key", _root(place)).exit_code == 0


def test_a_legacy_code_and_a_rotation(place: Path) -> None:
    _call("run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--id", "mine")
    options = ("--keys", "keys", "--batch", "old", "--run", "mine")
    assert _call("legacy", "r.db", "--code", "DEADBEEF", *options).exit_code == 0
    assert _call("legacy", "r.db", "--code", "xyz", *options).exit_code == 2
    shown = json.loads(_call("show", "r.db", "--json").stdout)
    assert shown["legacy"][0]["code"] == "deadbeef"
    assert "already" in _call("rotate", "r.db", "--keys", "keys").stdout
    newer = Keys.rotate(place / "keys")
    assert _call("rotate", "r.db", "--keys", "keys").stdout == f"key {newer.id} is in force\n"
    assert _call("upgrade", "r.db").stdout == "version 2 already\n"


def test_nothing_secret_reaches_the_registry_or_the_screen(place: Path) -> None:
    first = json.loads((place / "keys" / "keys.json").read_text())
    keys = Keys.rotate(place / "keys")
    outputs = [_call("run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--id", "mine").output]
    with store.open(str(place / "r.db")) as registry:
        batch = Batch("b", "mine", "text", keys.marking[0], "", 3)
        registry.add_batch(batch, table(3), keys)
    outputs += [_call(c, "r.db").output for c in ("show", "verify")]
    second = json.loads((place / "keys" / "keys.json").read_text())
    content = (place / "r.db").read_bytes()
    for data in (first, second):
        for secret in (data["private_key"], *(m["secret"] for m in data["marking"])):
            assert secret.encode() not in content
            assert bytes.fromhex(secret) not in content
            assert not any(secret in output for output in outputs)
    assert keys.marking[0] in outputs[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "none.db"), "no such file"),
        (("verify", "none.db"), "no such file"),
        (("verify", "r.db", "--public-key", "abc"), "64 hexadecimal digits"),
        (("verify", "r.db", "--head", "z" * 64), "64 hexadecimal digits"),
        (("show", "run/ledger.jsonl"), "is no registry"),
        (("create", "r.db", "--keys", "keys"), "is a registry already"),
        (("create", "x.db", "--keys", "none"), "make keys"),
        (("run", "r.db", "none", "--keys", "keys"), "cannot be read"),
        (("run", "r.db", "run/model.safetensors", "--keys", "keys"), "no record of training"),
        (("run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--epsilon", "inf"), "--epsilon"),
        (("run", "r.db", "run/ledger.jsonl", "--keys", "keys", "--delta", "1"), "--delta"),
        (("abandon", "r.db", "b", "--keys", "keys"), "is not registered"),
        (("show", "postgresql://u:hunter2@127.0.0.1:1/d"), "127.0.0.1"),
    ],
)
def test_refusals_are_one_line(place: Path, arguments: tuple[str, ...], said: str) -> None:
    result = _call(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.output
    assert not (place / "none.db").exists()
    assert not (place / "x.db").exists()


def test_a_registry_is_read_without_torch(place: Path) -> None:
    code = (
        "import sys; from audit.registry import store; store.open(sys.argv[1]).verify(None);"
        "print([m for m in ('torch', 'transformers', 'alembic', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place / "r.db")],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout == "[]\n"
