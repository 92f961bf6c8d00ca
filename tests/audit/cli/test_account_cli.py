"""``dpassay account``: the table, JSON, ledgers, calibration, and one-line refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit.accounting.events import SampledGaussian
from audit.accounting.guarantee import best
from audit.cli.account import command
from trainers.ledger import Header, LedgerWriter

RUN = "--noise-multiplier 1.41 --sample-rate 0.128 --steps 100 --delta 1e-5"


def account(line: str, *more: str) -> Result:
    return CliRunner().invoke(command, [*line.split(), *more], env={"COLUMNS": "160"})


def as_json(line: str, *more: str) -> dict[str, Any]:
    result = account(line, *more, "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert isinstance(value, dict)
    return value


def test_the_table_of_a_run() -> None:
    result = account(RUN)
    assert result.exit_code == 0, result.output
    assert "100 steps of DP-SGD: poisson batches, sample rate 0.128, σ = 1.41" in result.stdout
    assert "δ = 1e-05, one record, add-remove" in result.stdout
    for line in ("PLD │ 5.087 │ 5.085 │ yes", "RDP │ 5.626 │", "GDP (limit) │ 4.55"):
        assert line in " ".join(result.stdout.replace("│", " │ ").split()), line
    assert "a limit theorem for many steps" in result.stdout
    assert "An attacker with 1 % false alarms catches at most" in result.stdout
    assert "An attacker with 0.1 % false alarms catches at most" in result.stdout


def test_json_has_the_curves() -> None:
    found = as_json(RUN)["guarantees"]
    truth = best([SampledGaussian(1.41, 0.128, 100)], 1e-5)
    first = found[0]
    assert first["accountant"] == "PLD"
    assert first["epsilon"] == truth.epsilon
    assert first["epsilon_at_least"] == truth.lower
    assert first["tpr_at_fpr"]["0.01"] == truth.tpr_at(0.01)
    assert (first["unit"], first["relation"], first["guaranteed"]) == ("record", "add-remove", True)
    assert len(first["curve"]["delta"]) == len(first["curve"]["epsilon"]) > 40
    assert len(first["trade_off"]["fpr"]) == len(first["trade_off"]["tpr"]) > 40
    assert [g["guaranteed"] for g in found] == [True, True, False]


def test_batch_size_records_and_epochs_say_the_same() -> None:
    other = "--noise-multiplier 1.41 --batch-size 256 --records 2000 --epochs 12.8 --delta 1e-5"
    assert as_json(other)["guarantees"] == as_json(RUN)["guarantees"]


def test_shuffled_epochs_count_as_said() -> None:
    """Batches of 256 of 2000: an epoch has seven whole ones, and twelve epochs cost twelve."""
    line = "--noise-multiplier 4 --batch-size 256 --records 2000 --epochs 12 --delta 1e-5"
    found = as_json(line, "--sampling", "shuffled")["guarantees"]
    whole = as_json("--noise-multiplier 4 --steps 12 --delta 1e-5 --sampling full_batch")
    assert found[0]["epsilon"] == whole["guarantees"][0]["epsilon"]
    assert found[-1]["accountant"] == "PLD as if Poisson"
    assert not found[-1]["guaranteed"]


def test_a_user_of_several_records() -> None:
    found = as_json(RUN, "--group-size", "3")["guarantees"][0]
    assert (found["unit"], found["group_size"]) == ("user", 3)
    assert found["epsilon"] > 3 * as_json(RUN)["guarantees"][0]["epsilon"]


def test_a_delta_of_one_record_in_n_is_warned_of() -> None:
    line = "--noise-multiplier 1 --sample-rate 0.1 --steps 5 --records 100 --delta"
    assert "not below 1/100" in account(line, "0.01").stdout
    assert "not below" not in account(line, "0.009").stdout
    assert "not below 1/100" in as_json(line, "0.01")["notes"][0]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    header = Header("a" * 64, 1000, "poisson", 0.1, 100, "per_sample", 1.0, 1.1, "secure")
    with LedgerWriter.create(path, header) as writer:
        for _ in range(30):
            writer.step(
                batch_size=100, expected_batch_size=100, noise_multiplier=1.1, clipping_norm=1.0
            )
        writer.end()
    return path


def test_a_ledger_is_accounted(ledger: Path) -> None:
    found = as_json("--delta 1e-5 --ledger", str(ledger))["guarantees"][0]
    assert found["epsilon"] == best([SampledGaussian(1.1, 0.1, 30)], 1e-5).epsilon
    assert found["steps"] == 30


def test_a_ledger_without_delta_needs_one(ledger: Path) -> None:
    result = account("--ledger", str(ledger))
    assert result.exit_code == 2
    assert "names no δ" in result.stderr


def test_a_ledgers_own_delta_unit_and_group_count(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    header = Header(
        "a" * 64, 1000, "poisson", 0.1, 100, "per_sample", 1.0, 2.0, "secure",
        unit="user", group_size=2, delta=1e-6,
    )  # fmt: skip
    with LedgerWriter.create(path, header) as writer:
        writer.step(
            batch_size=100, expected_batch_size=100, noise_multiplier=2.0, clipping_norm=1.0
        )
        writer.end()
    found = as_json("--ledger", str(path))["guarantees"][0]
    assert (found["delta"], found["unit"], found["group_size"]) == (1e-6, "user", 2)
    truth = best([SampledGaussian(2.0, 0.1, 1)], 1e-6, unit="user", group_size=2)
    assert found["epsilon"] == truth.epsilon


def test_a_run_without_noise_has_no_epsilon(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    header = Header("a" * 64, 1000, "poisson", 0.1, 100, "none", None, 0.0, "seeded")
    with LedgerWriter.create(path, header) as writer:
        writer.step(
            batch_size=100, expected_batch_size=100, noise_multiplier=0.0, clipping_norm=None
        )
        writer.end()
    assert as_json("--delta 1e-5 --ledger", str(path))["guarantees"][0]["epsilon"] == "Infinity"
    shown = account("--delta 1e-5 --ledger", str(path)).stdout
    assert "∞" in shown
    assert "catches at most 100 %" in shown


def test_other_peoples_records_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("noise_multiplier,sample_rate,steps\n1.41,0.128,60\n1.41,0.128,40\n")
    found = as_json("--delta 1e-5 --ledger", str(path))["guarantees"]
    assert found[0]["epsilon"] == as_json(RUN)["guarantees"][0]["epsilon"]


CALIBRATIONS = {
    "noise_multiplier": "--sample-rate 0.01 --steps 1000 --delta 1e-5",
    "sample_rate": "--noise-multiplier 1.2 --steps 1000 --delta 1e-5",
    "steps": "--noise-multiplier 1.2 --sample-rate 0.01 --delta 1e-5",
    "delta": "--noise-multiplier 1.2 --sample-rate 0.01 --steps 1000",
}


@pytest.mark.parametrize("accountant", ["RDP", "tightest"])
@pytest.mark.parametrize("missing", list(CALIBRATIONS))
def test_calibration_meets_its_target_with_the_digits_it_prints(
    missing: str, accountant: str
) -> None:
    line = f"{CALIBRATIONS[missing]} --calibrate epsilon=1 --accountant {accountant}"
    found = as_json(line)
    rows = {g["accountant"]: g["epsilon"] for g in found["guarantees"]}
    spent = rows["RDP"] if accountant == "RDP" else min(rows["RDP"], rows["PLD"])
    assert 0.98 < spent <= 1
    shown = account(line).stdout
    assert f"{found['calibrated'][missing]:g} meets ε = 1 ({accountant})" in shown


REFUSED = {
    "--noise-multiplier 0 --sample-rate 0.1 --steps 3 --delta 1e-5": "--noise-multiplier: must be",
    "--noise-multiplier -2 --sample-rate 0.1 --steps 3 --delta 1e-5": "--noise-multiplier: must",
    "--noise-multiplier nan --sample-rate 0.1 --steps 3 --delta 1e-5": "--noise-multiplier: must",
    "--noise-multiplier inf --sample-rate 0.1 --steps 3 --delta 1e-5": "--noise-multiplier: must",
    "--noise-multiplier 1 --sample-rate 0 --steps 3 --delta 1e-5": "--sample-rate: must lie",
    "--noise-multiplier 1 --sample-rate 256 --steps 3 --delta 1e-5": "--sample-rate: must lie",
    "--noise-multiplier 1 --sample-rate nan --steps 3 --delta 1e-5": "--sample-rate: must lie",
    "--noise-multiplier 1 --sample-rate 0.1 --steps -3 --delta 1e-5": "--steps: must be a whole",
    "--noise-multiplier 1 --sample-rate 0.1 --steps 3 --delta 1": "--delta: must lie between",
    "--noise-multiplier 1 --sample-rate 0.1 --steps 3": "missing: --delta",
    "": "missing: --noise-multiplier, --sample-rate, --steps, --delta",
    f"{RUN} --epochs 3": "--epochs: says the same as --steps",
    f"{RUN} --batch-size 3 --records 9": "--batch-size: says the same as --sample-rate",
    "--batch-size 3 --noise-multiplier 1": "--batch-size: needs --records",
    "--epochs 3 --noise-multiplier 1": "--epochs: needs a sample rate",
    f"{RUN} --records 0": "--records: must be at least 1",
    f"{RUN} --sampling full_batch": "--sample-rate: full_batch means 1",
    f"{RUN} --sampling without_replacement": "--relation replace-one may have one",
    f"{RUN} --calibrate epsilon=1": "--calibrate: leave out exactly one",
    "--steps 3 --calibrate epsilon=1": "--calibrate: leave out exactly one",
    "--steps 3 --calibrate epsilon=x": "--calibrate: needs epsilon=X with a positive X",
    "--steps 3 --calibrate rho=1": "--calibrate: needs epsilon=X with a positive X",
    "--ledger nowhere.jsonl": "nowhere.jsonl: cannot be read",
    "--ledger nowhere.jsonl --steps 3": "--ledger: says itself what ran",
    "--ledger nowhere.jsonl --sampling shuffled": "--ledger: says itself what ran",
    "--ledger nowhere.jsonl --calibrate epsilon=1": "--calibrate: needs a mechanism",
}


@pytest.mark.parametrize("line", list(REFUSED))
def test_bad_input_is_one_line_and_exit_code_two(line: str) -> None:
    result = account(line)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("dpassay: ")
    assert result.stderr.count("\n") == 1
    assert REFUSED[line] in result.stderr


@pytest.mark.parametrize("line", ["--steps 1.5", "--steps nan", "--steps x", "--group-size 0"])
def test_what_is_no_whole_number_is_a_usage_error(line: str) -> None:
    result = account(f"--noise-multiplier 1 --sample-rate 0.1 --delta 1e-5 {line}")
    assert result.exit_code == 2
    assert "Invalid value for" in result.stderr


def test_a_billion_steps() -> None:
    start = time.process_time()
    found = as_json("--noise-multiplier 1 --sample-rate 0.01 --steps 1e9 --delta 1e-5")
    assert found["guarantees"][0]["steps"] == 10**9
    assert time.process_time() - start < 5


def test_it_starts_without_torch() -> None:
    code = (
        "import sys, dpassay\n"
        f"sys.argv = ['dpassay', 'account', *{RUN!r}.split()]\n"
        "try:\n  dpassay.main()\n"
        "except SystemExit as e:\n  assert not e.code, e.code\n"
        "print('HEAVY', sorted({'torch', 'sklearn', 'pandas', 'opacus'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "HEAVY []" in result.stdout
