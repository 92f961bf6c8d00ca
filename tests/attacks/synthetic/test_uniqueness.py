"""Classes, k, l and t against loops and scipy; what reappears; sampling; awkward tables."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, wasserstein_distance

from attacks.synthetic import uniqueness
from attacks.synthetic.classes import among, class_sizes, classes, l_diversity, t_closeness
from attacks.synthetic.tables import code

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))
from frames import mixed, plant


def tables(train, holdout, synthetic):
    return code({"train": train, "holdout": holdout, "synthetic": synthetic})


def estimates(result):
    return {figure.name: figure.estimate for figure in result.figures}


def small(n, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 40, n),
            "spent": np.where(rng.random(n) < 0.2, np.nan, rng.integers(-3, 3, n)),
            "region": rng.choice(["north", "it's south", None], n),
            "ill": rng.choice(["no", "flu", "hiv"], n, p=[0.7, 0.2, 0.1]),
        }
    )


@pytest.fixture(scope="module")
def frames():
    return small(80, 1), small(80, 2), small(60, 3)


def test_every_line_is_what_pandas_counts(frames):
    result = uniqueness.attack(tables(*frames), sensitive=["ill", "spent"])
    lines = pd.DataFrame(dict(result.rows))
    asked = [c for k in (1, 2, 3) for c in itertools.combinations(frames[0].columns, k)]
    assert {frozenset(line.split(", ")) for line in lines["columns"]} == set(map(frozenset, asked))
    train, holdout, synthetic = (f.astype(object).where(f.notna(), "missing") for f in frames)
    for line in lines.to_dict("records"):
        names = line["columns"].split(", ")
        groups = train.groupby(names)
        sizes = groups.size()
        assert line["unique"] == pytest.approx((sizes == 1).sum() / len(train))
        assert line["k"] == sizes.min()
        seen = set(map(tuple, synthetic[names].to_numpy()))
        for key, side in (("reappear", train), ("reappear_holdout", holdout)):
            alone = side[~side.duplicated(names, keep=False)]
            again = [tuple(row) in seen for row in alone[names].to_numpy()]
            assert line[key] == pytest.approx(np.mean(again) if again else np.nan, nan_ok=True)
        if "ill" in names:
            assert np.isnan(line["l:ill"])
        else:
            assert line["l:ill"] == groups["ill"].nunique().min()
            whole = train["ill"].value_counts(normalize=True)
            gaps = [
                (g.value_counts(normalize=True).reindex(whole.index, fill_value=0) - whole)
                .abs()
                .sum()
                / 2
                for _, g in groups["ill"]
            ]
            assert line["t:ill"] == pytest.approx(max(gaps))
        if "spent" not in names:
            places = frames[0]["spent"].fillna(-np.inf).rank(method="dense").astype(int)
            gaps = [
                wasserstein_distance(places[rows.index], places) / (places.max() - 1)
                for _, rows in groups
            ]
            assert line["t:spent"] == pytest.approx(max(gaps))


def test_each_record_is_asked_about_one_of_its_combinations(frames):
    """The mean over seeds is that of the shares of each record's combinations that reappear."""
    shown = (f.astype(object).where(f.notna(), "missing") for f in frames)
    train, _, synthetic = shown
    given = tables(*frames)
    for name, size in uniqueness.SIZES.items():
        found = [estimates(uniqueness.attack(given, seed=s)) for s in range(40)]
        shares = [[] for _ in range(len(train))]
        for columns in itertools.combinations(train.columns, size):
            names = list(columns)
            seen = set(map(tuple, synthetic[names].to_numpy()))
            for row in np.flatnonzero(~train.duplicated(names, keep=False)):
                shares[row].append(tuple(train[names].iloc[row]) in seen)
        asked = [np.mean(share) for share in shares if share]
        if not asked:
            continue
        assert {f[f"attack_rate:{name}"].n for f in found} == {len(asked)}
        mean = np.mean([f[f"attack_rate:{name}"].value for f in found])
        spread = np.sqrt(sum(p * (1 - p) for p in asked)) / len(asked) / np.sqrt(40)
        assert mean == pytest.approx(np.mean(asked), abs=4 * spread + 1e-12)


def test_closed_form_of_t_and_l():
    """Li et al. 2007, section 5: the salaries 3k to 11k; {3k, 4k, 5k} is at 0.375, {6, 8, 11} at
    0.167."""
    salary = np.arange(9)
    first = classes(np.array([0, 0, 0, 1, 1, 1, 1, 1, 1], dtype=np.uint64))
    assert t_closeness(first, salary, ordered=True) == pytest.approx(0.375)
    assert l_diversity(first, salary) == 3
    second = classes(np.array([1, 2, 3, 0, 1, 0, 2, 3, 0], dtype=np.uint64))  # {6k, 8k, 11k}, pairs
    shares = [
        wasserstein_distance(rows, salary) / 8 for rows in ([3, 5, 8], [0, 4], [1, 6], [2, 7])
    ]
    assert shares[0] == pytest.approx(0.1667, abs=1e-4)
    assert t_closeness(second, salary, ordered=True) == pytest.approx(max(shares))
    assert l_diversity(second, salary) == 2
    assert t_closeness(first, np.zeros(9, np.int64), ordered=False) == 0


