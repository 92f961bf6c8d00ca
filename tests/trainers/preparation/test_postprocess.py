"""Post-processing: what each step removes, and that a look at raw data is never called free."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from audit.accounting import rdp
from audit.ledger import read
from audit.ledger_checks import verify
from audit.lineage import Lineage, read_lineage
from trainers.preparation.access_record import describe, save
from trainers.preparation.gower import near
from trainers.preparation.postprocess import (
    drop_outliers,
    fingerprint,
    generalise_rare,
    remove_near,
)


def _table(n: int, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, whole numbers, dates, a constant, and categories of a long tail."""
    rng = np.random.default_rng(seed)
    income = rng.lognormal(10, 0.4, n)
    income[rng.random(n) < 0.1] = np.nan
    days = rng.integers(0, 3000, n)
    district = rng.geometric(0.3, n).astype(str).astype(object)
    district[rng.random(n) < 0.05] = None
    return pd.DataFrame(
        {
            "age": rng.integers(18, 95, n),
            "income": income,
            "seen": pd.Timestamp("2015-01-01") + pd.to_timedelta(days, "D"),
            "unit": 1,
            "district": district,
            "female": rng.random(n) < 0.5,
        }
    )


def _gower(a: pd.Series, b: pd.Series, ranges: dict[str, float]) -> float:
    """The definition, one pair at a time."""
    total = 0.0
    for name in a.index:
        x, y = a[name], b[name]
        if pd.isna(x) or pd.isna(y):
            total += not (pd.isna(x) and pd.isna(y))
        elif ranges.get(name):
            gap = abs((x - y).total_seconds()) if name == "seen" else abs(float(x) - float(y))
            total += min(1.0, gap / ranges[name])
        else:
            total += x != y
    return total / len(a)


def _ranges(table: pd.DataFrame) -> dict[str, float]:
    spread = table["seen"].max() - table["seen"].min()
    found = {c: float(table[c].max() - table[c].min()) for c in ("age", "income")}
    return found | {"seen": spread.total_seconds()}


@pytest.mark.parametrize("distance", [0.02, 0.05, 0.1])
def test_near_records_are_those_of_the_definition(distance: float) -> None:
    table, raw = _table(60, 1), _table(80, 2)
    raw.iloc[:5] = table.iloc[:5].to_numpy()
    raw = raw.astype(table.dtypes.to_dict())
    raw.loc[2, "age"] += 3
    raw.loc[79, "income"] = 1e9  # far outside the synthetic range: a gap of 1, not more
    ranges = _ranges(table)
    truth = [
        min(_gower(table.loc[i], raw.loc[j], ranges) for j in raw.index) <= distance
        for i in table.index
    ]
    assert 0 < sum(truth) < len(table)
    assert near(table, raw, distance).tolist() == truth


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    table, raw = _table(150, 1), _table(170, 2)
    whole = near(table, raw, 0.15)
    monkeypatch.setattr("trainers.preparation.gower._ROWS", 7)
    monkeypatch.setattr("trainers.preparation.gower._OTHERS", 11)
    assert np.array_equal(near(table, raw, 0.15), whole)
    assert 0 < whole.sum() < 150


def test_every_planted_copy_goes_and_nothing_else() -> None:
    """Independent continuous values coincide with probability 0."""
    train, synthetic = _table(2000, 3), _table(2000, 4).drop(columns="unit")
    synthetic["income"] = synthetic["income"].fillna(1.5)
    train = train.drop(columns="unit")
    planted = np.arange(0, 2000, 20)
    synthetic.iloc[planted] = train.iloc[planted].to_numpy()
    synthetic = synthetic.astype(train.dtypes.to_dict())
    kept, step = remove_near(synthetic, train.sample(frac=1, random_state=0), 0.0)
    assert step.removed == len(planted)
    others = np.setdiff1d(np.arange(2000), planted)
    pd.testing.assert_frame_equal(kept, synthetic.iloc[others].reset_index(drop=True))


def test_exact_means_exact() -> None:
    """Numbers that float32 cannot tell apart are no copies of one another."""
    table = pd.DataFrame({"id": [16777217, 5], "x": [0.1, 0.2]})
    raw = pd.DataFrame({"id": [16777216, 5], "x": [0.1, 0.2]})
    assert near(table, raw, 0.0).tolist() == [False, True]


