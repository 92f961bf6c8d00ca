"""Models trained together are those that training them one after another gives."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from attacks.records import Pool
from attacks.shadows.fleet import Shadows
from attacks.shadows.plan import halves
from attacks.shadows.torch_fleet import PrivateTraining, TorchTraining
from attacks.shadows.torch_gradients import gradients_for, is_linear_stack
from audit.models import stacked
from trainers.classifier import ClassifierConfig, Privacy, fit_classifier, network_arguments
from trainers.dpsgd.plan import plan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(101, 6))
Y = RNG.integers(0, 3, 101)


def stack():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5, bias=False), nn.ReLU(),
                         nn.Linear(5, 3))  # fmt: skip


class Norm(nn.Module):
    """No chain of linear layers: the general way must serve it."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def in_place():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.ReLU(inplace=True),
                         nn.Linear(5, 3))  # fmt: skip


def first_in_place():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 5), nn.ReLU(True), nn.Linear(5, 3))


def training(**options):
    return TorchTraining(**{"build": stack, "classes": [0, 1, 2], "access": "logits"} | options)


@pytest.mark.parametrize("build", [stack, Norm, in_place, first_in_place])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradients_are_those_of_each_record_clipped_and_summed(build, clip):
    """Against plain autograd, one record of one model at a time."""
    modules = [build() for _ in range(3)]
    weights, fixed = torch.func.stack_module_state(modules)
    x, y = torch.randn(3, 7, 6), torch.randint(0, 3, (3, 7))
    share = torch.rand(3, 7)
    share[0, 4:] = 0
    found = gradients_for(modules[0], x[0, :1])(weights, fixed, x.clone(), y, share, clip)
    clipped = 0
    for k, module in enumerate(modules):
        wanted = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
        for i in range(7):
            one = x[k, i : i + 1].clone()
            loss = nn.functional.cross_entropy(module(one), y[k, i : i + 1])
            own = torch.autograd.grad(loss, list(module.parameters()))
            norm = float(torch.sqrt(sum(g.square().sum() for g in own)))
            factor = 1.0 if clip is None else min(1.0, clip / norm)
            clipped += factor < 1
            for total, g in zip(wanted.values(), own, strict=True):
                total += share[k, i] * factor * g
        for name, value in wanted.items():
            assert torch.allclose(found[name][k], value, atol=1e-5)
    assert (clipped > 0) == (clip is not None)


def test_what_counts_as_a_chain_of_linear_layers():
    twice, frozen = nn.Linear(6, 6), stack()
    frozen[0].weight.requires_grad_(False)
    assert is_linear_stack(stack(), torch.zeros(1, 6))
    assert not is_linear_stack(nn.Sequential(twice, twice), torch.zeros(1, 6))
    assert not is_linear_stack(frozen, torch.zeros(1, 6))
    record = -torch.ones(1, 6)
    assert not is_linear_stack(in_place(), record)
    assert not is_linear_stack(first_in_place(), record)
    assert (record == -1).all()
    assert not is_linear_stack(nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)), torch.zeros(1, 6))
    sequences = nn.Sequential(nn.Linear(6, 3), nn.Flatten())
    assert not is_linear_stack(sequences, torch.zeros(1, 4, 6))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("records", [101, 128])  # halves of 50 and 51; of 64, whole minibatches
def test_a_fleet_equals_the_targets_own_trainer(optimizer, records):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(records, 6)), rng.integers(0, 3, records)
    config = ClassifierConfig(
        classes=3, hidden=(16, 8), epochs=8, batch_size=16, optimizer=optimizer, weight_decay=0.01
    )
    splits = halves(records, 4, 0)
    recipe = stacked(config, network_arguments(config, (6,)), "logits")
    for k, target in enumerate(recipe(x, y, splits, [5, 6, 7, 8])):
        alone = fit_classifier(config, x[splits[k]], y[splits[k]], 5 + k)
        with torch.no_grad():
            wanted = alone(torch.tensor(x, dtype=torch.float))
        assert np.allclose(target.logits(x), wanted, atol=1e-3)


