"""Singling out against brute force, planted copies, independent releases, and awkward tables."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from attacks.synthetic import conjunctions, singling_out, univariate
from attacks.synthetic.tables import code

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))
from frames import mixed, plant

MODES = ("values", "ranges", "conjunctions")


def tables(train, holdout, synthetic):
    return code({"train": train, "holdout": holdout, "synthetic": synthetic})


def estimates(result):
    return {figure.name: figure.estimate for figure in result.figures}


def small(n, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": rng.normal(size=n).round(1),
            "k": np.where(rng.random(n) < 0.2, np.nan, rng.integers(-3, 4, n)),
            "c": rng.choice(["a", "b'c", "d"], n),
            "d": rng.choice([None, "p", "q"], n),
        }
    )


@pytest.fixture(scope="module")
def three_small():
    return tables(small(70, 1), small(70, 2), small(60, 3))


def test_ranges_count_like_a_loop(three_small):
    release, train = three_small["synthetic"], three_small["train"]
    for ranges in (
        univariate.rare_values(three_small, release),
        univariate.own_ranges(three_small, release),
    ):
        assert len(ranges)
        assert (ranges.count(release) == 1).all()
        for column, low, high, count in zip(
            ranges.column, ranges.low, ranges.high, ranges.count(train), strict=True
        ):
            if column < 2:
                values = train.numbers[:, column]
            else:
                values = np.where(train.codes < 0, np.nan, train.codes)[:, column - 2]
            holds = np.isnan(values) if np.isnan(low) else (low <= values) & (values <= high)
            assert count == holds.sum()


def test_a_missing_value_can_be_the_rare_one():
    frame = pd.DataFrame({"x": [1.0, 1.0, np.nan], "c": ["a", "a", None]})
    both = tables(frame, frame, frame)
    ranges = univariate.rare_values(both, both["synthetic"])
    assert np.isnan(ranges.low).all()
    assert ranges.count(both["train"]).tolist() == [1, 1]
    drawn = univariate.at_random(both, both["synthetic"], ranges, np.random.default_rng(0))
    assert (drawn.low == drawn.high).all()


def test_conjunctions_count_like_a_loop_and_hold_for_one_alone(three_small):
    coding = conjunctions.coding(three_small["synthetic"])
    codes = np.unique(coding(three_small["synthetic"]), axis=1)
    rows = np.arange(codes.shape[1])
    grown = conjunctions.grow(codes, coding.exact, rows, np.random.default_rng(0))
    assert (conjunctions.count(grown, codes) == 1).all()
    train = coding(three_small["train"])
    for predicate, count in zip(grown, conjunctions.count(grown, train), strict=True):
        used = predicate != conjunctions.ANY
        assert used.any()
        assert count == (train[used] == predicate[used, None]).all(axis=0).sum()


def test_conditions_say_what_records_have_in_common(three_small):
    """Exact conditions are equal where the values are, coarse ones where the eighth is."""
    coding = conjunctions.coding(three_small["synthetic"])
    synthetic, train = three_small["synthetic"], three_small["train"]
    ours, theirs = coding(synthetic), coding(train)
    for column in range(2):
        one, other = synthetic.numbers[:, column, None], train.numbers[:, column]
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        exact = ours[4 + column][:, None] == theirs[4 + column]
        assert (exact == same).all()
        assert (ours[column][:, None] == theirs[column])[same].all()


def test_coarse_conditions_are_eighths_of_the_release():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=800)})
    given = tables(frame, frame, frame)
    coarse = conjunctions.coding(given["synthetic"])(given["synthetic"])[0]
    assert np.bincount(coarse).tolist() == [100] * 8
    assert (np.diff(coarse[np.argsort(frame["x"])]) >= 0).all()


@pytest.fixture(scope="module")
def copied():
    train, holdout = mixed(4000, 1), mixed(4000, 2)
    return train, holdout, plant(mixed(4000, 3), train, 0.05)[0]


def test_five_percent_copies_are_found(copied):
    found = estimates(singling_out.attack(tables(*copied)))
    for mode in ("values", "conjunctions"):
        assert found[f"excess_risk:{mode}"].low > 0.01, mode
        assert found[f"control_rate:{mode}"].value > found[f"weight:{mode}"].value
    assert found["baseline_rate:conjunctions"].high < found["attack_rate:conjunctions"].low


def test_a_release_that_repeats_its_copies_is_found_as_well(copied):
    train, holdout, synthetic = copied
    repeated = pd.concat([synthetic] * 3, ignore_index=True)
    once = estimates(singling_out.attack(tables(train, holdout, synthetic)))
    again = estimates(singling_out.attack(tables(train, holdout, repeated)))
    for mode in MODES:
        assert again[f"excess_risk:{mode}"].value == pytest.approx(
            once[f"excess_risk:{mode}"].value, abs=0.03
        )
    assert again["excess_risk:conjunctions"].low > 0.01


def test_the_release_being_train_singles_out_nearly_everybody():
    train, holdout = mixed(1500, 1), mixed(1500, 2)
    found = estimates(singling_out.attack(tables(train, holdout, train)))
    for mode in MODES:
        assert found[f"attack_rate:{mode}"].value == 1, mode
        assert found[f"excess_risk:{mode}"].low > 0.95, mode


def alarms(runs, each):
    """In how many runs on independent releases each mode's excess risk lies above zero for sure."""
    counts = dict.fromkeys(MODES, 0)
    for seed in range(runs):
        frames = [mixed(400, 1000 + 3 * seed + k) for k in range(3)]
        found = estimates(
            singling_out.attack(
                tables(*frames), attacks=1000, seed=seed, confidence=1 - len(MODES) * (1 - each)
            )
        )
        for mode in MODES:
            counts[mode] += found[f"excess_risk:{mode}"].low > 0
    return counts


