"""Whether train and holdout differ by themselves: then comparing them says nothing of a release."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from attacks.metrics import Estimate, auc
from attacks.synthetic.distances import Points, coordinates

LIMIT = 10_000  # records a side: more would only cost time
LEAST = 20


def told_apart(
    train: Points, holdout: Points, *, seed: int = 0, confidence: float = 0.95
) -> Estimate:
    """AUC of telling train from holdout without the release; above one half they are no one pool.

    A forest and a linear model learn on one random half of each side and are judged on the other,
    by the mean of their ranks, as in ``attacks.baselines`` (Das, Zhang and Tramèr 2024). With fewer
    than 20 records on a side nothing is learned and all scores are equal.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    places = coordinates(train, holdout)
    chosen = [side[rng.permutation(len(side))[:LIMIT]] for side in places]
    if min(map(len, chosen)) < LEAST:
        equal = [np.zeros(len(side)) for side in chosen]
        return auc(equal[0], equal[1], confidence)
    learned, judged = ([side[k::2] for side in chosen] for k in (0, 1))
    truth = np.repeat([1, 0], [len(side) for side in learned])
    ranks = np.zeros(sum(map(len, judged)))
    for model in (
        RandomForestClassifier(100, min_samples_leaf=3, n_jobs=-1, random_state=seed),
        LogisticRegression(max_iter=500),
    ):
        model.fit(np.vstack(learned), truth)
        ranks += rankdata(model.predict_proba(np.vstack(judged))[:, 1])
    return auc(ranks[: len(judged[0])], ranks[len(judged[0]) :], confidence)
