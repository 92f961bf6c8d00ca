"""Inference against a loop, planted copies, independent releases, and awkward secrets."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from attacks.synthetic import inference
from attacks.synthetic.tables import code

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))
from frames import mixed, plant


def tables(train, holdout, synthetic):
    return code({"train": train, "holdout": holdout, "synthetic": synthetic})


def estimates(result):
    return {figure.name: figure.estimate for figure in result.figures}


def test_guesses_are_those_of_a_search_over_all_pairs():
    """Continuous columns: no ties, so the nearest record is one and the guess is settled."""
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame(rng.normal(size=(n, 3)), columns=[*"abs"]) for n in (60, 50, 40)]
    for frame in frames:
        frame["s"] = -50 + 5 * frame.s + frame.a
    frames[0] = pd.concat([frames[0][:50], frames[2][:10]], ignore_index=True)  # ten copies
    given = tables(*frames)
    found = estimates(inference.attack(given, secrets=["s"]))
    real = pd.concat(frames[:2])
    tolerance = 0.05 * (real.s.quantile(0.75) - real.s.quantile(0.25))
    values = {c: np.sort(real[c].unique()) for c in "ab"}

    def units(frame):
        ranks = {c: (np.arange(len(v)) + 0.5) / len(v) for c, v in values.items()}
        columns = [np.interp(frame[c], values[c], ranks[c], left=0, right=1) for c in "ab"]
        return np.column_stack(columns)

    release = units(frames[2])
    for name, frame in (("attack_rate", frames[0]), ("control_rate", frames[1])):
        right = 0
        for point, truth in zip(units(frame), frame.s, strict=True):
            guess = frames[2].s[((release - point) ** 2).sum(1).argmin()]
            right += abs(guess - truth) <= tolerance
        assert found[f"{name}:s"].value == pytest.approx(right / len(frame))


@pytest.fixture(scope="module")
def copied():
    train, holdout = mixed(3000, 1), mixed(3000, 2)
    return train, holdout, plant(mixed(3000, 3), train, 0.1)[0]


def test_copies_are_found_in_numbers_categories_and_dates(copied):
    secrets = ["balance", "ward", "admitted"]
    result = inference.attack(tables(*copied), secrets=secrets)
    found = estimates(result)
    assert result.rows["secret"].tolist() == secrets
    for secret, p in zip(secrets, result.rows["p_holm"], strict=True):
        assert found[f"excess_risk:{secret}"].low > 0
        assert found[f"tpr_at_fpr_0.01:{secret}"].low > 0.01
        assert p < 0.01


def test_what_follows_from_other_columns_is_no_leak():
    """The secret is a function of another column: guessed nearly always, on both sides alike."""

    def draw(seed):
        x = np.random.default_rng(seed).integers(0, 50, 500)
        return pd.DataFrame({"x": x, "s": np.char.add("d", (x // 5).astype(str))})

    found = estimates(inference.attack(tables(draw(1), draw(2), draw(3)), secrets=["s"]))
    assert found["control_rate:s"].value == 1
    assert found["excess_risk:s"] is None
    assert found["baseline_rate:s"].value < 0.2


def test_independent_releases_are_quiet():
    """25 releases, 3 secrets: an interval lies above zero in 2.5 % / 3, a p of Holm below 5 %."""
    above = significant = 0
    for seed in range(25):
        frames = [mixed(300, 3000 + 3 * seed + k) for k in range(3)]
        secrets = ["claims", "ward", "balance"]
        result = inference.attack(tables(*frames), secrets=secrets, seed=seed)
        found = estimates(result)
        above += any(found[f"excess_risk:{secret}"].low > 0 for secret in secrets)
        significant += result.rows["p_holm"].min() < 0.05
    assert above <= binom.ppf(0.999, 25, 0.025)
    assert significant <= binom.ppf(0.999, 25, 0.05)


@pytest.mark.parametrize("shift", [0, -1000])
def test_a_secret_with_median_zero_or_negative_needs_no_sign(shift):
    """The same figures wherever the secret's zero lies."""

    def draw(seed):
        rng = np.random.default_rng(seed)
        return pd.DataFrame(
            {"x": rng.normal(size=500), "s": rng.normal(size=500).round(2) * 64 + shift}
        )

    train = draw(1)
    found = estimates(inference.attack(tables(train, draw(2), train), secrets=["s"]))
    assert found["attack_rate:s"].value == 1
    assert 0.02 < found["control_rate:s"].value < 0.15
    assert found["excess_risk:s"].low > 0.9


