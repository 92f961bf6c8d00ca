"""Associations against scipy, brute force, closed forms, and their intervals over seeds."""

from __future__ import annotations

from math import asin, pi

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, chi2_contingency, spearmanr

from attacks.synthetic.tables import code
from audit.quality.associations import (
    Associations,
    compare_associations,
    correlation_ratio,
    cramers_v,
    spearman,
)


def compared(real: pd.DataFrame, synthetic: pd.DataFrame, **options: int) -> Associations:
    tables = code({"real": real, "synthetic": synthetic})
    return compare_associations(tables, "real", "synthetic", **options)


def normals(n: int, rho: float, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    a = random.normal(size=n)
    return pd.DataFrame({"a": a, "b": rho * a + np.sqrt(1 - rho**2) * random.normal(size=n)})


def test_spearman_is_scipys() -> None:
    random = np.random.default_rng(0)
    table = np.column_stack([random.normal(size=80), random.integers(0, 5, 80), np.arange(80.0)])
    assert spearman(table) == pytest.approx(spearmanr(table).statistic)


def test_spearman_judges_a_pair_on_the_records_that_have_both() -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(60, 2))
    holes = np.vstack([table, np.column_stack([np.full(9, np.nan), random.normal(size=9)])])
    ranks = pd.DataFrame(holes).rank()
    assert spearman(holes)[0, 1] == pytest.approx(ranks.corr().iloc[0, 1])


def test_cramers_v_by_scipys_chi_square() -> None:
    """Bergsma (2013), equations 4 to 6, on a table of 3 x 4."""
    random = np.random.default_rng(1)
    first = random.integers(0, 3, 300).astype(np.int32)
    second = ((first + random.integers(0, 3, 300)) % 4).astype(np.int32)
    n, r, k = 300, 3, 4
    phi2 = chi2_contingency(pd.crosstab(first, second), correction=False).statistic / n
    corrected = max(0, phi2 - (r - 1) * (k - 1) / (n - 1))
    least = min(r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)) - 1
    assert cramers_v(first, second) == pytest.approx(np.sqrt(corrected / least))
    assert cramers_v(first, first) == pytest.approx(1, abs=0.01)


def test_the_correlation_ratio_by_an_analysis_of_variance() -> None:
    random = np.random.default_rng(2)
    codes = random.integers(0, 4, 200).astype(np.int32)
    values = codes + random.normal(size=200)
    frame = pd.DataFrame({"c": codes, "v": values})
    within = frame.v - frame.groupby("c").v.transform("mean")
    eta2 = 1 - (within**2).sum() / ((values - values.mean()) ** 2).sum()
    assert correlation_ratio(codes, values) ** 2 == pytest.approx(1 - (1 - eta2) * 199 / 196)


def test_levels_as_many_as_records_are_no_association() -> None:
    """10,000 levels: uncorrected, V of independent columns would be 0.7 and η 0.7."""
    random = np.random.default_rng(3)
    many = random.integers(0, 10_000, 20_000).astype(np.int32)
    few = random.integers(0, 4, 20_000).astype(np.int32)
    assert cramers_v(many, few) < 0.1
    assert correlation_ratio(many, random.normal(size=20_000)) < 0.15


def test_a_planted_change_is_found_and_lies_where_it_must() -> None:
    """Of bivariate normals Spearman's ρ is 6/π · asin(ρ/2) (Pearson 1907).

    Each interval is promised 95 %; 25 seeds, p > 0.001. The change is 7 standard errors wide: all
    seeds must find it.
    """
    truth = [6 / pi * asin(rho / 2) for rho in (0.2, 0.6)]
    hits = np.zeros(4, dtype=np.int64)
    for seed in range(25):
        real, synthetic = normals(500, 0.2, 2 * seed), normals(500, 0.6, 2 * seed + 1)
        found = compared(real, synthetic, replicates=60, seed=seed)
        (pair,) = found.pairs
        mean = found.mean_absolute_difference.interval
        assert mean is not None
        assert pair.difference.low > 0
        assert mean.low > 0
        hits += [
            pair.real.low <= truth[0] <= pair.real.high,
            pair.synthetic.low <= truth[1] <= pair.synthetic.high,
            pair.difference.low <= truth[1] - truth[0] <= pair.difference.high,
            mean.low <= truth[1] - truth[0] <= mean.high,
        ]
    for count in hits:
        assert binomtest(int(count), 25, 0.95, alternative="less").pvalue > 0.001


def test_all_intervals_hold_together() -> None:
    """Same law on both sides, six pairs of all kinds. Promised 95 %; 25 seeds, p > 0.001."""

    def draw(seed: int) -> pd.DataFrame:
        random = np.random.default_rng(seed)
        frame = normals(250, 0.5, seed)
        frame["c"] = np.where(frame.a + random.normal(size=250) > 0, "up", "down")
        return frame.assign(d=random.choice(list("xyz"), 250))

    pairs = mean = 0
    for seed in range(25):
        found = compared(draw(2 * seed), draw(2 * seed + 1), replicates=60, seed=seed)
        assert len(found.pairs) == 6
        pairs += all(p.difference.low <= 0 <= p.difference.high for p in found.pairs)
        interval = found.mean_absolute_difference.interval
        mean += interval is not None and interval.low == 0
    assert binomtest(pairs, 25, 0.95, alternative="less").pvalue > 0.001
    assert binomtest(mean, 25, 0.95, alternative="less").pvalue > 0.001


def test_pairs_that_cannot_be_measured_are_named_with_the_reason() -> None:
    real = normals(50, 0.5, 0).assign(same=1, gone=np.nan, c=["x", "y"] * 25)
    synthetic = real.assign(c=[f"u{i}" for i in range(50)])
    found = compared(real, synthetic)
    assert [(p.first, p.second) for p in found.pairs] == [("a", "b")]
    reasons = {(a, b): why for a, b, why in found.unmeasured}
    assert len(reasons) == 9
    assert reasons["a", "same"] == "real: 'same' has one value"
    assert reasons["gone", "a"] == "real: 'gone' has no value"
    assert reasons["c", "a"].startswith("too few records for so many levels")


@pytest.mark.parametrize("rows", [1, 2])
def test_a_record_or_two_tell_nothing(rows: int) -> None:
    frame = normals(rows, 0.5, 0)
    found = compared(frame, frame)
    assert found.pairs == ()
    assert found.mean_absolute_difference.unmeasured == "no pair could be measured"
    assert len(found.unmeasured) == 1


def test_the_same_seed_gives_the_same_intervals() -> None:
    first, second = normals(100, 0.2, 0), normals(100, 0.2, 1)
    assert compared(first, second, seed=5) == compared(first, second, seed=5)
