"""The probes find the faulty GANs in fixtures/, and nothing wrong with this package's critic step.

Noise is judged by intervals of 99.9 % at a fixed seed; each such test fails by chance once in 1,000
seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from audit.probes.clipping import furthest_move
from audit.probes.noise import noise_deviation
from trainers.dpsgd.plan import plan
from trainers.tabular.domain import Domain
from trainers.tabular.gan_training import Game, GanConfig

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "trainers"))
import faulty_gan

C, SIGMA = 0.05, 1.5
DRAWS = 200
ROWS = tuple(range(8))
BATCHES = [ROWS, (0, 1, 4, 5), (2,)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Records and partners (8, 4) each: 4 pull one way, 4 are what their partners are."""
    partners = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).abs()
    records = partners.clone()
    records[:4] -= 5
    return records, partners


def critic_losses(critic: nn.Module, rows: Sequence[int]) -> torch.Tensor:
    real, fake = (part[list(rows)] for part in pairs())
    return (softplus(-critic(real)) + softplus(critic(fake))).squeeze(1)


def linear() -> nn.Linear:
    critic = nn.Linear(4, 1, bias=False)
    nn.init.constant_(critic.weight, 0.01)
    return critic


def scalar_noise(rows: Sequence[int], sigma: float) -> np.ndarray:
    critic = linear()
    released = faulty_gan.one_scalar_a_matrix(critic, critic_losses(critic, rows), C, sigma)
    return released.numpy()


def own_norm(rows: Sequence[int], sigma: float) -> np.ndarray:
    critic = linear()
    if not rows:
        return np.zeros(4)
    return faulty_gan.norm_from_the_gradients(critic, critic_losses(critic, rows), sigma).numpy()


def contrasts(released: np.ndarray) -> np.ndarray:
    """Scaled differences of neighbours: a turn that leaves sound noise as it is."""
    paired = released[: len(released) // 2 * 2]
    return (paired[0::2] - paired[1::2]) / np.sqrt(2)


def test_a_critic_that_clips_nobody_is_found() -> None:
    move = furthest_move(lambda rows: scalar_noise(rows, 0.0), BATCHES)
    assert move.exceeds(C)
    assert move.distance > 50 * C


def test_one_draw_for_a_whole_matrix_is_found_in_contrasts() -> None:
    """Each value alone has the deviation that is claimed; differences have none."""
    alone = noise_deviation(lambda rows: scalar_noise(rows, SIGMA)[:1], (), DRAWS)
    assert alone.low <= SIGMA * C <= alone.high
    found = noise_deviation(lambda rows: contrasts(scalar_noise(rows, SIGMA)), (), DRAWS)
    assert found.high < 1e-3 * SIGMA * C


def test_a_norm_taken_from_the_gradients_is_found() -> None:
    """Against the norm that the step itself states for the whole batch."""
    critic = linear()
    each = [torch.autograd.grad(x, critic.weight, retain_graph=True)[0].norm()
            for x in critic_losses(critic, ROWS[:7])]  # fmt: skip
    claimed = float(torch.stack(each).quantile(0.5))
    move = furthest_move(lambda rows: own_norm(rows, 0.0), [ROWS[:7]])
    assert move.exceeds(claimed)
    assert move.distance > 1.2 * claimed
    # and a batch of records that are like their partners hardly gets noise at all
    found = noise_deviation(lambda rows: own_norm(rows, SIGMA), (5, 6, 7), DRAWS)
    assert found.high < 0.1 * SIGMA * claimed


DOMAIN = Domain.model_validate(
    {
        "columns": {
            "x": {"kind": "number", "low": -1, "high": 1, "missing": True},
            "y": {"kind": "integer", "low": 0, "high": 9},
            "c": {"kind": "category", "levels": ["a", "b", "c"]},
        }
    }
)
TABLE = pd.DataFrame(
    {
        "x": [-1, -1, 1, 1, np.nan, 0, 1, -1],
        "y": [0, 0, 9, 9, 5, 5, 0, 9],
        "c": ["a", "a", "b", "b", "c", "c", "a", "b"],
    }
)


def game(sigma: float, table: pd.DataFrame = TABLE) -> Game:
    config = GanConfig(batch_size=8, steps=1000, clipping_norm=C, critic_hidden=(16,))
    features = torch.from_numpy(DOMAIN.features(table))
    spending = plan(len(table), 8, steps=1000, noise_multiplier=sigma)
    return Game(DOMAIN, features, config, spending, source="seeded")


def release(playing: Game, rows: Sequence[int]) -> np.ndarray:
    playing.critic_step(torch.tensor(rows, dtype=torch.long))
    return playing.training.sum.flat.numpy() * 8  # divided by the expected batch size


def test_this_packages_critic_moves_by_its_clipping_norm_and_no_more() -> None:
    move = furthest_move(lambda rows: np.round(release(game(1e-9), rows), 6), BATCHES)
    assert not move.exceeds(C)
    assert move.distance > 0.99 * C
    assert move.pairs == 13


def test_this_packages_critic_has_its_noise_in_an_empty_batch_and_in_contrasts() -> None:
    playing = game(SIGMA)
    for part in (lambda x: x, contrasts):
        found = noise_deviation(lambda rows, part=part: part(release(playing, rows)), (), DRAWS)
        assert found.low <= SIGMA * C <= found.high
        assert found.high / found.low < 1.05


def test_a_records_partners_do_not_depend_on_the_batch() -> None:
    """Each record's own share of the sum is the same, whoever else is drawn: the sums add up."""
    parts = [release(game(1e-9), (row,)) for row in ROWS]
    np.testing.assert_allclose(release(game(1e-9), ROWS), np.sum(parts, axis=0), atol=1e-5)


# what stands in the released files


def test_bounds_from_raw_data_betray_a_record_and_a_public_domain_does_not() -> None:
    """One record more changes what the faulty one writes for certain: no ε covers that."""
    more = pd.concat([TABLE, pd.DataFrame({"x": [0.5], "y": [7], "c": ["rare"]})])
    fitted = faulty_gan.domain_from_raw_data
    assert fitted(more) != fitted(TABLE)
    before = DOMAIN.model_dump_json()
    DOMAIN.features(more.assign(c="a"))
    assert DOMAIN.model_dump_json() == before


def test_a_sampler_that_stores_its_records_hands_out_copies() -> None:
    draw = np.random.default_rng(0)
    train, holdout = (pd.DataFrame(draw.normal(size=(60, 3)).clip(-1, 1)) for _ in range(2))
    train.columns = holdout.columns = ["x", "y", "z"]
    copies = faulty_gan.StoredTable(train).sample(50, seed=1)
    assert len(copies.merge(train.drop_duplicates())) == 50
    assert not len(copies.merge(holdout))
