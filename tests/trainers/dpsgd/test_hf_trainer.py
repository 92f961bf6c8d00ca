"""DPTrainer: the plain loop's weights, the verifier's account, the same run when resumed."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from audit import ledger
from audit.accounting import rdp
from trainers.dpsgd.adaptive import AdaptiveNorm
from trainers.dpsgd.capture import Unsupported
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.language import token_losses
from trainers.dpsgd.plan import plan
from trainers.dpsgd.training import PrivateTraining

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from trainers.dpsgd.hf_batches import fingerprint  # noqa: E402
from trainers.dpsgd.hf_trainer import DPTrainer  # noqa: E402

SIZE = {"vocab_size": 37, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(dropout=0.0):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=16, n_layer=1, n_head=2, n_positions=24,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, **SIZE,
        )
    )  # fmt: skip


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=32, **SIZE,
        )
    )  # fmt: skip


def bert():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=32, hidden_dropout_prob=0.0, num_labels=3,
            attention_probs_dropout_prob=0.0, **SIZE,
        )
    )  # fmt: skip


def lora():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=3, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True
    )
    model = gpt2()
    return peft.get_peft_model(model, config)


def texts(count=60):
    """Padded records of two to nine tokens."""
    generator = torch.Generator().manual_seed(1)
    records = []
    for k in range(count):
        mask = (torch.arange(9) < 2 + k % 8).long()
        ids = torch.randint(3, 37, (9,), generator=generator) * mask
        labels = ids.masked_fill(mask == 0, -100)
        records.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return records


def classes(count=60):
    return [{**r, "labels": int(r["input_ids"][0]) % 3} for r in texts(count)]


def arguments(folder, **options):
    options = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 1,
        "learning_rate": 0.05, "report_to": "none", "use_cpu": True, "disable_tqdm": True,
        "dataloader_pin_memory": False, "logging_steps": 1, "save_strategy": "no", **options,
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **options)


def trainer(folder, model=None, data=None, *, kind=DPTrainer, epsilon=5.0, more=None, **options):
    """Eight steps of batches of eight on average, of sixty records."""
    more = {"source": "seeded", **(more or {})}
    return kind(
        model=model or gpt2(), args=arguments(folder, **options), train_dataset=data or texts(),
        **({} if "privacy" in more else {"epsilon": epsilon}), **more,
    )  # fmt: skip


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def sgd(model, rate):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


class Killed(Exception):
    pass


class Kill(transformers.TrainerCallback):
    """Ends the process' run after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **rest):
        if state.global_step == self.step:
            raise Killed


@pytest.mark.parametrize("make", [gpt2, llama, bert, lora])
def test_weights_are_those_of_the_plain_loop(tmp_path, make):
    records = classes() if make is bert else texts()
    columns = {k: torch.stack([torch.as_tensor(r[k]) for r in records]) for k in records[0]}
    ids, mask, labels = (columns[k] for k in ("input_ids", "attention_mask", "labels"))

    plain = make()
    training = PrivateTraining(
        plain.train(), sgd(plain, 0.1)[0], plan(60, 8, steps=6, noise_multiplier=0.7),
        clipping=Flat(0.5), source="seeded", seed=42, micro_batch=4,
    )  # fmt: skip

    def losses(rows):
        logits = plain(input_ids=ids[rows], attention_mask=mask[rows]).logits
        if make is bert:
            return F.cross_entropy(logits, labels[rows], reduction="none")
        return token_losses(logits, labels[rows])

    for batch in training:
        training.step(batch, losses)

    model = make()
    found = trainer(
        tmp_path, model, records, max_grad_norm=0.5, activation_checkpointing=make is gpt2,
        dataloader_num_workers=2 if make is llama else 0,
        more={"privacy": plan(60, 8, steps=6, noise_multiplier=0.7), "optimizers": sgd(model, 0.1)},
    )  # fmt: skip
    before = weights(model)
    found.train()
    assert torch.equal(weights(model), weights(plain))
    assert not torch.equal(weights(model), before)
    assert found.state.global_step == 6
    assert found.epsilon == training.epsilon
    logged = [entry["epsilon"] for entry in found.state.log_history if "loss" in entry]
    assert logged == [training.plan.epsilon(k) for k in range(1, 7)]
    # the hooks are gone: an ordinary model
    model.train()(input_ids=ids[:3], attention_mask=mask[:3]).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad and p.dim() > 1)