def test_a_private_fleet_behaves_as_the_targets_own_trainer():
    """The noise differs, so the law of the losses is compared; 1 in 1000 such tests fails."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, 120)
    x = rng.normal(size=(120, 4)) + y[:, None]
    config = ClassifierConfig(
        classes=2, hidden=(8,), epochs=3, batch_size=20, learning_rate=0.02,
        privacy=Privacy(noise_multiplier=1.0, clipping_norm=0.5),
    )  # fmt: skip
    inside = np.zeros((40, 120), dtype=np.bool_)
    inside[:, :60] = True

    def loss(logits):
        return float(nn.functional.cross_entropy(torch.as_tensor(logits), torch.as_tensor(y)))

    recipe = stacked(config, network_arguments(config, (4,)), "logits")
    together = [loss(target.logits(x)) for target in recipe(x, y, inside, list(range(40)))]
    alone = [
        loss(fit_classifier(config, x[:60], y[:60], 100 + k)(torch.tensor(x).float()).detach())
        for k in range(40)
    ]
    assert kstest(together, alone).pvalue > 0.001


def test_noise_has_its_standard_deviation():
    """No learning signal: one step from zero weights moves them by the noise alone."""

    def zero():
        module = nn.Linear(50, 2, bias=False)
        nn.init.zeros_(module.weight)
        return module

    recipe = training(
        build=zero, classes=[0, 1], epochs=1, batch_size=10, optimiser="sgd", learning_rate=1.0,
        private=PrivateTraining(noise_multiplier=3.0, clipping_norm=0.2),
    )  # fmt: skip
    # records of zeros have no gradient; 10 a step of 10 records: one step
    targets = recipe(np.zeros((10, 50)), np.arange(10) % 2, np.ones((64, 10), bool), [*range(64)])
    moved = np.array([target.logits(np.eye(50)) for target in targets])
    wanted = 3.0 * 0.2 / 10
    # 6400 normal draws: the sample deviation is within 4 % of the true one but for 1 in 10^5
    assert moved.std() == pytest.approx(wanted, rel=0.04)
    assert len(np.unique(moved.round(6))) > 6000  # each model has noise of its own


def test_models_are_the_same_in_any_company():
    """A resumed fleet trains what is missing: the others are absent then."""
    splits, seeds = halves(101, 6, 0), [10, 11, 12, 13, 14, 15]
    for options in ({}, {"private": PrivateTraining(0.8)}, {"build": Norm}):
        recipe = training(epochs=5, batch_size=16, **options)
        whole = [t.logits(X) for t in recipe(X, Y, splits, seeds)]
        part = [t.logits(X) for t in recipe(X, Y, splits[[1, 4]], [11, 14])]
        assert np.allclose(whole[1], part[0], atol=1e-4)
        assert np.allclose(whole[4], part[1], atol=1e-4)


def dropping():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.01},
        {"optimiser": "sgd", "momentum": 0.9, "learning_rate": 0.1},
        {"private": PrivateTraining(lambda records: 100 / records), "batch_size": 8},
        {"build": dropping, "learning_rate": 0.01},
    ],
)
def test_nor_does_a_larger_or_smaller_companion_change_a_model(options):
    """Persons have unequally many records, so the halves of a plan may differ much in size."""
    inside, seeds = np.zeros((5, 101), bool), [20, 21, 22, 23, 24]
    for row, size in zip(inside, (10, 91, 50, 10, 49), strict=True):
        row[:size] = True
    recipe = training(**{"epochs": 10, "batch_size": 16, "workers": 1} | options)
    whole = [t.logits(X) for t in recipe(X, Y, inside, seeds)]
    for k in range(5):
        (alone,) = recipe(X, Y, inside[[k]], seeds[k : k + 1])
        assert np.allclose(whole[k], alone.logits(X), atol=1e-4)
        side_by_side = dataclasses.replace(recipe, workers=3)(X, Y, inside, seeds)
        assert np.allclose(whole[k], list(side_by_side)[k].logits(X), atol=1e-4)


def test_each_model_takes_the_epochs_of_its_own_records():
    """Against plain training of each alone: 2 steps an epoch for 20 records, 6 for 91."""
    inside = np.zeros((2, 101), bool)
    inside[0, :20] = inside[1, :91] = True
    config = ClassifierConfig(classes=3, hidden=(8,), epochs=5, batch_size=16, learning_rate=0.01)
    for k, target in enumerate(stacked(config, network_arguments(config, (6,)), "logits")(
        X, Y, inside, [5, 6]
    )):  # fmt: skip
        alone = fit_classifier(config, X[inside[k]], Y[inside[k]], 5 + k)
        with torch.no_grad():
            wanted = alone(torch.tensor(X, dtype=torch.float))
        assert np.allclose(target.logits(X), wanted, atol=1e-4)


def test_a_model_has_the_noise_of_its_own_number_of_records():
    config = ClassifierConfig(classes=3, epochs=5, batch_size=8, privacy=Privacy(epsilon=2.0))
    private = stacked(config, network_arguments(config, (6,)), "logits").private
    for records in (20, 81):
        wanted = plan(records, 8, epochs=5, epsilon=2.0, delta=config.privacy.delta)
        assert private.multiplier(records) == wanted.noise_multiplier
    assert private.multiplier(20) > 1.3 * private.multiplier(81)


def test_a_private_step_that_draws_nobody_is_noise_alone():
    """Of 10 records at rate 1/10 none is drawn in one step of three."""
    for build in (stack, Norm, in_place):
        recipe = training(build=build, epochs=20, batch_size=1, private=PrivateTraining(1.0))
        assert np.isfinite(recipe.fit(X[:10], Y[:10], 0).logits(X)).all()


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.bool_])
def test_whole_numbers_and_truths_train_as_floats_do(kind):
    whole = (np.abs(X) * 3).astype(kind)
    recipe = training(epochs=3)
    wanted = recipe.fit(whole.astype(np.float32), Y, 0).logits(whole.astype(np.float32))
    assert np.array_equal(recipe.fit(whole, Y, 0).logits(whole), wanted)


def test_records_that_the_module_cannot_take_are_one_line():
    with pytest.raises(ValueError, match="build: its module cannot take these records: mat1"):
        training().fit(X[:, :4], Y, 0)
    with pytest.raises(ValueError, match="takes numbers alone; encode words"):
        training().fit(X.astype(object), Y, 0)


def test_an_interrupted_fleet_resumes_with_equal_answers(tmp_path):
    pool = Pool(X, Y, np.array([0, 1, 2]))
    recipe = training(epochs=5, batch_size=16, together=2)

    class Interrupted:
        def __init__(self):
            self.given = 0

        def __call__(self, *arguments):
            for target in recipe(*arguments):
                if self.given == 3:
                    raise KeyboardInterrupt
                self.given += 1
                yield target

    trained = []

    def counted(features, labels, inside, seeds):
        trained.extend(seeds)
        return recipe(features, labels, inside, seeds)

    with pytest.raises(KeyboardInterrupt):
        Shadows(None, 6, folder=tmp_path, recipe="a", fit_many=Interrupted()).observations(pool)
    seen = Shadows(None, 6, folder=tmp_path, recipe="a", fit_many=counted).observations(pool)
    assert len(trained) == 3
    whole = Shadows(None, 6, fit_many=recipe).observations(pool)
    assert np.allclose(seen.values, whole.values, atol=1e-4)


def test_groups_side_by_side_are_those_trained_in_turn():
    splits, seeds = halves(101, 8, 0), [*range(8)]
    for options in ({}, {"private": PrivateTraining(0.8)}, {"build": Norm}):
        answers = []
        for workers in (1, 4):
            recipe = training(epochs=3, batch_size=16, together=2, workers=workers, **options)
            answers.append([target.logits(X) for target in recipe(X, Y, splits, seeds)])
        assert np.array_equal(*answers)


def test_dropout_is_drawn_from_the_seed():
    """Dropout draws from torch's one generator, so such models are never trained side by side."""

    recipe = training(build=dropping, epochs=3, together=2, workers=4)
    once, twice = (
        [t.logits(X) for t in recipe(X, Y, halves(101, 8, 0), [*range(8)])] for _ in "12"
    )
    assert np.array_equal(once, twice)


