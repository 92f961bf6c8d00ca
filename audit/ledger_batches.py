"""Are the batch sizes of a ledger those that its sampler draws?

Under Poisson sampling every batch size is binomial(N, q), independently. Two statistics are tested:
the total number of records drawn, and the spread of the sizes around their means. A loader that
shuffles but is accounted as Poisson has almost no spread, which a few dozen steps show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy import stats

LEVEL = 0.001  # probability that the test refuses an honest ledger
_TAIL = LEVEL / 4  # two statistics, two sides each
_POWER = 0.9
_DRAWS = 20_000
_SEED = 20_240_229


@dataclass(frozen=True)
class PoissonTest:
    """The outcome of ``poisson_test``; ratios are 1 where the sizes behave as Poisson sampling.

    Attributes:
        steps: how many sizes were tested.
        p_value: corrected for both statistics and sides; refuse at ``LEVEL`` or below.
        mean_ratio: records drawn over records expected.
        spread_ratio: variance around the expected sizes over the binomial's.
        blind: even constant sizes would have passed: too few steps.
        seen_spread: ratios beyond these are found nine times in ten.
        seen_mean: relative errors of the mean beyond this are found nine times in ten.
    """

    steps: int
    p_value: float
    mean_ratio: float
    spread_ratio: float
    blind: bool
    seen_spread: tuple[float, float]
    seen_mean: float


def poisson_test(records: int, batches: Mapping[float, Mapping[int, int]]) -> PoissonTest:
    """Test realised batch sizes against independent binomial draws.

    ``batches`` maps an expected size to the counts of realised ones. With many steps, the total is
    compared by a Cornish-Fisher corrected normal, the spread by a scaled chi-square with the
    binomial's own fourth moment; with few, both by 20,000 simulated runs (fixed seed). Where many
    steps draw next to nothing, only the total is tested, against Poisson's law.

    Raises:
        ValueError: if there are no batches.
    """
    run = _Run.of(records, batches)
    mean_ratio = float((run.counts @ run.sizes) / (run.counts @ run.expected))
    certain = run.variance == 0  # sample rate 1: every record, every time
    if np.any(certain & (run.sizes != records)) or np.any(run.sizes > records):
        return PoissonTest(run.steps, 0.0, mean_ratio, np.inf, False, (1, 1), 0.0)
    if certain.all():
        return PoissonTest(run.steps, 1.0, 1.0, 1.0, False, (1, 1), 0.0)
    run = run.only(~certain)
    total_variance = run.counts @ run.variance
    if run.steps >= 50 and total_variance >= 200:
        null = _asymptotic(run)
    elif run.steps <= 2000:
        null = _simulated(run)
    else:  # next to nothing is drawn in any step: sizes are 0 or 1, and only their sum tells
        mean = float(run.counts @ run.expected)
        drawn = mean + run.excess
        tails = stats.poisson.cdf(drawn, mean), stats.poisson.sf(drawn - 1, mean)
        p_value = min(1.0, 2 * float(min(tails)))
        spread_ratio = run.spread / run.steps
        blind = p_value > LEVEL
        return PoissonTest(run.steps, p_value, mean_ratio, spread_ratio, blind, (0, np.inf), np.inf)
    z = stats.norm.ppf(1 - _TAIL) + stats.norm.ppf(_POWER)
    return PoissonTest(
        steps=run.steps,
        p_value=min(1.0, 4 * min(null.tails)),
        mean_ratio=mean_ratio,
        spread_ratio=run.spread / run.steps,
        blind=null.constant > _TAIL,
        seen_spread=(
            _ratio(null.quantile(_TAIL), null.quantile(_POWER), 0.0),
            _ratio(null.quantile(1 - _TAIL), null.quantile(1 - _POWER), np.inf),
        ),
        seen_mean=float(z * np.sqrt(total_variance) / (run.counts @ run.expected)),
    )


def _ratio(a: float, b: float, otherwise: float) -> float:
    return a / b if b > 0 else otherwise  # after a step or two, no spread at all is likely


def shuffled_sizes(records: int, expected: float, sizes: Mapping[int, int]) -> bool:
    """Whether the sizes are those of shuffled epochs cut into batches, the last one maybe short."""
    short = sum(count for size, count in sizes.items() if size != expected)
    epochs = sum(sizes.values()) / np.ceil(records / expected)
    last = records % int(expected) if expected == int(expected) else -1
    return set(sizes) <= {int(expected), last} and short <= np.ceil(epochs)


@dataclass(frozen=True)
class _Run:
    """The batches as parallel arrays, one entry for each pair of expected and realised size."""

    records: int
    expected: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, records: int, batches: Mapping[float, Mapping[int, int]]) -> Self:
        rows = [(e, b, n) for e, sizes in batches.items() for b, n in sizes.items()]
        if not rows:
            raise ValueError("batches: there are none to test")
        expected, sizes, counts = zip(*rows, strict=True)
        return cls(records, np.array(expected, float), np.array(sizes, float), np.array(counts))

    def only(self, chosen: np.ndarray) -> Self:
        return replace(
            self,
            expected=self.expected[chosen],
            sizes=self.sizes[chosen],
            counts=self.counts[chosen],
        )

    @property
    def steps(self) -> int:
        return int(self.counts.sum())

    @property
    def rate(self) -> np.ndarray:
        return np.clip(self.expected / self.records, 0.0, 1.0)

    @property
    def variance(self) -> np.ndarray:
        spread: np.ndarray = self.records * self.rate * (1 - self.rate)
        return spread

    @property
    def excess(self) -> float:
        return float(self.counts @ (self.sizes - self.expected))

    @property
    def spread(self) -> float:
        return self._spread(self.sizes)

    @property
    def constant_spread(self) -> float:
        return self._spread(np.round(self.expected))

    def _spread(self, sizes: np.ndarray) -> float:
        return float(self.counts @ ((sizes - self.expected) ** 2 / self.variance))


@dataclass(frozen=True)
class _Null:
    """How likely the statistics are under honest sampling: the four tails, and spreads' law."""

    tails: tuple[float, float, float, float]
    constant: float  # the chance of as little spread as constant sizes have
    quantile: Callable[[float], float]  # of the spread


