"""ART's shadow attack on one problem: ``run_art.py NAME DATA OUT MODELS``.

Its shadow models are of the target's recipe, in its own splits; the attack model is a forest, as
in its own example.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import numpy as np
import problems

logging.disable(logging.WARNING)

from art.attacks.inference.membership_inference import (  # noqa: E402
    MembershipInferenceBlackBox,
    ShadowModels,
)
from art.estimators.classification import SklearnClassifier  # noqa: E402


def main() -> None:
    name, data, out, models = sys.argv[1:]
    X, y, member = problems.read(Path(data))
    target = SklearnClassifier(problems.target(name, X, y, member))
    one_hot = np.eye(len(np.unique(y)))[y]
    started = time.perf_counter()
    np.random.seed(0)  # noqa: NPY002 - the attack model draws from it
    shadows = ShadowModels(target, num_shadow_models=int(models), random_state=0)
    inside, outside = shadows.generate_shadow_dataset(X, one_hot, 0.5)
    attack = MembershipInferenceBlackBox(target, attack_model_type="rf")
    attack.fit(inside[0], inside[1], outside[0], outside[1], inside[2], outside[2])
    scores = attack.infer(X, one_hot, probabilities=True).ravel()
    problems.finish(Path(out), {"shadow": scores}, {}, started)


if __name__ == "__main__":
    main()
