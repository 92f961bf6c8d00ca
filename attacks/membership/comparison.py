"""A model's answers beside those of its shadow models: what every shadow attack scores.

The model is the target, or a shadow model that plays the target. Of the latter it is known whom it
was trained on, so an attack may learn from it what it must not learn from the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attacks.membership.signals import CONFIDENCE, observe, reach
from attacks.records import Bools, Pool
from attacks.registry import Progress
from attacks.shadows.fleet import Observations, Shadows
from attacks.targets import Floats, Target


@dataclass(frozen=True, eq=False)
class Comparison:
    """One model and M shadow models on n records.

    Attributes:
        observed: what the model answers (n, 4), columns as in ``signals.observe``.
        logits: the shadow models' logits of the true class (M, n).
        inside: which shadow model was trained on which record (M, n).
    """

    observed: Floats
    logits: Floats
    inside: Bools

    @property
    def asked(self) -> Floats:
        """The model's own logit of the true class (n,)."""
        return np.asarray(self.observed[:, CONFIDENCE])

    def within_reach(self) -> tuple[Floats, Floats]:
        """The model's logits (n,) and the shadow models' (M, n), cut where they are artefacts."""
        limit = reach(self.logits)
        return np.clip(self.asked, -limit, limit), np.clip(self.logits, -limit, limit)


def with_target(target: Target, pool: Pool, shadows: Shadows, progress: Progress) -> Comparison:
    """The target beside all shadow models, on the records that are judged."""
    seen = shadows.observations(pool, progress)
    return Comparison(
        observe(target, pool.features, pool.labels),
        seen.values[:, seen.judged, CONFIDENCE].astype(np.float64),
        seen.inside[:, seen.judged],
    )


def stand_ins(seen: Observations, most: int) -> Iterator[tuple[Comparison, Bools]]:
    """Up to ``most`` shadow models that play the target, and whom each was trained on (n,).

    A model's twin was trained on exactly the other records. Among the shadow models it would give
    the truth away: fewer of them would know the records that the stand-in knows. So both leave, and
    of the M - 2 others half know each record. Two models give none.
    """
    models = np.arange(len(seen.inside))
    for k in models[:most] if len(models) > 2 else ():
        others = models // 2 != k // 2
        yield (
            Comparison(
                seen.values[k, seen.learned].astype(np.float64),
                seen.values[others, seen.learned, CONFIDENCE].astype(np.float64),
                seen.inside[others, seen.learned],
            ),
            seen.inside[k, seen.learned],
        )
