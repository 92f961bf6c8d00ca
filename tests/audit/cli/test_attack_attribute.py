"""``dpassay attack attribute`` from YAML to tables, files and exit codes."""

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
import yaml
from click.testing import CliRunner, Result

from audit.cli.main import cli

Attack = Callable[..., tuple[Result, Path]]


def draw(n: int, seed: int) -> pd.DataFrame:
    """Noise, a sensitive column, and a label that only a model that saw the record can know."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(n, 4)), columns=list("abcd"))
    frame["smoker"] = random.integers(0, 2, n)
    return frame.assign(id=[f"{seed}-{i}" for i in range(n)], label=random.integers(0, 2, n))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("members", "non_members", "auxiliary")):
        draw(300, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def attack(folder: Path) -> Attack:
    """Run the command with these options on a configuration over a usable default."""

    def run(*options: str, out: str = "out", **config: Any) -> tuple[Result, Path]:
        whole: dict[str, Any] = {
            "version": 1,
            "title": "Smokers",
            "target": {
                "kind": "recipe",
                "recipe": "random_forest",
                "arguments": {"bootstrap": False},
            },
            "records": {
                "members": "members.csv",
                "non_members": "non_members.csv",
                "auxiliary": "auxiliary.csv",
                "split": "randomised",
                "id": "id",
            },
        } | config
        file = folder / "AUDIT.yaml"
        file.write_text(yaml.safe_dump({k: v for k, v in whole.items() if v is not None}))
        command = ["attack", "attribute", str(file), "--out", str(folder / out), "--quiet"]
        return CliRunner().invoke(cli, [*command, *options]), folder / out

    return run


def figure(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [f["estimate"] for f in result["figures"] if f["name"] == name]
    assert isinstance(found, dict)
    return found


def test_a_forest_gives_its_members_away(folder: Path, attack: Attack) -> None:
    result, out = attack("--column", "smoker")
    assert result.exit_code == 0, result.output
    assert "advantage" in result.output
    told = json.loads((out / "attribute.json").read_text(encoding="utf-8"))
    assert not told["void"]
    assert [r["attack"] for r in told["results"]] == ["yeom", "confidence"]
    for found in told["results"]:
        assert figure(found, "advantage")["low"] > 0
        assert found["known"] == list("abcd")
        assert found["access"] == "scores"
        assert found["reference"] == 300
        assert figure(found, "advantage")["confidence"] == pytest.approx(0.975)
    assert {i["role"] for i in told["inputs"]} == {"members", "non-members", "auxiliary"}
    guesses = pd.read_parquet(out / "guesses.parquet")
    assert len(guesses) == 2 * 600
    truth = pd.concat([pd.read_csv(folder / f"{n}.csv") for n in ("members", "non_members")])
    joined = guesses[guesses.attack == "yeom"].merge(truth, on="id")
    assert (joined.truth == joined.smoker.astype(str)).all()
    assert sorted(p.name for p in out.iterdir()) == ["attribute.json", "guesses.parquet"]


def test_triples_and_chosen_columns_stand_side_by_side(attack: Attack) -> None:
    options = ["--known", "a, b", "--triples", "a,b,c,d", "--attacks", "confidence", "--json"]
    result, _ = attack("--column", "smoker", *options)
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    known = ["".join(r["known"]) for r in told["results"]]
    assert known == ["ab", "abc", "abd", "acd", "bcd"]
    assert figure(told["results"][0], "advantage")["confidence"] == pytest.approx(1 - 0.05 / 5)
    assert all(r["queries"] == 600 * 2 * 10 for r in told["results"])


def test_labels_only_leave_the_attack_that_needs_no_more(attack: Attack) -> None:
    target = {"kind": "recipe", "recipe": "nearest_neighbour", "access": "label"}
    result, out = attack("--column", "smoker", target=target)
    assert result.exit_code == 0, result.output
    told = json.loads((out / "attribute.json").read_text(encoding="utf-8"))
    assert [r["attack"] for r in told["results"]] == ["fredrikson"]


def test_sides_that_differ_by_themselves_make_it_void(folder: Path, attack: Attack) -> None:
    draw(300, 1).assign(a=lambda f: f.a + 2).to_csv(folder / "non_members.csv", index=False)
    result, out = attack("--column", "smoker")
    assert result.exit_code == 3, result.output
    assert "VOID" in result.output
    assert json.loads((out / "attribute.json").read_text(encoding="utf-8"))["void"]


def test_arrays_have_columns_by_number(folder: Path, attack: Attack) -> None:
    for seed, name in enumerate(("members", "non_members")):
        frame = draw(200, seed)
        features = frame[[*"abcd", "smoker"]].to_numpy()
        np.savez(folder / f"{name}.npz", features=features, label=frame.label.to_numpy())
    records = {"members": "members.npz", "non_members": "non_members.npz"}
    result, out = attack("--column", "4", records=records)
    assert result.exit_code == 0, result.output
    (first, _) = json.loads((out / "attribute.json").read_text(encoding="utf-8"))["results"]
    assert (first["members"], first["non_members"], first["reference"]) == (200, 100, 100)


@pytest.mark.parametrize(
    ("options", "config", "said"),
    [
        (["--column", "x"], {}, "column 'x': there is none; the records have a, b, c, d, smoker"),
        (["--column", "smoker", "--known", "a,,b"], {}, "--known: 'a,,b': a name is empty"),
        (["--column", "smoker", "--triples", "a,b,smoker"], {}, "--triples: a, b; name three"),
        (["--column", "smoker", "--attacks", "magic"], {}, "'magic' is none of yeom"),
        (
            ["--column", "smoker", "--attacks", "yeom"],
            {"target": {"kind": "recipe", "recipe": "random_forest", "access": "label"}},
            "yeom needs scores",
        ),
        (
            ["--column", "smoker"],
            {"target": None, "records": None, "claims": [{"id": "a", "family": "dp_guarantee",
              "statement": "s", "epsilon": 1, "delta": 1e-5, "relation": "add-remove"}]},
            "names no target",
        ),
        (
            ["--column", "smoker"],
            {"target": {"kind": "transformers", "folder": "."}},
            "a language model's are texts",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    attack: Attack, options: list[str], config: dict[str, Any], said: str
) -> None:
    result, out = attack(*options, **config)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()
    assert not list(out.parent.glob(".out.*"))


def test_an_existing_folder_is_left_alone(folder: Path, attack: Attack) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("keep")
    result, out = attack("--column", "smoker")
    assert result.exit_code == 2
    assert "exists; choose another --out" in result.output
    assert [p.name for p in out.iterdir()] == ["mine.txt"]


def test_force_replaces_what_the_command_wrote_and_nothing_else(attack: Attack) -> None:
    options = ("--column", "smoker", "--attacks", "yeom")
    assert attack(*options)[0].exit_code == 0
    assert attack(*options)[0].exit_code == 2
    assert attack(*options, "--force")[0].exit_code == 0
    _, out = attack(*options)
    (out / "mine.txt").write_text("keep")
    result, _ = attack(*options, "--force")
    assert result.exit_code == 2
    assert "'mine.txt', which this command did not write" in result.output
    assert (out / "mine.txt").read_text() == "keep"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from audit.cli.main import cli\n"
        "try: cli.main(['attack', 'attribute', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "dpassay attack attribute AUDIT.yaml" in done.stdout
