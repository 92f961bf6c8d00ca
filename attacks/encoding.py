"""Records of any kind as numeric columns, for models that learn from what a record is.

Takes tables of numbers of any shape (n, ...), texts (n,), and tables that mix numbers and words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.targets import Array, Floats


def encode(features: Array) -> tuple[Any, NDArray[Any]]:
    """Columns for a linear model (dense or sparse), and a dense table for trees; both n rows."""
    if features.dtype.kind in "biuf":
        table = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
        spread = table.std(axis=0)
        scaled = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        return scaled, table
    if features.ndim == 1:
        return _encode_texts(features)
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    numeric = [
        all(isinstance(v, int | float) for v in features[:, j]) for j in range(features.shape[1])
    ]
    numbers = features[:, numeric].astype(np.float64)
    words = features[:, np.logical_not(numeric)].astype(np.str_)
    if not words.shape[1]:
        return encode(numbers)
    names = OneHotEncoder(max_categories=50, sparse_output=False).fit_transform(words)
    codes = OrdinalEncoder().fit_transform(words)
    scaled = encode(numbers)[0] if numbers.shape[1] else numbers
    return np.hstack([scaled, names]), np.hstack([numbers, codes])


def _encode_texts(texts: Array) -> tuple[Any, NDArray[Any]]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    plain = [str(text) for text in texts]
    shape = np.array([_shape(text) for text in plain])
    words = TfidfVectorizer(
        ngram_range=(1, 2), max_features=20_000, token_pattern=r"(?u)\S+", lowercase=False
    ).fit_transform(plain)
    size = min(50, words.shape[1] - 1, words.shape[0] - 1)
    if size < 1:
        return words, shape
    dense = TruncatedSVD(size, random_state=0).fit_transform(words)
    return words, np.hstack([dense, shape])


def _shape(text: str) -> list[float]:
    """What words leave out: length, and the shares of capitals, digits and unusual white space."""
    size = max(len(text), 1)
    return [
        len(text),
        len(text.split()),
        sum(map(str.isupper, text)) / size,
        sum(map(str.isdigit, text)) / size,
        sum(c.isspace() and c != " " for c in text) / size,
    ]


def beside(columns: Any, onehot: Floats) -> Any:
    """Both side by side: dense if the columns are, else sparse."""
    from scipy import sparse

    if sparse.issparse(columns):
        blocks: list[Any] = [columns, sparse.csr_matrix(onehot)]
        return sparse.hstack(blocks, format="csr")
    return np.hstack([columns, onehot])
