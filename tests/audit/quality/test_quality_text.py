"""Texts: the libraries' own figures, controls, letters outside ASCII, and what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import sentence_bleu
from scipy.stats import binomtest

from audit.quality.text import Words, _mean, compare_texts, sentence_encoder
from audit.yaml_file import InputError
from reports.record import Interval

WORDS = ["mild", "severe", "pain", "in", "left", "right", "knee", "after", "surgery", "fall"]


def texts(n: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(5, 12))) for _ in range(n)]


def figures(*sides: list[str], **options: Any) -> dict[str, Interval]:
    found = {metric.name: metric.interval for metric in compare_texts(*sides, **options)}
    assert all(found.values())
    return found  # type: ignore[return-value]


def test_figures_are_the_libraries_own_on_the_nearest_real_text() -> None:
    real = ["severe pain in the left knee", "a fall before surgery; rest"]
    synthetic = ["Mild pain in the left knee.", "rest, and a fall after surgery"]
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])  # with its own tokenizer
    found = figures(real, synthetic)
    pairs = list(zip(synthetic, real, strict=True))
    bleu = [sentence_bleu(s, [r]).score / 100 for s, r in pairs]
    assert found["bleu"].value == pytest.approx(np.mean(bleu))
    for name in ("rouge1", "rouge2", "rougeL"):
        score = [scorer.score(r, s)[name].fmeasure for s, r in pairs]
        assert found[name].value == pytest.approx(np.mean(score))


def test_copies_are_one_and_the_control_is_not() -> None:
    real = texts(200, 0)
    found = figures(real, real[::-1], texts(200, 1))
    for name in ("bleu", "rouge1", "rouge2", "rougeL", "similarity", "coverage"):
        assert found[name].value == pytest.approx(1)
        assert found[name].low > found[f"{name}_control"].high


@pytest.mark.parametrize("holdout", [0, 300])
def test_texts_of_one_law_do_as_their_control_does(holdout: int) -> None:
    found = figures(texts(300, 0), texts(300, 1), texts(holdout, 2))
    for name in ("bleu", "rouge1", "rougeL", "similarity", "coverage"):
        assert found[name].low < found[f"{name}_control"].high
        assert found[f"{name}_control"].low < found[name].high


def test_strange_texts_are_unlike_and_a_missing_kind_is_not_covered() -> None:
    real = texts(200, 0)
    strange = figures(real, [f"lorem{i} ipsum{i} dolor{i}" for i in range(200)])
    assert strange["similarity"].high < strange["similarity_control"].low
    other = [f"{t} and the weather was fine yesterday" for t in texts(500, 1)]
    half = figures(texts(500, 0) + other, texts(1000, 2))
    assert half["coverage"].high < half["coverage_control"].low


@pytest.mark.parametrize(
    ("real", "synthetic"),
    [
        (["患者左膝疼痛", "手术后休息"], ["患者右膝疼痛", "手术前休息"]),
        (["Ärztin prüft Übelkeit", "Öl für Füße"], ["Ärztin prüft Müdigkeit", "Öl für Hände"]),
    ],
)
def test_letters_outside_ascii_count(real: list[str], synthetic: list[str]) -> None:
    found = figures(real, synthetic)
    assert found["rouge1"].value > 0.5  # rouge-score alone finds no words here, and says 0
    assert found["bleu"].value > 0.2


def test_the_tokenizer() -> None:
    assert Words().tokenize("Knee-pain: 3 x A_b, 左膝!") == [
        "knee",
        "pain",
        "3",
        "x",
        "a",
        "b",
        "左",
        "膝",
    ]


def test_an_encoder_takes_the_place_of_tfidf() -> None:
    def first_letter(batch: Any) -> Any:
        return np.array([[t.startswith("a"), t.startswith("b")] for t in batch], dtype=float)

    found = figures(["a x", "b y"], ["a z", "b z", "b q"], embed=first_letter)
    assert found["similarity"].value == 1
    assert found["rouge1"].value == pytest.approx(0.5)


def test_the_mean_lies_in_its_interval() -> None:
    """Scores of 0 and 1. Promised 95 %; 300 seeds, p > 0.001; and never without width."""
    hits = 0
    for seed in range(300):
        scores = (np.random.default_rng(seed).random(60) < 0.05).astype(float)
        found = _mean(scores, 0.95)
        hits += found.low <= 0.05 <= found.high
        assert found.low < found.high
    assert binomtest(hits, 300, 0.95, alternative="less").pvalue > 0.001


@pytest.mark.parametrize("name", ["sacrebleu", "rouge_score"])
def test_a_missing_library_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'dpassay\[text\]'") as caught:
        compare_texts(texts(5, 0), texts(5, 1))
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("real", "synthetic", "said"),
    [
        (["one"], ["a", "b"], "1 real texts"),
        (["a b", "c d"], [], "0 synthetic texts"),
        (["...", "?!"], ["--", "!!"], "no text has a word"),
    ],
)
def test_texts_that_cannot_be_compared(real: list[str], synthetic: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare_texts(real, synthetic)


def test_an_encoder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        sentence_encoder(tmp_path / "none")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="may be a pickle"):
        sentence_encoder(tmp_path)
