"""Telling train from holdout without the release: by chance where they are one pool."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import binom

from attacks.synthetic.blind import told_apart
from attacks.synthetic.distances import points
from attacks.synthetic.tables import code


def sides(n, seed, shift=0.0, word="x"):
    rng = np.random.default_rng(seed)
    train, holdout = (
        pd.DataFrame({"a": rng.normal(size=n), "b": rng.choice(["x", "y"], n)}) for _ in range(2)
    )
    train["a"] = train.a.mask(rng.random(n) < 0.1)
    holdout["a"] = (holdout.a + shift).mask(rng.random(n) < 0.1)
    holdout["b"] = holdout.b.replace("x", word)
    found = points(code({"train": train, "holdout": holdout}))
    return found["train"], found["holdout"]


def test_one_pool_is_told_apart_as_rarely_as_the_interval_says():
    """At 10 % a run, more than the 99.9 % quantile of 25 runs has a chance below 0.1 %."""
    found = [told_apart(*sides(60, seed), seed=seed, confidence=0.8) for seed in range(25)]
    assert sum(e.low > 0.5 for e in found) <= binom.ppf(0.999, 25, 0.1)


def test_shifted_numbers_and_other_words_are_seen():
    assert told_apart(*sides(300, 0, shift=1.0)).low > 0.5
    assert told_apart(*sides(300, 0, word="z")).low > 0.5


def test_too_few_records_tell_nothing():
    found = told_apart(*sides(10, 0, shift=99.0))
    assert (found.low < 0.5, found.value) == (True, 0.5)
