"""DP-SGD behind transformers' Trainer: another class name and a budget.

trainer = DPTrainer(model=model, args=args, train_dataset=data, epsilon=3.0, delta=1e-6)
trainer.train()

One batch of the training loader is one logical Poisson batch, one call of ``training_step`` one
step of ``PrivateTraining``; optimizer, schedule, evaluation, logging and files stay Trainer's own.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.metadata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainers.dpsgd.adaptive import AdaptiveNorm
from trainers.dpsgd.checks import refuse_foreign_weights
from trainers.dpsgd.clipping import Clipping, Flat
from trainers.dpsgd.hf_arguments import count, refusals, refuse_contradictions
from trainers.dpsgd.hf_batches import MicroBatches, PoissonBatches, fingerprint, rows, taken
from trainers.dpsgd.plan import Plan, plan
from trainers.dpsgd.training import LEDGER_ORDERS, PrivateTraining
from trainers.ledger import Header, LedgerWriter

try:
    importlib.import_module("accelerate")
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import TrainerState
    from transformers.trainer_utils import get_last_checkpoint

    from trainers.dpsgd.hf_losses import loss_of
except ImportError as error:
    raise ImportError(
        f"DPTrainer needs transformers and accelerate ({error}): pip install 'dpassay[lm]'"
    ) from error

STATE = "DPTrainer"  # the entry in a checkpoint's trainer_state.json


class DPTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` whose training is DP-SGD; a record is what ``train_dataset[i]`` yields.

    The expected batch size is ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x
    processes; at most ``per_device_train_batch_size`` records are in memory at once.
    ``max_grad_norm`` is the norm C that each record's gradient is clipped to, and nothing else.
    ``seed`` is that of seeded batches and noise too. The arguments given are copied, not changed.

    Each record's loss is the mean cross-entropy over its own tokens (causal and masked language
    models, token classes) or its cross-entropy (sequence classes). For another one, override
    ``record_losses``, or give a ``compute_loss`` or ``compute_loss_func`` that returns (B,).

    Args:
        model, args, positional, named: as for ``Trainer``.
        privacy: how many records, steps, how much noise; ``num_train_epochs`` is not read then.
        epsilon: instead of ``privacy``, the target at the end of ``max_steps``, or else of
            ``num_train_epochs`` times records over batch size steps, rounded.
        delta: at which ``epsilon`` is stated; 1e-5 where None.
        clipping: in place of ``max_grad_norm``.
        source: ``secure`` for a guarantee; ``seeded`` repeats a run and protects nobody.
        ledger: the file that the ledger is written to; needed for a run that is resumed.

    Attributes:
        privacy: the plan.

    Raises:
        ValueError: if an argument is unsound here or unsupported, or numbers contradict.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *positional: Any,
        privacy: Plan | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        clipping: Clipping | AdaptiveNorm | None = None,
        source: Literal["secure", "seeded"] = "secure",
        ledger: Path | str | None = None,
        **named: Any,
    ) -> None:
        args = copy.copy(args) if args is not None else TrainingArguments("tmp_trainer")
        for refusal in refusals(args):
            raise ValueError(refusal)
        if (privacy is None) == (epsilon is None):
            raise ValueError("privacy, epsilon: give one of them")
        if privacy is not None and delta is not None:
            raise ValueError("delta: is the plan's own where privacy= is given")
        self._micro_batch = args.per_device_train_batch_size
        batch_size = self._micro_batch * args.gradient_accumulation_steps * args.world_size
        clipping = clipping or Flat(args.max_grad_norm)
        # one loader batch is one update; and what Trainer would clip has its noise already
        args.gradient_accumulation_steps, args.max_grad_norm = 1, 0.0
        args.ignore_data_skip = False
        super().__init__(model, args, *positional, **named)
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ValueError("accelerate: DeepSpeed and FSDP hide the gradients that are clipped")
        records = count(self.train_dataset)
        if privacy is None:
            span: dict[str, Any] = {"epochs": args.num_train_epochs}
            if args.max_steps > 0:
                span = {"steps": args.max_steps}
            privacy = plan(
                records, batch_size, epsilon=epsilon, delta=1e-5 if delta is None else delta, **span
            )
        refuse_contradictions(privacy, records, batch_size, args.max_steps)
        args.max_steps = privacy.steps
        self.privacy, self._target, self._source = privacy, epsilon, source
        self._world = int(args.world_size)
        self._file = Path(ledger) if ledger is not None else None
        self._ledger: LedgerWriter | None = None
        self._training: PrivateTraining | None = None
        self._saved: _Saved | None = None
        self._again = 0
        start = clipping.clipping if isinstance(clipping, AdaptiveNorm) else clipping
        self._clipping = clipping
        self._start = start.sensitivity
        self._announced: float | None = None  # the clipping norm that the ledger holds last

    @property
    def epsilon(self) -> float:
        """ε so far at the plan's δ, lost steps of killed runs included: the trainer's figure."""
        return self.privacy.epsilon(self._spent())

    def record_losses(self, model: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Each record's own loss (B,), from a collated micro-batch; override for another one.

        Raises:
            ValueError: if the model's kind has no known loss, or labels are missing.
        """
        if self.compute_loss_func or type(self).compute_loss is not Trainer.compute_loss:
            losses: torch.Tensor = self.compute_loss(model, dict(inputs))
            return losses
        loss, given = loss_of(model), dict(inputs)
        labels = given.pop("labels", None)
        if labels is None:
            raise ValueError("labels: missing from the collated batch; see data_collator")
        return loss(model(**given).logits.float(), labels)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train for the plan's steps, once; with a ledger, a run that was killed is resumed.

        What the killed run did after its last checkpoint stays counted. Seeded, those steps are
        repeated bit for bit, and counted twice. Secure, they are lost: the run ends when the
        ledger holds the planned steps, and the schedule is shortened by as many.

        Raises:
            ValueError: if the budget is spent, or a run cannot be resumed soundly.
        """
        if trial is not None:
            raise ValueError("trial: every trial spends a budget of its own; tune on public data")
        if not resume_from_checkpoint and self._training is not None:
            raise ValueError("train: was called before, and a second run spends as much again")
        folder = self._folder(resume_from_checkpoint)
        self._saved = _saved(folder) if folder is not None else None
        with self._open_ledger() as self._ledger:
            try:
                self._begin()
                output = super().train(folder, None, ignore_keys_for_eval)
                if self._ledger is not None:
                    self._ledger.end(epsilon=self.epsilon)
            finally:
                self._ledger = None
                if self._training is not None:
                    self._training.release()
        return output

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Logical batches: each a list of collated micro-batches, maybe empty."""
        if not self.is_in_train:
            raise ValueError("get_train_dataloader: batches are drawn in train() and not before")
        plain = super().get_train_dataloader()
        self._training = PrivateTraining(
            self.model,
            _TrainersOwn(self.model.parameters(), {}),
            self.privacy,
            clipping=self._clipping,
            source=self._source,
            seed=self.args.seed,
            micro_batch=self._micro_batch,
            record=self._record,
        )
        length, skip = max(1, round(self.privacy.records / self.privacy.batch_size)), 0
        if self._saved is not None:
            self._training.restore(self._saved.training)
            skip = self._saved.global_step % length
        return DataLoader(
            plain.dataset,
            batch_sampler=PoissonBatches(self._training, length, skip),
            collate_fn=MicroBatches(plain.collate_fn, self._micro_batch),
            # workers' seeds are drawn from here: dropout's generator is left alone
            generator=torch.Generator().manual_seed(self.args.seed),
            num_workers=plain.num_workers,
            pin_memory=plain.pin_memory,
            persistent_workers=plain.persistent_workers,
            prefetch_factor=plain.prefetch_factor,
            multiprocessing_context=plain.multiprocessing_context,
            worker_init_fn=plain.worker_init_fn,
        )

    def training_step(
        self, model: nn.Module, inputs: Sequence[Mapping[str, Any]], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Put one step's noisy gradient into the weights; the sum of losses over the batch size."""
        assert self._training is not None
        self.model.train()
        if callable(prepare := getattr(self.optimizer, "train", None)):
            prepare()  # of optimizers that keep their own schedule
        total = torch.zeros((), device=self.args.device)
        sizes = [rows(piece) for piece in inputs]
        starts = list(accumulate(sizes, initial=0))

        def losses(some: torch.Tensor) -> torch.Tensor:
            k = bisect_right(starts, int(some[0])) - 1
            piece = taken(self._prepare_inputs(inputs[k]), some - starts[k])
            with self.compute_loss_context_manager():
                # not ``model``: around that, DistributedDataParallel adds up what is not clipped
                found = self.record_losses(self.model, piece)
            if torch.is_grad_enabled():  # else it is only looked at
                total.add_(found.detach().sum())
            return found

        refuse_foreign_weights(self.optimizer, self._training.sum.weights)
        self._training.step(torch.arange(starts[-1]), losses)
        return total * (self._world / self.privacy.batch_size)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as ``Trainer`` does; the ledger of the run gets the weights' digests."""
        if self._ledger is not None:
            self._ledger.sync()  # what is released must have been counted, also after a power cut
        if self._training is not None:
            self.state.stateful_callbacks[STATE] = self._state()
        super().save_model(output_dir, _internal_call)
        if self._ledger is not None:
            for file in sorted(Path(output_dir or self.args.output_dir).glob("*.safetensors")):
                self._ledger.checkpoint(file)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as ``Trainer`` does, with ``epsilon`` beside the training loss."""
        if "loss" in logs or "train_loss" in logs:
            logs["epsilon"] = self.epsilon
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the count would tell how many records each batch had."""
        return 0

    def get_total_train_batch_size(self, args: Any) -> int:
        """The expected batch size over all processes."""
        return self.privacy.batch_size

    def _folder(self, checkpoint: str | bool | None) -> str | None:
        if not checkpoint:
            return None
        if self._file is None:
            raise ValueError(
                "resume_from_checkpoint: without a ledger, steps after the checkpoint would not "
                "be counted; train with ledger=, from the first step on"
            )
        folder = get_last_checkpoint(self.args.output_dir) if checkpoint is True else checkpoint
        if folder is None:
            raise ValueError(f"{self.args.output_dir}: holds no checkpoint to resume from")
        return str(folder)

    def _open_ledger(self) -> contextlib.AbstractContextManager[LedgerWriter | None]:
        self._announced = self._start
        if self._file is None or self.args.process_index > 0:
            return contextlib.nullcontext()
        if self._saved is not None and not self._file.exists():
            raise ValueError(f"{self._file}: is missing, so there is no run to resume")
        if self._saved is None and self._file.exists():
            raise ValueError(f"{self._file}: exists; resume its run, or name a new file")
        header = Header(
            data_fingerprint=fingerprint(
                self.train_dataset[i] for i in range(self.privacy.records)
            ),
            records=self.privacy.records,
            sampler="poisson",
            sample_rate=self.privacy.sample_rate,
            expected_batch_size=self.privacy.batch_size,
            clipping="per_sample",
            clipping_norm=self._start,
            noise_multiplier=self.privacy.noise_multiplier,
            noise_source=self._source,
            ranks=self._world,
            orders=LEDGER_ORDERS,
            planned_steps=self.privacy.steps,
            delta=self.privacy.delta,
            epsilon=self._target,
            code="trainers.dpsgd.hf_trainer",
            versions={
                name: importlib.metadata.version(name)
                for name in ("dpassay", "torch", "transformers", "accelerate", "opacus", "numpy")
            },
        )
        if self._saved is not None:
            if isinstance(self._clipping, AdaptiveNorm):
                self._announced = None  # the killed run may have moved it further
            return LedgerWriter.resume(self._file, self._saved.spent, header=header)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        return LedgerWriter.create(self._file, header)

    def _begin(self) -> None:
        """Set how many steps are left, from what is saved and what was counted."""
        spent = [self._ledger.steps if self._ledger is not None else 0]
        if self._world > 1:
            torch.distributed.broadcast_object_list(spent, device=self.args.device)
        first = done = 0
        if self._saved is not None:
            if self._source == "secure":
                self._saved.training["steps"] = spent[0]  # what is lost is not tried again
            first, done = self._saved.global_step, int(self._saved.training["steps"])
        if done >= self.privacy.steps:
            raise ValueError(f"{self._file}: holds all planned steps; nothing is left to train")
        self._again = spent[0] - done
        self.args.max_steps = first + self.privacy.steps - done

    def _spent(self) -> int:
        """How many steps were counted: seeded ones that a resumed run repeats count twice."""
        return self._again + (self._training.steps if self._training is not None else 0)

    def _record(self, size: int, clipping_norm: float) -> None:
        """Count a step, before its update is applied."""
        if self._ledger is None:
            return
        assert self._training is not None
        setting: dict[str, Any] = {
            "expected_batch_size": self.privacy.batch_size,
            "noise_multiplier": self.privacy.noise_multiplier,
            "clipping_norm": clipping_norm,
        }
        if clipping_norm != self._announced:
            self._ledger.change(**setting, reason="the clipping norm follows a quantile")
            self._announced = clipping_norm
        self._ledger.step(batch_size=size, **setting, rdp=self._training.rdp)

    def _state(self) -> dict[str, Any]:
        assert self._training is not None
        training = self._training.state()
        # loader workers draw ahead; of these batches, as many were used as there were steps
        training["sampler"] = {"step": self._training.steps}
        return {"training": training, "spent": self._spent()}


@dataclass(frozen=True)
class _Saved:
    """Where a checkpoint stands: Trainer's step, the training's state, the ledger's steps."""

    global_step: int
    training: dict[str, Any]
    spent: int


def _saved(folder: str) -> _Saved:
    try:
        state = TrainerState.load_from_json(str(Path(folder) / "trainer_state.json"))
        ours = state.stateful_callbacks[STATE]
        return _Saved(state.global_step, ours["training"], ours["spent"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{folder}: is no whole checkpoint of DPTrainer; name an earlier one"
        ) from None


class _TrainersOwn(torch.optim.Optimizer):
    """Leaves the update to Trainer, which calls its own optimizer after ``training_step``."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing."""
