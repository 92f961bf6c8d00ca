"""Coded tables as the matrices that boosted trees learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from attacks.synthetic.tables import Coded, Tables

LEVELS = 250  # trees take at most 255 of a category; the rarest share one
LEAST = 50  # records to learn from: trees split nothing where there are fewer

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Features:
    """How tables become matrices: for each categorical column its levels' new codes."""

    codes: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, tables: Tables, names: Sequence[str]) -> Features:
        """The commonest levels of these tables keep a code of their own."""
        codes = []
        for j, column in enumerate(tables.categorical):
            found = np.concatenate([tables[name].codes[:, j] for name in names])
            counts = np.bincount(found[found >= 0], minlength=len(column.levels))
            order = np.argsort(-counts, kind="stable")
            new = np.empty(len(order), dtype=np.int64)
            new[order] = np.minimum(np.arange(len(order)), LEVELS)
            codes.append(new)
        return cls(tuple(codes))

    def matrix(self, table: Coded) -> Floats:
        """Numbers, then categories as codes; (n, columns), NaN is missing."""
        categories = [
            np.where(found >= 0, new[found] if len(new) else 0, np.nan)
            for found, new in zip(table.codes.T, self.codes, strict=True)
        ]
        return np.column_stack([table.numbers, *categories])

    def fit(self, matrix: Floats, truth: NDArray[Any], kind: str, seed: int) -> Any:
        """Boosted trees (scikit-learn's) that learned ``classes`` or a ``number`` from a matrix."""
        from sklearn import ensemble

        columns = matrix.shape[1]
        numbers = columns - len(self.codes)
        model = {
            "classes": ensemble.HistGradientBoostingClassifier,
            "number": ensemble.HistGradientBoostingRegressor,
        }[kind]
        is_category = [j >= numbers for j in range(columns)]
        # several threads of OpenMP on a busy machine wait for one another, twenty times as long
        with threadpool_limits(1, user_api="openmp"):
            # no early stopping: it sets records aside by class, and a rare class has none to spare
            return model(
                categorical_features=is_category, early_stopping=False, random_state=seed
            ).fit(matrix, truth)


def without(tables: Tables, name: str) -> Tables:
    """The same tables with one column left out."""
    numeric = [j for j, column in enumerate(tables.numeric) if column.name != name]
    categorical = [j for j, column in enumerate(tables.categorical) if column.name != name]
    return Tables(
        tuple(tables.numeric[j] for j in numeric),
        tuple(tables.categorical[j] for j in categorical),
        {
            key: Coded(table.numbers[:, numeric], table.codes[:, categorical])
            for key, table in tables.tables.items()
        },
    )
