"""An ensemble of the shadow attacks, which learns where the truth is known which to believe.

Which attack is to be believed depends on the model. Shadow models are like the target and it is
known whom they were trained on, so they take the target's part in turn: the other shadow models
attack them, and a classifier learns what the attacks' scores look like on members and on others.
It then judges the target's. Stacking (Wolpert 1992) of the attacks named below; the target's own
members play no part.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from attacks.membership.calibration import loss_below_usual
from attacks.membership.comparison import Comparison, stand_ins, with_target
from attacks.membership.lira import FIXED, PER_RECORD, deviations_above, log_likelihood_ratio
from attacks.membership.rmia import best_slope, log_ratio_to_all, log_ratio_to_outside
from attacks.membership.signals import TOP
from attacks.records import Pool
from attacks.registry import Progress, Scored
from attacks.shadows.fleet import Shadows
from attacks.targets import Floats, Target

STAND_INS = 16  # shadow models that play the target, at most
MODELS = 4  # with two, none can


def ensemble(target: Target, pool: Pool, shadows: Shadows, seed: int, progress: Progress) -> Scored:
    """The log-odds of membership by boosted trees on the attacks' scores.

    The attacks are LiRA and RMIA, online and offline, difficulty calibration, and the target's own
    logit and largest probabilities. With auxiliary records, which leave the audited ones in no
    shadow model, the online attacks drop out.

    Raises:
        ValueError: if there are fewer than four shadow models.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    if shadows.models < MODELS:
        raise ValueError(f"ensemble: needs {MODELS} shadow models or more, got {shadows.models}")
    seen = shadows.observations(pool, progress)
    asked = with_target(target, pool, shadows, progress)
    slope, online = best_slope(seen), bool(asked.inside.any())
    rows, truths = [], []
    for played, inside in stand_ins(seen, STAND_INS):
        rows.append(_features(played, slope, online))
        truths.append(inside)
    model = HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_leaf_nodes=8,
        min_samples_leaf=50,
        early_stopping=False,
        random_state=seed,
    ).fit(np.concatenate(rows), np.concatenate(truths))
    return Scored(np.asarray(model.decision_function(_features(asked, slope, online))))


def _features(seen: Comparison, slope: float, online: bool) -> Floats:
    """One row (n, k) for each record, the columns on one scale for every model.

    A score is replaced by its rank among the scores of the same model, so a target that is surer
    of everything than its shadow models, or has more of them, does no harm.
    """
    columns = [
        deviations_above(seen, PER_RECORD),
        deviations_above(seen, FIXED),
        log_ratio_to_outside(seen, slope),
        loss_below_usual(seen),
        seen.asked,
        *seen.observed[:, TOP].T,
    ]
    if online:
        columns += [
            log_likelihood_ratio(seen, PER_RECORD),
            log_likelihood_ratio(seen, FIXED),
            log_ratio_to_all(seen),
        ]
    return np.asarray(rankdata(np.stack(columns, axis=1), axis=0) / len(seen.observed))
