"""Each class' part is clipped to its norm, and other classes' parts do not see its tokens."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainers.dpsgd.class_guarantees import SensitivityClasses, state_guarantees
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.language import token_losses
from trainers.dpsgd.sensitivity import (
    Template,
    add_by_class,
    attention_mask,
    check_visibility,
    class_losses,
    split_losses,
)

transformers = pytest.importorskip("transformers")

WORDS = 31
CLASSES = SensitivityClasses(("low", "medium", "high"), (1.0, 0.5, 0.1))
# a less sensitive field after a more sensitive one: there context would leak
TEMPLATE = Template(CLASSES, (("low", 3), ("high", 3), ("medium", 2), ("low", 3), ("high", 2)))


def gpt2(attention="sdpa", dropout=0.0):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=1,
        eos_token_id=2, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        initializer_range=0.3, attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).train()


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def texts(batch=4, seed=1):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, (batch, len(TEMPLATE.places)), generator=draw)
    return ids, torch.ones_like(ids, dtype=torch.bool)


def masked(model):
    return lambda ids, filled: class_losses(model, ids, filled, TEMPLATE)


def unmasked(model):
    def losses(ids, filled):
        logits = model(input_ids=ids, attention_mask=filled.long()).logits
        return split_losses(logits, ids, filled, TEMPLATE)

    return losses


def visibility(model, losses):
    engine = ClippedSum(model, Flat(CLASSES.sensitivity))
    found = check_visibility(engine, TEMPLATE, losses, *texts(), WORDS)
    assert not engine.flat.any()
    assert engine.records == 0
    engine.release()
    return found


# the split


def test_the_parts_sum_up_to_the_texts_loss():
    model, (ids, filled) = gpt2(), texts()
    logits = model(input_ids=ids).logits
    parts = split_losses(logits, ids, filled, TEMPLATE)
    assert torch.allclose(parts.sum(0), token_losses(logits, ids), rtol=1e-6)
    assert (parts > 0).all()


def test_a_term_is_of_the_more_sensitive_class_of_its_two_places():
    template = Template(CLASSES, (("low", 2), ("medium", 1), ("high", 1), ("low", 2)))
    logits = torch.zeros(1, 6, 2)
    ids, filled = torch.zeros(1, 6, dtype=torch.long), torch.ones(1, 6, dtype=torch.bool)
    counts = split_losses(logits, ids, filled, template)[:, 0] / torch.tensor(2.0).log() * 5
    assert counts.tolist() == pytest.approx([2, 1, 2])  # ll lm mh hl ll


def test_an_empty_class_has_no_loss_and_takes_nothing_from_the_others():
    model, (ids, filled) = gpt2(), texts()
    emptied = filled & (TEMPLATE.places != 2)
    full, less = (masked(model)(ids, f) for f in (filled, emptied))
    assert torch.equal(less[2], torch.zeros(4))
    assert torch.equal(less[:2], full[:2])


# who sees whom


def test_the_mask_lets_a_place_see_earlier_filled_places_that_are_no_more_sensitive():
    filled = texts(2)[1]
    filled[1, 4] = False
    mask, places = attention_mask(TEMPLATE, filled), TEMPLATE.places
    for b in range(2):
        for t in range(len(places)):
            for s in range(len(places)):
                sees = s == t or (s < t and places[s] <= places[t] and bool(filled[b, s]))
                assert (mask[b, 0, t, s] == 0) == sees


@pytest.mark.parametrize(
    "model",
    [gpt2(), gpt2("eager"), gpt2(dropout=0.2), llama()],
    ids=["sdpa", "eager", "dropout", "llama"],
)
def test_under_the_mask_less_sensitive_parts_move_by_exactly_zero(model):
    found = visibility(model, masked(model))
    for k, moved in enumerate(found.moved):
        assert moved[k] > 0
        assert all(gap == 0 for gap in moved[:k])
    assert found.moves("high") == ()
    assert found.moves("medium") == ("high",)
    assert {g.unit.split()[0] for g in state_guarantees(CLASSES, 1.0, found)} == {
        "record", "medium", "high",
    }  # fmt: skip


def test_without_the_mask_they_move_and_no_class_has_a_guarantee():
    model = gpt2()
    found = visibility(model, unmasked(model))
    assert found.moved[2][0] > 0.1 * CLASSES.clipping_norms[0]
    assert {g.unit for g in state_guarantees(CLASSES, 1.0, found)} == {"record"}


def test_a_loss_divided_by_the_filled_places_ties_the_classes_together():
    model = gpt2()

    def losses(ids, filled):
        return masked(model)(ids, filled) * 12 / filled.sum(1)

    # small gradients, which are not clipped: there the division shows
    classes = SensitivityClasses(CLASSES.names, (100.0, 100.0, 100.0))
    template = Template(classes, TEMPLATE.fields)
    engine = ClippedSum(model, Flat(classes.sensitivity))
    found = check_visibility(engine, template, losses, *texts(), WORDS)
    assert found.moves("high") == ("low", "medium")


def test_a_check_that_would_show_nothing_is_refused():
    model = gpt2()
    engine = ClippedSum(model, Flat(CLASSES.sensitivity))
    ids, filled = texts()

    def check(losses):
        check_visibility(engine, TEMPLATE, losses, ids, filled, WORDS)

    with pytest.raises(ValueError, match="'high' does not move its own"):
        check(lambda i, f: masked(model)(i, f) * torch.tensor([[1.0], [1.0], [0.0]]))
    with pytest.raises(ValueError, match="not finite"):
        check(lambda i, f: masked(model)(i, f) * float("nan"))
    noise = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="two results"):
        check(lambda i, f: masked(model)(i, f) * torch.rand(1, generator=noise))
    engine.add(masked(model)(ids, filled)[0])
    with pytest.raises(ValueError, match="holds records"):
        check(masked(model))


# the clipped sum


def in_turns(model, ids, filled):
    """By autograd, each record's and class' gradient, clipped to the class' norm, added up."""
    weights, total, norms = list(model.parameters()), None, torch.zeros(3, len(ids))
    for b in range(len(ids)):
        for k, c in enumerate(CLASSES.clipping_norms):
            loss = class_losses(model, ids[b : b + 1], filled[b : b + 1], TEMPLATE)[k, 0]
            found = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
            norms[k, b] = found.norm()
            part = found * min(1.0, c / max(float(found.norm()), 1e-30))
            total = part if total is None else total + part
    return total, norms


def test_sums_are_those_of_clipping_each_record_and_class_in_turns():
    model, (ids, filled) = gpt2(), texts()
    filled[1, 4:6] = filled[2, 7] = False
    wanted, norms = in_turns(model, ids, filled)
    assert (norms[2] > 0.1).any()
    engine = ClippedSum(model, Flat(CLASSES.sensitivity))
    for _ in range(2):  # the first batch takes a way of its own
        engine.clear()
        found = add_by_class(engine, CLASSES, lambda: class_losses(model, ids, filled, TEMPLATE))
        assert torch.allclose(found, norms, rtol=1e-4)
        total = torch.cat([engine.sums[name].flatten() for name, _ in model.named_parameters()])
        assert (total - wanted).norm() < 1e-5 * wanted.norm()
        assert engine.records == 4
        assert engine.clipping == Flat(CLASSES.sensitivity)


@pytest.fixture(scope="module")
def ready():
    """A model whose every part is clipped, and its engine past the first batch."""
    model = gpt2()
    engine = ClippedSum(model, Flat(CLASSES.sensitivity))

    def total(ids, filled):
        engine.clear()
        add_by_class(engine, CLASSES, lambda: 50 * class_losses(model, ids, filled, TEMPLATE))
        return engine.flat.double().clone()

    total(*texts())
    return total


quick = settings(max_examples=15, deadline=None, derandomize=True)


@quick
@given(seed=st.integers(0, 2**30), batch=st.integers(1, 4))
def test_a_record_more_moves_the_sum_by_the_sum_of_norms_at_most(ready, seed, batch):
    ids, filled = texts(batch + 1, seed)
    gap = (ready(ids, filled) - ready(ids[:-1], filled[:-1])).norm()
    assert gap <= CLASSES.sensitivity * (1 + 1e-5)
    assert gap > 0.5  # clipped, not vanished


@quick
@given(
    seed=st.integers(0, 2**30), batch=st.integers(1, 4), which=st.integers(1, 2),
    erase=st.booleans(),
)  # fmt: skip
def test_a_class_fields_move_the_sum_by_what_is_stated(ready, seed, batch, which, erase):
    ids, filled = texts(batch, seed)
    others, emptied = ids.clone(), filled.clone()
    own = TEMPLATE.places == which
    if erase:
        emptied[0, own] = False
    else:
        others[0, own] = texts(1, seed + 1)[0][0, own]
    c, seen = CLASSES.clipping_norms[which], 0.1 if which == 1 else 0.0
    at_most = (1 if erase else 2) * c + 2 * seen
    assert (ready(others, emptied) - ready(ids, filled)).norm() <= at_most * (1 + 1e-5)


# the shortcut


class Bigram(nn.Module):
    """Two words; each place predicts the next from one row of numbers."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(2, 2)
        nn.init.zeros_(self.words.weight)

    def forward(self, ids):
        return self.words(ids)


def test_a_mask_on_the_batchs_gradient_bounds_no_record_and_clipping_by_class_does():
    path = Path(__file__).parents[3] / "fixtures" / "trainers" / "mask_clipping.py"
    spec = importlib.util.spec_from_file_location("mask_clipping", path)
    faulty = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faulty)

    classes = SensitivityClasses(("low", "high"), (0.05, 0.005))
    template = Template(classes, (("low", 6), ("high", 3)))
    model = Bigram()
    # neighbours: the second text says the opposite of the first, and more of it
    both = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 0], [0, 1, 0, 1, 0, 1, 0, 1, 0]])
    filled = torch.ones_like(both, dtype=torch.bool)
    one = both[:1]

    def shortcut(ids):
        mask = {"words.weight": torch.tensor([[1.0], [0.5]])}  # word 1 is more sensitive
        found = faulty.noisy_sum(model, token_losses(model(ids), ids), mask, 0.05, 0.0)
        return found["words.weight"]

    engine = ClippedSum(model, Flat(classes.sensitivity))

    def by_class(ids):
        engine.clear()
        add_by_class(
            engine, classes,
            lambda: split_losses(model(ids), ids, filled[: len(ids)], template),
        )  # fmt: skip
        return engine.flat.clone()

    assert (shortcut(both) - shortcut(one)).norm() > 1.5 * 0.05
    assert (by_class(both) - by_class(one)).norm() <= classes.sensitivity * (1 + 1e-5)


# what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((("low", 2), ("secret", 1)), "secret"),
        ((("low", 2), ("medium", 2)), "no loss is of class 'high'"),
        ((("low", 2), ("medium", 2), ("high", 0)), "0 places"),
    ],
)
def test_templates_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Template(CLASSES, fields)


def test_texts_of_another_layout_are_refused():
    ids, filled = texts()
    model = gpt2()
    with pytest.raises(ValueError, match="13 places"):
        class_losses(model, ids[:, :-1], filled[:, :-1], TEMPLATE)


def test_an_engine_of_another_sensitivity_is_refused():
    engine = ClippedSum(gpt2(), Flat(1.0))
    with pytest.raises(ValueError, match="its sensitivity is"):
        add_by_class(engine, CLASSES, lambda: torch.zeros(3, 2))
    engine.release()
    engine = ClippedSum(gpt2(), Flat(CLASSES.sensitivity))
    with pytest.raises(ValueError, match=r"give \(K, B\)"):
        add_by_class(engine, CLASSES, lambda: torch.zeros(2, 4))
