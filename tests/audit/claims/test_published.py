"""The published claims: verdict and recomputed figure of each, against values worked out apart.

The figures come from Google's dp-accounting and Opacus at equal parameters, from closed forms, or
from arithmetic that the comment gives. Where an accountant is named, its own figure is meant.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
from scipy.stats import binom

from audit.claims import check_claims
from audit.claims.schema import read_claims
from reports.record import Finding

FOLDER = Path(__file__).parents[3] / "fixtures" / "claims"
FILES = {path.name[0]: path for path in FOLDER.glob("?_*.yaml")}

VERDICTS = {
    "a-formula": "refuted",
    "a-one-release": "refuted",
    "a-classical-value": "supported",
    "a-exact-value": "supported",
    "a-hundred-releases": "refuted",
    "a-large-epsilon": "refuted",
    "b-100-steps": "refuted",
    "b-50-epochs": "refuted",
    "b-as-recomputed": "supported",
    "b-rate-misfilled": "supported",
    "b-published-seed": "refuted",
    "c-renyi": "refuted",
    "c-log-moment": "supported",
    "c-unstated": "not checkable",
    "c-corrected": "supported",
    "d-as-published": "not checkable",
    "d-batch-4": "refuted",
    "d-batch-32": "refuted",
    "d-batch-8-3-epochs": "refuted",
    "d-batch-1-large-delta": "supported",
    "e-freezing": "refuted",
    "e-freezing-unstated": "refuted",
    "e-two-phases": "refuted",
    "f-42": "refuted",
    "f-46": "refuted",
    "f-42-of-200": "refuted",
    "f-46-of-200": "inconclusive",
    "f-chance": "inconclusive",
    "f-61-unstated-n": "inconclusive",
    "f-61-of-600": "supported",
    "g-halving": "supported",
    "g-sum": "supported",
    "g-sum-same-delta": "inconclusive",
    "g-tight": "supported",
    "g-limit": "refuted",
    "g-limit-tight": "supported",
    "g-disjoint": "supported",
    "h-formula": "supported",
    "h-value": "supported",
    "h-linear": "refuted",
    "h-shuffled": "not checkable",
    "h-public-sample": "refuted",
    "i-bounds": "refuted",
    "i-epsilon": "refuted",
    "i-divided-noise": "refuted",
    "i-described": "refuted",
    "i-sound-step": "supported",
    "j-mechanism": "refuted",
    "j-private": "supported",
    "j-sound-step": "supported",
    "k-inverse-root": "refuted",
    "k-no-dependence": "refuted",
}

# claim -> figure -> its value and how far it may be off
FIGURES = {
    "a-formula": {"formula": (4.845, 1e-3), "noise": (3.731, 1e-3), "epsilon": (2.953, 1e-3)},
    "a-one-release": {"epsilon": (2.953, 1e-3)},
    "b-100-steps": {"epsilon": (5.086, 1e-3), "epsilon_RDP": (5.626, 2e-3)},
    "b-50-epochs": {"epsilon": (10.75, 0.1), "epsilon_RDP": (11.7, 0.15)},
    "b-rate-misfilled": {"epsilon_RDP": (0.3, 0.0051)},
    "d-as-published": {"epsilon": (0.2125, 1e-3)},
    "d-batch-4": {"epsilon": (1.585, 1e-3)},
    "d-batch-8-3-epochs": {"epsilon": (2.907, 0.01), "epsilon_RDP": (3.66, 0.02)},
    "d-batch-1-large-delta": {"epsilon": (0.2125, 1e-3), "epsilon_RDP": (0.839, 1e-3)},
    "e-freezing": {"epsilon": (2.907, 0.01)},
    "e-two-phases": {"epsilon": (3.59, 5e-3), "epsilon_RDP": (4.357, 5e-3)},
    "f-42-of-200": {"accuracy": (0.58, 1e-9)},
    "f-46-of-200": {"accuracy": (0.54, 1e-9)},
    "g-halving": {"epsilon": (0.219, 5e-4)},
    "g-sum": {"epsilon": (1.32, 1e-9), "epsilon_if_gaussian": (1.066, 5e-4)},
    "g-tight": {"epsilon": (1.066, 5e-4)},
    "g-limit": {"epsilon_if_gaussian": (1.034, 5e-4)},
    "g-limit-tight": {"epsilon": (1.034, 5e-4)},
    "g-disjoint": {"epsilon": (1.0, 1e-9)},
    "h-value": {"epsilon": (math.log1p(0.128 * math.expm1(1)), 1e-9)},
    "h-linear": {"epsilon": (0.1988, 1e-4)},
    "i-bounds": {"epsilon": (18.11, 0.01), "epsilon_RDP": (20.2, 0.05)},
    "i-epsilon": {"epsilon": (18.11, 0.01), "epsilon_RDP": (20.2, 0.05)},
}


@cache
def judged(letter: str) -> dict[str, Finding]:
    return {finding.claim: finding for finding in check_claims(FILES[letter])}


def test_every_letter_has_a_file_and_every_claim_an_expectation() -> None:
    assert sorted(FILES) == list("abcdefghijk")
    ids = [claim.id for path in FILES.values() for claim in read_claims(path).claims]
    assert sorted(ids) == sorted(VERDICTS)


@pytest.mark.parametrize("claim", VERDICTS)
def test_verdict(claim: str) -> None:
    found = judged(claim[0])[claim]
    assert found.state == VERDICTS[claim]
    assert found.meaning
    assert "?" not in found.meaning
    assert "{" not in found.meaning + found.remedy
    if found.state != "supported":
        assert found.remedy


@pytest.mark.parametrize("letter", sorted(FILES))
def test_the_file_says_the_same_as_this_table(letter: str) -> None:
    for claim in read_claims(FILES[letter]).claims:
        assert claim.expected == VERDICTS[claim.id]


@pytest.mark.parametrize("claim", FIGURES)
def test_recomputed_figures(claim: str) -> None:
    figures = judged(claim[0])[claim].figures
    for name, (value, tolerance) in FIGURES[claim].items():
        assert figures[name].value == pytest.approx(value, abs=tolerance), name


def test_50_epochs_by_either_reading_of_the_last_batch() -> None:
    """50 epochs of 7 or of 8 steps: 10.7 to 10.8 by PLD up to 0.1, 11.6 to 11.7 by RDP."""
    figures = judged("b")["b-50-epochs"].figures
    assert 10.65 <= figures["epsilon"].high <= 10.85
    assert 11.55 <= figures["epsilon_RDP"].high <= 11.85


def test_which_fillings_could_give_072() -> None:
    """One epoch of batches of 4 costs 1.585 at δ = 1e-5: only tiny batches or a large δ remain."""
    values = judged("d")["d-as-published"].values
    assert 0 < int(str(values["possible"])) < 0.05 * int(str(values["tried"]))
    shown = str(values["frontier"])
    assert "δ=1e-05: B=1 (E≤1)" in shown
    assert "δ=0.001: B=1 (E≤5), B=2 (E≤2), B=4 (E≤1)" in shown
    assert "1e-06" not in shown
    assert values["least_at"] == "δ=0.001, B=1, E=1"


def test_the_mirrored_attack_is_what_is_judged() -> None:
    for claim, mirrored in (("f-42", 0.58), ("f-46", 0.54)):
        assert judged("f")[claim].values["mirrored"] == pytest.approx(mirrored)
    interval = judged("f")["f-42-of-200"].figures["accuracy"]
    assert (interval.low, interval.high) == pytest.approx((0.508, 0.650), abs=2e-3)
    assert interval.n == 200


def test_accuracy_61_contradicts_from_about_600_records() -> None:
    values = judged("f")["f-61-unstated-n"].values
    assert values["limit"] == pytest.approx(1 / (1 + math.exp(-0.3)))  # 57.4 %
    assert 500 <= int(str(values["needed"])) <= 700


def test_a_conversion_that_says_far_too_small_a_delta() -> None:
    values = judged("c")["c-renyi"].values
    assert float(str(values["said"])) < 1e-3 * float(str(values["true"]))


def test_noise_that_is_divided_protects_nothing() -> None:
    """σ acts as 1.41/2/256; a record is in up to k of 100 steps, and each costs 1/2σ² and more."""
    found = judged("i")["i-divided-noise"]
    sigma = 1.41 / 2 / 256
    assert found.values["effective"] == pytest.approx(sigma)
    hits = binom.isf(1e-5, 100, 0.128)
    assert 0.9 <= found.figures["epsilon"].high / (hits / (2 * sigma**2)) <= 1.2


def test_noise_on_the_mean_is_256_times_the_noise_needed() -> None:
    values = judged("j")["j-mechanism"].values
    assert values["factor"] == pytest.approx(256)
    assert values["effective"] == pytest.approx(1.41 * 256)
    assert float(str(values["epsilon"])) < 0.01


def test_epsilon_grows_with_the_batch_size() -> None:
    interval = judged("k")["k-inverse-root"].figures["exponent"]
    assert 0.4 < interval.low < interval.high < 0.65  # μ ∝ √(batch size) in the limit
