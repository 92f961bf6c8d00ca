"""``dpassay quality`` from files to tables, JSON and exit codes, bad files included."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from audit.cli.main import cli

RULES = Path(__file__).resolve().parents[3] / "fixtures" / "quality" / "oncology.yaml"
WORDS = ["pain", "in", "left", "right", "knee", "hip", "before", "surgery", "fall", "rest"]
Measure = Callable[..., tuple[Result, Path]]


def draw(n: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    prostate = random.random(n) < 0.4
    frame = pd.DataFrame(
        {
            "diagnosis": np.where(prostate, "prostate cancer", "gastric cancer"),
            "procedure": np.where(prostate, "prostatectomy", "gastrectomy"),
            "stage": random.choice(["IIB", "IIIA"], n),
            "imaging": random.choice(["CT", "MRI"], n),
            "sex": np.where(prostate | (random.random(n) < 0.5), "male", "female"),
            "age": random.integers(20, 90, n),
            "admitted": pd.Timestamp("2021-02-01")
            + pd.to_timedelta(random.integers(0, 90, n), "D"),
            "note": [" ".join(random.choice(WORDS, 8)) for _ in range(n)],
        }
    )
    return frame.assign(died=(frame.age + 10 * random.normal(size=n) > 60).astype(int))


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Run the command on three tables drawn from one law, or on those given."""

    def run(*options: str, **frames: pd.DataFrame) -> tuple[Result, Path]:
        tables = {name: draw(200, k) for k, name in enumerate(("real", "synthetic", "holdout"))}
        for name, frame in (tables | frames).items():
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        command = ["quality", "--real", str(tmp_path / "real.csv"), "--quiet"]
        command += ["--synthetic", str(tmp_path / "synthetic.csv"), "--out", str(tmp_path / "out")]
        given = [o.replace("HOLDOUT", str(tmp_path / "holdout.csv")) for o in options]
        return CliRunner().invoke(cli, [*command, *given]), tmp_path / "out"

    return run


def test_everything_that_can_be_asked_for(measure: Measure) -> None:
    options = ("--holdout", "HOLDOUT", "--label", "died", "--rules", str(RULES), "--text", "note")
    broken = draw(200, 1)
    broken.loc[:9, ["diagnosis", "procedure"]] = ["gastric cancer", "prostatectomy"]
    result, out = measure(*options, synthetic=broken)
    assert result.exit_code == 0, result.output
    for shown in ("Columns", "Associations", "auc_loss", "rougeL_control", "violated", "satisfied"):
        assert shown in result.output
    told = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    assert {c["column"] for c in told["columns"]} == set(broken.columns) - {"note"}
    assert {m["name"] for m in told["detection"]} == {"auc", "tpr_at_fpr_0.1", "tpr_at_fpr_0.01"}
    assert told["utility"]["figures"][0]["interval"]["low"] > 0.5
    rules = {r["id"]: r for r in told["rules"]}
    first = rules["gastric-no-prostatectomy"]
    assert (first["real"]["state"], first["synthetic"]["state"]) == ("satisfied", "violated")
    assert first["synthetic"]["violations"] == 10
    assert rules["children-no-ct"]["real"]["state"] == "not checkable"
    assert [i["role"] for i in told["inputs"]] == ["real", "synthetic", "holdout", "rules"]
    assert told["versions"]["sacrebleu"]
    assert all(_has_interval(x) for x in _dicts(told) if "value" in x)
    assert [p.name for p in out.iterdir()] == ["quality.json"]


def _dicts(told: Any) -> Any:
    if isinstance(told, dict):
        yield told
    for part in told.values() if isinstance(told, dict) else told if isinstance(told, list) else ():
        yield from _dicts(part)


def _has_interval(figure: dict[str, Any]) -> bool:
    return figure["low"] <= figure["value"] <= figure["high"] and figure["n"] > 0


def test_json_on_the_terminal_is_the_file(measure: Measure) -> None:
    result, out = measure("--json", real=draw(40, 0), synthetic=draw(40, 1))
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((out / "quality.json").read_text("utf-8"))


def test_texts_alone(measure: Measure) -> None:
    only = {name: draw(60, k)[["note"]] for k, name in enumerate(("real", "synthetic"))}
    only["synthetic"].loc[:4, "note"] = None
    result, out = measure("--text", "note", **only)
    assert result.exit_code == 0, result.output
    told = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    assert (told["columns"], told["associations"], told["detection"]) == ([], None, [])
    assert told["notes"] == ["synthetic: 5 records without a text"]


NAN = float("nan")


