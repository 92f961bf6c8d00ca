"""Probes find each faulty trainer in fixtures/ and nothing wrong with this package's."""

import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from audit.probes.clipping import furthest_move
from audit.probes.noise import noise_deviation
from trainers.dpsgd.clipping import Automatic, Flat, Groups
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.noise import seeded_noise
from trainers.dpsgd.plan import plan
from trainers.dpsgd.training import PrivateTraining

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "trainers"))
import faulty_clipping
import faulty_noise

C = 0.1
BATCHES = [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4), (5,)]


# records that pull apart: half of each label at the same place, one far away


def table():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, generator=draw).abs()
    x[4:] = x[:4]
    x[7] *= 30
    return x, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def table_losses(model, rows):
    x, y = table()
    rows = list(rows)
    return F.cross_entropy(model(x[rows]), y[rows], reduction="none")


def texts():
    """Of two words, the shorter ones padded: (8, 6), and which places count."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 2, (8, 6), generator=draw)
    ids[0], ids[1] = 0, torch.tensor([0, 1, 0, 1, 0, 1])
    length = torch.tensor([6, 6, 2, 3, 6, 1, 4, 6])
    return ids, torch.arange(6) < length[:, None]


def words():
    table = nn.Embedding(2, 2)
    nn.init.zeros_(table.weight)
    return table


def token_losses(model, rows):
    ids, kept = texts()
    ids, kept = ids[list(rows)], kept[list(rows)]
    losses = F.cross_entropy(model(ids).transpose(1, 2), ids.roll(1, 1), reduction="none")
    return losses, kept


def zeros_if_empty(rows, model, call):
    if not rows:
        return torch.zeros(sum(p.numel() for p in model.parameters()))
    return call()


def right(rows):
    model = linear()
    losses = table_losses(model, rows)
    return zeros_if_empty(rows, model, lambda: faulty_clipping.per_record(model, losses, C))


def scalar_loss(rows):
    model = linear()
    losses = table_losses(model, rows)
    return zeros_if_empty(rows, model, lambda: faulty_clipping.scalar_loss(model, losses, C))


def tokens_as_records(rows):
    model = words()
    losses, _ = token_losses(model, rows)
    return zeros_if_empty(rows, model, lambda: faulty_clipping.tokens_as_records(model, losses, C))


def one_row_for_all(rows):
    model = linear()
    losses = table_losses(model, rows)
    return zeros_if_empty(rows, model, lambda: faulty_clipping.one_row_for_all(model, losses, C))


class Tied(nn.Module):
    """One matrix, used twice; what stands before the second use is held fixed, or after the first.

    So the losses through either use can be told apart, as hooks on two modules would.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))

    def uses(self, x, y):
        fixed = self.weight.detach()
        first = F.cross_entropy(x @ self.weight @ fixed, y, reduction="none")
        second = F.cross_entropy(x @ fixed @ self.weight, y, reduction="none")
        return [first, second]


def twice_used(step, rows):
    model = Tied()
    x, y = table()
    losses = model.uses(x[list(rows)], y[list(rows)])
    return zeros_if_empty(rows, model, lambda: step(model, losses, C))


def mean_over_the_batchs_tokens(rows):
    """At a norm that some gradients do not reach: clipped ones would not show it. In units of C."""
    model = words()
    losses, kept = token_losses(model, rows)

    def step():
        return C * faulty_clipping.mean_over_the_batchs_tokens(model, losses, kept, 1.0)

    return zeros_if_empty(rows, model, step)


def batch_that_was_drawn(rows):
    model = linear()
    losses = table_losses(model, rows)
    return zeros_if_empty(
        rows, model, lambda: faulty_clipping.batch_that_was_drawn(model, losses, C, 2.0)
    )


def floored_batch_size(rows):
    """Every record is in the batch and half of them are expected: of 8 records, or of 7."""
    model = linear()
    losses = table_losses(model, rows)
    return zeros_if_empty(
        rows, model,
        lambda: faulty_clipping.floored_batch_size(model, losses, C, 0.5, len(rows)),
    )  # fmt: skip


# clipping


@pytest.mark.parametrize(
    ("step", "batches", "at_least"),
    [
        (scalar_loss, BATCHES, 4.0),
        (tokens_as_records, BATCHES, 4.0),
        (one_row_for_all, BATCHES, 1.5),
        (partial(twice_used, faulty_clipping.no_cross_terms), BATCHES, 1.3),
        (partial(twice_used, faulty_clipping.last_use_only), BATCHES, 1.5),
        (mean_over_the_batchs_tokens, BATCHES, 1.04),
        (batch_that_was_drawn, BATCHES, 1.5),
        (floored_batch_size, [BATCHES[0]], 1.05),
    ],
)
def test_a_faulty_step_moves_by_more_than_its_clipping_norm(step, batches, at_least):
    move = furthest_move(lambda rows: step(rows).detach().numpy(), batches)
    assert move.exceeds(C)
    assert move.distance > at_least * C


