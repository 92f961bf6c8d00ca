"""Who trains which shadow model: the plan of splits."""

from __future__ import annotations

import numpy as np

from attacks.records import Bools
from attacks.targets import Array


def halves(records: int, models: int, seed: int, users: Array | None = None) -> Bools:
    """Which records (columns) train which of the models (rows), (models, records).

    Models come in pairs: one trains on a random half, its twin on the rest. So each record is in
    exactly half of the models, and each model has half of the records (one more or less where the
    number is odd). With ``users`` (records,), all records of one person go together, and it is
    persons that are halved.

    Raises:
        ValueError: if the number of models is odd or below two, or there are fewer than four
            records (or users) to split.
    """
    if models < 2 or models % 2:
        raise ValueError(f"shadow models: need an even number of two or more, got {models}")
    if users is not None:
        names, of_whom = np.unique(users, return_inverse=True)
        return halves(len(names), models, seed)[:, of_whom]
    if records < 4:
        raise ValueError(f"shadow models: {records} records (or users) are too few to split")
    rng = np.random.default_rng(seed)
    plan = np.zeros((models, records), dtype=np.bool_)
    for pair in range(0, models, 2):
        plan[pair, rng.permutation(records)[: records // 2]] = True
        plan[pair + 1] = ~plan[pair]
    return plan
