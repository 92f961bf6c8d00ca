"""What would make ε false is refused at once, and by name."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from audit.probes.clipping import furthest_move
from trainers.dpsgd.adaptive import AdaptiveNorm
from trainers.dpsgd.capture import Unsupported
from trainers.dpsgd.clipping import Automatic, Flat, Groups
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.plan import plan
from trainers.dpsgd.training import PrivateTraining

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BATCH = torch.arange(8)


def network(*, head=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), head or nn.Linear(5, 2)).train()


def training(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    spending = plan(64, 8, steps=40, noise_multiplier=1.0)
    return PrivateTraining(model, optimizer, spending, source="seeded", **options)


def plain(model):
    return lambda rows: F.cross_entropy(model(X[rows]), Y[rows], reduction="none")


# the optimizer


def test_an_optimizer_with_weights_outside_the_model_is_refused():
    model, head = network(head=nn.Identity()), nn.Linear(5, 2)
    with pytest.raises(Unsupported, match=r"shape \(2, 5\).*neither clipped nor noisy"):
        training(model, torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1))
    frozen = torch.optim.SGD(nn.Linear(2, 2).requires_grad_(False).parameters(), 0.1)
    with pytest.raises(Unsupported, match="holds none of the model's"):
        training(model, frozen)


def test_a_weight_that_is_unfrozen_later_is_refused_before_it_moves():
    model = network()
    model[0].requires_grad_(False)
    run = training(model)
    run.step(BATCH, plain(model))
    before = model[0].weight.detach().clone()
    model[0].requires_grad_(True)
    with pytest.raises(Unsupported, match="neither clipped nor noisy"):
        run.step(BATCH, plain(model))
    assert torch.equal(before, model[0].weight)
    assert run.steps == 1


def test_lbfgs_is_refused():
    model = network()
    with pytest.raises(Unsupported, match="LBFGS"):
        training(model, torch.optim.LBFGS(model.parameters()))


# the batch and its losses


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([1, 2, 2], "comes twice"),
        ([-1, 2], "between 0 and 63"),
        ([64], "between 0 and 63"),
        ([0.5], "record numbers"),
    ],
)
def test_strange_batches_are_refused(batch, said):
    model = network()
    run = training(model)
    with pytest.raises(ValueError, match=said):
        run.step(torch.tensor(batch), plain(model))
    assert run.steps == 0


@pytest.mark.parametrize("engine", ["book-keeping", "opacus"])
def test_losses_of_other_records_than_asked_for_are_refused(engine):
    model = network()
    run = training(model, micro_batch=2, engine=engine)
    with pytest.raises(Unsupported, match="8 for the 2 records asked for"):
        run.step(BATCH, lambda rows: plain(model)(BATCH))


def test_no_step_comes_after_the_last_of_the_plan():
    model = network()
    run = training(model)
    for batch in run:
        run.step(batch, plain(model))
    with pytest.raises(ValueError, match="all 40 of the plan"):
        run.step(BATCH, plain(model))


@pytest.mark.parametrize("options", [{"source": "Secure"}, {"engine": "Opacus"}])
def test_misspelt_options_are_refused(options):
    model, spending = network(), plan(64, 8, steps=1, noise_multiplier=1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"must be .*, got"):
        PrivateTraining(model, optimizer, spending, **options)


# records that mix, where gradients do not show it


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Room(nn.Module):
    """Half of the batch may pass: records compete."""

    def forward(self, x):
        kept = x.norm(dim=1).topk(max(1, len(x) // 2)).indices
        mask = torch.zeros(len(x)).index_fill(0, kept, 1.0)
        return x * mask[:, None]


def by_share_of_classes(model):
    def losses(rows):
        counts = torch.bincount(Y[rows], minlength=2).clamp(min=1)
        each = F.cross_entropy(model(X[rows]), Y[rows], reduction="none")
        return each * len(rows) / counts[Y[rows]]

    return losses


@pytest.mark.parametrize("engine", ["book-keeping", "opacus"])
@pytest.mark.parametrize("first", [Centred(), Room()])
def test_records_that_mix_before_the_first_weight_are_refused(engine, first):
    model = nn.Sequential(first, *network())
    run = training(model.train(), engine=engine)
    with pytest.raises(Unsupported, match="changes with the records beside it"):
        run.step(BATCH, plain(model))
    assert run.steps == 0
    assert model.training  # as it was


def test_weights_counted_in_the_batch_are_refused():
    model = network()
    with pytest.raises(Unsupported, match="changes with the records beside it"):
        training(model).step(BATCH, by_share_of_classes(model))


def test_looking_for_mixed_records_adds_nothing_to_gradients_that_are_the_sums():
    """After a step each weight's gradient is the sum itself: a pass that looks adds into it."""
    model = network()
    engine = ClippedSum(model, Flat(0.01))
    for name, p in engine.weights.items():
        p.grad = engine.sums[name]
    for _ in range(5):  # passes 1, 2 and 4 look
        engine.clear()
        engine.add(plain(model)(BATCH))
        # 8 records of norm 0.01 at most
        assert 0 < engine.flat.norm() <= 0.08 * (1 + 1e-5)


def test_a_head_of_zeros_hides_mixing_for_one_step_only():
    head = nn.Linear(5, 2)
    nn.init.zeros_(head.weight)

    class Mixing(nn.Module):
        def forward(self, x):
            return x + x.roll(1, 0) if self.training else x  # what only gradients can show

    model = nn.Sequential(nn.Linear(6, 5), Mixing(), head).train()
    run = training(model)
    run.step(BATCH, plain(model))
    with pytest.raises(Unsupported, match="one record's loss depends on another"):
        run.step(BATCH, plain(model))


