"""Membership from densities: synthetic data are denser around what the generator was trained on.

Scores of training records and of holdout records that were never seen; a reference, disjoint from
both, says how dense real data are there anyway.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.special import logsumexp

from attacks.attribute.result import shared_confidence
from attacks.metrics import Figure, measure
from attacks.synthetic.distances import METRIC, Points, Rows, nearest, points
from attacks.synthetic.result import SyntheticResult
from attacks.synthetic.tables import Tables
from attacks.targets import Floats

FPRS = (0.1, 0.01, 0.001)
NEIGHBOURS = 16  # kernels summed
CALIBRATION = 5  # reference records whose mean distance tells how dense real data are
WIDTH = 1 / 3  # of a kernel, in distances to the nearest reference record
LEAST = 20  # reference records and non-members
SMOOTHING = 0.05  # of the median distance to the reference


def attack(tables: Tables, *, seed: int = 0, confidence: float = 0.95) -> SyntheticResult:
    """Three scores of each record, higher meaning member, and how well they tell members.

    Members are the training records. The holdout is split at random: one half is the reference R,
    the other the non-members. S are the synthetic records:

    - ``distance``: -d(x, S), to the nearest; for comparison, it is not calibrated.
    - ``log_ratio``: -log((d(x, S) + c) / (d(x, R) + c)), where d(x, R) is the mean distance to the
      5 nearest different records of R and c a twentieth of the median distance to the nearest.
    - ``domias``: log p_S(x) - log p_R(x) (van Breugel et al. 2023, section 4), each density a sum
      of Gaussian kernels at the 16 nearest different records; both have a third of x's distance
      to the nearest of R as their width, so that it follows the density.

    Figures are the AUC and the TPR at 10, 1 and 0.1 % FPR of each, as ``attacks.metrics.measure``
    takes them; all twelve intervals hold together.

    Raises:
        ValueError: if the holdout has fewer than 40 records or train fewer than 20.
    """
    started = time.monotonic()
    places = points(tables)
    members, synthetic = places["train"], places["synthetic"]
    aside, judged = split(len(places["holdout"]), seed)
    if min(len(aside), len(judged), len(members)) < LEAST:
        raise ValueError(
            f"density: {len(members)} train and {len(places['holdout'])} holdout records; "
            f"give {LEAST} or more of train and {2 * LEAST} of holdout"
        )
    reference = places["holdout"].take(aside)
    both = _joined(members, places["holdout"].take(judged))
    of_scores, to_synthetic, to_reference = scores(both, synthetic, reference)
    each = shared_confidence(confidence, len(of_scores) * (1 + len(FPRS)))
    cut = len(members)
    figures = tuple(
        Figure(f"{figure.name}:{name}", figure.estimate, figure.unmeasured)
        for name, values in of_scores.items()
        for figure in measure(values[:cut], values[cut:], confidence=each, seed=seed, fprs=FPRS)
        if figure.name.startswith(("auc", "tpr"))
    )
    return SyntheticResult(
        "density",
        "Membership by density ratio",
        "samples",
        figures,
        {
            "table": np.repeat(["train", "holdout"], [cut, len(judged)]),
            "row": np.concatenate([np.arange(cut), judged]),
            "distance_synthetic": to_synthetic,
            "distance_reference": to_reference,
            **of_scores,
        },
        (
            f"members: {cut} train records; non-members: {len(judged)} of holdout, drawn at "
            f"random; reference: the other {len(aside)}",
            METRIC,
        ),
        "DOMIAS: van Breugel et al. 2023",
        seed,
        time.monotonic() - started,
    )


def split(n: int, seed: int) -> tuple[Rows, Rows]:
    """Rows of n holdout records at random: half for reference, and those to be judged."""
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])


def scores(
    records: Points, synthetic: Points, reference: Points
) -> tuple[dict[str, Floats], Floats, Floats]:
    """Every score of the records (n,), and their distances to synthetic and reference records."""
    near, _ = nearest(records, synthetic, NEIGHBOURS)
    own, _ = nearest(records, reference, NEIGHBOURS)
    to_synthetic, first = near[:, 0], own[:, :1]
    around = own[:, :CALIBRATION]
    to_reference = np.nanmean(np.where(np.isfinite(around), around, np.nan), axis=1)
    c = SMOOTHING * max(float(np.median(first)), 1e-6)
    widths = np.maximum(WIDTH * first, c)

    def log_density(distances: Floats, n: int) -> Floats:
        kernels: Floats = logsumexp(-0.5 * (distances / widths) ** 2, axis=1) - np.log(n)
        return kernels

    return (
        {
            "log_ratio": np.log(to_reference + c) - np.log(to_synthetic + c),
            "domias": log_density(near, len(synthetic)) - log_density(own, len(reference)),
            "distance": -to_synthetic,
        },
        to_synthetic,
        to_reference,
    )


def _joined(one: Points, other: Points) -> Points:
    return Points(
        np.vstack([one.units, other.units]),
        np.vstack([one.codes, other.codes]),
    )