def test_where_the_interquartile_range_is_zero_only_the_value_counts():
    def draw(seed):
        rng = np.random.default_rng(seed)
        spent = np.where(rng.random(400) < 0.8, 0.0, rng.normal(size=400))
        return pd.DataFrame({"x": rng.normal(size=400), "s": spent})

    found = estimates(inference.attack(tables(draw(1), draw(2), draw(3)), secrets=["s"]))
    assert found["baseline_rate:s"].value == pytest.approx((draw(1).s == 0).mean())


def test_the_baseline_is_the_best_single_guess():
    frame = pd.DataFrame({"x": range(6), "s": ["it's", "it's", "it's", "no", "no", "so"]})
    found = estimates(inference.attack(tables(frame, frame, frame), secrets=["s"]))
    assert found["baseline_rate:s"].value == 0.5
    assert inference._commonest(np.array([0.0, 10, 11, 12, 30]), 1.0) == 11


def test_missing_secrets_are_left_out_and_missing_ones_unmeasured():
    def draw(seed, gone=False):
        rng = np.random.default_rng(seed)
        s = np.where(rng.random(200) < 0.25, np.nan, rng.normal(size=200))
        return pd.DataFrame(
            {
                "x": rng.normal(size=200),
                "s": s,
                "t": None if gone else rng.choice(["a", "b"], 200),
                "none": np.nan,
            }
        )

    train = draw(1)
    result = inference.attack(tables(train, draw(2), draw(3, gone=True)))
    found = {figure.name: figure for figure in result.figures}
    assert found["attack_rate:s"].estimate.n == train.s.notna().sum()
    assert "synthetic: the column is missing" in found["attack_rate:t"].unmeasured
    assert "train: the column is missing" in found["excess_risk:none"].unmeasured
    p = dict(zip(result.rows["secret"], result.rows["p_holm"], strict=True))
    assert np.isnan(p["t"])
    assert not np.isnan(p["s"])


def test_holm():
    p = np.array([0.01, np.nan, 0.04, 0.03, 0.005])
    assert inference.holm(p)[[0, 2, 3, 4]] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert np.isnan(inference.holm(p)[1])


def test_constants_single_rows_many_columns_and_many_levels():
    def draw(seed, n):
        rng = np.random.default_rng(seed)
        many = {f"x{k}": rng.normal(size=n) for k in range(40)}
        text = np.char.add("it's ", rng.integers(0, 10_000, n).astype(str))
        return pd.DataFrame(many | {"text": text, "same": 1.0})

    train = draw(1, 200)
    result = inference.attack(
        tables(train, draw(2, 200), train), secrets=["text", "same", "x0"], attacks=100
    )
    found = estimates(result)
    assert found["attack_rate:text"].value == found["attack_rate:x0"].value == 1
    assert found["excess_risk:text"].low > 0.9
    assert found["excess_risk:same"] is None
    for sizes in ((1, 1, 1), (1, 20, 20), (20, 20, 1)):
        frames = [draw(seed, n) for seed, n in enumerate(sizes)]
        found = estimates(inference.attack(tables(*frames), secrets=["x0"]))
        assert found["attack_rate:x0"].n == sizes[0]


def test_bad_input():
    frame = mixed(5, 1)
    good = tables(frame, frame, frame)
    with pytest.raises(ValueError, match="no column is called 'agee'"):
        inference.attack(good, secrets=["agee"])
    with pytest.raises(ValueError, match="'age' is named twice"):
        inference.attack(good, secrets=["age", "age"])
    with pytest.raises(ValueError, match="one column"):
        inference.attack(tables(frame[["age"]], frame[["age"]], frame[["age"]]))