def test_a_distance_on_the_edge_is_inside() -> None:
    table = pd.DataFrame({c: ["a"] for c in "abcdefg"})
    raw = table.assign(c="b")
    assert near(table, raw, 1 / 7).tolist() == [True]
    assert near(table, raw, 0.99 / 7).tolist() == [False]


def test_no_column_counts_for_more_than_one() -> None:
    table = pd.DataFrame({"x": [0.0, 1.0, np.nan], "c": "a"})
    raw = pd.DataFrame({"x": [100.0], "c": "a"})
    assert near(table, raw, 0.5).tolist() == [True, True, True]
    assert near(table, raw, 0.49).tolist() == [False, False, False]


def test_fences_are_tukeys() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 12.0, -7.0, np.nan, np.inf]
    table = pd.DataFrame({"x": values, "mostly": [0] * 8 + [99], "word": list("abcdefghi")})
    kept, step = drop_outliers(table, reach=1.5)
    finite = np.array(values[:7])
    low, high = np.percentile(finite, [25, 75])
    inside = (finite >= low - 1.5 * (high - low)) & (finite <= high + 1.5 * (high - low))
    assert kept["x"].dropna().tolist() == finite[inside].tolist()
    assert kept["x"].isna().sum() == 1  # missing is no outlier; infinite is one
    assert step.removed == len(values) - len(kept)
    assert set(step.parameters["fences"]) == {"x"}  # equal quartiles: no fence
    assert step.raw is None


def test_dates_have_fences_too() -> None:
    days = [f"2020-01-{d:02d}" for d in range(1, 21)]
    table = pd.DataFrame({"day": [*days, "1900-01-01"]})
    kept, step = drop_outliers(table)
    assert kept["day"].tolist() == days
    assert step.removed == 1


def test_rare_categories_by_the_synthetic_counts_alone() -> None:
    table = _table(500, 5)
    counts = table["district"].value_counts()
    done, step = generalise_rare(table, 30)
    rare = counts[counts < 30]
    assert 1 < len(rare) < len(counts)
    assert (done["district"] == "other").sum() == rare.sum() == step.changed
    assert (done["district"].isna() == table["district"].isna()).all()
    left = done["district"][done["district"] != "other"].value_counts()
    assert left.to_dict() == counts[counts >= 30].to_dict()
    assert step.parameters["categories"]["district"] == {"levels": len(rare), "records": rare.sum()}
    pd.testing.assert_frame_equal(done.drop(columns="district"), table.drop(columns="district"))
    assert step.raw is None


def test_numbers_are_rounded_down_to_public_steps() -> None:
    table = pd.DataFrame({"age": [35, 39, 40, 7], "share": [0.3, 0.31, np.nan, -0.05]})
    done, step = generalise_rare(table, 2, {"age": 5, "share": 0.1})
    assert done["age"].tolist() == [35, 35, 40, 5]
    assert done["age"].dtype == table["age"].dtype  # whole numbers stay whole
    assert done["share"].tolist()[:2] == [0.3, 0.3]
    assert np.isnan(done["share"][2])
    assert done["share"][3] == -0.1
    assert step.changed == 2  # records, not values


@pytest.mark.parametrize("kind", ["boolean", "category", "string"])
def test_other_fits_into_columns_of_any_type(tmp_path: Path, kind: str) -> None:
    values: Any = [True] * 9 + [False] if kind == "boolean" else ["a"] * 9 + ["b"]
    table = pd.DataFrame({"x": pd.Series(values, dtype=kind)})
    done, step = generalise_rare(table, 2)
    assert done["x"].tolist()[-1] == "other"
    save(tmp_path / "out.parquet", done, [step])
    assert pd.read_parquet(tmp_path / "out.parquet")["x"].value_counts().tolist() == [9, 1]


def test_fingerprints_leave_order_out_and_nothing_else() -> None:
    table = _table(200, 6)
    shuffled = table.sample(frac=1, random_state=1)[list(table.columns[::-1])]
    assert fingerprint(shuffled) == fingerprint(table)
    other = table.copy()
    other.loc[17, "age"] += 1
    assert fingerprint(other) != fingerprint(table)
    assert fingerprint(table[1:]) != fingerprint(table)


