"""``dpassay postprocess``: what it writes and says; lineage and account find the filter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from audit.cli.account import command as account
from audit.cli.lineage import command as lineage
from audit.cli.main import COMMANDS
from audit.cli.postprocess import command


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(a) for a in arguments])


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame({"age": rng.integers(18, 90, 200), "ward": rng.geometric(0.4, 200)}).astype(
            {"ward": str}
        )
        for _ in range(2)
    ]
    frames = [f.assign(ward="w" + f["ward"]) for f in frames]
    paths = tmp_path / "synthetic.csv", tmp_path / "train.csv"
    for path, frame in zip(paths, frames, strict=True):
        frame.to_csv(path, index=False)
    return paths


def test_free_steps(tmp_path: Path, tables: tuple[Path, Path]) -> None:
    out = tmp_path / "out.csv"
    options = ["--drop-outliers", "3", "--generalise-rare", "10", "--step", "age=5"]
    result = _run(tables[0], "--out", out, *options)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.count("reads SYNTHETIC alone: free") == 2
    done = pd.read_csv(out)
    assert (done["age"] % 5 == 0).all()
    assert done["ward"].value_counts().drop("other").min() >= 10
    assert not out.with_name("out.csv.ledger.jsonl").exists()


def test_a_filter_is_said_to_read_raw_data_everywhere(
    tmp_path: Path, tables: tuple[Path, Path]
) -> None:
    out = tmp_path / "out.parquet"
    result = _run(
        *(tables[0], "--out", out, "--remove-near", tables[1], "--distance", "0.01"),
        *("--population", "patients", "--after", "made"),
    )
    assert result.exit_code == 0, result.output
    assert "reads train.csv, without DP" in result.stdout
    assert result.stderr.startswith("warning: remove-near read raw data without DP: ε = ∞")
    record = json.loads(out.with_name("out.parquet.postprocess.json").read_text(encoding="utf-8"))
    assert record["raw_data_access"]

    part = record["lineage"]
    stages = [{"id": "made", "reads": ["patients"], "budget": {"epsilon": 1.0}}, *part["stages"]]
    file = tmp_path / "lineage.yaml"
    file.write_text(json.dumps(part | {"stages": stages}), encoding="utf-8")
    assert CliRunner().invoke(lineage, [str(file)]).exit_code == 1
    file.write_text(json.dumps(part | {"stages": stages[:1]}), encoding="utf-8")
    assert CliRunner().invoke(lineage, [str(file)]).exit_code == 0

    ledger = out.with_name("out.parquet.ledger.jsonl")
    accounted = CliRunner().invoke(account, ["--ledger", str(ledger), "--delta", "1e-5", "--json"])
    assert accounted.exit_code == 0, accounted.output
    assert {g["epsilon"] for g in json.loads(accounted.stdout)["guarantees"]} == {"Infinity"}


def test_whole_numbers_with_gaps_stay_whole(tmp_path: Path) -> None:
    path, out = tmp_path / "synthetic.csv", tmp_path / "out.csv"
    text = "age,born,share\n35,1980-01-02,0.5\n,1990-03-04,\n41,,2.0\n44,1970-01-01,1.5\n"
    path.write_text(text)
    assert _run(path, "--out", out, "--drop-outliers", "9").exit_code == 0
    assert out.read_text() == text
    coarse = tmp_path / "coarse.csv"
    assert _run(path, "--out", coarse, "--generalise-rare", "2", "--step", "age=5").exit_code == 0
    assert [line.split(",")[0] for line in coarse.read_text().split()] == [
        "age",
        "35",
        "",
        "40",
        "40",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to do"),
        (["--step", "age=5"], "--step: needs --generalise-rare"),
        (["--generalise-rare", "5", "--step", "age"], "--step: must be COLUMN=STEP"),
        (["--generalise-rare", "5", "--step", "age=x"], "--step: must be COLUMN=STEP"),
        (["--generalise-rare", "5", "--step", "ward=1"], "synthetic.csv: steps: 'ward' is no"),
        (["--generalise-rare", "1"], "least: must be at least 2"),
        (["--drop-outliers", "-1"], "reach: must be 0 or more"),
        (["--remove-near", "absent.csv"], "absent.csv: is missing"),
        (["--remove-near", "synthetic.csv"], "remove-near would leave no record"),
        (["--remove-near", "train.csv", "--distance", "1"], "distance: must be"),
        (["--remove-near", "train.csv", "--population", "a b"], "'a b' is no free name"),
        (["--drop-outliers", "3", "--out", "train.csv"], "train.csv: exists"),
        (["--drop-outliers", "3", "--out", "out.txt"], "must be a .csv or .parquet file"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    tables: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _run("synthetic.csv", "--out", "out.csv", *options)
    assert result.exit_code == 2, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("dpassay: ")
    assert said in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["synthetic.csv", "train.csv"]


def test_it_is_listed() -> None:
    assert COMMANDS["postprocess"][0] == "audit.cli.postprocess"


def test_codes_and_long_numbers_come_out_as_they_went_in(tmp_path: Path) -> None:
    lines = ["zip,id,age"] + [f"{k:05d},{2**53 + 1 + k},{20 + k}" for k in range(30)] + ["00100,,5"]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "train.csv").write_text("zip,id,age\n00007,1,2\n", encoding="utf-8")
    result = _run(
        tmp_path / "in.csv", "--out", tmp_path / "out.csv", "--drop-outliers", "30",
        "--remove-near", tmp_path / "train.csv", "--distance", "0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines() == lines


def test_an_infinite_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\ninf,3\n", encoding="utf-8")
    result = _run(tmp_path / "in.csv", "--out", tmp_path / "out.csv", "--drop-outliers", "3")
    assert result.exit_code == 2
    assert "in.csv: column 'a', record 1: is infinite" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]