def test_independent_releases_are_quiet():
    """30 releases, 95 % intervals, above zero in 2.5 %; 1 of 1000 such tests fails by chance."""
    for mode, count in alarms(30, 0.95).items():
        assert count <= binom.ppf(0.999, 30, 0.025), mode


@pytest.mark.slow
def test_the_rate_of_false_alarms_is_that_of_the_interval():
    """300 releases; three times the stated rate would be found in 95 % of all such tests."""
    for mode, count in alarms(300, 0.95).items():
        assert count <= binom.ppf(0.99, 300, 0.025), mode


def test_train_and_holdout_of_other_sizes_are_made_equal():
    found = singling_out.attack(tables(mixed(900, 1), mixed(500, 2), mixed(700, 3)))
    assert any("500 of them" in note for note in found.notes)


def test_fewer_predicates_than_asked_for_and_none_at_all():
    frame = pd.DataFrame({"c": ["a", "a", "b", "b"], "d": ["x", "y", "x", "y"]})
    result = singling_out.attack(tables(frame, frame, frame))
    found = {figure.name: figure for figure in result.figures}
    assert found["attack_rate:values"].estimate is None
    assert "no value" in found["attack_rate:values"].unmeasured
    assert "no number" in found["attack_rate:ranges"].unmeasured
    assert found["attack_rate:conjunctions"].estimate.n == 4
    assert found["attack_rate:conjunctions"].estimate.value == 1
    assert any("4 predicates exist, 2000" in note for note in result.notes)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 5, 3), (5, 1, 1), (30, 30, 1)])
def test_single_row_tables(sizes):
    frames = [mixed(size, seed) for seed, size in enumerate(sizes)]
    found = singling_out.attack(tables(*frames))
    assert any("exist" in note for note in found.notes)


def test_many_columns_many_levels_and_constants():
    def draw(seed):
        rng = np.random.default_rng(seed)
        many = {f"x{k}": rng.normal(size=400) for k in range(40)}
        text = np.char.add("it's ", rng.integers(0, 10_000, 400).astype(str))
        return pd.DataFrame(many | {"text": text, "same": 1.0, "none": np.nan, "word": "w"})

    train = draw(1)
    found = estimates(singling_out.attack(tables(train, draw(2), draw(3))))
    assert found["excess_risk:conjunctions"].low <= 0
    found = estimates(singling_out.attack(tables(train, draw(2), train)))
    assert found["attack_rate:conjunctions"].value == 1


def test_the_order_of_columns_and_of_the_release_changes_chance_alone(copied):
    train, holdout, synthetic = copied
    other = [f[f.columns[::-1]] for f in (train, holdout, synthetic.sample(frac=1, random_state=1))]
    first, second = (estimates(singling_out.attack(tables(*f))) for f in (copied, other))
    for name in ("excess_risk:conjunctions", "excess_risk:values"):
        assert first[name].low < second[name].value < first[name].high


def test_bad_input():
    frame = mixed(5, 1)
    with pytest.raises(ValueError, match="holdout: the table is missing"):
        singling_out.attack(code({"train": frame, "synthetic": frame}))
    with pytest.raises(ValueError, match="attacks: must be 1 or more"):
        singling_out.attack(tables(frame, frame, frame), attacks=0)


def test_one_seed_one_result(copied):
    one, other = (singling_out.attack(tables(*copied), attacks=300, seed=7) for _ in range(2))
    assert one.figures == other.figures