def test_the_ledger_verifies_and_gives_the_same_epsilon(tmp_path):
    """Batches of one on average, so that about a third are empty: they are steps all the same."""
    records = texts()
    run = trainer(
        tmp_path, data=records, per_device_train_batch_size=1, gradient_accumulation_steps=1,
        num_train_epochs=0.5, save_strategy="steps", save_steps=20,
        more={"ledger": tmp_path / "ledger.jsonl", "delta": 1e-6},
    )  # fmt: skip
    run.train()
    found = ledger.read(tmp_path / "ledger.jsonl")
    assert not found.problems
    assert found.steps == found.end.steps == run.privacy.steps == 30
    sizes = found.batches[1.0]
    assert sizes[0] > 0
    assert sum(sizes.values()) == 30
    assert found.header.data_fingerprint == fingerprint(reversed(records))
    assert found.header.data_fingerprint != fingerprint(records[1:])
    assert [c.step for c in found.checkpoints] == [20, 30]
    assert found.end.epsilon == run.epsilon <= 5.0
    # the verifier's own accountant, which shares no code with the trainer's, says the same
    account = rdp.epsilon(found.events(), 1e-6, "add-remove").epsilon
    assert account == pytest.approx(run.epsilon, rel=1e-3)


def test_an_empty_batch_moves_the_weights_by_noise(tmp_path):
    moved, model = [], gpt2()

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **rest):
            self.before = weights(model)

        def on_step_end(self, args, state, control, **rest):
            moved.append(weights(model) - self.before)

    run = trainer(
        tmp_path, model, per_device_train_batch_size=1, gradient_accumulation_steps=1, max_steps=12,
        more={"callbacks": [Watch()], "optimizers": sgd(model, 0.1), "ledger": tmp_path / "l"},
    )  # fmt: skip
    run.train()
    lines = [json.loads(line) for line in (tmp_path / "l").read_text().splitlines()]
    sizes = [line["batch_size"] for line in lines if line["kind"] == "step"]
    empty = [step for step, size in zip(moved, sizes, strict=True) if not size]
    assert empty
    expected = 0.1 * run.privacy.noise_multiplier  # rate · σ · C / B
    for step in empty:  # the deviation of thousands of draws: 4 standard errors
        assert step.std().item() == pytest.approx(expected, rel=4 / (2 * len(step)) ** 0.5)


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_a_run_that_was_killed_is_resumed_and_what_it_spent_stays_counted(tmp_path, source):
    options = {"save_strategy": "steps", "save_steps": 3}
    whole = trainer(tmp_path / "whole", gpt2(dropout=0.1), **options)
    whole.train()
    more = {"ledger": tmp_path / "ledger.jsonl", "source": source}
    killed = trainer(tmp_path, gpt2(dropout=0.1), more={**more, "callbacks": [Kill(5)]}, **options)
    with pytest.raises(Killed):
        killed.train()
    assert ledger.read(tmp_path / "ledger.jsonl").steps == 5
    with pytest.raises(ValueError, match="a second run spends as much again"):
        killed.train()
    resumed = trainer(tmp_path, gpt2(dropout=0.1), more=more, **options)
    torch.nn.init.zeros_(resumed.model.lm_head.weight)  # what counts is in the checkpoint
    resumed.train(resume_from_checkpoint=True)
    found = ledger.read(tmp_path / "ledger.jsonl")
    assert not found.problems
    assert [(r.after_step, r.checkpoint_step) for r in found.resumes] == [(5, 3)]
    assert resumed.epsilon == resumed.privacy.epsilon(found.steps) == found.end.epsilon
    if source == "seeded":
        assert torch.equal(weights(resumed.model), weights(whole.model))
        assert resumed.state.global_step == 8
        assert found.steps == 10  # the two that were repeated count twice
    else:
        assert found.steps == 8
        assert resumed.state.global_step == 6
        assert resumed.epsilon <= 5.0
    with pytest.raises(ValueError, match="has its end mark"):
        resumed.train(resume_from_checkpoint=True)


