"""Vulnerable records against brute force and a planted outlier."""

import numpy as np
import pandas as pd
import pytest

from attacks.synthetic import vulnerable
from attacks.synthetic.tables import Coded, code
from attacks.synthetic.vulnerable import distances, most_vulnerable, neighbour_distances, units


def mixed(n=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": rng.normal(0, 10, n),
            "b": rng.integers(0, 5, n).astype(float),
            "c": rng.choice(["x", "y", "z"], n),
            "d": rng.choice(["u", None], n),
            "same": 7.0,
        }
    )
    frame.loc[rng.random(n) < 0.2, "a"] = np.nan
    return code({"pool": frame})["pool"]


def one_distance(left, right, unit):
    """The definition, column by column."""
    total = 0.0
    for a, b, one in zip(left.numbers[0], right.numbers[0], unit, strict=True):
        if np.isnan(a) or np.isnan(b):
            total += float(np.isnan(a) != np.isnan(b))
        else:
            total += abs(a - b) / one
    total += sum(a != b for a, b in zip(left.codes[0], right.codes[0], strict=True))
    return total / (len(unit) + left.codes.shape[1])


def test_distances_are_the_definition():
    records = mixed()
    unit = units(records)
    present = records.numbers[:, 0][~np.isnan(records.numbers[:, 0])]
    assert unit[0] == pytest.approx(present.std())
    assert unit[2] == 1  # constant
    found = distances(records, records, unit)
    rows = [records.take(np.array([i])) for i in range(len(records))]
    assert np.allclose(found, [[one_distance(a, b, unit) for b in rows] for a in rows])


@pytest.mark.parametrize("cells", [1, 61, 10**6])
def test_neighbours_are_those_of_brute_force_in_blocks_of_any_size(monkeypatch, cells):
    monkeypatch.setattr(vulnerable, "CELLS", cells)
    records = mixed()
    whole = distances(records, records, units(records))
    np.fill_diagonal(whole, np.inf)
    rows = np.array([3, 0, 59])
    assert np.allclose(neighbour_distances(records, rows, 4), np.sort(whole[rows], axis=1)[:, :4])


def test_the_record_far_from_all_others_comes_first():
    records = mixed()
    records.numbers[17, 1] = 500.0
    found = most_vulnerable(records, 5)
    assert found.rows[0] == 17
    assert (np.diff(found.distances) <= 0).all()
    nearest = neighbour_distances(records, np.arange(60), 5).mean(axis=1)
    assert found.distances[1] == pytest.approx(np.sort(nearest)[-2])


def test_a_record_with_a_copy_is_no_target():
    """Where the copy trained the generator, the record did not stay out."""
    records = mixed()
    records.numbers[[17, 18], 1] = 500.0
    records.numbers[18], records.codes[18] = records.numbers[17], records.codes[17]
    assert not {17, 18} & set(most_vulnerable(records, 50).rows)


def test_equal_distances_go_by_row():
    line = Coded(np.arange(10.0)[:, None], np.empty((10, 0), np.int32))
    assert most_vulnerable(line, 2, neighbours=1).rows.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "count", "message"),
    [
        (slice(0, 5), 1, "pool: 5 records are too few for 5 neighbours"),
        (slice(None), 0, "targets: asked for 0"),
        (slice(None), 61, "targets: asked for 61, the pool has .. records without an exact copy"),
    ],
)
def test_what_cannot_be_chosen_is_said_in_one_line(rows, count, message):
    records = mixed()
    with pytest.raises(ValueError, match=message) as error:
        most_vulnerable(records.take(np.arange(60)[rows]), count)
    assert "\n" not in str(error.value)
