"""A column of free text as a few numbers, so that records with text have a distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

WORDS = 20_000
SIZE = 8  # numbers for each text


def embed(frames: Mapping[str, pd.DataFrame], columns: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Each of these columns replaced by at most 8 numbers, fitted on the texts of all real tables.

    TF-IDF of words, then truncated SVD (latent semantic analysis, Deerwester et al. 1990), always
    from the same seed: equal texts get equal numbers. A missing text has missing numbers. The
    table ``synthetic`` is not fitted on: it would make what it copies of train stand out from the
    holdout.

    Raises:
        ValueError: naming the column, if a table lacks it or no text has a word.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    found = {name: frame.rename(columns=str) for name, frame in frames.items()}
    for column in columns:
        for name, frame in found.items():
            if column not in frame:
                raise ValueError(f"{name}: has no column {column!r}, which is named as text")
        joined = pd.concat([frame[column] for frame in found.values()], ignore_index=True)
        place, texts = pd.factorize(joined.map(str, na_action="ignore"))  # -1 is missing
        real = np.repeat([n != "synthetic" for n in found], [len(f) for f in found.values()])
        seen = np.unique(place[real & (place >= 0)])
        vectors = TfidfVectorizer(max_features=WORDS, token_pattern=r"(?u)\S+")
        try:
            words = vectors.fit_transform(texts[seen])
        except ValueError:
            raise ValueError(f"column {column!r}: no text holds a word; leave --text off") from None
        every = vectors.transform(texts)
        size = min(SIZE, *words.shape)
        if size < words.shape[1]:
            every = TruncatedSVD(size, random_state=0).fit(words).transform(every)
        else:
            every = every.toarray()
        numbers = np.vstack([every, np.full(every.shape[1], np.nan)])[place]
        ends = np.cumsum([len(frame) for frame in found.values()])[:-1]
        names = [f"{column} [{k + 1}]" for k in range(numbers.shape[1])]
        for (name, frame), part in zip(list(found.items()), np.split(numbers, ends), strict=True):
            columns_ = pd.DataFrame(part, columns=names, index=frame.index)
            found[name] = pd.concat([frame.drop(columns=column), columns_], axis=1)
    return found