def _asymptotic(run: _Run) -> _Null:
    total = run.counts @ run.variance
    skew = run.counts @ (run.variance * (1 - 2 * run.rate)) / total**1.5
    z = run.excess / np.sqrt(total)
    z -= skew * (z**2 - 1) / 6
    # kurtosis of a binomial: 3 + (1 - 6 q (1 - q)) / (N q (1 - q))
    kurtosis = (1 - 6 * run.rate * (1 - run.rate)) / run.variance
    spread_variance = run.counts @ (2 + kurtosis)
    law = stats.chi2(2 * run.steps**2 / spread_variance, scale=spread_variance / (2 * run.steps))
    return _Null(
        tails=(stats.norm.cdf(z), stats.norm.sf(z), law.cdf(run.spread), law.sf(run.spread)),
        constant=float(law.cdf(run.constant_spread)),
        quantile=lambda p: float(law.ppf(p)),
    )


def _simulated(run: _Run) -> _Null:
    rates = np.repeat(run.rate, run.counts)
    variances, means = run.records * rates * (1 - rates), run.records * rates
    rng = np.random.default_rng(_SEED)
    excesses, spreads = np.empty(_DRAWS), np.empty(_DRAWS)
    for part in np.array_split(np.arange(_DRAWS), 20):  # in parts, to keep memory low
        off = rng.binomial(run.records, rates, (len(part), len(rates))) - means
        excesses[part], spreads[part] = off.sum(axis=1), (off**2 / variances).sum(axis=1)

    def share(hits: np.ndarray) -> float:
        return float((1 + hits.sum()) / (1 + _DRAWS))

    slack = 1e-9 * max(1.0, run.spread)
    return _Null(
        tails=(
            share(excesses <= run.excess + slack),
            share(excesses >= run.excess - slack),
            share(spreads <= run.spread + slack),
            share(spreads >= run.spread - slack),
        ),
        constant=share(spreads <= run.constant_spread + slack),
        quantile=lambda p: float(np.quantile(spreads, p)),
    )
