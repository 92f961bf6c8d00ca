"""Tables of every sort: the right coding, or one line that says what is wrong.

Then the three distance attacks on what other people's tools broke on.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from attacks.synthetic import registry
from attacks.synthetic.tables import code, read_table
from attacks.synthetic.text import embed

ATTACKS = ("copies", "nearest", "density")


def three(make, n=60):
    """The same kind of table three times, of n, n and n // 2 records."""
    sizes = {"train": n, "holdout": n, "synthetic": n // 2}
    return {
        name: make(np.random.default_rng(k), size) for k, (name, size) in enumerate(sizes.items())
    }


def measured(result):
    return {f.name: f.estimate for f in result.figures if f.estimate}


def test_the_kinds_of_columns_and_their_values():
    frame = pd.DataFrame(
        {
            "n": [1, 2, 3],
            "f": [0.5, None, -2.0],
            "b": [True, False, True],
            "s": ["x", None, "O'Brien"],
            "d": pd.to_datetime(["2020-01-01", None, "2020-01-02"]),
            "t": ["2020-01-01", "2020-01-02T12:00", "2020-01-03"],
            "c": pd.Categorical(["u", "v", None]),
        }
    )
    found = code({"train": frame, "synthetic": frame.iloc[[1]]})
    assert [(c.name, c.kind) for c in found.numeric] == [
        ("n", "number"), ("f", "number"), ("d", "date"), ("t", "date"),
    ]  # fmt: skip
    assert [(c.name, c.levels) for c in found.categorical] == [
        ("b", ("False", "True")), ("s", ("O'Brien", "x")), ("c", ("u", "v")),
    ]  # fmt: skip
    day = 86400.0
    start = pd.Timestamp("2020-01-01").timestamp()
    np.testing.assert_array_equal(
        found["train"].numbers,
        [
            [1, 0.5, start, start],
            [2, np.nan, np.nan, start + 1.5 * day],
            [3, -2, start + day, start + 2 * day],
        ],
    )
    np.testing.assert_array_equal(found["train"].codes, [[1, 1, 0], [0, -1, 1], [1, 0, -1]])
    np.testing.assert_array_equal(found["synthetic"].codes, [[0, -1, 1]])


def test_one_value_is_one_value_in_every_table():
    one = code(
        {
            "train": pd.DataFrame(
                {"x": [1, 2], "y": [1.0, "a"], "z": pd.array([1, None], "Int64")}
            ),
            "synthetic": pd.DataFrame({"z": [1.0, np.nan], "y": [1, "a"], "x": [1.0, 2.0]}),
        }
    )
    np.testing.assert_array_equal(one["train"].numbers, one["synthetic"].numbers)
    np.testing.assert_array_equal(one["train"].codes, one["synthetic"].codes)


def test_dates_with_time_zones_are_the_same_moment():
    paris = pd.Series(["2020-07-01T12:00+02:00", "2020-07-01T13:00+02:00"])
    utc = pd.Series(pd.to_datetime(["2020-07-01 10:00", "2020-07-01 11:00"]).tz_localize("UTC"))
    local = utc.dt.tz_convert("Asia/Tokyo")
    found = code(
        {n: pd.DataFrame({"d": d}) for n, d in zip("abc", (paris, utc, local), strict=True)}
    )
    for name in "bc":
        np.testing.assert_array_equal(found["a"].numbers, found[name].numbers)


def test_parquet_dates_and_decimals_are_dates_and_numbers():
    """A Parquet file gives them as Python objects; a CSV file as text and floats."""
    parquet = pd.DataFrame(
        {
            "day": [date(2020, 1, 1), date(9999, 12, 31), None],
            "time": pd.Series([datetime(2020, 1, 1, 12), None, datetime(1, 1, 1)], dtype=object),
            "price": [Decimal("1.50"), None, Decimal("-2")],
        }
    )
    csv = pd.DataFrame(
        {
            "day": ["2020-01-01", "9999-12-31", None],
            "time": ["2020-01-01T12:00", None, "0001-01-01"],
            "price": [1.5, None, -2.0],
        }
    )
    found = code({"train": parquet, "synthetic": csv})
    assert [c.kind for c in found.numeric] == ["date", "date", "number"]
    np.testing.assert_array_equal(found["train"].numbers, found["synthetic"].numbers)
    day = (date(9999, 12, 31) - date(1970, 1, 1)).days
    assert found["train"].numbers[1, 0] == day * 86400


@pytest.mark.parametrize(
    ("train", "synthetic", "said"),
    [
        ({"a": [1]}, {"b": [1]}, "synthetic: lacks 'a', unlike train"),
        ({"a": [1]}, {"a": [1], "b": [1]}, "synthetic: has 'b', unlike train"),
        (
            {"a": [1, 2]},
            {"a": ["1", "x"]},
            "synthetic: column 'a' holds text, dates or yes and no where",
        ),
        ({"a": [True]}, {"a": [1]}, "train: column 'a' holds text, dates or yes and no where syn"),
        ({"a": [1.0]}, {"a": [np.inf]}, "synthetic: column 'a', record 0: is infinite"),
        ({"a": [1.0, -np.inf]}, {"a": [1.0]}, "train: column 'a', record 1: is infinite"),
        ({"a": [[1, 2]]}, {"a": [[1]]}, "train: column 'a' holds lists"),
        ({"a": [1j]}, {"a": [1j]}, "train: column 'a' holds complex numbers"),
        ({"a": []}, {"a": [1]}, "train: holds no records"),
        ({"a": [1]}, {"a": []}, "synthetic: holds no records"),
        (
            {"a": ["2020-01-01"]},
            {"a": ["2020-01-01T00:00Z"]},
            "column 'a': dates with and without a time zone",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(train, synthetic, said):
    with pytest.raises(ValueError, match="^" + re.escape(said)) as error:
        code({"train": pd.DataFrame(train), "synthetic": pd.DataFrame(synthetic)})
    assert "\n" not in str(error.value)


def test_two_columns_of_one_name_are_refused_in_frames_and_files(tmp_path):
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(ValueError, match="train: two columns are called 'a'; rename one"):
        code({"train": frame})
    with pytest.raises(ValueError, match="two columns are called '1'"):
        code({"train": pd.DataFrame([[1, 2]], columns=[1, "1"])})
    file = tmp_path / "t.csv"
    file.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match=r"t\.csv: two columns are called 'a'"):
        read_table(file)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "holds no records"),
        ("t.csv", b"a,b\n", "holds no records"),
        ("t.csv", b"a,b\n1,2\n1,2,3,4\n", "is no CSV file .Expected 2 fields in line 3"),
        ("t.csv", b"a,b\n0,2,5\n1,3,7\n", "rows hold more fields than the header names"),
        ("t.csv", b"\xff\xfe\x00\x01\n", "is no UTF-8 text; save it as UTF-8"),
        ("t.csv", b'a,"' + b"x" * 200_000 + b'"\n1,2\n', "is no CSV file .field larger than"),
        ("t.parquet", b"no parquet", "t.parquet: "),
        ("t.pkl", b"x", "must be a .csv or .parquet file"),
    ],
)
def test_broken_files_are_one_line(tmp_path, name, content, said):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as error:
        read_table(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv: is missing"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv: cannot be read"):
        read_table(tmp_path / "folder.csv")


