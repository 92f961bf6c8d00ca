"""``dpassay lineage``: exit codes, the table, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from audit.cli.lineage import command

LINEAGE = Path(__file__).parents[3] / "fixtures" / "lineage"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(a) for a in arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("same_people", 0),
        ("disjoint_people", 0),
        ("raw_pretraining", 1),
        ("filter_near_originals", 1),
    ],
)
def test_exit_codes(name: str, code: int) -> None:
    assert run(LINEAGE / f"{name}.yaml").exit_code == code


def test_a_promise_that_is_not_shown_is_no_pass(tmp_path: Path) -> None:
    text = (LINEAGE / "same_people.yaml").read_text(encoding="utf-8")
    path = tmp_path / "lineage.yaml"
    path.write_text(text.replace("epsilon: 1.32", "epsilon: 1.2"), encoding="utf-8")
    assert run(path).exit_code == 3


def test_the_table_shows_each_path() -> None:
    shown = run(LINEAGE / "same_people.yaml").output
    assert "pretrain → finetune → generate" in shown
    assert "1.32" in shown
    assert "2e-5" in shown
    assert "relation: add-remove" in shown


def test_the_stage_that_read_raw_data_is_named() -> None:
    shown = run(LINEAGE / "raw_pretraining.yaml").output
    assert "Stage base (pre-training) read raw data of patients without DP" in shown
    assert "∞" in shown


def test_json() -> None:
    shown = json.loads(run("--json", LINEAGE / "raw_pretraining.yaml").output)
    last = shown["exposures"][-1]
    assert (last["stage"], last["account"]["high"], last["raw"]) == (
        "generate",
        "Infinity",
        ["base"],
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "populations: {p: {}}\nstages:\n  - {id: a, inputs: [b]}\n",
            ":3: stage a: inputs: no stage 'b'",
        ),
        (
            "populations: {p: {}}\nstages:\n  - {id: a, imputs: [b]}\n",
            "unknown key; did you mean 'inputs'?",
        ),
        ("populations: [p]\nstages: []\n", ":1: populations"),
        ("stages: {\n", "not valid YAML"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lineage.yaml"
    path.write_text(text, encoding="utf-8")
    result = run(path)
    assert result.exit_code == 2
    [line] = result.output.splitlines()
    assert line.startswith(f"dpassay: {path}")
    assert said in line


def test_a_missing_file(tmp_path: Path) -> None:
    result = run(tmp_path / "absent.yaml")
    assert result.exit_code == 2
    assert "no such file" in result.output
