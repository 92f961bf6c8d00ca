"""The loop: batches, noise, division, account, resume; each step is what the algorithm says."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn
from torch.nn.functional import cross_entropy

from audit.accounting import rdp
from audit.accounting.events import SampledGaussian
from trainers.dpsgd.adaptive import AdaptiveNorm
from trainers.dpsgd.capture import Unsupported
from trainers.dpsgd.clipping import Automatic, Flat, Groups, per_layer
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.plan import plan
from trainers.dpsgd.training import PrivateTraining

RNG = np.random.default_rng(0)
X = torch.tensor(RNG.normal(size=(300, 6)), dtype=torch.float32)
Y = torch.tensor(RNG.integers(0, 3, 300))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def losses(model):
    return lambda rows: cross_entropy(model(X[rows]), Y[rows], reduction="none")


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.5)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def run(training, model, steps=None):
    for batch in training:
        training.step(batch, losses(model))
        if steps is not None and training.steps == steps:
            break
    return weights(model)


def test_three_lines_train_a_model_and_keep_to_the_target():
    model = network()
    training = PrivateTraining(
        model, sgd(model), plan(300, 30, epochs=5, epsilon=4.0), source="seeded"
    )
    before = float(cross_entropy(model(X), X[:, :3].argmax(1)))
    for batch in training:
        training.step(
            batch,
            lambda rows: cross_entropy(model(X[rows]), X[rows, :3].argmax(1), reduction="none"),
        )
    assert training.steps == 50
    assert float(cross_entropy(model(X), X[:, :3].argmax(1))) < 0.9 * before
    assert 3.98 < training.epsilon <= 4.0
    # the verifier's own accountant, which shares no code with the trainer's, says the same
    event = SampledGaussian(training.plan.noise_multiplier, 0.1, 50)
    assert rdp.epsilon([event], 1e-5, "add-remove").epsilon == pytest.approx(
        training.epsilon, rel=1e-3
    )


def test_one_step_is_the_noisy_clipped_sum_over_the_expected_size():
    """With next to no noise: weights move by -lr / B times the clipped sum of the drawn batch."""
    model = network()
    training = PrivateTraining(
        model, sgd(model), plan(300, 30, steps=3, noise_multiplier=1e-7),
        clipping=Flat(0.05), source="seeded", micro_batch=7,
    )  # fmt: skip
    for batch in training:
        before, reference = weights(model), network()
        reference.load_state_dict(model.state_dict())
        exact = ClippedSum(reference.train(), Flat(0.05))
        exact.add(losses(reference)(batch))
        training.step(batch, losses(model))
        assert torch.allclose(weights(model) - before, -0.5 / 30 * exact.flat, atol=1e-7)


def test_an_empty_batch_still_adds_noise_and_counts():
    seen = []
    model = network()
    training = PrivateTraining(
        model, sgd(model), plan(300, 1, steps=40, noise_multiplier=2.0), clipping=Flat(0.1),
        source="seeded", record=lambda size, clip: seen.append((size, clip)),
    )  # fmt: skip
    moved = []
    for batch in training:
        before = weights(model)
        training.step(batch, losses(model))
        if not len(batch):
            moved.append(weights(model) - before)
    assert len(seen) == training.steps == 40
    assert any(size == 0 for size, _ in seen)
    # -lr · σ · C / B times a standard normal; 1 in 1,000 such tests fails
    draws = torch.cat(moved) / (0.5 * 2.0 * 0.1)
    assert kstest(draws.numpy(), "norm").pvalue > 0.001


def test_micro_batches_change_nothing():
    results = []
    for size in (None, 4):
        model = network()
        training = PrivateTraining(
            model, sgd(model), plan(300, 40, steps=5, noise_multiplier=1.0), source="seeded",
            micro_batch=size,
        )  # fmt: skip
        results.append(run(training, model))
    assert torch.allclose(*results, atol=1e-5)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_run_that_was_killed_goes_on_bit_for_bit(adaptive):
    def begin():
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        clipping = AdaptiveNorm(0.5) if adaptive else Flat(0.5)
        return model, optimizer, PrivateTraining(
            model, optimizer, plan(300, 40, steps=12, noise_multiplier=1.5), clipping=clipping,
            source="seeded", seed=7,
        )  # fmt: skip

    model, _, training = begin()
    whole = run(training, model)
    model, optimizer, training = begin()
    run(training, model, steps=5)
    state = (model.state_dict(), optimizer.state_dict(), training.state())
    state = torch.load(_saved(state), weights_only=True)
    model, optimizer, training = begin()
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    training.restore(state[2])
    assert training.steps == 5
    assert torch.equal(run(training, model), whole)


def _saved(state):
    from io import BytesIO

    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_secure_runs_differ_and_say_so():
    results = []
    for _ in range(2):
        model = network()
        training = PrivateTraining(model, sgd(model), plan(300, 40, steps=2, noise_multiplier=1.0))
        results.append(run(training, model))
    assert not torch.equal(*results)


@pytest.mark.parametrize("style", ["flat", "automatic", "layers", "groups"])
def test_no_record_moves_the_sum_by_more_than_the_sensitivity(style):
    """One record more or less: the sums differ by at most the sensitivity, over all weights."""
    model = network().train()
    names = dict(model.named_parameters())
    clipping = {
        "flat": Flat(0.3),
        "automatic": Automatic(0.3),
        "layers": per_layer(names, 0.3),
        "groups": Groups(
            {"bias": 0.05, "weight": 0.2}, {name: name.rpartition(".")[2] for name in names}
        ),
    }[style]
    engine = ClippedSum(model, clipping)
    rows = torch.arange(20)
    scale = torch.logspace(-3, 3, 20)
    call = lambda some: losses(model)(some) * scale[some]  # noqa: E731
    engine.add(call(rows))
    whole = engine.flat.clone()
    moved = []
    for k in range(20):
        engine.clear()
        engine.add(call(rows[rows != k]))
        moved.append(float((engine.flat - whole).norm()))
    assert max(moved) <= clipping.sensitivity * (1 + 1e-5)
    assert max(moved) > 0.9 * clipping.sensitivity


def test_opacus_is_a_second_engine_with_the_same_sums():
    for clipping in (Flat(0.2), Automatic(0.2)):
        results = []
        for engine in ("book-keeping", "opacus"):
            model = network()
            training = PrivateTraining(
                model, sgd(model), plan(300, 40, steps=4, noise_multiplier=1.0), source="seeded",
                clipping=clipping, engine=engine,
            )  # fmt: skip
            results.append(run(training, model))
            training.release()
        assert torch.allclose(*results, atol=1e-5)


def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted():
    for engine in ("book-keeping", "opacus"):
        model = network()
        training = PrivateTraining(
            model, sgd(model), plan(300, 40, steps=3, noise_multiplier=1e-6), source="seeded",
            engine=engine,
        )  # fmt: skip
        batches = iter(training)
        training.step(next(batches), losses(model))
        batch = next(batches)
        rows = X[batch].clone()
        rows[3] = float("inf")
        training.sum.clear()
        training.sum.add(cross_entropy(model(rows), Y[batch], reduction="none"))
        assert training.sum.unusable == 1
        with_it = training.sum.flat.clone()
        keep = torch.arange(len(batch)) != 3
        training.sum.clear()
        training.sum.add(losses(model)(batch[keep]))
        assert torch.allclose(with_it, training.sum.flat, atol=1e-6)


def test_an_adaptive_norm_finds_the_median_and_pays_for_it():
    model = network()
    adaptive = AdaptiveNorm(20.0, quantile=0.5, rate=0.5)
    training = PrivateTraining(
        model, torch.optim.SGD(model.parameters(), 0.0),
        plan(300, 100, steps=60, noise_multiplier=2.0), clipping=adaptive, source="seeded",
    )  # fmt: skip
    run(training, model)
    training.release()
    norms = ClippedSum(model.train(), Flat(1.0)).add(losses(model)(torch.arange(300)))
    share = float((norms <= adaptive.clipping.clipping_norm).float().mean())
    assert 0.4 < share < 0.6
    # the gradient's and the count's precision add up to that of the accounted multiplier
    z = adaptive.gradient_multiplier(2.0, 100)
    assert z > 2.0
    assert z**-2 + (2 * adaptive.count_noise(100)) ** -2 == pytest.approx(2.0**-2)
    with pytest.raises(ValueError, match="spends more than the noise"):
        AdaptiveNorm(1.0, count_noise=0.9).gradient_multiplier(2.0, 100)


def test_what_is_not_sound_is_refused_at_the_first_batch():
    def refused(model, call, said):
        engine = ClippedSum(model.train(), Flat(1.0))
        with pytest.raises(Unsupported, match=said):
            engine.add(call(model))

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x):
            return self.inner(x) + nn.functional.linear(x, self.inner.weight)

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x):
            return self.inner(x - x.mean(0)) - self.inner(x).mean(0)

    x, y = X[:8], Y[:8]
    refused(network(), lambda m: cross_entropy(m(x), y), r"losses: shape \(\)")
    refused(Functional(), lambda m: cross_entropy(m(x), y, reduction="none"), "is not what its")
    refused(Centred(), lambda m: cross_entropy(m(x), y, reduction="none"), "another record")
    refused(
        nn.Sequential(nn.Linear(6, 3)),
        lambda m: cross_entropy(m(x), y, reduction="none").repeat(2),
        "sees 8 rows where there are 16 losses",
    )
    with pytest.raises(Unsupported, match=r"1: BatchNorm1d mixes .* use nn.GroupNorm"):
        ClippedSum(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), Flat(1.0))
    with pytest.raises(Unsupported, match=r"LSTM uses its weights inside one fused call"):
        ClippedSum(nn.LSTM(3, 4), Flat(1.0))
    with pytest.raises(Unsupported, match="no weight that requires a gradient"):
        ClippedSum(network().requires_grad_(False), Flat(1.0))


def test_half_precision_is_clipped_and_summed_in_single():
    model = network().bfloat16().train()
    engine = ClippedSum(model, Flat(0.1))
    x = X[:32].bfloat16()
    for _ in range(2):
        engine.clear()
        norms = engine.add(cross_entropy(model(x).float(), Y[:32], reduction="none"))
    assert engine.flat.dtype == norms.dtype == torch.float32
    assert engine.flat.norm() > 0.2
    for k in range(32):
        engine.clear()
        engine.add(cross_entropy(model(x[k : k + 1]).float(), Y[k : k + 1], reduction="none"))
        assert engine.flat.norm() <= 0.1 * (1 + 1e-6)


def test_evaluation_is_left_alone():
    model = network()
    engine = ClippedSum(model.train(), Flat(1.0))
    engine.add(losses(model)(torch.arange(8)))
    model.eval()
    model(X)
    with torch.no_grad():
        model.train()(X)
    assert all(p.requires_grad for p in model.parameters())
    engine.release()
    model.train()
    cross_entropy(model(X), Y).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 1, "steps": 2, "epsilon": 1}, "epochs, steps"),
        ({"epochs": 1}, "epsilon, noise_multiplier"),
        ({"epochs": 1, "epsilon": -1}, "epsilon: must be positive"),
        ({"epochs": 1, "noise_multiplier": math.inf}, "noise_multiplier"),
        ({"steps": 0, "epsilon": 1}, "steps: must be a whole number of at least 1"),
        ({"steps": 1, "epsilon": 1, "delta": 1.0}, "delta"),
    ],
)
def test_plans_that_cannot_be_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        plan(300, 30, **options)
    with pytest.raises(ValueError, match="batch_size"):
        plan(300, 301, steps=1, epsilon=1.0)
