"""The command line as a user meets it: quick to start, one-line errors, DESIGN's exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import audit.cli.main as main
from audit.cli.errors import BadInput
from audit.cli.init import KINDS
from audit.cli.init import command as init
from audit.cli.render import command as render
from reports.record import to_json
from tests.reports import sample_records

ROOT = Path(__file__).resolve().parents[3]


def dpassay(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpassay", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, dpassay\n"
        "sys.argv = ['dpassay', '--help']\n"
        "try:\n  dpassay.main()\n"
        "except SystemExit as e:\n  assert not e.code, e.code\n"
        "heavy = {'torch', 'sklearn', 'pandas', 'scipy', 'numpy', 'pydantic', 'opacus', 'rich'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "HEAVY []" in result.stdout


def test_every_command_has_help_and_loads() -> None:
    for name in main.COMMANDS:
        result = CliRunner().invoke(main.cli, [name, "--help"])
        assert result.exit_code == 0, (name, result.output)
        assert "Usage:" in result.output


def test_attack_list_names_all_attacks_of_both_kinds() -> None:
    from attacks.registry import entries
    from attacks.synthetic.registry import ENTRIES

    result = CliRunner().invoke(main.cli, ["attack", "list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    named = {line.split("│")[1].strip() for line in result.output.splitlines() if "│" in line}
    assert named >= {*entries(), *ENTRIES}


def test_an_unknown_command_is_a_usage_error() -> None:
    result = dpassay("adit")
    assert result.returncode == 2
    assert "No such command" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (BadInput("x.yaml: limit: too\n  high"), 2, "dpassay: x.yaml: limit: too high\n"),
        (click.UsageError("no"), 2, "no"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("bug"), 4, "a fault of the program, not a verdict"),
    ],
)
def test_every_exception_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    code: int,
    said: str,
) -> None:
    def broken(**_: object) -> None:
        raise raised

    monkeypatch.setattr(main.cli, "main", broken)
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == code
    assert said in capsys.readouterr().err


def test_an_error_sends_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    BadInput("no column '\x1b]0;owned\x07\x9b31m\ud800年\n'").show()
    assert capsys.readouterr().err == "dpassay: no column ' ]0;owned 31m 年 '\n"


def test_a_stopped_command_leaves_nothing_half_written(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, audit.cli.main as main\n"
        "from audit.output import folder\n"
        "def stopped(**_):\n"
        "  with folder(pathlib.Path('out'), False) as building:\n"
        "    (building / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
        "main.cli.main = stopped\n"
        "main.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False, timeout=60
    )
    assert result.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "__init__.py").write_text("")
    result = subprocess.run(
        [sys.executable, "-c", "import dpassay; dpassay.main()", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 2
    assert "package 'audit' is found at" in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_init_writes_a_file_that_is_not_overwritten(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "AUDIT.yaml"
    assert CliRunner().invoke(init, [kind, "--out", str(out)]).exit_code == 0
    before = out.read_text()
    again = CliRunner().invoke(init, [kind, "--out", str(out)])
    assert again.exit_code == 2
    assert "--force" in again.output
    assert out.read_text() == before


def test_doctor_names_each_part_and_how_to_get_it() -> None:
    result = dpassay("doctor", COLUMNS="160")
    assert result.returncode == 0
    for word in ("python", "torch", "device", "opacus", "presidio_analyzer"):
        assert word in result.stdout


def test_render_to_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    record = tmp_path / "audit.json"
    record.write_text(to_json(sample_records.leaky()), encoding="utf-8")
    result = CliRunner().invoke(render, [str(record), "--out", str(record / "report.html")])
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["audit.json"]