HEAD: dict[str, Any] = {
    "delta": 1e-5,
    "populations": {"patients": {}},
    "stages": [
        {
            "id": "train",
            "reads": ["patients"],
            "budget": {
                "mechanisms": [
                    {"noise_multiplier": 1.41, "batch_size": 256, "records": 2000, "steps": 100}
                ]
            },
        },
        {"id": "generate", "kind": "generation", "inputs": ["train"]},
    ],
}


def _lineage(tmp_path: Path, record: dict[str, Any], promised: str) -> Lineage:
    """The record's part put into a LINEAGE.yaml as it stands: JSON is YAML."""
    part = record["lineage"]
    file = HEAD | {
        "populations": HEAD["populations"] | part["populations"],
        "stages": [*HEAD["stages"], *part["stages"]],
        "promises": [{"stage": promised, "epsilon": 5.1, "delta": 1e-5}],
    }
    path = tmp_path / "lineage.yaml"
    path.write_text(json.dumps(file), encoding="utf-8")
    return read_lineage(path)


def test_lineage_calls_free_what_is_free_and_the_filter_unbounded(tmp_path: Path) -> None:
    synthetic, train = _table(300, 7), _table(300, 8)
    table, first = drop_outliers(synthetic)
    table, second = generalise_rare(table, 5, {"age": 5})
    table, third = remove_near(table, train, 0.1, population="patients", name="train.csv")
    free = describe([first, second])
    assert not free["raw_data_access"]
    assert free["notes"] == []
    found = _lineage(tmp_path, free, "generalise-rare")
    [promise] = [f for f in found.findings if f.check == "lineage.promise"]
    assert promise.state == "supported"
    assert max(e.account.high for e in found.exposures) == pytest.approx(5.086, abs=1e-3)

    all_three = describe([first, second, third])
    assert all_three["raw_data_access"]
    [raw] = [s for s in all_three["steps"] if s["raw_data_access"]]
    assert raw["stage"] == "remove-near"
    assert raw["raw"]["fingerprint"] == fingerprint(train)
    assert raw["removed"] == 300 - first.removed - len(table)
    assert "statistic" in all_three["notes"][0]
    found = _lineage(tmp_path, all_three, "remove-near")
    by_stage = {e.stage: e.account.high for e in found.exposures}
    assert by_stage["remove-near"] == math.inf
    assert by_stage["generalise-rare"] == pytest.approx(5.086, abs=1e-3)  # what came before it
    [promise] = [f for f in found.findings if f.check == "lineage.promise"]
    assert promise.state == "refuted"
    [spoilt] = [f for f in found.findings if f.check == "lineage.raw"]
    assert spoilt.message == "lineage.filter"
    assert spoilt.values["populations"] == "patients"


def test_what_comes_after_the_filter_is_unbounded_too(tmp_path: Path) -> None:
    table, first = remove_near(_table(200, 9), _table(200, 10), 0.1, population="patients")
    table, second = generalise_rare(table, 5)
    found = _lineage(tmp_path, describe([first, second]), "generalise-rare")
    assert {e.account.high for e in found.exposures if e.stage == second.stage} == {math.inf}


def test_the_ledger_of_a_filter_is_that_of_an_access_without_noise(tmp_path: Path) -> None:
    train = _table(150, 11)
    table, step = remove_near(_table(200, 12), train, 0.1)
    out = tmp_path / "new" / "out.csv"
    save(out, table, [step])
    ledger = read(out.with_name("out.csv.ledger.jsonl"))
    assert not ledger.private
    assert rdp.epsilon(ledger.events(), 1e-5).epsilon == math.inf
    assert ledger.header is not None
    assert ledger.header.data_fingerprint == fingerprint(train)
    states = {f.check: f.state for f in verify(ledger, [out])}
    for check in ("chain", "steps", "end", "rate", "batches", "file"):
        assert states[f"ledger.{check}"] == "supported", check
    record = json.loads(out.with_name("out.csv.postprocess.json").read_text(encoding="utf-8"))
    assert record["ledger"]["file"] == "out.csv.ledger.jsonl"
    assert record["output"]["records"] == len(pd.read_csv(out)) == len(table)
    assert len(list(out.parent.iterdir())) == 3


def test_free_steps_write_no_ledger(tmp_path: Path) -> None:
    table, step = drop_outliers(_table(200, 13))
    save(tmp_path / "out.parquet", table, [step])
    written = sorted(p.name for p in tmp_path.iterdir())
    assert written == ["out.parquet", "out.parquet.postprocess.json"]


