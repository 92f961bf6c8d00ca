"""``dpassay drift`` from files to a table, JSON and the exit code that a scheduler reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from audit.cli.main import cli

Run = Callable[..., Result]


def draw(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {"age": random.normal(50 + shift, 10, n), "sex": random.choice(["f", "m"], n)}
    )


@pytest.fixture
def drift(tmp_path: Path) -> Run:
    def run(trained: pd.DataFrame, fresh: pd.DataFrame, *options: str) -> Result:
        trained.to_csv(tmp_path / "trained.csv", index=False)
        fresh.to_parquet(tmp_path / "fresh.parquet")
        command = ["drift", "--trained-on", str(tmp_path / "trained.csv")]
        command += ["--fresh", str(tmp_path / "fresh.parquet")]
        given = [o.replace("TRAINED", str(tmp_path / "trained.csv")) for o in options]
        return CliRunner().invoke(cli, [*command, *given])

    return run


@pytest.mark.parametrize(
    ("fresh", "options", "code", "said"),
    [
        (draw(4000, 1), [], 0, "NO DRIFT: every distance is at most 0.1"),
        (draw(4000, 1, 8), [], 1, "DRIFT: train the generator again; moved: age"),
        (draw(4000, 1, 8), ["--threshold", "0.6"], 0, "NO DRIFT"),
        (draw(150, 1), [], 3, "INCONCLUSIVE: age, sex: too few records to rule out 0.1; with"),
        (draw(4000, 1, 2.6), [], 3, "INCONCLUSIVE: age: the distance lies too near 0.1"),
        (draw(1, 1), [], 3, "show no drift, however large"),
    ],
)
def test_exit_codes(
    drift: Run, fresh: pd.DataFrame, options: list[str], code: int, said: str
) -> None:
    result = drift(draw(4000, 0), fresh, *options)
    assert result.exit_code == code, result.output
    assert said in " ".join(result.output.split())


def test_json_holds_every_comparison_with_its_interval(drift: Run) -> None:
    result = drift(draw(3000, 0), draw(3000, 1, 8), "--synthetic", "TRAINED", "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert (told["state"], told["trained_on"], told["threshold"]) == ("drift", 3000, 0.1)
    states = {c["column"]: c["state"] for c in told["columns"]}
    assert states == {"age": "drift", "sex": "no drift"}
    for column in told["columns"]:
        interval = column["distance"]
        assert interval["low"] <= interval["value"] <= interval["high"]
    assert {c["column"]: c["state"] for c in told["release"]}["age"] == "refuted"


@pytest.mark.parametrize(
    ("fresh", "said"),
    [
        (draw(50, 1)[["age"]], "fresh: lacks 'sex', unlike trained-on"),
        (draw(50, 1).assign(age="x"), "fresh: column 'age' holds text"),
        (draw(50, 1).assign(age=np.inf), "fresh: column 'age', record 0: is infinite"),
        (draw(50, 1).head(0), "holds no records"),
    ],
)
def test_bad_input_is_two_and_one_line(drift: Run, fresh: pd.DataFrame, said: str) -> None:
    result = drift(draw(50, 0), fresh)
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["drift", "quality"])
def test_a_threshold_that_is_no_number_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n2\n", encoding="utf-8")
    file = str(tmp_path / "t.csv")
    given = {
        "drift": ["--trained-on", file, "--fresh", file],
        "quality": ["--real", file, "--synthetic", file, "--out", str(tmp_path / "o")],
    }
    result = CliRunner().invoke(cli, [name, *given[name], "--threshold", "nan"])
    assert result.exit_code == 2
    assert "threshold" in result.stderr
