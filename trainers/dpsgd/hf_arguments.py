"""What of Trainer's arguments is unsound under DP-SGD, unsupported, or contradicts the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from trainers.dpsgd.plan import Plan


def count(dataset: Any) -> int:
    """How many records there are.

    Raises:
        ValueError: if that cannot be told, or records have no numbers.
    """
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError("train_dataset: needs a length and records by number, to be sampled from")
    return len(dataset)


def refuse_contradictions(privacy: Plan, records: int, batch_size: int, max_steps: int) -> None:
    """Refuse a plan that says other than the data and Trainer's arguments.

    Raises:
        ValueError: naming what differs.
    """
    if privacy.records != records:
        raise ValueError(f"privacy: plans {privacy.records} records, train_dataset has {records}")
    if privacy.batch_size != batch_size:
        raise ValueError(
            f"privacy: plans batches of {privacy.batch_size}, per_device_train_batch_size x "
            f"gradient_accumulation_steps x processes is {batch_size}; make them equal"
        )
    if max_steps > 0 and max_steps != privacy.steps:
        raise ValueError(f"max_steps: is {max_steps}, the plan's steps are {privacy.steps}")


def refusals(args: Any) -> Iterator[str]:
    """What is unsound or unsupported, in a line each."""
    if args.deepspeed or args.fsdp or getattr(args, "parallelism_config", None):
        yield "deepspeed, fsdp, parallelism_config: hide the gradients that are clipped; use DDP"
    if args.fp16:
        yield "fp16: its loss scaler skips steps that are counted, by what overflowed; use bf16"
    if args.label_smoothing_factor:
        yield "label_smoothing_factor: is a mean over the batch; override record_losses instead"
    if args.neftune_noise_alpha:
        yield "neftune_noise_alpha: scales by the batch's longest record, so records would mix"
    if args.train_sampling_strategy != "random":
        yield "train_sampling_strategy: the budget holds for Poisson batches; leave it at 'random'"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size: starts over after steps were spent; set the size yourself"
    if args.torch_compile or args.use_liger_kernel:
        yield "torch_compile, use_liger_kernel: replace the calls that clipping watches"
    if any(word in str(args.optim).lower() for word in ("lomo", "layerwise")):
        yield f"optim: {args.optim} updates weights in the backward pass, before they are clipped"
    if args.n_gpu > 1:
        yield "n_gpu: several GPUs in one process are unsupported; start a process each (torchrun)"
    if args.include_num_input_tokens_seen not in ("no", False):
        yield "include_num_input_tokens_seen: how many tokens were drawn is not private"
    if args.push_to_hub:
        yield (
            "push_to_hub: its model card and trainer_state.json publish losses that ε does not "
            "cover; push the model itself after training (model.push_to_hub)"
        )
