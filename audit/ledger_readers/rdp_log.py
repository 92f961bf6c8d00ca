"""Log lines of the form ``RDP α=2, λ=0.1``, per epoch and worker.

λ is read as the Rényi divergence of order α that this epoch spent, and epochs add up. A log that
states totals so far is then over-counted, which errs on the safe side. Workers count the same
mechanism: the largest of them is taken, and where they differ, that is a fault of the record. A log
that lacks an epoch is refused: what it spent is not known.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from audit.accounting.convert import rdp_to_epsilon
from audit.accounting.events import ApproximateDP
from audit.ledger import RDP_TOLERANCE, Ledger, Problem
from audit.ledger_format import LedgerError

DELTA = 1e-6  # at which the divergences are turned into (ε, δ)
_NUMBER = r"([-+]?(?:\d*\.)?\d+(?:[eE][-+]?\d+)?|inf|nan)"
_START = r"\bRDP\W+(?:α|alpha)\s*[=:]"
_STATED = re.compile(  # and no more digits: a decimal comma would cut the number short
    rf"{_START}\s*{_NUMBER}[\s,;]+(?:λ|lambda)\s*[=:]\s*{_NUMBER}(?!\w|[.,]\d)"
)
_BEGUN = re.compile(_START)
_EPOCH = re.compile(r"\bepoch\W*(\d+)", re.IGNORECASE)
_WORKER = re.compile(r"\b(?:worker|rank)\W*(\d+)", re.IGNORECASE)


def detects(path: Path, start: bytes) -> bool:
    """Whether such a line is near the file's start."""
    return _STATED.search(start.decode("utf-8", "ignore")) is not None


def read(path: Path) -> Ledger:
    """The divergences of all epochs as one (ε, δ) at δ = 1e-6, by the best order.

    Raises:
        LedgerError: if there is no such line, a value is out of range, or no order is stated in
            every epoch.
    """
    spent, first_line = _spent(path)
    problem: Problem | None = None
    totals: defaultdict[float, float] = defaultdict(float)
    everyone = {worker for workers in spent.values() for worker in workers}
    for epoch, workers in spent.items():
        for worker in everyone - workers.keys():
            workers[worker] = {}  # a silent one has lost count, and disagrees below
        for order in {order for by_order in workers.values() for order in by_order}:
            stated = [by_order.get(order, math.nan) for by_order in workers.values()]
            if not all(math.isclose(stated[0], s, rel_tol=RDP_TOLERANCE) for s in stated):
                count = problem.count + 1 if problem else 1
                detail = problem.detail if problem else f"epoch {epoch}, order {order:g}"
                line = problem.line if problem else first_line[epoch]
                problem = Problem("ranks", line, count, detail)
            totals[order] += max(s for s in stated if not math.isnan(s))
    orders = [
        order
        for order in totals
        if all(any(order in w for w in workers.values()) for workers in spent.values())
    ]
    if not orders:
        raise LedgerError(f"{path}: no order α is stated in every epoch, so nothing adds up")
    epsilon = float(rdp_to_epsilon(orders, [totals[o] for o in orders], DELTA).min())
    return Ledger(
        path=path,
        format="rdp-log",
        mechanisms=(ApproximateDP(epsilon, DELTA),),
        private=math.isfinite(epsilon),
        steps=len(spent),
        problems=(problem,) if problem else (),
        notes=(
            "λ is read as what each epoch spent; if it is the total so far, less was spent.",
            f"The log gives divergences and no mechanism: they are turned into ε at δ = {DELTA:g}.",
        ),
    )


def _spent(
    path: Path,
) -> tuple[dict[int, dict[int, dict[float, float]]], dict[int, int]]:
    """Epoch to worker to order to divergence, and each epoch's first line."""
    spent: dict[int, dict[int, dict[float, float]]] = {}
    first_line: dict[int, int] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            stated = _STATED.findall(line)
            if len(stated) < len(_BEGUN.findall(line)):  # passed over, it would not be counted
                raise LedgerError(f"{path}: line {number}: RDP: write it as 'RDP α=2, λ=0.1'")
            epoch = int(e[1]) if (e := _EPOCH.search(line)) else -number  # each line for itself
            worker = int(w[1]) if (w := _WORKER.search(line)) else 0
            for order, value in ((float(a), float(b)) for a, b in stated):
                if not (order > 1 and value >= 0 and math.isfinite(order)):
                    raise LedgerError(f"{path}: line {number}: α, λ: need α > 1 and λ >= 0")
                by_order = spent.setdefault(epoch, {}).setdefault(worker, {})
                by_order[order] = by_order.get(order, 0.0) + value  # said twice: run twice
                first_line.setdefault(epoch, number)
    if not spent:
        raise LedgerError(f"{path}: no line of the form 'RDP α=2, λ=0.1'; name another format")
    # the first epoch is 0 or 1
    for before, after in pairwise([0, *sorted(epoch for epoch in spent if epoch >= 0)]):
        if after > before + 1:
            raise LedgerError(
                f"{path}: line {first_line[after]}: epoch {after}: no RDP line of epoch "
                f"{before + 1} comes before it; give the whole log"
            )
    return spent, first_line