def test_one_pair_of_records_in_the_middle_is_seen():
    """Neither is first or last; each look has an even chance, and there are six in 40 steps."""
    model = network()

    def losses(rows):
        found = plain(model)(rows)
        return found + torch.where(rows == 3, model(X[rows])[rows == 5].sum() * 0.01, 0.0)

    model.eval = lambda: model  # values would show it: gradients alone, here
    run = training(model)

    def train():
        for _ in range(40):
            run.step(BATCH, losses)

    with pytest.raises(Unsupported, match=r"depends on another|beside it"):
        train()


def test_what_the_forward_pass_changes_is_refused():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            if self.training:
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return x

    model = nn.Sequential(Remembers(), *network()).train()
    with pytest.raises(Unsupported, match=r"0.mean: is changed by the forward pass"):
        training(model).step(BATCH, plain(model))


def test_a_record_that_is_not_finite_is_no_reason_to_refuse_the_model():
    model, x = network(), X.clone()
    x[3] = float("inf")
    run = training(model)
    run.step(BATCH, lambda rows: F.cross_entropy(model(x[rows]), Y[rows], reduction="none"))
    assert run.sum.unusable == 1


def test_evaluation_mode_and_compiled_models_are_refused_in_words():
    model = network()
    engine = ClippedSum(model, Flat(1.0))
    losses = plain(model)(BATCH)
    model.eval()
    with pytest.raises(Unsupported, match=r"call model.train\(\)"):
        engine.add(losses)
    with pytest.raises(Unsupported, match=r"before torch.compile"):
        ClippedSum(torch.compile(network(), backend="eager"), Flat(1.0))


# rounding


@pytest.mark.parametrize("clipping", [Flat(1.0), Automatic(1.0)])
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_places_that_cancel_move_the_sum_by_no_more_than_c(clipping, size):
    """Norms come from differences of large products: of what is left, rounding hides most."""
    for seed in range(4):
        torch.manual_seed(seed)
        first, last = nn.Linear(64, 16), nn.Linear(16, 2)
        unseen = torch.linalg.svd(first.weight.detach().double())[2][16:].float()
        x, y = torch.randn(6, 2, 64), torch.tensor([0, 1, 0, 1, 0, 1])
        x[5, 0] = size * (unseen[0] + 3e-4 * unseen[1])
        x[5, 1] = size * (-unseen[0] + 3e-4 * unseen[1])

        class Mean(nn.Module):
            def forward(self, a):
                return torch.tanh(a.mean(1))

        model = nn.Sequential(first, Mean(), last).train()
        engine = ClippedSum(model, clipping)

        def release(rows):
            engine.clear()  # noqa: B023
            if rows:
                some = list(rows)
                engine.add(F.cross_entropy(model(x[some]), y[some], reduction="none"))  # noqa: B023
            return engine.flat.numpy().copy()  # noqa: B023

        assert not furthest_move(release, [(0, 1, 5)]).exceeds(1.0)


def test_autocast_and_default_types_change_no_norm():
    def flat(context, dtype=torch.float32):
        model = network()
        engine = ClippedSum(model, Flat(0.01))
        losses = plain(model)(BATCH)
        torch.set_default_dtype(dtype)
        try:
            with context:
                engine.add(losses)
        finally:
            torch.set_default_dtype(torch.float32)
        return engine.flat

    wanted = flat(torch.enable_grad())
    assert torch.equal(wanted, flat(torch.autocast("cpu", torch.bfloat16)))
    assert torch.equal(wanted, flat(torch.enable_grad(), torch.float16))


def test_double_precision_is_trained_as_well():
    model = network().double()
    engine = ClippedSum(model, Flat(1e-3))
    norms = engine.add(F.cross_entropy(model(X[BATCH].double()), Y[BATCH], reduction="none"))
    assert norms.dtype == engine.flat.dtype == torch.float32
    assert engine.flat.norm() <= 8e-3


# counting


def test_a_step_that_fails_leaves_no_count_behind():
    model = network()
    run = training(model, clipping=AdaptiveNorm(1e-3, count_noise=5.0), micro_batch=4)
    calls = []

    def fails(rows):
        calls.append(rows)
        if len(calls) > 5:
            raise RuntimeError("out of memory")
        return plain(model)(rows)

    with pytest.raises(RuntimeError, match="out of memory"):
        run.step(BATCH, fails)
    assert run._adaptive._above_half != 0
    seen = []
    run._noisy_count = lambda: seen.append(run._adaptive.take_count()) or 0.0
    run.step(BATCH, plain(model))
    assert abs(seen[0]) <= len(BATCH) / 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 3.7, "epsilon": 1.0}, "steps: must be a whole number"),
        ({"epochs": -3, "noise_multiplier": 1.0}, "epochs: must be positive"),
        ({"epochs": float("inf"), "noise_multiplier": 1.0}, "epochs: must be positive"),
        ({"steps": 1, "noise_multiplier": 1e-200}, "noise_multiplier: must lie between"),
        ({"steps": 10**6, "epsilon": 1e-9, "delta": 1e-300}, "epsilon: .*cannot be reached"),
    ],
)
def test_plans_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        plan(100, 10, **options)


def test_no_epsilon_is_below_zero():
    assert plan(100, 10, steps=1, noise_multiplier=1.0, delta=0.5).epsilon(1) == 0.0


def test_groups_that_leave_a_weight_out_are_refused():
    model = network()
    engine = ClippedSum(model, Groups({"a": 1.0}, {"0.weight": "a"}))
    with pytest.raises(ValueError, match=r"group_of: has no group for the weight '0.bias'"):
        engine.add(plain(model)(BATCH))
