"""How a claimed number and a computed one become a verdict, and the finding that says so.

Printed numbers are rounded, so the reader of a claim gets the benefit of it once: a claim is
refuted only beyond half a unit of the last decimal that it prints. It is supported only at or below
the printed number itself: a promise is kept as it is written. Whole numbers are taken as exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

from audit.claims.schema import Entry
from reports.record import ClaimState, Evidence, Finding, Interval, Value

SLACK = 1e-9  # relative: floating-point noise of a computation, no leniency


def rounding(printed: float) -> float:
    """Half a unit of the last printed decimal; 0 for whole numbers.

    YAML drops trailing zeros (0.30 reads 0.3), so never more than 0.005.
    """
    exponent = Decimal(repr(printed)).normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return min(0.005, 0.5 * 10.0**exponent) if exponent < 0 else 0.0


def at_most(claimed: float, low: float, high: float) -> ClaimState:
    """The verdict on "at most ``claimed``" where the truth lies in ``[low, high]``."""
    if high <= claimed * (1 + SLACK):
        return "supported"
    if low > (claimed + rounding(claimed)) * (1 + SLACK):
        return "refuted"
    return "inconclusive"


def equals(claimed: float, computed: float) -> bool:
    """Whether a computed number, rounded like the claimed one, is the claimed one."""
    exponent = Decimal(repr(claimed)).normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    half = 0.5 * 10.0**exponent if exponent < 0 else 0.005 * abs(claimed)
    return math.isclose(claimed, computed, rel_tol=SLACK) or abs(claimed - computed) <= half


def computed(value: float, method: str, n: int = 0) -> Interval:
    """A number that is computed and not sampled."""
    return Interval(value, value, value, 1.0, method, n)


def finding(
    entry: Entry,
    state: ClaimState,
    reason: str,
    values: Mapping[str, Value],
    *,
    figure: str,
    claimed: float | None,
    figures: Mapping[str, Interval] | None = None,
    power: str = "",
    evidence: tuple[Evidence, ...] = (),
) -> Finding:
    """The finding on a claim; ``reason`` is the last part of its message key.

    ``figure`` names what is claimed and ``claimed`` is its number: they fill the sentence with
    ``values``.
    """
    return Finding(
        id=f"claim/{entry.id}",
        check=f"claims.{entry.family}",
        state=state,
        message=f"claims.{entry.family}.{reason}",
        values={"figure": figure, "claimed": claimed, **values},
        figures=figures or {},
        power=power,
        claim=entry.id,
        evidence=evidence,
    )
