"""anonymeter's three evaluators on one set of frames: ``run_anonymeter.py FOLDER OUT PLAN``.

FOLDER holds train, holdout and synthetic as Parquet; PLAN is JSON: attacks, parts, secrets. Only
the package's public interface is used. What it compiles on first use is compiled before the clock
starts.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator


def main() -> None:
    folder, out, plan = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    warnings.simplefilter("ignore")
    frames = [pd.read_parquet(folder / f"{n}.parquet") for n in ("train", "synthetic", "holdout")]
    small = [frame.head(500).reset_index(drop=True) for frame in frames]
    for attack in attacks(small, plan | {"attacks": 20}).values():
        attack()
    found = {}
    for name, attack in attacks(frames, plan).items():
        started, spent = time.perf_counter(), time.process_time()
        try:
            told = attack()
        except Exception as error:
            told = {"failed": f"{type(error).__name__}: {error}"}
        told["seconds"] = time.perf_counter() - started
        told["cpu"] = time.process_time() - spent
        found[name] = told
    out.write_text(json.dumps(found))


def attacks(frames: list[Any], plan: dict[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    """By name, each attack as a call that makes the evaluator, evaluates and tells the risk."""
    train, synthetic, holdout = frames
    count = plan["attacks"]

    def judge(evaluator: Any, **how: Any) -> dict[str, Any]:
        evaluator.evaluate(**how)
        risk, rates = evaluator.risk(), evaluator.results()
        told = {"value": risk.value, "low": risk.ci[0], "high": risk.ci[1]}
        for side in ("attack", "control", "baseline"):
            told[side] = getattr(rates, f"{side}_rate").value
        return {key: float(value) for key, value in told.items()}

    def single(mode: str) -> dict[str, Any]:
        evaluator = SinglingOutEvaluator(train, synthetic, count, control=holdout, seed=0)
        return judge(evaluator, mode=mode)

    def link() -> dict[str, Any]:
        parts = tuple(plan["parts"])
        return judge(
            LinkabilityEvaluator(
                train, synthetic, parts, count, n_neighbors=plan["neighbours"], control=holdout
            ),
            n_jobs=1,
        )

    def infer(secret: str) -> dict[str, Any]:
        others = [name for name in train.columns if name != secret]
        number = pd.api.types.is_numeric_dtype(train[secret])
        return judge(
            InferenceEvaluator(train, synthetic, others, secret, number, count, control=holdout),
            n_jobs=1,
        )

    return {
        "singling out, univariate": lambda: single("univariate"),
        "singling out, multivariate": lambda: single("multivariate"),
        "linkability": link,
        **{f"inference of {s}": lambda s=s: infer(s) for s in plan["secrets"]},
    }


if __name__ == "__main__":
    main()
