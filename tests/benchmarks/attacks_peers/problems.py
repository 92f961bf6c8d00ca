"""The three problems, as both environments see them: numpy and scikit-learn, nothing else."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

FOREST, MLP = "forest", "overfitted MLP"
PROBLEMS = {
    "breast-forest": ("breast cancer, forest", FOREST),
    "10k-forest": ("10,000 x 20, forest", FOREST),
    "10k-mlp": ("10,000 x 20, MLP", MLP),
}
TARGET_SEED = 1_000_000


def write(name: str, path: Path) -> None:
    """The records and the coin that made the members: X (n, d), y (n,), member (n,)."""
    from sklearn.datasets import load_breast_cancer, make_classification

    if name == "breast-forest":
        X, y = load_breast_cancer(return_X_y=True)
    else:
        X, y = make_classification(
            10_000, n_features=20, n_informative=10, n_redundant=2, random_state=0
        )
    member = np.zeros(len(y), dtype=np.bool_)
    member[np.random.default_rng(0).permutation(len(y))[: len(y) // 2]] = True
    np.savez(path, X=X, y=y, member=member)


def read(path: Path) -> tuple[Any, Any, Any]:
    with np.load(path, allow_pickle=False) as file:
        return file["X"], file["y"], file["member"]


def model(name: str, seed: int, jobs: int | None = None) -> Any:
    """The recipe of target and shadow models alike; ``jobs`` are a forest's own threads."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neural_network import MLPClassifier

    warnings.filterwarnings("ignore", message="Stochastic Optimizer")
    if PROBLEMS[name][1] == FOREST:
        return RandomForestClassifier(random_state=seed, n_jobs=jobs)
    return MLPClassifier(
        (64, 64),
        alpha=0.0,
        batch_size=64,
        learning_rate_init=3e-3,
        max_iter=40,
        tol=0.0,
        n_iter_no_change=1000,
        random_state=seed,
    )


def target(name: str, X: Any, y: Any, member: Any) -> Any:
    return model(name, TARGET_SEED).fit(X[member], y[member])


def peak_mb() -> float:
    """The largest resident memory of this process so far, MB.

    Not ``ru_maxrss``: a child starts with its parent's, so a large parent hides a small child.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status: no VmHWM; this benchmark needs Linux")


def folder_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def finish(out: Path, scores: dict[str, Any], facts: dict[str, Any], started: float) -> None:
    """Leave scores (n,) by attack in ``out``.npz and what it took in ``out``.json."""
    np.savez(out.with_suffix(".npz"), **scores)
    facts = {"seconds": time.perf_counter() - started, "peak_mb": peak_mb()} | facts
    facts["python"] = sys.version.split()[0]
    out.with_suffix(".json").write_text(json.dumps(facts))