def test_who_stops_listening_stops_the_training():
    """The second group would train for hours, and the pool waits for it."""
    started, stop = time.monotonic(), threading.Event()
    stop.set()
    forever = training(epochs=10**7)
    forever._train(torch.tensor(X).float(), torch.tensor(Y), halves(101, 2, 0), [0, 1], [], stop)
    assert time.monotonic() - started < 60


def test_the_callers_random_state_and_threads_are_left_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    training(epochs=1, together=1, workers=2).fit(X, Y, 0)
    left = torch.get_num_threads()
    torch.set_num_threads(before)
    assert torch.equal(torch.rand(2), wanted)
    assert left == 2


def test_what_cannot_be_trained_is_refused():
    batch = training(build=lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    with pytest.raises(ValueError, match="has batch normalisation"):
        batch.fit(X, Y, 0)
    with pytest.raises(ValueError, match="epochs: must be positive, got 0"):
        training(epochs=0)
    with pytest.raises(ValueError, match="noise_multiplier, clipping_norm"):
        PrivateTraining(1.0, 0.0)
    with pytest.raises(ValueError, match="batch_size: 64 is more than the 50 records"):
        training(private=PrivateTraining(1.0)).fit(X[:50], Y[:50], 0)


def test_a_model_that_diverged_is_named():
    wild = training(optimiser="sgd", learning_rate=1e30, epochs=3)
    with pytest.raises(ValueError, match="shadow model 0: target: answered with NaN or infinite"):
        Shadows(None, 2, fit_many=wild).observations(Pool(X, Y, np.array([0, 1, 2])))