STRANGE: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "missing": lambda f: f.assign(gone=NAN),
    "constant": lambda f: f.assign(same=1, also="x"),
    "single record": lambda f: f.head(1),
    "mixed types": lambda f: f.assign(mixed=["1", 2, "x", None] * (len(f) // 4)),
    "levels": lambda f: f.assign(many=[f"level {i}" for i in range(len(f))]),
    "zones": lambda f: f.assign(when=pd.date_range("2020-01-01", periods=len(f), tz="Asia/Tokyo")),
    "integer names": lambda f: f.set_axis(range(f.shape[1]), axis=1),
    "quotes": lambda f: f.assign(quoted='it\'s "so" [red]x[/red]'),
    "one column": lambda f: f[["age"]],
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_strange_tables_are_measured_and_no_column_is_dropped(
    measure: Measure, change: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    few = ["diagnosis", "admitted", "age", "died"]
    frames = {name: change(draw(60, k)[few]) for k, name in enumerate(("real", "synthetic"))}
    result, out = measure(**frames)
    assert result.exit_code == 0, result.output
    told = json.loads((out / "quality.json").read_text(encoding="utf-8"))
    columns = frames["real"].columns
    assert {c["column"] for c in told["columns"]} == set(map(str, columns))
    for column in told["columns"]:
        assert (column["distance"] is None) == bool(column["unmeasured"])
    pairs = len(told["associations"]["pairs"]) + len(told["associations"]["unmeasured"])
    assert pairs == len(columns) * (len(columns) - 1) / 2
    for metric in told["detection"]:
        assert (metric["interval"] is None) == bool(metric["unmeasured"])


@pytest.mark.parametrize(
    ("options", "frames", "said"),
    [
        ([], {"synthetic": draw(9, 0).drop(columns="age")}, "synthetic: lacks 'age', unlike real"),
        ([], {"synthetic": draw(9, 0).assign(x=1)}, "synthetic: has 'x', unlike real"),
        ([], {"synthetic": draw(9, 0).assign(age=float("inf"))}, "column 'age', record 0: is inf"),
        ([], {"synthetic": draw(9, 0).assign(age="old")}, "synthetic: column 'age' holds text"),
        ([], {"synthetic": draw(9, 0).head(0)}, "synthetic.csv: holds no records"),
        (
            [],
            {"real": draw(9, 0).set_axis([*"abcdefgh", "a"], axis=1)},
            "real.csv: two columns are called 'a'",
        ),
        (
            [],
            {"real": draw(9, 0).assign(admitted="2020-01-01T00:00:00Z")},
            "column 'admitted': dates with and without a time zone",
        ),
        (["--label", "died"], {}, "label: needs a holdout"),
        (["--label", "x", "--holdout", "HOLDOUT"], {}, "label: no column 'x'"),
        (["--text", "x"], {}, "real: no column 'x'"),
        (["--encoder", "."], {}, "encoder: needs a column of texts"),
        (["--rules", "none.yaml"], {}, "none.yaml: no such file"),
        (["--rules", str(RULES)], {"real": draw(9, 0)[["age"]], "synthetic": draw(9, 1)[["age"]]},
         "rules.0 (gastric-no-prostatectomy): never.0.column: no column 'diagnosis'"),
        (["--threshold", "1.5"], {}, "1.5 is not in the range"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    measure: Measure, options: list[str], frames: dict[str, pd.DataFrame], said: str
) -> None:
    result, out = measure(*options, **frames)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
    assert not out.exists()
    assert not list(out.parent.glob(".out.*"))


def test_a_file_that_is_missing_or_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for name, said in (("none.csv", "is missing"), ("a.txt", "must be a .csv or .parquet file")):
        command = ["quality", "--out", str(tmp_path / "out")]
        command += ["--real", str(tmp_path / name), "--synthetic", str(tmp_path / name)]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 2
        assert said in result.output


def test_force_replaces_what_the_command_wrote_and_nothing_else(measure: Measure) -> None:
    small = {name: draw(20, k)[["age", "sex"]] for k, name in enumerate(("real", "synthetic"))}
    assert measure(**small)[0].exit_code == 0
    assert measure(**small)[0].exit_code == 2
    assert measure("--force", **small)[0].exit_code == 0
    _, out = measure(**small)
    (out / "mine.txt").write_text("keep")
    assert measure("--force", **small)[0].exit_code == 2
    assert (out / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("name", ["quality", "drift"])
def test_help_imports_nothing_heavy(name: str) -> None:
    code = (
        "import sys; from audit.cli.main import cli\n"
        f"try: cli.main(['{name}', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert f"dpassay {name} --" in done.stdout
