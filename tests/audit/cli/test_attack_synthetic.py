"""``dpassay attack synthetic`` from files to tables, evidence and exit codes."""

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

Attack = Callable[..., tuple[Result, Path]]
DISTANCES = ("--attacks", "copies,nearest,density")


def draw(n: int, seed: int) -> pd.DataFrame:
    """Numbers, a category, a date and gaps; nothing in one column tells of another."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(n, 4)), columns=list("abcd"))
    frame["a"] = frame.a.mask(random.random(n) < 0.1)
    frame["region"] = random.choice(["north", "south", "it's [bold]"], n)
    frame["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 999, n), "D")
    return frame


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw(300, 0).to_csv(tmp_path / "train.csv", index=False)
    draw(300, 1).to_parquet(tmp_path / "holdout.parquet")
    draw(300, 2).to_csv(tmp_path / "clean.csv", index=False)
    leaky = pd.concat([draw(240, 3), draw(300, 0).tail(60)], ignore_index=True)
    leaky.to_csv(tmp_path / "leaky.csv", index=False)
    return tmp_path


@pytest.fixture
def attack(folder: Path) -> Attack:
    """Run the command on these files with these options."""

    def run(
        *options: str,
        train: str = "train.csv",
        holdout: str = "holdout.parquet",
        synthetic: str = "leaky.csv",
        out: str = "out",
    ) -> tuple[Result, Path]:
        command = ["attack", "synthetic", "--quiet", "--out", str(folder / out)]
        for option, name in (("train", train), ("holdout", holdout), ("synthetic", synthetic)):
            command += [f"--{option}", str(folder / name)]
        return CliRunner().invoke(cli, [*command, *options]), folder / out

    return run


def told(out: Path) -> dict[str, Any]:
    found = json.loads((out / "synthetic.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_copies_are_found_listed_and_shown(folder: Path, attack: Attack) -> None:
    result, out = attack(*DISTANCES)
    assert result.exit_code == 1, result.output
    assert "LEAKS: copies (excess:exact" in result.output
    assert "access: samples" in result.output
    found = told(out)
    assert {"attack": "copies", "figure": "excess:exact"} in found["leaks"]
    assert not found["void"]
    assert [r["attack"] for r in found["results"]] == ["copies", "nearest", "density"]
    assert {i["role"]: i["rows"] for i in found["inputs"]} == {
        "train": 300, "holdout": 300, "synthetic": 300,
    }  # fmt: skip
    for measured in found["results"]:
        for figure in measured["figures"]:
            estimate = figure["estimate"]
            assert bool(estimate) != bool(figure["unmeasured"])
            if estimate:
                assert estimate["low"] <= estimate["value"] <= estimate["high"]
                assert estimate["confidence"] >= 0.95
                assert estimate["n"] > 0
    copies = pd.read_parquet(out / "copies.parquet")
    np.testing.assert_array_equal(copies.synthetic_row, np.arange(240, 300))
    np.testing.assert_array_equal(copies.train_row, np.arange(240, 300))
    assert (copies.kind == "exact").all()
    assert len(pd.read_parquet(out / "nearest.parquet")) == 300
    assert len(pd.read_parquet(out / "density.parquet")) == 450
    assert sorted(p.name for p in out.iterdir()) == [
        "copies.parquet", "density.parquet", "nearest.parquet", "synthetic.json",
    ]  # fmt: skip


def test_where_nothing_is_found_the_answer_is_inconclusive(attack: Attack) -> None:
    result, out = attack(*DISTANCES, synthetic="clean.csv")
    assert result.exit_code == 3, result.output
    assert "INCONCLUSIVE" in result.output
    assert told(out)["leaks"] == []


def test_train_and_holdout_that_differ_make_it_void(folder: Path, attack: Attack) -> None:
    draw(300, 1).assign(b=lambda f: f.b + 3).to_parquet(folder / "holdout.parquet")
    result, out = attack(*DISTANCES)
    assert result.exit_code == 3, result.output
    assert "VOID" in result.output
    assert told(out)["void"]
    assert told(out)["leaks"] == []


def test_every_attack_runs_by_default_with_secrets_and_parts(attack: Attack) -> None:
    result, out = attack("--secret", "region", "--part", "a,b", "--part", "c,d")
    assert result.exit_code == 1, result.output
    found = told(out)
    assert [r["attack"] for r in found["results"]] == [
        "copies", "nearest", "density", "singling_out", "linkability", "inference", "uniqueness",
    ]  # fmt: skip
    assert found["refused"] == {}
    inference = next(r for r in found["results"] if r["attack"] == "inference")
    excess = [f["name"] for f in inference["figures"] if f["name"].startswith("excess_risk")]
    assert excess == ["excess_risk:region"]


def test_each_attack_pays_for_the_number_tried(attack: Attack) -> None:
    _, one = attack("--attacks", "copies", out="one")
    _, three = attack(*DISTANCES, out="three")
    confidences = [
        next(
            f["estimate"]["confidence"]
            for f in told(out)["results"][0]["figures"]
            if f["name"] == "excess:exact"
        )
        for out in (one, three)
    ]
    assert confidences == [pytest.approx(1 - 0.05 / 3), pytest.approx(1 - 0.05 / 9)]


def test_json_is_what_the_file_holds_and_the_seed_repeats_it(attack: Attack) -> None:
    result, out = attack(*DISTANCES, "--json", "--seed", "7")
    assert json.loads(result.stdout) == told(out)
    again, _ = attack(*DISTANCES, "--json", "--seed", "7", out="again")
    other, _ = attack(*DISTANCES, "--json", "--seed", "8", out="other")

    def density(result: Result) -> Any:
        return json.loads(result.stdout)["results"][2]["figures"]

    assert density(result) == density(again)
    assert density(result) != density(other)


def test_a_column_of_text_is_compared_by_its_words(folder: Path, attack: Attack) -> None:
    random = np.random.default_rng(0)
    words = [f"word{k}" for k in range(99)]
    notes = {n: [" ".join(random.choice(words, 9)) for _ in range(200)] for n in ("a", "b")}
    notes["c"] = [" ".join(random.permutation(note.split())[:8]) for note in notes["a"]]
    for name, texts in notes.items():
        pd.DataFrame({"note": texts}).to_csv(folder / f"{name}.csv", index=False)
    files = {"train": "a.csv", "holdout": "b.csv", "synthetic": "c.csv"}
    result, out = attack("--attacks", "nearest", "--text", "note", **files)
    assert result.exit_code == 1, result.output
    assert told(out)["leaks"][0] == {"attack": "nearest", "figure": "share:closer_to_train"}


def test_files_of_any_length_are_searched_for_exact_copies(attack: Attack) -> None:
    result, out = attack("--stream")
    assert result.exit_code == 1, result.output
    assert told(out)["leaks"] == [{"attack": "copies", "figure": "excess:exact"}]
    assert told(out)["blind_baseline"] is None
    assert len(pd.read_parquet(out / "copies.parquet")) == 60
    result, _ = attack("--stream", synthetic="clean.csv", out="clean")
    assert result.exit_code == 3, result.output


def test_attacks_that_need_more_records_are_noted(folder: Path, attack: Attack) -> None:
    draw(10, 1).to_csv(folder / "few.csv", index=False)
    result, out = attack(holdout="few.csv", synthetic="clean.csv")
    assert result.exit_code == 3, result.output
    assert "density did not run" in result.output
    assert told(out)["refused"]["density"].startswith("density: 300 train and 10 holdout records")
    result, _ = attack(*DISTANCES, holdout="few.csv", out="named")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("options", "files", "said"),
    [
        ((), {"train": "none.csv"}, "none.csv: is missing"),
        ((), {"synthetic": "lacks.csv"}, "synthetic: lacks 'd', unlike train"),
        ((), {"synthetic": "twice.csv"}, "twice.csv: two columns are called 'a'; rename one"),
        ((), {"synthetic": "infinite.csv"}, "synthetic: column 'b', record 4: is infinite"),
        ((), {"synthetic": "words.csv"}, "synthetic: column 'c' holds text, dates or yes and no"),
        (("--attacks", "magic"), {}, "attacks: 'magic' is none of copies, nearest, density"),
        (("--attacks", "copies,,"), {}, "--attacks: 'copies,,': a name is empty"),
        (("--attacks", "generator_shadow"), {}, "generator_shadow trains the generator again"),
        (("--secret", "x"), {}, "--secret: 'x': there is none; train has a, b, c, d, day, region"),
        (("--part", "a"), {}, "--part: given 1 times; give it twice, once for each source"),
        (("--part", "a", "--part", "x"), {}, "--part: 'x': there is none"),
        (
            ("--stream", "--text", "a"),
            {},
            "--stream: looks for exact copies alone; leave the other",
        ),
        (("--stream",), {"synthetic": "lacks.csv"}, "synthetic: lacks 'd', unlike train"),
        (("--text", "x"), {}, "train: has no column 'x', which is named as text"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    folder: Path, attack: Attack, options: tuple[str, ...], files: dict[str, str], said: str
) -> None:
    frame = draw(20, 5)
    frame.drop(columns="d").to_csv(folder / "lacks.csv", index=False)
    frame.rename(columns={"b": "a"}).to_csv(folder / "twice.csv", index=False)
    infinite = frame.assign(b=np.where(frame.index == 4, np.inf, frame.b))
    infinite.to_csv(folder / "infinite.csv", index=False)
    frame.assign(c="high").to_csv(folder / "words.csv", index=False)
    result, out = attack(*options, **files)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()
    assert not list(out.parent.glob(".out.*"))


def test_what_the_command_wrote_is_replaced_by_force_and_nothing_else(attack: Attack) -> None:
    options = ("--attacks", "copies")
    assert attack(*options)[0].exit_code == 1
    assert attack(*options)[0].exit_code == 2
    result, out = attack(*options, "--force")
    assert result.exit_code == 1
    (out / "mine.txt").write_text("keep")
    result, _ = attack(*options, "--force")
    assert result.exit_code == 2
    assert (out / "mine.txt").read_text() == "keep"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from audit.cli.main import cli\n"
        "try: cli.main(['attack', 'synthetic', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "dpassay attack synthetic --train" in done.stdout


def test_a_holdout_that_is_train_is_refused_and_shared_records_are_counted(
    attack: Attack, folder: Path
) -> None:
    for options in ((), ("--stream",)):
        result, out = attack(*options, holdout="train.csv")
        assert result.exit_code == 2
        assert "train.csv: holdout is the same file as train" in result.stderr
        assert not out.exists()
    shared = pd.concat([draw(250, 1), draw(300, 0).head(50)], ignore_index=True)
    shared.to_csv(folder / "shared.csv", index=False)
    result, out = attack("--attacks", "copies", holdout="shared.csv")
    assert "50 of 300 holdout records equal a training record" in result.stdout
    told = json.loads((out / "synthetic.json").read_text(encoding="utf-8"))
    assert told["holdout_records_in_train"] == 50


def test_a_comma_at_the_end_of_rows_hides_no_copies(attack: Attack, folder: Path) -> None:
    header, *rows = (folder / "train.csv").read_text(encoding="utf-8").splitlines()
    for name, end in (("commas", ","), ("extra", ",7")):
        text = "\n".join([header, *(row + end for row in rows)])
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    result, _ = attack("--attacks", "copies", synthetic="commas.csv")
    assert result.exit_code == 1, result.output
    result, _ = attack(synthetic="extra.csv", out="again")
    assert result.exit_code == 2
    assert "extra.csv: rows hold more fields than the header names" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seed", "-1"), "--seed"),
        (("--seed", "99999999999999999999"), "--seed"),
        (("--attacks", "copies", "--secret", "a"), "--secret: is for inference and uniqueness"),
        (("--attacks", "copies", "--part", "a", "--part", "b"), "--part: is for linkability"),
    ],
)
def test_options_that_nothing_would_use_are_refused(
    attack: Attack, options: tuple[str, ...], said: str
) -> None:
    result, out = attack(*options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not out.exists()
