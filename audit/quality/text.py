"""How near synthetic texts lie to real ones, beside how near real texts lie to one another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.yaml_file import InputError
from reports.record import Interval, Metric

Floats = NDArray[np.float64]
Embed = Callable[[Sequence[str]], Any]
JUDGED = 1000  # texts of either kind that are scored, drawn at random: BLEU and ROUGE are slow
BLOCK = 500
_IDEOGRAPH = r"[぀-ヿ㐀-䶿一-鿿豈-﫿가-힯]"
_WORD = re.compile(rf"{_IDEOGRAPH}|(?:(?!{_IDEOGRAPH})[^\W_])+")


class Words:
    """A tokenizer for rouge-score that also knows letters outside ASCII; ideographs one by one."""

    def tokenize(self, text: str) -> list[str]:
        """Lower-case words and numbers in their order."""
        return _WORD.findall(text.lower())


def compare_texts(
    real: Sequence[str],
    synthetic: Sequence[str],
    holdout: Sequence[str] = (),
    *,
    embed: Embed | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Metric, ...]:
    """BLEU, ROUGE and similarity of synthetic texts to their nearest real ones, with a control.

    For up to 1,000 synthetic texts, drawn at random, the nearest real text by cosine is the
    reference. ``bleu`` is sacrebleu's sentence BLEU (Papineni et al. 2002) from 0 to 1, ``rouge1``,
    ``rouge2`` and ``rougeL`` are rouge-score's F measures (Lin 2004), ``similarity`` is the cosine.
    ``coverage`` is the similarity of real texts to their nearest synthetic one: low where kinds of
    text are missing. Each has a ``_control``: the same figure of holdout texts against real ones;
    without a holdout, of real texts against the nearest other one. ``coverage`` and its control
    look among equally many texts. A figure below its control says that texts are unlike real ones,
    one above that they may be copies.

    Intervals: Maurer and Pontil (2009), which hold for any scores within [0, 1]; all together
    (Bonferroni). They take the texts compared with as given.

    Args:
        embed: texts to vectors (n, d), dense or sparse; without it TF-IDF over words and pairs.

    Raises:
        InputError: if sacrebleu or rouge-score is missing, or a side has fewer than two texts.
    """
    bleu, rouge = _libraries()
    for name, texts in (("real", real), ("synthetic", synthetic)):
        if len(texts) < 2:
            raise InputError(f"text: {len(texts)} {name} texts; give two or more")
    rng = np.random.default_rng(seed)
    vectors = _unit((embed or _tfidf(real, synthetic))([*real, *synthetic, *holdout]))
    a, b, c = np.split(np.arange(vectors.shape[0]), [len(real), len(real) + len(synthetic)])
    texts = [*real, *synthetic, *holdout]
    chosen = [rng.permutation(rows)[:JUDGED] for rows in (b, c if len(c) else a)]
    figures: dict[str, Floats] = {}
    for suffix, rows in zip(("", "_control"), chosen, strict=True):
        nearest, cosine = _nearest(vectors, rows, a)
        pairs = [(texts[i], texts[j]) for i, j in zip(rows, nearest, strict=True)]
        figures[f"bleu{suffix}"] = np.array([bleu(x, y) for x, y in pairs])
        scores = [rouge(x, y) for x, y in pairs]
        for kind in ("rouge1", "rouge2", "rougeL"):
            figures[kind + suffix] = np.array([score[kind] for score in scores])
        figures[f"similarity{suffix}"] = cosine
    asked = rng.permutation(a)[:JUDGED]
    pool = c if len(c) else a
    size = min(len(b), len(pool) if len(c) else len(a) - 1)  # more texts have nearer ones
    others = rng.permutation(pool)[: size + (len(c) == 0)]  # a real text is not near itself
    figures["coverage"] = _nearest(vectors, asked, rng.permutation(b)[:size])[1]
    figures["coverage_control"] = _nearest(vectors, asked, others)[1]
    each = 1 - (1 - confidence) / len(figures)
    return tuple(Metric(name, _mean(figures[name], each)) for name in sorted(figures))


def sentence_encoder(folder: Path) -> Embed:
    """A sentence-transformers model in a local folder, as texts to vectors. Nothing is downloaded.

    Raises:
        InputError: if the library or the folder is missing, or the folder holds no such model, or
            one with pickled weights.
    """
    if not folder.is_dir():
        raise InputError(
            f"encoder: {folder} is no folder; save a sentence-transformers model there"
        )
    for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl"):
        if pickled := next(folder.rglob(pattern), None):
            raise InputError(f"encoder: {pickled}: may be a pickle; save the model as safetensors")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError("encoder: needs sentence-transformers; pip install it") from None
    try:
        model = SentenceTransformer(str(folder), local_files_only=True, device="cpu")
    except (OSError, ValueError) as error:
        raise InputError(f"encoder: {folder}: cannot be loaded: {error}") from None
    return lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False))


def _libraries() -> tuple[Callable[[str, str], float], Callable[[str, str], dict[str, float]]]:
    try:
        from rouge_score.rouge_scorer import RougeScorer
        from sacrebleu import sentence_bleu
    except ImportError as error:
        raise InputError(
            f"text: BLEU and ROUGE need {error.name}; pip install 'dpassay[text]'"
        ) from None
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=Words())

    def bleu(text: str, reference: str) -> float:
        kind = "zh" if re.search(_IDEOGRAPH, text + reference) else "13a"
        return float(min(1.0, sentence_bleu(text, [reference], tokenize=kind).score / 100))

    def rouge(text: str, reference: str) -> dict[str, float]:
        return {name: s.fmeasure for name, s in scorer.score(reference, text).items()}

    return bleu, rouge


def _tfidf(real: Sequence[str], synthetic: Sequence[str]) -> Embed:
    """TF-IDF of words and pairs of words, fitted on both sides."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    model = TfidfVectorizer(
        ngram_range=(1, 2), tokenizer=Words().tokenize, token_pattern=None, sublinear_tf=True
    )
    try:
        model.fit([*real, *synthetic])
    except ValueError:
        raise InputError("text: no text has a word; name another column") from None
    return lambda texts: model.transform(list(texts))


def _unit(vectors: Any) -> Any:
    from sklearn.preprocessing import normalize

    return normalize(vectors)


def _nearest(
    vectors: Any, rows: NDArray[np.int64], among: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Floats]:
    """For each row the most similar other row of ``among``, and its cosine, from 0 to 1."""
    nearest = np.empty(len(rows), dtype=np.int64)
    cosine = np.empty(len(rows))
    pool = vectors[among]
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        found = vectors[part] @ pool.T
        found = np.asarray(found.todense() if hasattr(found, "todense") else found)
        found = np.where(part[:, None] == among[None, :], -2.0, found)  # not itself
        best = found.argmax(axis=1)
        nearest[start : start + BLOCK] = among[best]
        cosine[start : start + BLOCK] = found[np.arange(len(part)), best]
    return nearest, np.clip(cosine, 0.0, 1.0)


def _mean(values: Floats, confidence: float) -> Interval:
    """The mean of scores within [0, 1] (Maurer and Pontil 2009, theorem 4, on either side)."""
    n, value = len(values), float(values.mean())
    log = math.log(4 / (1 - confidence))
    half = math.sqrt(2 * float(values.var(ddof=1)) * log / n) + 7 * log / (3 * (n - 1))
    low, high = max(0.0, value - half), min(1.0, value + half)
    return Interval(low, value, high, confidence, "Maurer-Pontil", n)
