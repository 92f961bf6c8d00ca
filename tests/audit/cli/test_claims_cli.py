"""``dpassay claims``: exit codes, one-line errors that name file, line, field and fix, output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from audit.cli.claims import command

CLAIMS = Path(__file__).parents[3] / "fixtures" / "claims"
HEAD = "claims:\n  - id: c\n    family: dp_guarantee\n    statement: s\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(a) for a in arguments], env={"COLUMNS": "200"})


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "claims.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def one_line(result: Result) -> str:
    assert result.exit_code == 2
    [line] = result.output.splitlines()
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize(
    ("epsilon", "code"), [(5.09, 0), (5.086, 3), (0.982, 1)]
)  # supported, inconclusive, refuted
def test_exit_codes(tmp_path: Path, epsilon: float, code: int) -> None:
    path = written(
        tmp_path,
        HEAD + f"    epsilon: {epsilon}\n    delta: 1.0e-5\n    relation: add-remove\n"
        "    noise_multiplier: 1.41\n    batch_size: 256\n    records: 2000\n    steps: 100\n",
    )
    assert run(path).exit_code == code


def test_not_checkable_is_no_pass(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "    epsilon: 1\n")
    result = run(path)
    assert result.exit_code == 3
    assert "not checkable" in result.output


def test_the_worst_claim_decides() -> None:
    assert run(CLAIMS / "g_halving_the_batch.yaml").exit_code == 1


def test_expected_verdicts_are_compared(tmp_path: Path) -> None:
    path = CLAIMS / "a_noise_formula.yaml"
    assert run("--expect", path).exit_code == 0
    text = path.read_text(encoding="utf-8").replace("expected: refuted", "expected: supported", 1)
    result = run("--expect", written(tmp_path, text))
    assert result.exit_code == 1
    assert "a-formula: expected supported, found refuted" in result.output


def test_the_table_says_claimed_recomputed_and_why() -> None:
    result = run(CLAIMS / "a_noise_formula.yaml")
    for shown in ("1.41", "4.845", "3.731", "refuted", "The formula gives a noise of"):
        assert shown in result.output


def test_json_holds_claims_and_findings() -> None:
    result = run("--json", CLAIMS / "b_budget_of_100_steps.yaml")
    shown = json.loads(result.output)
    assert [c["id"] for c in shown["claims"]] == [f["claim"] for f in shown["findings"]]
    seed = next(f for f in shown["findings"] if f["claim"] == "b-published-seed")
    assert seed["figures"]["epsilon"]["high"] == "Infinity"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "    epsilon: 1\n    delt: 1.0e-5\n",
         "claims.yaml:6: claims.0.delt: unknown key; did you mean 'delta'?"),
        (HEAD.replace("dp_guarantee", "horoscope"), "claims.yaml:2: claims.0"),
        (HEAD, "claims.yaml:2: claims.0.epsilon: this key is missing; add it"),
        (HEAD + "    epsilon: one\n", "claims.yaml:5: claims.0.epsilon: "),
        (HEAD + "    epsilon: -1\n", "claims.yaml:5: claims.0.epsilon: "),
        (HEAD + "    epsilon: .nan\n", "claims.yaml:5: claims.0.epsilon: "),
        (HEAD + "    epsilon: .inf\n", "claims.yaml:5: claims.0.epsilon: "),
        (HEAD + "    epsilon: true\n", "claims.yaml:5: claims.0.epsilon: "),
        (HEAD + "    epsilon: 1\n    delta: 1\n", "claims.yaml:6: claims.0.delta: "),
        (HEAD + "    epsilon: 1\n    delta: 0\n", "claims.yaml:6: claims.0.delta: "),
        (HEAD + "    epsilon: 1\n    noise_multiplier: 0\n", "claims.0.noise_multiplier: "),
        (HEAD + "    epsilon: 1\n    sample_rate: 1.5\n", "claims.0.sample_rate: "),
        (HEAD + "    epsilon: 1\n    steps: 2.5\n", "claims.0.steps: "),
        (HEAD + "    epsilon: 1\n    steps: 10000000000000\n", "claims.0.steps: "),
        (HEAD + "    epsilon: 1\n    batch_size: 300\n    records: 200\n",
         "batch_size: must not exceed records"),
        (HEAD + "    epsilon: 1\n    relation: neighbours\n", "claims.0.relation: "),
        (HEAD + "    epsilon: 1\n    unit: household\n", "claims.0.unit: "),
        (HEAD + "    epsilon: 1\n" + HEAD.removeprefix("claims:\n") + "    epsilon: 1\n",
         "two claims share the id 'c'; give each its own"),
        (HEAD + "    epsilon: 1\n    epsilon: 2\n", "claims.yaml:6: epsilon: key given twice"),
        ("claims: [\n", "claims.yaml:2: not valid YAML"),
        ("claims: []\n", "claims.yaml:1: claims: "),
        ("- a\n", "claims.yaml: expected keys and values"),
        ("", "claims.yaml: expected keys and values"),
        ("ledger: absent.jsonl\n" + HEAD + "    epsilon: 1\n", "absent.jsonl: cannot be read"),
        (HEAD.replace("dp_guarantee", "snippet") + "    asserts: epsilon\n    epsilon: 1\n"
         "    file: absent.py\n", "absent.py: cannot be read: No such file or directory"),
        (HEAD.replace("dp_guarantee", "attack_figure") + "    metric: tpr\n    value: 0.5\n"
         "    concludes: figure\n", "fpr: give it with the metric tpr"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_names_the_place(tmp_path: Path, text: str, said: str) -> None:
    line = one_line(run(written(tmp_path, text)))
    assert said in line
    assert line.startswith(f"dpassay: {tmp_path}")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "absent.yaml: no such file" in one_line(run(tmp_path / "absent.yaml"))
    assert "is a folder" in one_line(run(tmp_path))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_bytes(b"\xff\xfe\x00claims")
    assert "cannot be read as UTF-8 text" in one_line(run(path))


def test_markup_and_control_characters_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    text = HEAD.replace("statement: s", 'statement: "\\e[31m[bold]x[/bold]"') + "    epsilon: 1\n"
    result = run(written(tmp_path, 'title: "[red]\\e[2J"\n' + text))
    assert result.exit_code == 3
    assert "\x1b[2J" not in result.output
    assert "[red]" in result.output


def test_judging_a_formula_needs_no_torch() -> None:
    code = (
        "import sys, dpassay\n"
        f"sys.argv = ['dpassay', 'claims', {str(CLAIMS / 'b_budget_of_100_steps.yaml')!r}]\n"
        "try:\n  dpassay.main()\n"
        "except SystemExit as e:\n  assert e.code == 1, e.code\n"
        "print('HEAVY', sorted({'torch', 'sklearn', 'pandas', 'opacus'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout
