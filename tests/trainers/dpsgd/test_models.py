"""Whole models as they come: MLP, CNN, GPT-2 tied and untied, Llama, BERT, LoRA, soft prompt."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainers.dpsgd.language import SoftPrompt, token_losses

transformers = pytest.importorskip("transformers")
SIZE = {"vocab_size": 37, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(tied=True):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=2, n_positions=24, tie_word_embeddings=tied,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SIZE,
        )
    )  # fmt: skip


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, **SIZE,
        )
    )  # fmt: skip


def bert():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=32, hidden_dropout_prob=0.0, num_labels=3,
            attention_probs_dropout_prob=0.0, **SIZE,
        )
    )  # fmt: skip


def texts(batch=5, length=9):
    """Ids with padding at the end, of every length from two, and the attention mask."""
    torch.manual_seed(1)
    ids = torch.randint(3, 37, (batch, length))
    real = torch.arange(length) < torch.linspace(2, length, batch).long()[:, None]
    return ids * real, real.long()


def causal(model, ids, mask):
    logits = model(input_ids=ids, attention_mask=mask).logits
    return token_losses(logits, ids.masked_fill(mask == 0, -100))


def classes(model, ids, mask, y):
    return F.cross_entropy(model(input_ids=ids, attention_mask=mask).logits, y, reduction="none")


@pytest.mark.parametrize("length", [9, 24])
@pytest.mark.parametrize("make", [gpt2, lambda: gpt2(False), llama])
def test_causal_models_as_they_come(same_as_reference, make, length):
    same_as_reference(make(), causal, texts(length=length), by="turns")


def test_bert_with_a_head_for_classes(same_as_reference):
    ids, mask = texts()
    same_as_reference(bert(), classes, (ids, mask, torch.tensor([0, 1, 2, 0, 1])), by="turns")


def test_ids_that_are_not_contiguous(same_as_reference):
    ids, mask = texts(length=18)
    same_as_reference(gpt2(), causal, (ids[:, ::2], mask[:, ::2]), by="turns")


def test_lora_on_gpt2_trains_only_its_own_weights(same_as_reference):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=3, target_modules=["c_attn", "c_proj"], init_lora_weights=False, fan_in_fan_out=True
    )
    model = peft.get_peft_model(gpt2(), config)
    assert all("lora" in name for name, p in model.named_parameters() if p.requires_grad)
    same_as_reference(model, causal, texts(), by="turns")


def test_a_soft_prompt_before_a_frozen_model(same_as_reference):
    model = SoftPrompt(gpt2(), length=4)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["prompt.weight"]
    same_as_reference(model, causal, texts(), by="turns")


def test_a_convolutional_network(same_as_reference):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.GroupNorm(2, 4), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip
    x, y = torch.randn(6, 1, 12, 12), torch.randint(0, 10, (6,))
    model(x)
    same_as_reference(model, lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), (x, y))


def test_a_multilayer_perceptron(same_as_reference):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 10)
    )
    x, y = torch.randn(16, 20), torch.randint(0, 9, (16,))
    same_as_reference(model, lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), (x, y))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(same_as_reference, reentrant):
    model = gpt2()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    same_as_reference(model, causal, texts(), by="turns", plain=gpt2())


def test_token_losses_are_means_over_a_texts_own_tokens():
    ids, mask = texts()
    labels = ids.masked_fill(mask == 0, -100)
    model = gpt2().eval()
    found = token_losses(model(input_ids=ids, attention_mask=mask).logits, labels)
    for k, length in enumerate(mask.sum(1)):
        alone = model(input_ids=ids[k : k + 1, :length], labels=ids[k : k + 1, :length]).loss
        assert found[k].item() == pytest.approx(alone.item(), rel=1e-5)