def test_what_cannot_be_resumed_soundly_is_refused(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 4}
    trainer(tmp_path, **options).train()
    with pytest.raises(ValueError, match="without a ledger, steps after"):
        trainer(tmp_path, **options).train(resume_from_checkpoint=True)
    more = {"ledger": tmp_path / "l"}
    with pytest.raises(ValueError, match="is missing, so there is no run to resume"):
        trainer(tmp_path, more=more, **options).train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-8" / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match="checkpoint-8: is no whole checkpoint"):
        trainer(tmp_path, more=more, **options).train(resume_from_checkpoint=True)
    (tmp_path / "l").write_text("")
    with pytest.raises(ValueError, match="exists; resume its run, or name"):
        trainer(tmp_path, more=more, **options).train()
    with pytest.raises(ValueError, match="trial: every trial spends"):
        trainer(tmp_path).train(trial={})


def test_evaluation_is_that_of_trainer(tmp_path):
    more = {"eval_dataset": texts(10)}
    run = trainer(tmp_path, more=more, eval_strategy="epoch")
    run.train()
    plain = transformers.Trainer(run.model, arguments(tmp_path), **more)
    assert run.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert "epsilon" not in run.evaluate()
    found, wanted = run.predict(texts(10)), plain.predict(texts(10))
    assert (found.predictions == wanted.predictions).all()
    assert next(e["step"] for e in run.state.log_history if "eval_loss" in e) == 8


def test_an_adaptive_norm_is_announced_in_the_ledger(tmp_path):
    clipping = AdaptiveNorm(5.0, rate=0.5, count_noise=4.0)
    run = trainer(tmp_path, more={"ledger": tmp_path / "l", "clipping": clipping})
    run.train()
    found = ledger.read(tmp_path / "l")
    assert not found.problems
    assert found.steps == 8
    assert clipping.clipping.clipping_norm < 5.0


class Vector(DPTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        losses = token_losses(outputs.logits, inputs["labels"])
        return (losses, outputs) if return_outputs else losses


class Scalar(DPTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss


def per_record(outputs, labels, num_items_in_batch=None):
    assert num_items_in_batch is None
    return token_losses(outputs.logits, labels)


def test_a_loss_of_ones_own_is_one_for_each_record(tmp_path):
    usual = trainer(tmp_path, max_steps=2)
    usual.train()
    for kind, more in ((Vector, {}), (DPTrainer, {"compute_loss_func": per_record})):
        run = trainer(tmp_path, kind=kind, more=more, max_steps=2)
        run.train()
        assert torch.equal(weights(run.model), weights(usual.model))
    mean = {"compute_loss_func": lambda outputs, labels, num_items_in_batch=None: outputs[0].mean()}
    for kind, more in ((Scalar, {}), (DPTrainer, mean)):
        with pytest.raises(Unsupported, match=r"losses: shape \(\); give each record's own loss"):
            trainer(tmp_path, kind=kind, more=more).train()


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ({"label_smoothing_factor": 0.1}, {}, "label_smoothing_factor: is a mean"),
        ({"neftune_noise_alpha": 5.0}, {}, "neftune_noise_alpha: .* records would mix"),
        ({"train_sampling_strategy": "group_by_length"}, {}, "train_sampling_strategy: .* Poisson"),
        ({"auto_find_batch_size": True}, {}, "auto_find_batch_size"),
        ({"torch_compile": True}, {}, "torch_compile"),
        ({"optim": "lomo"}, {}, "updates weights in the backward pass"),
        ({"include_num_input_tokens_seen": "all"}, {}, "include_num_input_tokens_seen"),
        ({"push_to_hub": True}, {}, "push_to_hub"),
        ({"max_grad_norm": 0.0}, {}, "clipping_norm: must be positive"),
        ({}, {"privacy": plan(60, 4, steps=3, epsilon=1.0)}, "plans batches of 4, .* is 8"),
        ({}, {"privacy": plan(50, 8, steps=3, epsilon=1.0)}, "plans 50 records, .* has 60"),
        ({"max_steps": 4}, {"privacy": plan(60, 8, steps=3, epsilon=1.0)}, "max_steps: is 4"),
        ({}, {"privacy": plan(60, 8, steps=3, epsilon=1.0), "epsilon": 1.0}, "give one of them"),
        ({}, {"privacy": plan(60, 8, steps=3, epsilon=1.0), "delta": 1e-6}, "delta: is the plan's"),
        ({"per_device_train_batch_size": 40}, {}, "batch_size: must lie between 1 and the 60"),
    ],
)
def test_what_is_unsound_is_refused_at_once(tmp_path, options, more, said):
    with pytest.raises(ValueError, match=said):
        trainer(tmp_path, more=more, **options)


