"""The chance to be unique: against counting, against its closed form, and as a penalty."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from trainers.dpsgd.plan import plan
from trainers.tabular.domain import Domain
from trainers.tabular.gan_training import Game, GanConfig
from trainers.tabular.risk import UniquenessRisk

DOMAIN = Domain.model_validate(
    {
        "columns": {
            "age": {"kind": "integer", "low": 0, "high": 99, "bins": 10},
            "born": {"kind": "date", "low": "1990-01-01", "high": "1999-12-31", "bins": 5},
            "income": {"kind": "number", "low": 0, "high": 10, "bins": [1, 3], "missing": True},
            "sex": {"kind": "category", "levels": ["f", "m"]},
            "district": {"kind": "category", "levels": ["a", "b", "c"], "missing": True},
        }
    }
)
NAMES = list(DOMAIN.columns)


def people(n: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    days = draw.integers(0, 3652, n).astype("timedelta64[D]")
    return pd.DataFrame(
        {
            "age": draw.integers(0, 100, n),
            "born": pd.Series(np.datetime64("1990-01-01") + days),
            "income": np.where(draw.random(n) < 0.3, np.nan, draw.uniform(0, 10, n)),
            "sex": draw.choice(["f", "m"], n),
            "district": draw.choice(np.array(["a", "b", "c", None], dtype=object), n),
        }
    )


def features(frame: pd.DataFrame) -> torch.Tensor:
    return torch.from_numpy(DOMAIN.features(frame))


@pytest.mark.parametrize(
    "columns", [["age"], ["born"], ["income"], ["district"], ["age", "sex"], NAMES]
)
def test_the_score_is_what_counting_records_of_the_same_cell_gives(columns: list[str]) -> None:
    """Cells are the domain's own bins and levels, missing among them: no second definition."""
    some, crowd = people(80), people(300, seed=1)
    places = [NAMES.index(name) for name in columns]
    one, other = DOMAIN.encode(some)[:, places], DOMAIN.encode(crowd)[:, places]
    share = (one[:, None] == other[None]).all(2).mean(1)
    score = UniquenessRisk(DOMAIN, columns, released=50)(features(some), features(crowd))
    np.testing.assert_allclose(score.numpy(), (1 - share) ** 49, rtol=1e-4, atol=1e-6)


def test_bins_of_whole_numbers_and_days_begin_where_rounding_does() -> None:
    """Each age and each day, moved by less than a half of its unit, keeps its cell."""
    ages = pd.DataFrame({"age": np.arange(100)}).assign(**people(1).drop(columns="age").iloc[0])
    moved = features(ages)
    for shift in (-0.49, 0.49):
        changed = moved.clone()
        changed[:, 0] += shift * 2 / 99
        back = DOMAIN.table(changed.numpy())
        np.testing.assert_array_equal(back["age"], ages["age"])
        risk = UniquenessRisk(DOMAIN, ["age"], released=2)
        shared = 1 - risk(changed, moved)  # of 100 ages, 10 lie in each bin
        np.testing.assert_allclose(shared.numpy(), 0.1, atol=1e-6)
    days = pd.date_range(datetime.date(1990, 1, 1), datetime.date(1999, 12, 31))
    born = people(len(days)).assign(born=days)
    shared = 1 - UniquenessRisk(DOMAIN, ["born"], released=2)(features(born), features(born))
    counts = np.bincount(DOMAIN.encode(born)[:, 1])[DOMAIN.encode(born)[:, 1]] / len(days)
    np.testing.assert_allclose(shared.numpy(), counts, rtol=1e-4)


def test_the_mean_score_is_the_expected_share_of_unique_records() -> None:
    """Against 4,000 tables that are drawn and counted; false alarm about once in 10^6 seeds."""
    draw = np.random.default_rng(0)
    domain = Domain.model_validate(
        {"columns": {"place": {"kind": "category", "levels": list(range(40))}}}
    )
    chances = draw.dirichlet(np.full(40, 0.3))
    released = 60
    tables = draw.choice(40, size=(4000, released), p=chances)
    counts = np.apply_along_axis(np.bincount, 1, tables, minlength=40)
    unique = (counts == 1).sum(1) / released
    # a crowd in which each level has exactly its share, to 1 in 20,000
    crowd = np.repeat(np.arange(40), np.round(chances * 20_000).astype(int))
    score = UniquenessRisk(domain, ["place"], released)(
        torch.eye(40), torch.nn.functional.one_hot(torch.from_numpy(crowd), 40).float()
    )
    expected = float(score.numpy() @ chances)
    error = unique.std(ddof=1) / np.sqrt(len(unique))
    assert abs(unique.mean() - expected) < 5 * error + 1e-4


