"""What a generator of tables promises, and how Gaussian measurements reach it.

Everything that touches the records is a Gaussian mechanism. Any number of them, one chosen after
the other, is as private as a single one with μ² = Σ μᵢ², where μ is sensitivity over standard
deviation (Dong, Roth and Su 2019, "Gaussian differential privacy", corollary 3.3). ρ of zCDP is
μ²/2. For one Gaussian ε and δ are known exactly (Balle and Wang 2018, theorem 8), so no bound by
moments is needed (Canonne, Kamath and Steinke 2020 give the best of those).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from trainers.dpsgd.noise import Noise, secure_noise, seeded_noise
from trainers.ledger import fingerprint

if TYPE_CHECKING:
    import pandas as pd

ESTIMATED = 0.1  # the share of μ² for bounds and levels that the domain does not give


@dataclass(frozen=True)
class Privacy:
    """A run stays below ``epsilon`` at ``delta``, for adding or removing one record.

    ``noise`` is ``secure`` for a guarantee; ``seeded`` repeats a run and protects nobody.

    Raises:
        ValueError: if a number is out of range.
    """

    epsilon: float
    delta: float = 1e-5
    noise: Literal["secure", "seeded"] = "secure"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1e-4 <= self.epsilon <= 1e4:
            raise ValueError(f"epsilon: must lie between 0.0001 and 10000, got {self.epsilon}")
        if not 1e-15 <= self.delta < 1:
            raise ValueError(f"delta: must lie between 1e-15 and 1, got {self.delta}")

    @property
    def mu(self) -> float:
        """The largest μ of Gaussian mechanisms that together keep the promise."""
        return mu_of(self.epsilon, self.delta)

    def source(self) -> Noise:
        """Noise as the promise needs it."""
        return secure_noise() if self.noise == "secure" else seeded_noise(self.seed)


def delta_of(mu: float, epsilon: float) -> float:
    """δ at ε of a Gaussian mechanism with sensitivity over standard deviation μ, exactly."""
    inner = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(min(inner, 0.0)))


def mu_of(epsilon: float, delta: float) -> float:
    """The μ whose δ at ε is ``delta``, rounded down by a millionth."""
    high = 1.0
    while delta_of(high, epsilon) < delta:
        high *= 2
    root = brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-9, high, xtol=1e-12, rtol=1e-10)
    return float(root) * (1 - 1e-6)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε at δ; 0 if even that one holds."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return float(brentq(lambda e: delta_of(mu, e) - delta, 0.0, high, xtol=1e-12))


def table_fingerprint(table: pd.DataFrame) -> str:
    """``fingerprint`` of a table: a record's features are the bytes of the SHA-256 of its texts.

    The texts are joined as a JSON list in the table's order of columns; missing is null.
    """
    columns = [_json_texts(column) for _, column in table.items()]
    digests = [
        hashlib.sha256(f"[{', '.join(cells)}]".encode()).digest()
        for cells in zip(*columns, strict=True)
    ]
    rows = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)
    return fingerprint(rows, np.zeros(len(rows), dtype=np.int64))


def _json_texts(column: pd.Series) -> list[str]:
    of_unique, unique = column.factorize()
    texts = np.array([*(json.dumps(str(value)) for value in unique), "null"], dtype=object)
    found: list[str] = texts[of_unique].tolist()  # -1, missing, picks the last
    return found