@pytest.mark.parametrize(("n", "different"), [(1, 1), (2, 1), (500, 30), (500, 5000)])
def test_sizes_and_membership_where_buckets_clash(n, different):
    """Keys of which many share their first bits, and so their bucket."""
    rng = np.random.default_rng(n + different)
    pool = rng.integers(0, 40, different).astype(np.uint64) << np.uint64(58)
    pool += rng.integers(0, 1000, different).astype(np.uint64)
    keys, other = rng.choice(pool, n), rng.choice(pool, n)
    assert class_sizes(keys).tolist() == [(keys == key).sum() for key in keys]
    assert among(other, keys).tolist() == [key in set(keys.tolist()) for key in other.tolist()]
    of = classes(keys)
    assert sorted(of.order.tolist()) == list(range(n))
    assert (class_sizes(keys)[of.order] == np.repeat(of.size, of.size)).all()


def test_five_percent_copies_are_found():
    train, holdout = mixed(3000, 1), mixed(3000, 2)
    synthetic, _ = plant(mixed(3000, 3), train, 0.05)
    found = estimates(uniqueness.attack(tables(train, holdout, synthetic)))
    for size in ("single", "pair", "triple"):
        assert found[f"excess_risk:{size}"].low > 0.01


def test_the_release_being_train_repeats_all():
    train = mixed(300, 1)
    result = uniqueness.attack(tables(train, mixed(300, 2), train))
    assert estimates(result)["attack_rate:triple"].value == 1
    assert np.nanmin(result.rows["reappear"]) == 1


def test_independent_releases_are_quiet():
    """25 releases at 2.5 % / 3 each."""
    alarms = 0
    columns = ["age", "ward", "region", "plan", "admitted"]
    for seed in range(25):
        given = tables(*(mixed(300, 4000 + 3 * seed + k) for k in range(3)))
        found = estimates(uniqueness.attack(given, columns=columns, seed=seed))
        alarms += any(found[f"excess_risk:{size}"].low > 0 for size in uniqueness.SIZES)
    assert alarms <= binom.ppf(0.999, 25, 0.025)


def test_beyond_the_limit_combinations_are_drawn_by_the_seed():
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.integers(0, 5, (50, 40)))
    given = tables(wide, wide, wide)
    one, same, other = (uniqueness.attack(given, limit=60, seed=s) for s in (1, 1, 2))
    assert one.rows["columns"].tolist() == same.rows["columns"].tolist()
    assert one.rows["columns"].tolist() != other.rows["columns"].tolist()
    assert len(set(one.rows["columns"].tolist())) == 40 + 60 + 60
    assert any("triples: 60 of 9880" in note for note in one.notes)


def test_few_columns_few_rows_constants_and_many_levels():
    one = pd.DataFrame({"x": [1.0]})
    result = uniqueness.attack(tables(one, one, one))
    assert estimates(result)["unique_records:single"].value == 1
    assert result.rows["k"].tolist() == [1]
    same = pd.DataFrame({"x": [1.0] * 5, "none": [np.nan] * 5})
    result = uniqueness.attack(tables(same, same, same), sensitive=["none"])
    found = {figure.name: figure for figure in result.figures}
    assert "no record is unique" in found["excess_risk:pair"].unmeasured
    assert result.rows["k"].tolist() == [5, 5, 5]
    levels = pd.DataFrame({"t": np.char.add("it's ", np.arange(10_000).astype(str)), "y": 1})
    result = uniqueness.attack(tables(levels, levels, levels), sensitive=["t"], columns=["t", "y"])
    assert estimates(result)["unique_records:single"].value == 1


def test_sides_of_different_size_are_made_equal(frames):
    result = uniqueness.attack(tables(frames[0], frames[1][:30], frames[2]))
    assert any("30 of them" in note for note in result.notes)
    assert estimates(result)["unique_records:triple"].n == 80
    assert estimates(result)["attack_rate:triple"].n <= 30


def test_bad_input(frames):
    given = tables(*frames)
    with pytest.raises(ValueError, match="columns: no column is called 'x'"):
        uniqueness.attack(given, columns=["x"])
    with pytest.raises(ValueError, match="sensitive: 'ill' is named twice"):
        uniqueness.attack(given, sensitive=["ill", "ill"])
    with pytest.raises(ValueError, match="limit: must be 1 or more"):
        uniqueness.attack(given, limit=0)
