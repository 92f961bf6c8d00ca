"""sacroml's LiRA on one problem: ``run_sacroml.py NAME DATA OUT MODELS JOBS [ANSWERS]``.

Without ANSWERS it trains its own shadow models in its own splits. With them it is given shadow
models that repeat the answers of ours, by the folder in which it keeps what it has trained.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import problems
from sacroml.attacks import utils
from sacroml.attacks.likelihood_attack import LIRAAttack
from sacroml.attacks.target import Target

logging.disable(logging.WARNING)


class Watched(LIRAAttack):
    """Keeps the scores that the attack computes, since its report rounds them off to metrics."""

    def _compute_scores(self, *args: Any) -> Any:
        scores, normal = super()._compute_scores(*args)
        self.scores = np.array([right for _, right in scores])
        return scores, normal


class Echo:
    """A shadow model that gives the answers it was handed."""

    def __init__(self, given: Any, classes: Any) -> None:
        self.given, self.classes = given, classes

    def get_classes(self) -> Any:
        return self.classes

    def predict_proba(self, X: Any) -> Any:
        return self.given


def main() -> None:
    name, data, out, models, jobs, *answers = sys.argv[1:]
    X, y, member = problems.read(Path(data))
    model = problems.target(name, X, y, member)
    if problems.PROBLEMS[name][1] == problems.FOREST:
        model.set_params(n_jobs=int(jobs))
    order = np.concatenate([np.flatnonzero(member), np.flatnonzero(~member)])
    scores, facts = {}, {}
    started = time.perf_counter()
    for mode in ("online-carlini", "offline") if answers else ("online-carlini",):
        with tempfile.TemporaryDirectory(dir=Path(out).parent) as folder:
            attack = Watched(folder, False, int(models), mode=mode)
            if answers:
                echo(attack.shadow_path, Path(answers[0]), order, model.classes_)
            attack.attack(
                Target(
                    model=model, dataset_name=name,
                    X_train=X[member], y_train=y[member], X_test=X[~member], y_test=y[~member],
                )
            )  # fmt: skip
            scores[mode] = np.empty(len(y))
            scores[mode][order] = attack.scores
            facts["disk_mb"] = problems.folder_mb(Path(folder))
    problems.finish(Path(out), scores, facts, started)


def echo(folder: str, answers: Path, order: Any, classes: Any) -> None:
    with np.load(answers, allow_pickle=False) as file:
        given, inside = file["given"][:, order], file["inside"][:, order]
    for k, plan in enumerate(inside):
        shadow = Echo(given[k], classes)
        utils.save_shadow_model(folder, k, shadow, np.flatnonzero(plan), np.flatnonzero(~plan))


if __name__ == "__main__":
    main()
