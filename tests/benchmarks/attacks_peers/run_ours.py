"""Our attacks on one problem: ``run_ours.py NAME DATA OUT MODELS SEED JOBS ATTACK...``.

Writes what the shadow models answered as well (JOBS = 1), so that the plain references and sacroml
can be given the very same answers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import problems

from attacks import registry
from attacks.metrics import measure
from attacks.records import Membership, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import Array, Target, from_callable


def main() -> None:
    name, data, out, models, seed, jobs, *names = sys.argv[1:]
    X, y, member = problems.read(Path(data))
    kept: list[Array] = []

    def fit(X: Array, y: Array, seed: int) -> Target:
        return ask(problems.model(name, seed).fit(X, y), kept if jobs == "1" else None)

    ids = np.arange(len(y))
    inside, outside = (Records(X[side], y[side], ids[side]) for side in (member, ~member))
    records = Membership(inside, outside, np.unique(y), "randomised")
    target = ask(problems.target(name, X, y, member), None)
    scores: dict[str, Any] = {}
    spent: dict[str, dict[str, Any]] = {}
    facts: dict[str, Any] = {"attacks": spent}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=Path(out).parent) as folder:
        shadows = Shadows(fit, int(models), int(seed), Path(folder), name, int(jobs))
        pool, order = records.pool()
        seen = shadows.observations(pool)
        given = list(kept)
        facts["fleet_seconds"] = time.perf_counter() - started
        for attack in names:
            begun = time.perf_counter()
            try:
                result = registry.run(attack, target, records, shadows=shadows, seed=0)
            except ValueError as error:
                spent[attack] = {"refused": str(error)}
                continue
            measure(result.member_scores, result.non_member_scores)
            spent[attack] = {"seconds": time.perf_counter() - begun}
            scores[attack] = np.empty(len(y))
            scores[attack][member] = result.member_scores
            scores[attack][~member] = result.non_member_scores
        facts["disk_mb"] = problems.folder_mb(Path(folder))
    facts["seconds"] = time.perf_counter() - started
    facts["peak_mb"] = problems.peak_mb()
    if given:
        back = np.argsort(np.concatenate([np.flatnonzero(member), np.flatnonzero(~member)])[order])
        stacked, plan = np.stack(given)[:, back], seen.inside[:, back]
        np.savez(f"{out}-answers.npz", given=stacked, inside=plan, asked=target.scores(X))
    problems.finish(Path(out), scores, facts, started)


def ask(estimator: Any, keep: list[Array] | None) -> Target:
    def answer(rows: Array) -> Array:
        given: Array = estimator.predict_proba(rows)
        if keep is not None:
            keep.append(given)
        return given

    return from_callable(answer, estimator.classes_, "scores")


if __name__ == "__main__":
    main()
