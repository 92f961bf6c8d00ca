"""Shadow generators on leaks of known size: what is found, what it costs, how often it errs.

``python tests/benchmarks/bench_shadow_generators.py``, or parts of it: ``--only leaks``,
``weights``, ``null``. Tables on the terminal, all of it in ``bench-out/shadow_generators.json``.
Exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures" / "synthetic"))
import generators

from attacks.metrics import auc
from attacks.synthetic.generator_fleet import GeneratorFleet, Observations, plan
from attacks.synthetic.generator_shadow import attack, copies
from attacks.synthetic.tables import code
from attacks.synthetic.vulnerable import most_vulnerable
from audit.cli.attack_generator import OurGenerator
from trainers.tabular.domain import Domain

OUT = Path("bench-out") / "shadow_generators.json"
METHODS = ("logistic", "forest", "lira")
TARGETS = 20
AUDITS = 100  # of a generator that leaks nothing
console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)

DOMAIN = Domain.model_validate(
    {
        "columns": {
            **{
                n: {"kind": "number", "low": a, "high": b}
                for n, (a, b) in generators.BOUNDS.items()
            },
            **{n: {"kind": "category", "levels": list(v)} for n, v in generators.LEVELS.items()},
        }
    }
)


def marginals(epsilon: float) -> OurGenerator:
    """This package's marginal-based generator."""
    return OurGenerator("marginals", DOMAIN, epsilon, 1e-6)


def cancer() -> pd.DataFrame:
    """scikit-learn's breast-cancer set: 569 records, 30 numbers and the diagnosis."""
    frame = load_breast_cancer(as_frame=True).frame
    return frame.assign(target=frame["target"].map({0: "malignant", 1: "benign"}))


