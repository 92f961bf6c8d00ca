"""``dpassay attack membership`` from YAML to tables, files and exit codes; fleets that resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from audit.cli.main import cli

Attack = Callable[..., tuple[Result, Path]]


def draw(n: int, seed: int) -> pd.DataFrame:
    """Labels are noise, so whatever a model knows of them it learned by heart."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(n, 4)), columns=list("abcd"))
    frame["ward"] = random.integers(0, 3, n)
    frame["person"] = [f"{seed}-{i // 2}" for i in range(n)]
    return frame.assign(label=random.integers(0, 2, n))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("members", "non_members", "auxiliary")):
        draw(120, seed).to_csv(tmp_path / f"{name}_by_person.csv", index=False)
        draw(120, seed).drop(columns="person").to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def attack(folder: Path) -> Attack:
    """Run the command with these options on a configuration over a usable default."""

    def run(*options: str, command: tuple[str, ...] = ("attack", "membership"), **config: Any):
        whole: dict[str, Any] = {
            "version": 1,
            "title": "Wards",
            "target": {"kind": "recipe", "recipe": "nearest_neighbour"},
            "records": {
                "members": "members.csv",
                "non_members": "non_members.csv",
                "split": "randomised",
            },
            "attacks": ["loss_threshold", "lira"],
            "budget": {"shadow_models": 8},
        } | config
        file, out = folder / "AUDIT.yaml", folder / "out"
        file.write_text(yaml.safe_dump(whole))
        arguments = [*command, str(file), "--out", str(out), "--quiet", *options]
        return CliRunner().invoke(cli, arguments), out

    return run


def test_every_attack_leaves_its_figures_and_its_scores(attack: Attack) -> None:
    result, out = attack("--group", "ward", "--group", "a")
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        f"{name}{control}.{kind}"
        for name, control in (
            ("blind_baseline", ""),
            *((a, c) for a in ("loss_threshold", "lira") for c in ("", ".positive-control")),
        )
        for kind in ("json", "parquet")
    }
    found = json.loads((out / "lira.json").read_text())
    assert (found["models_trained"], found["access"]) == (8, "scores")
    area = next(f["estimate"] for f in found["figures"] if f["name"] == "auc")
    assert area["low"] > 0.6
    assert area["confidence"] == pytest.approx(0.975)  # two attacks were tried
    wards = found["groups"]["ward"]
    assert [group["name"] for group in wards] == ["0", "1", "2"]
    assert sum(group["members"] for group in wards) == 120
    assert wards[0]["figures"][0]["estimate"]["confidence"] == pytest.approx(1 - 0.025 / 3)
    assert len(found["groups"]["a"]) == 4
    assert len(found["groups"]["label"]) == 2
    scores = pd.read_parquet(out / "lira.parquet")
    assert len(scores) == 240
    first = found["most_exposed"][0]
    members = scores[scores.member].set_index("id").score
    assert members[first["id"]] == members.max()
    others = scores[~scores.member].score
    assert first["false_positives"]["value"] == (others >= members.max()).mean()
    assert "members:" in result.output
    assert "on the positive control" in result.output


def test_persons_are_judged_as_wholes(attack: Attack) -> None:
    sides = {name: f"{name}_by_person.csv" for name in ("members", "non_members")}
    result, out = attack(records={**sides, "user": "person", "split": "randomised"})
    assert result.exit_code == 0, result.output
    for name in ("lira", "loss_threshold"):
        found = json.loads((out / f"{name}.json").read_text())
        assert (found["members"], found["non_members"]) == (60, 60)
        assert "60 and 60 persons with 120 and 120 records" in found["notes"][0]
        assert found["groups"] == {}
    assert set(pd.read_parquet(out / "lira.parquet").id) == {
        f"{side}-{i}" for side in (0, 1) for i in range(60)
    }
    blind = json.loads((out / "blind_baseline.json").read_text())
    assert blind["members"] == 30


def test_a_record_without_a_person_is_refused(folder: Path, attack: Attack) -> None:
    frame = pd.read_csv(folder / "members_by_person.csv")
    frame.loc[3, "person"] = None
    frame.to_csv(folder / "members_by_person.csv", index=False)
    sides = {name: f"{name}_by_person.csv" for name in ("members", "non_members")}
    result, _ = attack(records={**sides, "user": "person"})
    assert result.exit_code == 2
    assert "column 'person', record 4: no person; fill it or drop the record" in result.output


def test_a_code_is_of_one_type_in_both_files(folder: Path, attack: Attack) -> None:
    """Numbers only in one file, one letter in the other: typed apart, the files differ by that."""
    for name in ("members", "non_members"):
        frame = pd.read_csv(folder / f"{name}.csv")
        frame["code"] = [f"{i:05d}" for i in range(len(frame))]
        if name == "non_members":
            frame.loc[0, "code"] = "2A004"
        frame["age"] = 30 + frame["ward"] if name == "members" else 30.0 + frame["ward"]
        frame.to_csv(folder / f"{name}.csv", index=False)
    target = {"kind": "recipe", "recipe": "random_forest"}
    result, _ = attack("--attacks", "loss_threshold", target=target)
    assert result.exit_code == 2  # a forest wants numbers; what was read is what counts here
    from audit.config import load_config
    from audit.record_files import read_membership

    records, names, _ = read_membership(load_config(folder / "AUDIT.yaml").records)
    for side in (records.members, records.non_members):
        assert {type(v) for v in side.features[:, names.index("code")]} == {str}
        assert {type(v) for v in side.features[:, names.index("age")]} == {float}
    assert records.members.features[7, names.index("code")] == "00007"


