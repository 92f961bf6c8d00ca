"""Linkability against a loop over all pairs, planted copies, independent and awkward releases."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from attacks.synthetic import linkability
from attacks.synthetic.distances import Points
from attacks.synthetic.tables import code

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))
from frames import mixed, plant


def tables(train, holdout, synthetic):
    return code({"train": train, "holdout": holdout, "synthetic": synthetic})


def estimates(result):
    return {figure.name.split(":")[0]: figure.estimate for figure in result.figures}


def squares(one, other):
    gap = (one.units[:, None] - other.units) ** 2
    return gap.sum(-1) + (one.codes[:, None] != other.codes).sum(-1)


@pytest.mark.parametrize("bridges", [1, 3, 40])
def test_links_are_those_of_a_search_over_all_pairs(bridges):
    rng = np.random.default_rng(bridges)

    def halves(n):
        draw = lambda: Points(rng.random((n, 2)), rng.integers(0, 3, (n, 1)).astype(np.int32))  # noqa: E731
        return linkability._Halves(draw(), draw())

    people, release = halves(30), halves(25)
    scores = linkability._link(people, release, bridges)
    far, onward = squares(people.first, release.first), squares(release.second, people.second)
    for person in range(30):
        tried = np.argsort(far[person])[:bridges]
        total = far[person, tried] + onward[tried].min(axis=1)
        answer = onward[tried[total.argmin()]].argmin()
        if answer == person:
            assert -scores[person] == pytest.approx(total.min(), abs=1e-6)
        else:
            assert scores[person] == -np.inf


def test_equal_halves_are_bridges_all_of_them():
    """Four synthetic records share the A part; the person's is the third, and it is found."""
    first = Points(np.array([[0.5], [0.5], [0.5], [0.5], [0.9]]), np.empty((5, 0), np.int32))
    second = Points(np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]), np.empty((5, 0), np.int32))
    asked = Points(np.array([[0.5], [0.9]]), np.empty((2, 0), np.int32))
    near, rows = linkability._bridges(asked, first, 5)
    assert sorted(rows[0].tolist()) == [0, 1, 2, 3, 4]
    assert near[0].tolist() == pytest.approx([0, 0, 0, 0, 0.4])
    assert rows[1, 0] == 4
    assert sorted(linkability._bridges(asked, first, 2)[1][0].tolist()) == [0, 1]
    people = linkability._Halves(asked, Points(np.array([[0.3], [0.5]]), asked.codes))
    scores = linkability._link(people, linkability._Halves(first, second), 4)
    assert scores.tolist() == pytest.approx([0, 0], abs=1e-9)


@pytest.fixture(scope="module")
def copied():
    train, holdout = mixed(3000, 1), mixed(3000, 2)
    return train, holdout, plant(mixed(3000, 3), train, 0.05)[0]


def test_five_percent_copies_are_found(copied):
    result = linkability.attack(tables(*copied))
    found = estimates(result)
    assert found["excess_risk"].low > 0.02
    assert len(result.rows["train_row"]) == round(2000 * found["attack_rate"].value)
    assert (np.diff(result.rows["distance"]) >= 0).all()
    nearest = set(result.rows["train_row"][:30].tolist())
    release = set(map(tuple, copied[2].astype(str).to_numpy()))
    exact = [tuple(row) in release for row in copied[0].iloc[list(nearest)].astype(str).to_numpy()]
    assert all(exact)
    assert found["baseline_rate"].high < 0.01
    assert found["tpr_at_fpr_0.01"].low > 0.01


def test_the_release_being_train_links_nearly_everybody():
    train = mixed(800, 1)
    found = estimates(linkability.attack(tables(train, mixed(800, 2), train)))
    assert found["attack_rate"].value > 0.95
    assert found["control_rate"].high < 0.1


def test_parts_that_tell_each_other_are_no_leak():
    """B repeats A, so that everybody is linked in train and holdout alike: no excess."""

    def draw(seed):
        x = np.random.default_rng(seed).normal(size=400)
        return pd.DataFrame({"a": x, "b": 2 * x})

    found = linkability.attack(tables(draw(1), draw(2), draw(3)), parts=(["a"], ["b"]))
    values = estimates(found)
    assert values["control_rate"].value > 10 * values["baseline_rate"].value
    assert values["excess_risk"].low < 0 < values["excess_risk"].high


def test_independent_releases_are_quiet():
    """25 releases at 2.5 % each."""
    alarms = 0
    for seed in range(25):
        frames = [mixed(300, 2000 + 3 * seed + k) for k in range(3)]
        alarms += estimates(linkability.attack(tables(*frames), seed=seed))["excess_risk"].low > 0
    assert alarms <= binom.ppf(0.999, 25, 0.025)


def test_many_columns_many_levels_and_constants():
    def draw(seed):
        rng = np.random.default_rng(seed)
        many = {f"x{k}": rng.normal(size=300) for k in range(40)}
        text = np.char.add("it's ", rng.integers(0, 10_000, 300).astype(str))
        return pd.DataFrame(many | {"text": text, "same": 1.0, "none": np.nan, "word": "w"})

    train = draw(1)
    quiet = estimates(linkability.attack(tables(train, draw(2), draw(3))))
    assert quiet["excess_risk"].low <= 0
    loud = estimates(linkability.attack(tables(train, draw(2), train)))
    assert loud["attack_rate"].value == 1


def test_a_synthetic_table_of_one_record_tells_nothing():
    result = linkability.attack(tables(mixed(50, 1), mixed(40, 2), mixed(1, 3)))
    assert estimates(result)["excess_risk"].low < 0
    assert estimates(result)["attack_rate"].n == 40
    assert any("2000 attacks were asked for" in note for note in result.notes)


def test_bad_input():
    frame, one = mixed(5, 1), mixed(1, 2)
    good = tables(frame, frame, frame)
    with pytest.raises(ValueError, match="train: has one record"):
        linkability.attack(tables(one, frame, frame))
    with pytest.raises(ValueError, match="no column is called 'agee'"):
        linkability.attack(good, parts=(["agee"], ["sex"]))
    with pytest.raises(ValueError, match="'age' is in both"):
        linkability.attack(good, parts=(["age"], ["sex", "age"]))
    with pytest.raises(ValueError, match="one is empty"):
        linkability.attack(good, parts=([], ["sex"]))
    with pytest.raises(ValueError, match="bridges: must be 1 or more"):
        linkability.attack(good, bridges=0)
    with pytest.raises(ValueError, match="one column"):
        linkability.attack(tables(frame[["age"]], frame[["age"]], frame[["age"]]))