def days(rng, n):
    return pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"))


ODD = {
    "all missing": lambda rng, n: pd.DataFrame({"a": [None] * n, "b": rng.normal(size=n)}),
    "all missing numbers": lambda rng, n: pd.DataFrame(
        {"a": np.full(n, np.nan), "b": rng.normal(size=n)}
    ),
    "constant": lambda rng, n: pd.DataFrame({"a": [0.0] * n, "b": rng.normal(size=n)}),
    "10,000 levels": lambda rng, n: pd.DataFrame(
        {"a": rng.integers(0, 10_000, n).astype(str), "b": rng.integers(0, 3, n).astype(str)}
    ),
    "time zones": lambda rng, n: pd.DataFrame(
        {"a": days(rng, n).dt.tz_localize("UTC").dt.tz_convert("US/Pacific"), "b": range(n)}
    ),
    "missing dates": lambda rng, n: pd.DataFrame(
        {"a": days(rng, n).mask(rng.random(n) < 0.3), "b": rng.normal(size=n)}
    ),
    "negative": lambda rng, n: pd.DataFrame({"a": -rng.exponential(size=n), "b": -rng.random(n)}),
    "median zero": lambda rng, n: pd.DataFrame(
        {"a": np.where(rng.random(n) < 0.8, 0, rng.normal(size=n)), "b": rng.normal(size=n)}
    ),
    "apostrophes": lambda rng, n: pd.DataFrame(
        {"it's": rng.choice(["O'Brien", 'a "b"', "c;d", "e`f"], n), "b": rng.normal(size=n)}
    ),
    "integer column names": lambda rng, n: pd.DataFrame(rng.normal(size=(n, 3))),
    "pd.NA": lambda rng, n: pd.DataFrame(
        {
            "a": pd.array(rng.integers(0, 5, n), "Int64"),
            "b": pd.Series(rng.choice(["x", "y"], n), dtype="string"),
            "c": rng.normal(size=n),
        }
    ).mask(rng.random((n, 3)) < 0.2),
    "mixed types": lambda rng, n: pd.DataFrame(
        {"a": [k if k % 3 else f"t{k}" for k in range(n)], "b": rng.normal(size=n)}
    ),
    "40 columns": lambda rng, n: pd.DataFrame(rng.normal(size=(n, 40))).assign(
        **{f"c{k}": rng.choice(["x", "y"], n) for k in range(5)}
    ),
    "one column": lambda rng, n: pd.DataFrame({"a": rng.normal(size=n)}),
    "huge numbers": lambda rng, n: pd.DataFrame({"a": rng.choice([1e308, -1e308, 1e-300], n)}),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("odd", ODD, ids=ODD)
def test_odd_tables_give_figures_without_nan(odd, attack):
    found = measured(registry.run(attack, code(three(ODD[odd]))))
    assert found
    for name, estimate in found.items():
        assert estimate.low <= estimate.value <= estimate.high, name


@pytest.mark.parametrize("odd", ODD, ids=ODD)
def test_a_release_equal_to_train_is_told_for_every_odd_table(odd):
    """Every record is found as a copy of an equal one, and none but ties is nearer to holdout."""
    frames = three(ODD[odd])
    tables = code(frames | {"synthetic": frames["train"]})
    copies = registry.run("copies", tables)
    assert measured(copies)["copied:synthetic"].value == 1
    rows = copies.rows["train_row"]
    train = tables["train"]
    np.testing.assert_array_equal(train.numbers[rows], train.numbers)
    np.testing.assert_array_equal(train.codes[rows], train.codes)
    nearest = registry.run("nearest", tables)
    assert (nearest.rows["distance_train"] == 0).all()
    assert (nearest.rows["closer_to_train"] >= 0.5).all()


def test_single_records_are_measured_or_refused():
    one = {name: pd.DataFrame({"a": [k], "b": ["x"]}) for k, name in enumerate("abc")}
    tables = code(dict(zip(("train", "holdout", "synthetic"), one.values(), strict=True)))
    assert measured(registry.run("copies", tables))["copied:train"].value == 0
    assert registry.run("nearest", tables).rows["distance_train"].shape == (1,)
    with pytest.raises(ValueError, match="density: 1 train and 1 holdout records"):
        registry.run("density", tables)


def test_the_registry_refuses_what_it_cannot_run():
    tables = code({"train": pd.DataFrame({"a": [1]})})
    with pytest.raises(ValueError, match="attacks: 'magic' is none of copies, nearest"):
        registry.run("magic", tables)
    with pytest.raises(ValueError, match="attacks: copies needs the table 'holdout'"):
        registry.run("copies", tables)
    with pytest.raises(ValueError, match="attacks: generator_shadow trains the generator again"):
        registry.run("generator_shadow", tables)


def test_texts_become_numbers_that_know_their_words():
    texts = {
        "train": ["pain in the chest", "broken leg", None, "pain in the chest"],
        "synthetic": ["chest pain", "left leg broken", "pain in the chest"],
    }
    frames = {n: pd.DataFrame({"note": t, "age": range(len(t))}) for n, t in texts.items()}
    found = embed(frames, ["note"])
    assert all("note" not in frame for frame in found.values())
    train, new = (found[n].filter(like="note").to_numpy() for n in texts)
    assert np.isnan(train[2]).all()
    assert not np.isnan(new).any()
    np.testing.assert_array_equal(train[0], train[3])
    np.testing.assert_array_equal(train[0], new[2])
    apart = ((train[:, None] - new[None]) ** 2).sum(axis=2)
    assert apart[0, 0] < apart[0, 1]
    assert apart[1, 1] < apart[1, 0]
    again = embed(frames, ["note"])
    for name in texts:
        pd.testing.assert_frame_equal(again[name], found[name])


def test_what_the_release_copies_does_not_move_the_texts_of_real_tables():
    """Else copied words would tell train from holdout without the release."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice([f"w{k}" for k in range(40)], 6)) for _ in range(60)]
    real = {"train": pd.DataFrame({"t": texts[:30]}), "holdout": pd.DataFrame({"t": texts[30:]})}
    one = embed(real | {"synthetic": real["train"]}, ["t"])
    other = embed(real | {"synthetic": pd.DataFrame({"t": ["nothing alike"]})}, ["t"])
    for name in real:
        pd.testing.assert_frame_equal(one[name], other[name])


def test_texts_that_cannot_be_used_are_one_line():
    frame = pd.DataFrame({"note": [None, " "]})
    with pytest.raises(ValueError, match="column 'note': no text holds a word; leave --text off"):
        embed({"train": frame}, ["note"])
    with pytest.raises(ValueError, match="train: has no column 'x', which is named as text"):
        embed({"train": frame}, ["x"])


def test_copied_texts_are_nearer_than_texts_with_other_words():
    rng = np.random.default_rng(0)
    words = np.array([f"word{k}" for k in range(200)])

    def texts(n):
        return pd.DataFrame({"note": [" ".join(rng.choice(words, 12)) for _ in range(n)]})

    train, holdout = texts(80), texts(80)
    shuffled = train.note.map(lambda t: " ".join(rng.permutation(t.split())[:11]))
    frames = {"train": train, "holdout": holdout, "synthetic": pd.DataFrame({"note": shuffled})}
    found = measured(registry.run("nearest", code(embed(frames, ["note"]))))
    assert found["share:closer_to_train"].low > 0.5
