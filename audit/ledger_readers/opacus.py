"""Opacus: a checkpoint of ``PrivacyEngine.save_checkpoint``, or an accountant's state dict.

Both hold a history of (noise multiplier, sample rate, steps) (opacus 1.6,
opacus/accountants/accountant.py). The file is loaded with weights_only: it may hold no code.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

from audit.accounting.events import ApproximateDP, MechanismEvent, SampledGaussian
from audit.ledger import Ledger
from audit.ledger_format import LedgerError

STATE = "privacy_accountant_state_dict"
NOTES = (
    "Opacus does not record its sampler: this account supposes Poisson sampling, which "
    "make_private(poisson_sampling=False) does not do.",
    "Opacus states the sample rate as 1/len(loader), which rounds batch size over record count.",
)


def detects(path: Path, start: bytes) -> bool:
    """Whether the file is one of torch.save: a zip archive, or its older pickle form."""
    return start.startswith((b"PK\x03\x04", b"\x80\x02"))


def read(path: Path) -> Ledger:
    """The history of an Opacus accountant.

    Raises:
        LedgerError: if the file holds no such history, or anything that is not plain data.
    """
    import torch

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise LedgerError(
            f"{path}: holds more than tensors and plain values, which could run code, so it is not "
            "loaded (weights_only); save the accountant's state_dict() alone"
        ) from None
    except Exception as error:  # a stranger's bytes make torch raise nearly anything
        raise LedgerError(
            f"{path}: is no whole file of torch.save ({type(error).__name__}); save it again"
        ) from None
    state = saved.get(STATE, saved) if isinstance(saved, dict) else None
    history = state.get("history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise LedgerError(f"{path}: {STATE}: is missing; save with PrivacyEngine.save_checkpoint")
    if not history:
        raise LedgerError(f"{path}: history: is empty; save the state after training")
    events = tuple(_event(entry, f"{path}: history[{i}]") for i, entry in enumerate(history))
    return Ledger(
        path=path,
        format="opacus",
        mechanisms=events,
        private=not any(isinstance(e, ApproximateDP) for e in events),
        steps=sum(entry[2] for entry in history),
        notes=NOTES,
    )


def _event(entry: Any, where: str) -> MechanismEvent:
    if not (isinstance(entry, tuple | list) and len(entry) == 3):
        raise LedgerError(f"{where}: expected (noise multiplier, sample rate, steps)")
    for name, value in zip(("noise multiplier", "sample rate", "steps"), entry, strict=True):
        if type(value) not in (int, float):
            raise LedgerError(f"{where}: {name}: expected a number, got {value!r}")
    sigma, rate, steps = entry
    try:
        event = SampledGaussian(sigma or 1.0, rate, steps)  # 0 is no noise, and told apart here
        return event if sigma else ApproximateDP(math.inf)
    except ValueError as error:
        raise LedgerError(f"{where}: {error}") from None
