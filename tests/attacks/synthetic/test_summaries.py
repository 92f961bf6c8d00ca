"""Summaries of tables against pandas, brute force and closed forms."""

import numpy as np
import pandas as pd
import pytest

from attacks.synthetic.summaries import BINS, FLOOR, NEAREST, Summary
from attacks.synthetic.tables import Coded, code
from attacks.synthetic.vulnerable import distances

TARGETS = np.array([0, 7, 30])


def frame(n, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "a": rng.normal(3, 2, n),
            "b": rng.exponential(5, n),
            "c": rng.choice(["x", "y", "z"], n, p=[0.6, 0.3, 0.1]),
        }
    )
    table["b"] += table["a"]
    return table


POOL, TABLE = frame(200, 0), frame(150, 1)
CODED = code({"pool": POOL, "table": TABLE})
SUMMARY = Summary.of(CODED["pool"], TARGETS)


def test_whole_tables_are_summarised_as_pandas_does():
    found = SUMMARY.whole(CODED["table"])
    scaled = (TABLE[["a", "b"]] - POOL[["a", "b"]].mean()) / POOL[["a", "b"]].std(ddof=0)
    shares = TABLE["c"].value_counts(normalize=True)[["x", "y", "z"]]
    expected = [*scaled.mean(), *scaled.std(ddof=0), 0, 0, *shares]
    assert np.allclose(found["naive"], expected)
    assert np.allclose(found["range"], [*scaled.min(), *scaled.max()])
    marks = pd.get_dummies(TABLE["c"]).astype(float)[["x", "y", "z"]]
    correlations = pd.concat([scaled, marks], axis=1).corr().to_numpy()
    assert np.allclose(found["correlation"], correlations[np.triu_indices(5, 1)])


def test_bins_are_quantiles_of_the_pool():
    own = SUMMARY.whole(CODED["pool"])["histogram"]
    assert np.allclose(own, 1 / BINS)
    edges = np.quantile(POOL["a"], np.linspace(0, 1, BINS + 1)[1:-1])
    counts = np.histogram(TABLE["a"], [-np.inf, *edges, np.inf])[0]
    assert np.allclose(SUMMARY.whole(CODED["table"])["histogram"][:BINS], counts / len(TABLE))


def test_near_a_target_counts_are_those_of_brute_force():
    pool, table = CODED["pool"], CODED["table"]
    copied = Coded(
        np.vstack([table.numbers, pool.numbers[[7, 7]]]),
        np.vstack([table.codes, pool.codes[[7, 7]]]),
    )
    found = SUMMARY.near(copied)
    gaps = distances(pool.take(TARGETS), copied, SUMMARY.unit)
    among = distances(pool.take(TARGETS), pool, SUMMARY.unit)
    among[np.arange(3), TARGETS] = np.inf
    radii = np.sort(among, axis=1)[:, [0, 4, 19]]
    assert np.allclose(SUMMARY.radii, radii)
    nearest = np.sort(gaps, axis=1)[:, :NEAREST]
    floor = FLOOR * radii[:, :1]
    assert np.allclose(found["distance"][:, :NEAREST], np.log(nearest + floor))
    within = [[(row <= r).sum() for r in own] for row, own in zip(gaps, radii, strict=True)]
    assert np.allclose(np.exp(found["distance"][:, NEAREST:]) - 1, within)
    assert np.allclose(np.exp(found["matches"][:, 0]) - 1, [0, 2, 0])
    bins = [np.digitize(copied.numbers[:, j], SUMMARY.edges[j]) for j in range(2)]
    for k, row in enumerate(TARGETS):
        agree = copied.codes[:, 0] == pool.codes[row, 0]
        agree = agree.astype(int) + sum(
            bins[j] == np.digitize(pool.numbers[row, j], SUMMARY.edges[j]) for j in range(2)
        )
        assert np.allclose(
            np.exp(found["matches"][k, 1:]) - 1, [(agree >= 3 - slack).sum() for slack in (0, 1, 2)]
        )


def test_the_influence_on_a_mean_is_known_in_closed_form():
    """Mean with the record minus mean without it: (x - mean) / (n - 1)."""
    found = SUMMARY.influence(CODED["pool"], TARGETS)["naive"][:, :2]
    scaled = (CODED["pool"].numbers - SUMMARY.centre) / SUMMARY.unit
    assert np.allclose(found, scaled[TARGETS] / (len(POOL) - 1))


def test_only_the_extreme_record_moves_the_range():
    top = int(POOL["a"].argmax())
    rows = np.array([top, (top + 1) % 200])
    moved = Summary.of(CODED["pool"], rows).influence(CODED["pool"], rows)["range"]
    highest, second = np.sort(POOL["a"])[[-1, -2]]
    assert moved[0, 2] == pytest.approx((highest - second) / POOL["a"].std(ddof=0))
    assert moved[1, 2] == 0


def test_missing_constant_and_unknown_values_leave_finite_numbers():
    pool, table = POOL.copy(), TABLE.copy()
    pool["same"], table["same"] = 4.0, 4.0
    pool.loc[::3, "a"], table["a"] = np.nan, np.nan  # all of it in the table
    pool.loc[::4, "c"] = None
    table.loc[:, "c"] = "never seen"
    coded = code({"pool": pool, "table": table})
    summary = Summary.of(coded["pool"], TARGETS)
    for part in (summary.whole(coded["table"]), summary.near(coded["table"])):
        assert all(np.isfinite(values).all() for values in part.values())
    (share,) = summary.whole(coded["pool"])["naive"][6:7]  # a's share of missing
    assert share == pytest.approx(pool["a"].isna().mean())


def test_a_rare_level_counts_where_a_target_has_it():
    pool = frame(200, 0).assign(c=[f"level {i % 40}" for i in range(199)] + ["once"])
    coded = code({"pool": pool})["pool"]
    with_, without = (Summary.of(coded, np.array([row])) for row in (199, 0))
    once = coded.codes[199, 0]
    assert once in with_.levels[0]
    assert once not in without.levels[0]


def test_a_table_of_categories_alone_is_summarised():
    pool = pd.DataFrame({"c": list("xyyz") * 10, "d": list("uuvv") * 10})
    coded = code({"pool": pool})["pool"]
    summary = Summary.of(coded, np.array([0]))
    assert summary.whole(coded)["naive"].tolist() == pytest.approx([0.5, 0.25, 0.25, 0.5, 0.5])
    assert np.isfinite(summary.near(coded)["distance"]).all()


def test_too_small_a_pool_is_refused():
    with pytest.raises(ValueError, match="pool: 20 records; needs more than 20"):
        Summary.of(CODED["pool"].take(np.arange(20)), np.array([0]))