def test_the_gradient_leads_to_the_common_level_and_the_common_bin() -> None:
    crowd = people(400, seed=1)
    crowd["sex"] = np.where(np.arange(400) < 390, "f", "m")
    crowd["age"] = np.where(np.arange(400) < 390, 35, 44)
    rare = crowd.iloc[399:]
    rows = features(rare).requires_grad_()
    UniquenessRisk(DOMAIN, ["sex"], 100)(rows, features(crowd)).sum().backward()
    place = next(s.start for s in DOMAIN.spans if s.column == "sex")
    assert rows.grad is not None
    assert rows.grad[0, place] < rows.grad[0, place + 1] <= 0
    rows = features(rare).requires_grad_()
    UniquenessRisk(DOMAIN, ["age"], 100)(rows, features(crowd)).sum().backward()
    assert rows.grad is not None
    assert rows.grad[0, 0] > 0  # the score falls as the age does
    assert not rows.grad[0, 1:].any()


def test_a_small_crowd_makes_the_score_too_high_and_never_too_low() -> None:
    some, many = people(60), people(4000, seed=1)
    risk = UniquenessRisk(DOMAIN, NAMES[:3], released=4000)
    few = [risk(features(some), features(many.iloc[i : i + 200])) for i in range(0, 4000, 200)]
    assert torch.stack(few).mean() > risk(features(some), features(many)).mean()


@pytest.mark.parametrize(
    ("columns", "said"),
    [(["name"], "'name' is no column"), (["age", "sex", "age"], "'age' is named twice")],
)
def test_columns_that_cannot_be_scored_are_refused(columns: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        UniquenessRisk(DOMAIN, columns, 100)


def test_the_penalty_lowers_the_share_of_unique_records_as_its_weight_rises() -> None:
    """Counted in tables that were drawn from generators trained on the same records and noise.

    Each step of the weight must take away three unique records of ten, or more.
    """
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draw.normal(50, 18, 600).clip(0, 99).round(),
            "sex": draw.choice(["f", "m"], 600),
            "district": draw.choice(["a", "b", "c"], 600, p=[0.6, 0.3, 0.1]),
            "diagnosis": draw.choice(8, 600, p=[0.5, 0.2, 0.1, 0.08, 0.05, 0.03, 0.02, 0.02]),
        }
    )
    columns: dict[str, Any] = {
        "age": {"kind": "integer", "low": 0, "high": 99, "bins": 10},
        "sex": {"kind": "category", "levels": ["f", "m"]},
        "district": {"kind": "category", "levels": ["a", "b", "c"]},
        "diagnosis": {"kind": "category", "levels": list(range(8))},
    }
    domain = Domain.model_validate({"columns": columns})
    known = torch.from_numpy(domain.features(frame))
    spending = plan(600, 60, steps=500, noise_multiplier=1.0)

    def unique(weight: float) -> float:
        game = Game(
            domain, known, GanConfig(), spending, source="seeded",
            risk=UniquenessRisk(domain, list(columns), 600), risk_weight=weight,
        )  # fmt: skip
        game.play()
        shares = []
        for seed in range(5):
            with torch.no_grad():
                made = game.average(600, torch.Generator().manual_seed(seed))
            codes = domain.encode(domain.table(made.numpy()))
            counts = np.unique(codes, axis=0, return_counts=True)[1]
            shares.append((counts == 1).sum() / 600)
        return float(np.mean(shares))

    without, some, much = unique(0.0), unique(0.5), unique(2.0)
    assert without > 0.1
    assert some < 0.7 * without
    assert much < 0.7 * some