def test_auxiliary_records_keep_the_audited_out_of_the_shadow_models(attack: Attack) -> None:
    records = {
        "members": "members.csv",
        "non_members": "non_members.csv",
        "auxiliary": "auxiliary.csv",
    }
    result, out = attack("--attacks", "lira_offline,quantile", records=records)
    assert result.exit_code == 0, result.output
    assert json.loads((out / "lira_offline.json").read_text())["figures"][0]["estimate"]["n"] == 240
    result, _ = attack("--attacks", "rmia", records=records)
    assert result.exit_code == 2


def test_sides_that_differ_by_themselves_are_void(folder: Path, attack: Attack) -> None:
    shifted = draw(120, 1).drop(columns="person")
    shifted["a"] += 3
    shifted.to_csv(folder / "non_members.csv", index=False)
    result, out = attack()
    assert result.exit_code == 3
    assert "VOID" in result.output
    assert out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--attacks", "lirra"), "'lirra' is none of"),
        (("--attacks", "lira,lira"), "stands twice"),
        (("--shadow-models", "3"), "need an even number"),
        (("--shadow-models", "100000000"), "--shadow-models: Input should be less than or equal"),
        (("--workers", "many"), "neither a number nor ray"),
        (("--workers", "0"), "0 can train nothing"),
        (("--group", "e"), "no column 'e'; the records have a, b, c, d, ward"),
        (("--attacks", "gradient_norm"), "gradient_norm needs gradients"),
    ],
)
def test_what_cannot_run_is_one_line(attack: Attack, options: tuple[str, ...], said: str) -> None:
    result, out = attack(*options)
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()


def test_a_folder_that_exists_is_kept(attack: Attack) -> None:
    _, out = attack("--attacks", "loss_threshold")
    before = sorted(path.name for path in out.iterdir())
    result, _ = attack()
    assert result.exit_code == 2
    assert sorted(path.name for path in out.iterdir()) == before
    result, _ = attack("--force", "--attacks", "label_gap")
    assert result.exit_code == 0, result.output
    assert (out / "label_gap.json").exists()
    assert not (out / "loss_threshold.json").exists()
    (out / "mine.txt").touch()
    result, _ = attack("--force")
    assert result.exit_code == 2
    assert (out / "mine.txt").exists()


def test_time_that_runs_out_is_said_and_the_fleet_goes_on_later(
    folder: Path, attack: Attack
) -> None:
    short = {"shadow_models": 8, "seconds": 1e-9}
    result, out = attack(budget=short, positive_control="none")
    assert result.exit_code == 3, result.output
    said = " ".join(result.output.split())
    assert "lira did not finish: the 1e-09 seconds of budget.seconds were used up" in said
    assert not (out / "lira.json").exists()
    assert (folder / ".out.shadows").exists()
    result, out = attack("--force", positive_control="none")
    assert result.exit_code == 0, result.output
    assert (out / "lira.json").exists()
    assert not (folder / ".out.shadows").exists()


RECIPE = """
from pathlib import Path
import torch

COUNT = Path(__file__).with_name("trained.txt")


def build():
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def train(features, labels, seed, stop_after=0):
    done = len(COUNT.read_text()) if COUNT.exists() else 0
    if Path(__file__).with_name("stop").exists() and done == 3:
        raise KeyboardInterrupt
    COUNT.write_text("." * (done + 1))
    torch.manual_seed(seed)
    module = build()
    optimiser = torch.optim.Adam(module.parameters(), 0.02)
    x, y = torch.tensor(features).float(), torch.tensor(labels)
    for _ in range(30):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return module
"""


@pytest.mark.parametrize("command", [("attack", "membership"), ("audit",)])
def test_an_interrupted_run_goes_on_where_it_stopped(
    folder: Path, attack: Attack, command: tuple[str, ...]
) -> None:
    name = f"recipe_{command[0]}"  # a module is imported once
    (folder / f"{name}.py").write_text(RECIPE)
    module = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    save_file(module.state_dict(), folder / "w.safetensors")
    target = {
        "kind": "torch",
        "weights": "w.safetensors",
        "factory": f"{name}:build",
        "training": {"function": f"{name}:train"},
    }
    options: dict[str, Any] = {"target": target, "positive_control": "none", "command": command}
    (folder / "stop").touch()
    _, out = attack(**options)
    assert not out.exists()
    kept = folder / ".out.shadows"
    assert len(list(kept.glob("*.done"))) == 3
    (folder / "stop").unlink()
    result, out = attack(**options)
    assert out.exists(), result.output
    assert len((folder / "trained.txt").read_text()) == 8  # 3 and 5, not 3 and 8
    assert not kept.exists()