@pytest.mark.parametrize("make", [gpt2, lora])
def test_half_precision_passes_keep_weights_and_noise_in_single(tmp_path, make):
    found = []
    for bf16 in (False, True):
        model = make()
        more = {"optimizers": sgd(model, 0.1), "privacy": plan(60, 8, steps=4, noise_multiplier=1)}
        trainer(tmp_path, model, bf16=bf16, more=more).train()
        found.append(weights(model))
    single, half = found
    assert half.dtype == torch.float32
    # 4 steps of rate 0.1 and clipping norm 1; bfloat16 rounds by 1/256
    assert 0 < (half - single).norm() < 0.4 / 20


def test_half_precision_with_a_loss_scaler_is_refused(tmp_path):
    args = arguments(tmp_path)
    args.fp16 = True  # TrainingArguments itself wants a GPU for it
    with pytest.raises(ValueError, match="fp16: its loss scaler skips steps"):
        DPTrainer(gpt2(), args, train_dataset=texts(), epsilon=1.0)


def test_packing_and_unknown_heads_are_refused_at_the_first_batch(tmp_path):
    packed = {"data_collator": transformers.DataCollatorWithFlattening()}
    data = [{"input_ids": r["input_ids"].tolist()} for r in texts()]
    with pytest.raises(ValueError, match="a packed row mixes records"):
        trainer(tmp_path, data=data, more=packed).train()
    data = [{"input_ids": r["input_ids"]} for r in texts()]
    with pytest.raises(ValueError, match="labels: missing"):
        trainer(tmp_path, data=data).train()
    model = transformers.BertForQuestionAnswering(bert().config)
    with pytest.raises(ValueError, match="BertForQuestionAnswering: no loss per record is known"):
        trainer(tmp_path, model).train()


@pytest.mark.parametrize("name", ["transformers", "accelerate"])
def test_a_missing_library_is_said_in_one_line(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "trainers.dpsgd.hf_trainer")
    with pytest.raises(ImportError, match=r"DPTrainer needs .*pip install 'dpassay\[lm\]'"):
        importlib.import_module("trainers.dpsgd.hf_trainer")


@pytest.mark.slow
def test_two_processes_train_one_model_under_one_ledger(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, __file__, str(tmp_path)], check=True, timeout=200)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first["weights"], second["weights"])
    assert first["epsilon"] == second["epsilon"]
    found = ledger.read(tmp_path / "ledger.jsonl")
    assert not found.problems
    assert (found.steps, found.header.ranks) == (8, 2)
    assert found.header.expected_batch_size == 8
    assert sum(size * n for size, n in found.batches[8.0].items()) == first["drawn"]


def one_of_two(folder):
    """What each process does: two processes, two micro-batches of two records on average."""
    drawn = torch.zeros(1)

    class Count(DPTrainer):
        def training_step(self, model, inputs, *rest):
            # what a step is given: its checks ask for some of the losses again
            drawn.add_(sum(len(piece["labels"]) for piece in inputs))
            return super().training_step(model, inputs, *rest)

    more = {"ledger": folder / "ledger.jsonl"}
    run = trainer(folder, kind=Count, more=more, per_device_train_batch_size=2, ddp_backend="gloo")
    run.train()
    torch.distributed.all_reduce(drawn)
    found = {"weights": weights(run.model), "epsilon": run.epsilon, "drawn": int(drawn)}
    torch.save(found, folder / f"{run.args.process_index}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_of_two(Path(sys.argv[1]))
