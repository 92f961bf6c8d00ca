"""The server's files of a federated run: its state between rounds, the model, federated.json."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from trainers.federated_account import Cost, Spent
from trainers.federated_site import LEDGER, Site, Weights
from trainers.files import write_whole
from trainers.networks import build

UNIT = "a person with at most one record at each site"


@dataclass(frozen=True)
class State:
    """Where the server stands after a whole round. ``steps`` are those in each site's ledger."""

    weights: Weights
    history: Sequence[tuple[str, ...]]
    steps: Mapping[str, int]

    def write(self, path: Path, rounds: int) -> None:
        """Put it on disk."""
        notes = {"rounds": rounds, "history": list(self.history), "steps": dict(self.steps)}
        metadata = {"state": json.dumps(notes)}
        write_whole(path, lambda part: save_file(dict(self.weights), part, metadata=metadata))

    @classmethod
    def read(cls, path: Path, sites: Sequence[Site], rounds: int) -> State:
        """What ``write`` wrote for these sites and that number of rounds.

        Raises:
            ValueError: naming the file, if it holds no such state.
        """
        try:
            with safe_open(path, "pt") as file:
                notes = json.loads(file.metadata()["state"])
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            saved = cls(weights, [tuple(names) for names in notes["history"]], notes["steps"])
            same = notes["rounds"] == rounds and saved.steps.keys() == {s.name for s in sites}
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: is no state of a federated run") from None
        if not same:
            raise ValueError(f"{path}: is of other sites or another number of rounds; use its own")
        return saved


def release(sites: Sequence[Site], out: Path, weights: Weights, rounds: int) -> nn.Module:
    """Write the model and its description into ``out``; returns the model."""
    with torch.random.fork_rng(devices=[]):
        model = build(**sites[0].arguments)
    model.load_state_dict(weights)
    description = {  # no "training": no single classifier's training would repeat this one
        "factory": "trainers.networks:build",
        "arguments": sites[0].arguments,
        "federated": {"rounds": rounds, "sites": {s.name: asdict(s.config) for s in sites}},
    }
    write_whole(out / "model.safetensors", lambda part: save_file(model.state_dict(), part))
    write_json(out / "model.json", description)
    return model.eval()


def describe(
    sites: Sequence[Site],
    out: Path,
    history: Sequence[tuple[str, ...]],
    ledgers: Mapping[str, Spent],
    people: Sequence[Cost],
    delta: float,
    read: Mapping[str, str],
    public_counts: bool,
) -> dict[str, Any]:
    """What federated.json says; the model lies in ``out``."""
    weights = (out / "model.safetensors").read_bytes()
    own = {cost.sites[0]: cost.epsilon for cost in people if len(cost.sites) == 1}
    worst = max(people, key=lambda cost: cost.epsilon)
    notes = [f"{name}: {how}: a data access that no budget covers" for name, how in read.items()]
    notes += [
        f"{n}: its noise comes from a seed: no guarantee" for n, s in ledgers.items() if s.seeded
    ]
    if public_counts:
        notes.append("numbers of records were stated to be public; nothing here checks that")
    return {
        "schema": "dpassay.federated/1",
        "model": {"file": "model.safetensors", "sha256": hashlib.sha256(weights).hexdigest()},
        "rounds": [list(names) for names in history],
        "raw_data_access": dict(read),
        "sites": [
            {
                "site": site.name,
                "ledger": f"{site.name}/{LEDGER}",
                "sha256": ledgers[site.name].sha256,
                "steps": ledgers[site.name].steps,
                "size": site.size,
                "weight": site.weight,
                "epsilon": _number(own[site.name]),
            }
            for site in sites
        ],
        "account": {
            "delta": delta,
            "unit": UNIT,
            "relation": "add-remove",
            "accountant": "RDP (Opacus); dpassay lineage recomputes it from lineage.json",
            "people": [{"at": list(c.sites), "epsilon": _number(c.epsilon)} for c in people],
            "worst": {"at": list(worst.sites), "epsilon": _number(worst.epsilon)},
        },
        "notes": notes,
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity"


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """A whole JSON file or none."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
