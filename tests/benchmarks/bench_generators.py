"""What a classifier loses by learning from DP synthetic data instead of the real records.

``python tests/benchmarks/bench_generators.py``, or parts: ``--only gan``, ``--tables actg175``.
For each table, method and ε: five times a stratified split (70 % to train, 30 % to test), a
generator trained on the 70 % (seeded noise), as many records drawn from it, and two classifiers
trained on either. Loss of AUC on the test records, paired by split, with a t interval over these.
Tables on the terminal, all of it in ``bench-out/generators.json``.

ACTG175 comes from lifelines' wheel (MIT licence), of which nothing is installed or run.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from audit.yaml_file import load as load_yaml
from trainers.tabular import gan, marginals
from trainers.tabular.domain import Domain
from trainers.tabular.privacy import Privacy
from trainers.tabular.release import load

OUT = Path("bench-out")
DOMAINS = Path(__file__).parents[2] / "fixtures" / "tabular"
LIFELINES = "lifelines==0.30.3"
EPSILONS = (0.5, 0.8, 1.0, 2.0, 8.0)
SEEDS = 5
DELTA = 1e-5

Train = Callable[[pd.DataFrame, Domain, Privacy, Path, str], Any]
METHODS: dict[str, Train] = {
    "marginals+label": lambda f, d, p, out, label: marginals.train(f, d, p, out, label=label),
    "marginals": lambda f, d, p, out, label: marginals.train(f, d, p, out),
    "gan": lambda f, d, p, out, label: gan.train(f, d, p, out),
}


def breast_cancer() -> tuple[pd.DataFrame, str]:
    """569 records, 30 measurements and the diagnosis."""
    return load_breast_cancer(as_frame=True).frame, "target"


def actg175() -> tuple[pd.DataFrame, str]:
    """2,139 patients, 26 columns; the label is whether the event was seen."""
    wheels = OUT / "wheels"
    if not list(wheels.glob("lifelines-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", LIFELINES]
        subprocess.run([*command, "--dest", str(wheels)], check=True)
    with zipfile.ZipFile(next(wheels.glob("lifelines-*.whl"))) as wheel:
        frame = pd.read_csv(io.BytesIO(wheel.read("lifelines/datasets/ACTG175.csv")))
    return frame.drop(columns=["Unnamed: 0", "pidnum"]), "cens"


TABLES = {"breast_cancer": breast_cancer, "actg175": actg175}


def aucs(train: pd.DataFrame, test: pd.DataFrame, label: str, seed: int) -> dict[str, float]:
    """The AUC of each classifier; one half where the training records have one label only."""
    models = {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "forest": RandomForestClassifier(100, min_samples_leaf=3, random_state=seed),
    }
    if train[label].nunique() < 2:
        return dict.fromkeys(models, 0.5)
    x, held = (f.drop(columns=label).astype(float).fillna(-1) for f in (train, test))
    return {
        name: float(roc_auc_score(test[label], m.fit(x, train[label]).predict_proba(held)[:, 1]))
        for name, m in models.items()
    }


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean with a 95 % t interval: low, value, high."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean - half, mean, mean + half


def main() -> None:
    """Run what was asked for, show it and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    asked = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    console, rows = Console(width=None if sys.stdout.isatty() else 120), []
    for name in asked.tables:
        frame, label = TABLES[name]()
        domain = load_yaml(DOMAINS / f"{name}.yaml", Domain)
        split = [
            train_test_split(frame, test_size=0.3, stratify=frame[label], random_state=seed)
            for seed in range(SEEDS)
        ]
        real = [aucs(*parts, label, seed) for seed, parts in enumerate(split)]
        for method in asked.only:
            for epsilon in asked.epsilons:
                began, found = time.perf_counter(), []
                for seed, (train, test) in enumerate(split):
                    with tempfile.TemporaryDirectory() as folder:
                        privacy = Privacy(epsilon, DELTA, "seeded", seed)
                        METHODS[method](train, domain, privacy, Path(folder), label)
                        drawn = load(Path(folder)).sample(len(train), seed)
                    found.append(aucs(drawn, test, label, seed))
                for model in real[0]:
                    loss = [r[model] - s[model] for r, s in zip(real, found, strict=True)]
                    rows.append(
                        {
                            "table": name, "method": method, "epsilon": epsilon, "model": model,
                            "n": SEEDS, "real": interval([r[model] for r in real]),
                            "synthetic": interval([s[model] for s in found]),
                            "loss": interval(loss),
                            "seconds": (time.perf_counter() - began) / SEEDS,
                        }
                    )  # fmt: skip
                console.print(f"{name} {method} ε = {epsilon:g}: {rows[-1]['seconds']:.1f} s a run")
                kept = {"delta": DELTA, "rows": rows}
                (OUT / "generators.json").write_text(json.dumps(kept, indent=1))
    shown = Table(title=f"Loss of AUC, 95 % interval over {SEEDS} splits, δ = {DELTA:g}")
    for heading in ("table", "method", "ε", "classifier", "real", "synthetic", "loss"):
        shown.add_column(heading)
    for row in rows:
        low, value, high = row["loss"]
        shown.add_row(
            row["table"], row["method"], f"{row['epsilon']:g}", row["model"],
            f"{row['real'][1]:.3f}", f"{row['synthetic'][1]:.3f}",
            f"{value:.3f} [{low:.3f}, {high:.3f}]",
        )  # fmt: skip
    console.print(shown)


if __name__ == "__main__":
    main()