def leaks(runs: int) -> list[dict[str, Any]]:
    """Every generator under every attack model."""
    mixed = generators.population(1000, 1)
    settings = [  # name, pool, generator, releases, others, what is promised of the AUC
        ("bootstrap + noise", mixed, generators.bootstrap, 1, "halves", ""),
        ("bootstrap + noise", mixed, generators.bootstrap, 3, "halves", "memorises"),
        ("kernel density", mixed, generators.kernel_density, 3, "halves", "memorises"),
        ("every record once", mixed, generators.reshuffle, 1, "halves", "memorises"),
        ("breast cancer: copies", cancer(), copies, 3, "halves", "memorises"),
        ("exact marginals", mixed, generators.marginals, 5, "halves", ""),
        ("exact marginals", mixed, generators.marginals, 5, "fixed", ""),
        ("scaled to raw extremes", mixed, generators.public_extremes, 1, "halves", ""),
        ("Laplace marginals, ε = 1", mixed, generators.dp_marginals(1.0), 1, "halves", "DP"),
        ("Laplace marginals, ε = 1", mixed, generators.dp_marginals(1.0), 5, "fixed", "DP"),
        ("own marginals, ε = 1", mixed, marginals(1.0), 1, "halves", "DP"),
        ("own marginals, ε = 1", mixed, marginals(1.0), 5, "fixed", "DP"),
        ("own marginals, ε = 100", mixed, marginals(100.0), 5, "fixed", ""),
        ("looks at nothing", mixed, generators.ignores, 1, "halves", "DP"),
    ]
    found = []
    for name, pool, generator, releases, others, promise in settings:
        fleet = GeneratorFleet(generator, releases * len(pool) // 2, runs, others=others)
        started = time.monotonic()
        fleet.observations(pool, most_vulnerable(code({"pool": pool})["pool"], TARGETS).rows)
        trained = time.monotonic() - started
        for method in METHODS:
            # the rows that must be at chance hold together at 95 % (Bonferroni)
            error = 0.05 / sum(row[-1] == "DP" for row in settings) if promise == "DP" else 0.05
            result = attack(fleet, pool, TARGETS, method=method, confidence=1 - error)
            figures = {f.name: asdict(f.estimate) for f in result.figures if f.estimate}
            found.append(
                {
                    "generator": name,
                    "releases": releases,
                    "others": others,
                    "promise": promise,
                    "method": method,
                    **figures,
                    "bound": asdict(result.bound),
                    "models": result.models_trained,
                    "training_seconds": trained,
                    "attack_seconds": result.seconds,
                }
            )
            line(found[-1])
    return found


def weights(runs: int) -> list[dict[str, Any]]:
    """Influence against weights that are learned: one forest a target on the raw features.

    The second is what Stadler et al. do; both see the naive, histogram and correlation features.
    """
    pool = generators.population(1000, 1)
    rows = most_vulnerable(code({"pool": pool})["pool"], TARGETS).rows
    families = ["naive", "histogram", "correlation"]
    found = []
    for name, generator, others in (
        ("exact marginals", generators.marginals, "halves"),
        ("exact marginals", generators.marginals, "fixed"),
        ("bootstrap + noise", generators.bootstrap, "halves"),
    ):
        fleet = GeneratorFleet(generator, 5 * len(pool) // 2, runs, others=others)
        ours = attack(fleet, pool, rows.tolist(), families=families).figures[0].estimate
        seen = fleet.observations(pool, rows)
        raw = np.hstack([seen.whole[f] for f in families])
        half = runs // 4 * 2  # whole pairs
        inside, outside = [], []
        for k in range(len(rows)):
            forest = RandomForestClassifier(100, random_state=k).fit(
                raw[:half], seen.inside[:half, k]
            )
            scores = forest.predict_proba(raw[half:])[:, 1]
            inside.append(scores[seen.inside[half:, k]])
            outside.append(scores[~seen.inside[half:, k]])
        theirs = auc(np.concatenate(inside), np.concatenate(outside))
        found.append(
            {"generator": name, "others": others, "ours": asdict(ours), "raw": asdict(theirs)}
        )
        console.print(
            f"{name:20} {others:7} influence {shown(asdict(ours))}  raw {shown(asdict(theirs))}"
        )
    return found


class Redrawn(GeneratorFleet):
    """One fleet of a generator that leaks nothing, with new coins for each audit."""

    seen: Observations

    def observations(self, pool: pd.DataFrame, targets: Any, progress: Any = None) -> Observations:
        inside = plan(len(pool), targets, self.runs, self.seed)[:, targets]
        return Observations(inside, self.seen.whole, self.seen.near, self.seen.influence)


def null(runs: int) -> dict[str, Any]:
    """How often each figure finds a leak where there is none; 5 % are allowed."""
    pool = generators.population(1000, 1)
    rows = most_vulnerable(code({"pool": pool})["pool"], TARGETS).rows
    seen = GeneratorFleet(generators.ignores, 500, runs).observations(pool, rows)
    make = partial(Redrawn, generators.ignores, 500, runs)
    counts = {"auc_off_half": 0, "auc_above_half": 0, "most_exposed": 0, "holm": 0, "epsilon": 0}
    for seed in range(1, AUDITS + 1):
        fleet = make(seed)
        fleet.seen = seen
        result = attack(fleet, pool, rows.tolist(), method="logistic", seed=seed)
        figures = {f.name: f.estimate for f in result.figures}
        counts["auc_above_half"] += figures["auc"].low > 0.5
        counts["auc_off_half"] += not figures["auc"].low <= 0.5 <= figures["auc"].high
        counts["most_exposed"] += figures["auc_most_exposed"].low > 0.5
        counts["holm"] += result.rows["p_holm"].min() < 0.05
        counts["epsilon"] += result.bound.epsilon is not None
    found = {"audits": AUDITS} | {name: int(count) for name, count in counts.items()}
    console.print(f"nothing leaks: {found}")
    return found


def line(row: dict[str, Any]) -> None:
    """One setting's figures, as they come."""
    bound = row["bound"]["epsilon"]
    console.print(
        f"{row['generator']:26} ×{row['releases']} {row['others']:6} {row['method']:8}"
        f" AUC {shown(row['auc'])}  TPR@1% {shown(row['tpr_at_fpr_0.01'])}"
        f"  ε ≥ {'-' if bound is None else format(bound, '.2f')} of {row['bound']['most']:.2f}"
        f"  {row['training_seconds']:.0f} s + {row['attack_seconds']:.1f} s"
    )


def shown(found: dict[str, Any]) -> str:
    """An estimate with its interval."""
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def bars(found: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """What was promised, by the default attack model: name, measured, kept."""
    kept = []
    for row in (r for r in found if r["promise"] and r["method"] == METHODS[0]):
        area = row["auc"]
        memorises = row["promise"] == "memorises"
        holds = area["low"] > 0.9 if memorises else area["low"] <= 0.5 <= area["high"]
        what = "AUC's interval above 0.9" if memorises else "AUC's interval covers 0.5"
        name = f"{row['generator']} ×{row['releases']}, {row['others']}: {what}"
        kept.append((name, shown(area), holds))
    return kept


def main() -> int:
    """Run the parts asked for; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["leaks", "weights", "null"])
    parser.add_argument("--runs", type=int, default=256)
    asked = parser.parse_args()
    report: dict[str, Any] = {
        "setting": {"python": platform.python_version(), "machine": platform.machine()},
        "runs": asked.runs,
        "targets": TARGETS,
    }
    for part in (leaks, weights, null):
        if asked.only in (None, part.__name__):
            with threadpool_limits(1):  # small matrices on several threads wait for one another
                report[part.__name__] = part(asked.runs)
    report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    report["bars"] = bars(report.get("leaks", []))
    table = Table("bar", "measured", "holds")
    for name, measured, holds in report["bars"]:
        table.add_row(name, measured, "yes" if holds else "NO")
    console.print(table)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(holds for *_, holds in report["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
