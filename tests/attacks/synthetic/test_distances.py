"""The metric and the search against loops that do what the documentation says."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from attacks.synthetic import distances
from attacks.synthetic.distances import Points, between, coordinates, nearest, points
from attacks.synthetic.rows import cell_hashes, find, row_hashes
from attacks.synthetic.tables import code


def draw(n, seed, levels=(2, 5, 40, 400), missing=0.15, numbers=3, rounded=None):
    rng = np.random.default_rng(seed)
    units = rng.random((n, numbers))
    if rounded:
        units = np.round(units * rounded) / rounded
    units[rng.random(units.shape) < missing] = np.nan
    codes = np.column_stack([rng.integers(-1, size, n) for size in levels]).astype(np.int32)
    return Points(units, codes)


def apart(one, i, other, j):
    """The metric, cell by cell."""
    total = 0.0
    for x, y in zip(one.units[i], other.units[j], strict=True):
        if math.isnan(x) or math.isnan(y):
            total += math.isnan(x) != math.isnan(y)
        else:
            total += (x - y) ** 2
    total += sum(a != b for a, b in zip(one.codes[i], other.codes[j], strict=True))
    return math.sqrt(total)


def brute(one, other, k):
    """Distances to the k nearest different records, by the metric and every pair."""
    kept = {(*map(str, other.units[j]), *other.codes[j]): j for j in reversed(range(len(other)))}
    lines = [sorted(apart(one, i, other, j) for j in kept.values())[:k] for i in range(len(one))]
    return np.array([line + [np.inf] * (k - len(line)) for line in lines])


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"missing": 0.0},
        {"missing": 0.9},
        {"levels": (), "numbers": 2},
        {"levels": (400,), "numbers": 0},
        {"levels": (2, 3), "numbers": 1, "rounded": 3},  # few different records: many ties
        {"levels": (2,) * 60, "numbers": 1},
    ],
)
@pytest.mark.parametrize("k", [1, 3])
def test_the_nearest_are_those_of_a_loop_over_all_pairs(shape, k):
    shape = {"levels": (2, 5, 40, 400), **shape}
    if not shape["levels"]:
        one, other = (
            Points(draw(n, s, (2,), numbers=2).units, np.empty((n, 0), np.int32))
            for n, s in ((60, 0), (333, 1))
        )
    else:
        one, other = draw(60, 0, **shape), draw(333, 1, **shape)
    found, rows = nearest(one, other, k)
    np.testing.assert_allclose(found, brute(one, other, k), atol=1e-12)
    for i in range(len(one)):
        for distance, row in zip(found[i], rows[i], strict=True):
            if row < 0:
                assert np.isinf(distance)
            else:
                assert distance == pytest.approx(apart(one, i, other, row))


def test_a_block_of_any_size_gives_the_same(monkeypatch):
    one, other = draw(80, 2), draw(500, 3)
    found, _ = nearest(one, other, 2)
    for block, group, spare in ((1, 4, 0), (2000, 32, 0), (4096, 1, 1)):
        monkeypatch.setattr(distances, "BLOCK", block)
        monkeypatch.setattr(distances, "GROUP", group)
        monkeypatch.setattr(distances, "SPARE", spare)
        np.testing.assert_array_equal(nearest(one, other, 2)[0], found)


def test_coordinates_never_exceed_the_metric_and_are_it_where_nothing_is_shared():
    one, other = draw(100, 4), draw(100, 5)
    left, right = coordinates(one, other)
    euclidean = np.sqrt(((left - right) ** 2).sum(axis=1))
    assert (euclidean <= between(one, other) + 1e-9).all()
    one, other = (draw(100, s, (2, 5, 16), missing=0.0) for s in (4, 5))
    one = Points(one.units, np.abs(one.codes))
    other = Points(other.units, np.abs(other.codes))
    left, right = coordinates(one, other)
    euclidean = np.sqrt(((left - right) ** 2).sum(axis=1))
    np.testing.assert_allclose(euclidean, between(one, other), atol=1e-12)


def test_the_scale_is_the_place_among_the_different_values_of_the_real_tables():
    frames = {
        "train": pd.DataFrame({"x": [0.0, 0.0, 0.0, 10.0]}),
        "holdout": pd.DataFrame({"x": [0.0, 1.0, 1e9]}),
        "synthetic": pd.DataFrame({"x": [-5.0, 0.5, 1e12, np.nan]}),
    }
    found = points(code(frames))
    np.testing.assert_allclose(found["train"].units[:, 0], [0.125, 0.125, 0.125, 0.625])
    np.testing.assert_allclose(found["holdout"].units[:, 0], [0.125, 0.375, 0.875])
    np.testing.assert_allclose(found["synthetic"].units[:, 0], [0.0, 0.25, 1.0, np.nan])


def test_exchanging_train_and_holdout_exchanges_their_places_and_no_more():
    rng = np.random.default_rng(0)
    frames = {n: pd.DataFrame({"x": rng.normal(size=50)}) for n in ("train", "holdout")}
    one = points(code(frames | {"synthetic": frames["train"]}))
    swapped = {"train": frames["holdout"], "holdout": frames["train"]}
    other = points(code(swapped | {"synthetic": frames["train"]}))
    np.testing.assert_array_equal(one["train"].units, other["holdout"].units)


def test_equal_records_count_once_and_are_named_by_the_first():
    units = np.array([[0.1], [0.1], [0.9], [0.9], [0.5]])
    other = Points(units, np.empty((5, 0), np.int32))
    one = Points(np.array([[0.1], [0.8]]), np.empty((2, 0), np.int32))
    found, rows = nearest(one, other, 4)
    np.testing.assert_allclose(found[0], [0.0, 0.4, 0.8, np.inf])
    np.testing.assert_array_equal(rows, [[0, 4, 2, -1], [2, 4, 0, -1]])


def test_one_record_beside_one_record():
    one = Points(np.array([[np.nan]]), np.array([[0]], np.int32))
    other = Points(np.array([[0.5]]), np.array([[1]], np.int32))
    assert nearest(one, other)[0] == pytest.approx(np.sqrt(2))
    assert nearest(one, one)[0] == 0


def test_hashes_tell_columns_values_and_missing_apart():
    numbers = np.array([[1.0, 2.0], [2.0, 1.0], [np.nan, 2.0], [-0.0, 0.0], [0.0, -0.0]])
    codes = np.array([[0], [0], [-1], [0], [0]], np.int32)
    rows = row_hashes(cell_hashes(numbers, codes))
    assert len(set(rows)) == 4
    assert rows[3] == rows[4]
    other = np.array([[-np.nan, 2.0]])
    assert rows[2] == row_hashes(cell_hashes(other, np.array([[-1]], np.int32)))[0]
    np.testing.assert_array_equal(find(rows[[2, 4, 2]], rows[[3, 2, 2]]), [1, 0, 1])
    np.testing.assert_array_equal(find(rows[:2], rows[2:]), [-1, -1])


def test_no_two_of_200_000_cells_share_a_number():
    numbers = np.arange(100_000, dtype=np.float64).reshape(-1, 2)
    codes = np.arange(100_000, dtype=np.int32).reshape(-1, 2)
    assert len(np.unique(cell_hashes(numbers, codes))) == 200_000
