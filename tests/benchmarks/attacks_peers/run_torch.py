"""64 small networks, together or one after another: ``run_torch.py HOW DATA OUT MODELS EPOCHS``.

HOW is ours (a fleet), loader (plain torch with a DataLoader) or loop (plain torch, indices by
hand). Each model is trained on its row of the plan and judged on records that none has seen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import problems
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from attacks.shadows.torch_fleet import TorchTraining

BATCH, RATE, CLASSES = 64, 1e-3, 10
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def build() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def by_loader(X: torch.Tensor, y: torch.Tensor) -> Batches:
    yield from DataLoader(TensorDataset(X, y), BATCH, shuffle=True)


def by_index(X: torch.Tensor, y: torch.Tensor) -> Batches:
    for rows in torch.randperm(len(X)).split(BATCH):
        yield X[rows], y[rows]


def train(
    X: torch.Tensor, y: torch.Tensor, epochs: int, seed: int, batches: Callable[..., Batches]
) -> nn.Module:
    torch.manual_seed(seed)
    module = build().train()
    optimiser = torch.optim.Adam(module.parameters(), RATE)
    for _ in range(epochs):
        for rows, labels in batches(X, y):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(rows), labels).backward()
            optimiser.step()
    return module.eval()


def main() -> None:
    how, data, out, models, epochs = sys.argv[1:]
    with np.load(data, allow_pickle=False) as file:
        X, y, plan = file["X"], file["y"], file["plan"][: int(models)]
        new_X, new_y = file["new_X"], file["new_y"]
    started = time.perf_counter()
    if how == "ours":
        recipe = TorchTraining(
            build, np.arange(CLASSES), epochs=int(epochs), batch_size=BATCH, learning_rate=RATE,
            device="cpu",
        )  # fmt: skip
        targets = list(recipe(X, y, plan, list(range(len(plan)))))
        seconds = time.perf_counter() - started
        right = [np.mean(target.predict_labels(new_X) == new_y) for target in targets]
    else:
        records, labels = torch.as_tensor(X), torch.as_tensor(y)
        modules = []
        for k, row in enumerate(plan):
            rows = torch.as_tensor(np.flatnonzero(row))
            batches = by_loader if how == "loader" else by_index
            modules.append(train(records[rows], labels[rows], int(epochs), k, batches))
        seconds = time.perf_counter() - started
        with torch.inference_mode():
            found = [module(torch.as_tensor(new_X)).argmax(1).numpy() for module in modules]
        right = [np.mean(labels == new_y) for labels in found]
    facts = {
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "accuracy": float(np.mean(right)),
    }
    problems.finish(Path(out), {"accuracy": np.array(right)}, facts, started)


if __name__ == "__main__":
    main()