def test_a_step_that_is_left_out_is_noticed(tmp_path: Path) -> None:
    """The planted fault: the filter ran, and the record is to show the free steps alone."""
    synthetic, train = _table(200, 14), _table(200, 15)
    kept, first = drop_outliers(synthetic, 1.0)
    filtered, second = remove_near(kept, train, 0.1)
    done, third = generalise_rare(filtered, 5)
    assert second.removed
    with pytest.raises(ValueError, match="the table is not what drop-outliers left"):
        save(tmp_path / "out.csv", filtered, [first])
    with pytest.raises(ValueError, match="generalise-rare does not start from what drop-outliers"):
        save(tmp_path / "out.csv", done, [first, third])
    with pytest.raises(ValueError, match="one comes twice"):
        save(tmp_path / "out.csv", kept, [first, replace(first, before=first.after)])
    with pytest.raises(ValueError, match="there is none"):
        save(tmp_path / "out.csv", kept, [])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, step = remove_near(_table(50, 16), _table(50, 17), 0.05)
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"out\.csv: exists"):
        save(tmp_path / "out.csv", table, [step])
    with pytest.raises(ValueError, match=r"must be a \.csv or \.parquet"):
        save(tmp_path / "out.xlsx", table, [step])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainers.preparation.access_record._account", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "other.csv", table, [step])
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


A = pd.DataFrame({"x": [1.0, 2.0], "c": ["u", "v"]})
BROKEN: list[tuple[str, pd.DataFrame, pd.DataFrame]] = [
    ("train.csv: column 'c' is missing", A, A[["x"]]),
    ("synthetic: column 'z' is missing", A, A.assign(z=1)),
    ("train.csv: two columns are called 'x'", A, pd.concat([A, A[["x"]]], axis=1)),
    ("train.csv: holds no records", A, A[:0]),
    ("synthetic: holds no records", A[:0], A),
    ("train.csv: column 'x' holds numbers in one table", A, A.assign(x=["a", "b"])),
    ("train.csv: column 'x', record 1: is infinite", A, A.assign(x=[1.0, -np.inf])),
    ("synthetic: column 'x', record 0: is infinite", A.assign(x=[np.inf, 1.0]), A),
    ("synthetic: remove-near would leave no record", A, A),
]


@pytest.mark.parametrize(("said", "table", "raw"), BROKEN, ids=range(len(BROKEN)))
def test_tables_that_cannot_be_compared(said: str, table: pd.DataFrame, raw: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=said):
        remove_near(table, raw, 0.1, name="train.csv")


def test_settings_out_of_range() -> None:
    for distance in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="distance: must be"):
            remove_near(A, A, distance)
    for reach in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="reach: must be"):
            drop_outliers(A, reach)
    with pytest.raises(ValueError, match="least: must be at least 2"):
        generalise_rare(A, 1)
    for steps in ({"c": 1.0}, {"y": 1.0}, {"x": 0.0}):
        with pytest.raises(ValueError, match="steps: "):
            generalise_rare(A, 2, steps)
    _, step = drop_outliers(A)
    with pytest.raises(ValueError, match="lineage: 'a b' is no free name"):
        describe([step], after="a b")


ODD: dict[str, pd.DataFrame] = {
    "all missing": pd.DataFrame({"x": [np.nan] * 3, "c": list("abc")}),
    "one record": pd.DataFrame({"x": [1.0], "c": ["a"]}),
    "numbers as names": pd.DataFrame({0: [1.0, 2.0, 9.0], 1: list("abc")}),
    "with a zone": pd.DataFrame(
        {"t": pd.to_datetime(["2020-01-01", None, "2021-01-01"], utc=True)}
    ),
    "mixed": pd.DataFrame({"x": [1, "a", None]}, dtype=object),
    "nullable": pd.DataFrame({"x": pd.array([1, None, 3], "Int64")}),
    "apostrophes": pd.DataFrame({"c": ["o'neil", 'say "x"', "a\nb"]}),
}


@pytest.mark.parametrize("table", ODD.values(), ids=ODD.keys())
def test_odd_tables_pass_through(table: pd.DataFrame) -> None:
    kept, _ = drop_outliers(table)
    assert len(kept) == len(table)
    done, _ = generalise_rare(table, 2)
    assert list(done.columns) == list(table.columns)
    assert near(table, table, 0.0).all()
    assert near(table, table, 0.01).all()
    assert len(fingerprint(table)) == 64
