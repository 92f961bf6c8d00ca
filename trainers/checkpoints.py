"""Where a killed run starts again: weights and optimizer state after a step, beside the ledger."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainers.files import write_whole
from trainers.ledger import Header, LedgerWriter

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Checkpoints:
    """Saves the state every ``every`` steps (0: never), and puts a saved one back.

    A checkpoint is in the ledger only once its file is whole, and its file is written only once the
    ledger holds every step that made it.
    """

    ledger: LedgerWriter
    file: Path
    every: int = 0

    def after_step(self, model: nn.Module, optimizer: Any, training: Any) -> None:
        """Save if it is time. ``training`` knows where its batches and its noise stand."""
        repeated = training.steps < self.ledger.steps
        if self.every and training.steps % self.every == 0 and not repeated:
            self.ledger.sync()
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "training": training.state(),
            }
            whole = {"step": training.steps, **state}
            write_whole(self.file, lambda temporary: torch.save(whole, temporary))
            self.ledger.checkpoint(self.file)

    def restore(self, model: nn.Module, optimizer: Any, training: Any) -> None:
        """Put the saved state back; without a file, the run starts from its first weights.

        Raises:
            ValueError: if the file is no checkpoint, or of another model.
        """
        if self.file.exists():
            state = _load(self.file)
            try:
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                training.restore(state["training"])
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{self.file}: is of another model; use its settings") from None


def open_ledger(path: Path, header: Header, *, resume: bool) -> LedgerWriter:
    """A new run's ledger, or a killed run's that goes on from its checkpoint.

    Raises:
        ValueError: if there is one already, none to resume, or nothing left of its plan.
    """
    if resume and not path.exists():
        raise ValueError(f"{path}: is missing, so there is no run to resume")
    if not resume and path.exists():
        raise ValueError(f"{path}: exists; resume its run, or give a new run a folder of its own")
    if not resume:
        path.parent.mkdir(parents=True, exist_ok=True)
        return LedgerWriter.create(path, header)
    step = saved_step(path.with_name(CHECKPOINT))
    ledger = LedgerWriter.resume(path, step, header=header)
    if not step and header.planned_steps and ledger.steps >= header.planned_steps:
        ledger.close()
        raise ValueError(f"{path}: holds all planned steps and no checkpoint: nothing to resume")
    return ledger


def saved_step(file: Path) -> int:
    """The step after which the checkpoint was saved; 0 if there is none.

    Raises:
        ValueError: if the file is no checkpoint of this kind.
    """
    return int(_load(file)["step"]) if file.exists() else 0


def _load(file: Path) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        state = None
    if not isinstance(state, dict) or state.keys() != {"step", "model", "optimizer", "training"}:
        raise ValueError(f"{file}: is no checkpoint of this trainer; remove it to resume without")
    return state
