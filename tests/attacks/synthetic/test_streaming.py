"""Exact copies from files read in pieces: what the attack on whole tables finds."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))

import frames

from attacks.synthetic.copies import attack
from attacks.synthetic.streaming import exact_copies
from attacks.synthetic.tables import code, read_table

NAMES = ("train", "holdout", "synthetic")


def written(folder, tables, kinds):
    files = {name: folder / f"{name}.{kind}" for name, kind in zip(tables, kinds, strict=True)}
    for name, path in files.items():
        if path.suffix == ".csv":
            tables[name].to_csv(path, index=False)
        else:
            tables[name].to_parquet(path)
    return files


@pytest.mark.parametrize("kinds", [("csv", "csv", "csv"), ("csv", "parquet", "parquet")])
def test_pieces_give_what_whole_tables_give(tmp_path, kinds):
    train, holdout, synthetic = (frames.mixed(400, seed) for seed in range(3))
    planted, _ = frames.plant(synthetic, train, 0.2)
    tables = {"train": train, "holdout": holdout, "synthetic": planted}
    files = written(tmp_path, tables, kinds)
    whole = attack(code({name: read_table(path) for name, path in files.items()}), edits=0)
    wanted = np.flatnonzero(whole.rows["kind"] == "exact")
    for piece in (10_000, 37):
        found = exact_copies(files, confidence=1 - 0.05 / 3, piece=piece)
        for column in ("synthetic_row", "train_row", "by_chance"):
            np.testing.assert_array_equal(found.rows[column], whole.rows[column][wanted])
        figures = [{f.name: f.estimate for f in r.figures} for r in (found, whole)]
        assert figures[0]["excess:exact"] == figures[1]["excess:exact"]
        assert figures[0]["excess:exact"].low > 0


def test_a_column_is_one_kind_in_all_pieces(tmp_path):
    """Numbers in the first piece and words in the next are words in both."""
    values = [*map(str, range(50)), "high", *map(str, range(50, 99))]
    frame = pd.DataFrame({"a": values, "b": [None] * 60 + list(range(40))})
    files = written(tmp_path, dict.fromkeys(NAMES, frame), ["csv"] * 3)
    found = exact_copies(files, piece=10)
    np.testing.assert_array_equal(found.rows["train_row"], np.arange(100))
    assert found.rows["by_chance"].all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "synthetic.csv: holds no records"),
        ("a,b,a\n1,2,3\n", "two columns are called 'a'; rename one"),
        ("a\n1\n", "synthetic: lacks 'b', unlike train"),
        ("a,b\nx,1\n", "synthetic: column 'a' holds text, dates or yes and no"),
        ("a,b\n1,2,3,4\n1\n1,2,3,4,5\n", "synthetic.csv: "),
    ],
)
def test_bad_files_are_one_line(tmp_path, text, said):
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    files = written(tmp_path, dict.fromkeys(NAMES, frame), ["csv"] * 3)
    files["synthetic"].write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        exact_copies(files)
    assert "\n" not in str(error.value)


def test_a_truth_value_is_the_same_however_it_is_written(tmp_path):
    answers = np.random.default_rng(0).integers(0, 2, 100).astype(bool)
    train = pd.DataFrame({"n": np.arange(100), "yes": answers})
    spelled = {"train": train, "holdout": train.assign(n=train.n + 1000)}
    spelled["synthetic"] = train.assign(yes=train.yes.map({True: "TRUE", False: "false"}))
    found = exact_copies(written(tmp_path, spelled, ["csv", "parquet", "csv"]), piece=30)
    np.testing.assert_array_equal(found.rows["train_row"], np.arange(100))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("n,day\n1,2020-01-01\ninf,2020-01-02\n", "synthetic: column 'n', record 1: is infinite"),
        ("n,day\n1,2020-01-01T00:00+00:00\n", "column 'day': dates with and without a time zone"),
        ("n,day\n1,2020-01-01,3\n", "synthetic.csv: rows hold more fields than the header names"),
    ],
)
def test_what_whole_tables_refuse_is_refused(tmp_path, content, said):
    files = {name: tmp_path / f"{name}.csv" for name in NAMES}
    for path in files.values():
        path.write_text("n,day\n1,2020-01-01\n2,2020-01-05\n", encoding="utf-8")
    files["synthetic"].write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        exact_copies(files, piece=1)