def test_the_right_step_moves_by_its_clipping_norm_and_no_more():
    move = furthest_move(lambda rows: right(rows).detach().numpy(), BATCHES)
    assert not move.exceeds(C)
    assert move.distance == pytest.approx(C, rel=1e-3)
    assert move.pairs == 11


BY_WEIGHT = Groups({"weight": 0.08, "bias": 0.06}, {"weight": "weight", "bias": "bias"})


@pytest.mark.parametrize("clipping", [Flat(C), Automatic(C), BY_WEIGHT])
def test_this_packages_engine_moves_by_its_clipping_norm_and_no_more(clipping):
    model = linear().train()
    engine = ClippedSum(model, clipping)

    def release(rows):
        engine.clear()
        if rows:
            engine.add(table_losses(model, rows))
        return engine.flat.clone().numpy()

    move = furthest_move(release, BATCHES)
    assert clipping.sensitivity == pytest.approx(C)
    assert not move.exceeds(C)
    assert move.distance > 0.85 * C


def test_this_packages_engine_clips_texts_of_any_length():
    model = words().train()
    engine = ClippedSum(model, Flat(C))

    def release(rows):
        engine.clear()
        if rows:
            losses, kept = token_losses(model, rows)
            engine.add((losses * kept).sum(1) / kept.sum(1))
        return engine.flat.clone().numpy()

    move = furthest_move(release, BATCHES)
    assert not move.exceeds(C)
    assert move.distance == pytest.approx(C, rel=1e-3)


def test_a_move_that_is_not_finite_exceeds_every_norm():
    move = furthest_move(lambda rows: [math.nan] if 3 in rows else [0.0], [(2, 3)])
    assert move.record == 2  # NaN before and after: no bound is held
    assert move.distance == math.inf
    assert move.exceeds(1e9)


@pytest.mark.parametrize(
    ("release", "batches", "said"),
    [
        (lambda rows: np.random.default_rng().normal(size=3), [(0,)], "two answers for one batch"),
        (lambda rows: np.zeros(len(rows)), [(0, 1)], "2 values for 2 records and 1 for 1"),
        (lambda rows: np.zeros(3), [()], "hold no record"),
        (lambda rows: np.zeros(3), [], "hold no record"),
    ],
)
def test_steps_that_cannot_be_probed_are_refused(release, batches, said):
    with pytest.raises(ValueError, match=said):
        furthest_move(release, batches)


# noise: an interval of 99.9 % at a fixed seed; each test fails by chance once in 1,000 seeds

SIGMA, DRAWS = 1.5, 200
ZERO = torch.zeros(50)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (lambda: faulty_noise.divided_by_ranks(ZERO, SIGMA, C, 4), 0.5),
        (lambda: faulty_noise.on_the_mean(ZERO, SIGMA, C, 16), 1 / 16),
        (lambda: faulty_noise.nothing_for_an_empty_batch(ZERO, SIGMA, C, 0), 0.0),
        (lambda: next(faulty_noise.at_the_last_micro_batch([ZERO, ZERO], SIGMA, C)), 0.0),
        (lambda: faulty_noise.one_draw_for_all_steps(ZERO, SIGMA, C, 7), 0.0),
    ],
)
def test_noise_that_is_too_little_is_measured(step, share):
    found = noise_deviation(lambda rows: step().numpy(), (), DRAWS)
    assert found.high < SIGMA * C
    assert found.low <= share * SIGMA * C <= found.high


def test_this_packages_noise_has_its_deviation_also_in_an_empty_batch():
    source = seeded_noise(0)

    def release(rows):
        flat = torch.zeros(50)
        source.add(flat, SIGMA * C)
        return flat.numpy()

    found = noise_deviation(release, (), DRAWS)
    assert found.low <= SIGMA * C <= found.high
    assert found.n == 199 * 50
    assert found.high / found.low < 1.1


def test_a_whole_step_of_this_package_under_both_probes():
    """Weights after a step tell what it released: -lr / B times the noisy sum, with lr = B."""
    x, y = table()

    def step(rows, noise_multiplier):
        model = linear().train()
        training = PrivateTraining(
            model, torch.optim.SGD(model.parameters(), 2.0),
            plan(8, 2, steps=1, noise_multiplier=noise_multiplier), clipping=Flat(C),
        )  # fmt: skip
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        batch = torch.tensor(rows, dtype=torch.long)
        training.step(
            batch, lambda some: F.cross_entropy(model(x[some]), y[some], reduction="none")
        )
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
        return (before - after).numpy()

    move = furthest_move(lambda rows: np.round(step(rows, 1e-9), 6), BATCHES)
    assert not move.exceeds(C)
    assert move.distance > 0.99 * C
    found = noise_deviation(lambda rows: step(rows, SIGMA), (), 300)
    assert found.low <= SIGMA * C <= found.high


@pytest.mark.parametrize(
    ("release", "draws", "said"),
    [
        (lambda rows: [0.0], 1, "draws"),
        (lambda rows: [], 3, "one or more values"),
        (lambda rows: [math.nan], 3, "all finite"),
    ],
)
def test_noise_that_cannot_be_measured_is_refused(release, draws, said):
    with pytest.raises(ValueError, match=said):
        noise_deviation(release, (), draws)
