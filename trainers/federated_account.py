"""What a federated run costs a person, from its sites' ledgers: Opacus' accountant, an opinion.

Steps are counted as they stand on file, never as a site says. ``lineage`` puts the same into a
LINEAGE file, from which ``dpassay lineage`` recomputes it by accountants of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

from trainers.dpsgd.plan import ORDERS
from trainers.federated_site import LEDGER
from trainers.ledger import FIRST

_NO_NOISE = 0.0, 1.0


@dataclass(frozen=True)
class Spent:
    """What a site's ledger holds.

    Attributes:
        phases: how many steps had each (noise multiplier, sample rate); (0, 1) for one without DP.
        sha256: of the file.
    """

    site: str
    planned: int
    seeded: bool
    phases: Mapping[tuple[float, float], int]
    sha256: str

    @property
    def steps(self) -> int:
        """How many there were."""
        return sum(self.phases.values())

    def rdp(self) -> NDArray[np.float64]:
        """The RDP of all steps at ``trainers.dpsgd.plan.ORDERS``; infinite without a guarantee."""
        total = np.zeros(len(ORDERS))
        for (sigma, rate), steps in self.phases.items():
            if self.seeded or sigma == 0:
                return np.full(len(ORDERS), math.inf)
            total += steps * np.asarray(compute_rdp(q=rate, noise_multiplier=sigma, steps=1,
                                                    orders=list(ORDERS)))  # fmt: skip
        return total


@dataclass(frozen=True)
class Cost:
    """ε of a person who has one record at each of these sites and none elsewhere."""

    sites: tuple[str, ...]
    epsilon: float


def spent(path: Path, site: str) -> Spent:
    """The steps in a site's ledger.

    Raises:
        ValueError: naming the site, if the file is missing, no ledger, or its lines do not follow
            from one another.
    """
    head, phases = FIRST, Counter[tuple[float, float]]()
    header: dict[str, Any] = {}
    whole = hashlib.sha256()
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                whole.update(line)
                event = json.loads(line)
                if event["prev"] != head:
                    raise ValueError(f"line {number} does not follow from the line before")
                head = hashlib.sha256(line.removesuffix(b"\n")).hexdigest()
                header = event if number == 1 else header
                if event["kind"] == "step":
                    phases[_phase(header, event)] += 1
        return Spent(
            site,
            int(header["planned_steps"]),
            header["noise_source"] == "seeded",
            phases,
            whole.hexdigest(),
        )
    except FileNotFoundError:
        raise ValueError(
            f"site {site}: {path}: there is no ledger; what it sent is refused"
        ) from None
    except (KeyError, TypeError):
        raise ValueError(f"site {site}: {path}: is no ledger; what it sent is refused") from None
    except ValueError as error:
        raise ValueError(f"site {site}: {path}: {error}; what it sent is refused") from None


def costs(
    ledgers: Mapping[str, Spent],
    groups: Sequence[tuple[str, ...]],
    delta: float,
    counts_read: Mapping[str, str],
) -> tuple[Cost, ...]:
    """ε of a person at each site alone and at each group of sites: the sum of their RDP.

    Args:
        groups: of two or more sites.
        counts_read: the sites whose true number of records shows; infinite for their people.
    """
    found = []
    for sites in (*((name,) for name in ledgers), *groups):
        rdp = sum((ledgers[name].rdp() for name in sites), np.zeros(len(ORDERS)))
        open_ = np.isinf(rdp).any() or any(name in counts_read for name in sites)
        found.append(Cost(sites, math.inf if open_ else _epsilon(rdp, delta)))
    return tuple(found)


def lineage(people: Sequence[Cost], delta: float, counts_read: Mapping[str, str]) -> dict[str, Any]:
    """A LINEAGE file of the run, beside the sites' folders.

    A population is the people with records at exactly these sites; so populations share nobody.
    """
    sites = [cost.sites[0] for cost in people if len(cost.sites) == 1]
    names = {
        cost.sites: cost.sites[0] if len(cost.sites) == 1 else f"overlap-{k}"
        for k, cost in enumerate(people, 1 - len(sites))
    }
    stages: list[dict[str, Any]] = [
        {
            "id": site,
            "reads": [name for at, name in names.items() if site in at],
            "budget": {"ledger": f"{site}/{LEDGER}"},
        }
        for site in sites
    ]
    if counts_read:
        reads = [name for at, name in names.items() if any(site in counts_read for site in at)]
        stages.append({"id": "counts", "reads": reads, "budget": "none"})
    stages.append({"id": "model", "inputs": [stage["id"] for stage in stages]})
    worst = max(cost.epsilon for cost in people)
    promises = [{"stage": "model", "epsilon": worst, "delta": delta}] if worst < math.inf else []
    return {
        "title": "Federated training",
        "delta": delta,
        "populations": {
            name: {"description": "people with a record at " + " and ".join(at)}
            for at, name in names.items()
        },
        "disjoint": [list(names.values())] if len(names) > 1 else [],
        "stages": stages,
        "promises": promises,
    }


def _phase(header: Mapping[str, Any], event: Mapping[str, Any]) -> tuple[float, float]:
    sigma = float(event["noise_multiplier"])
    if sigma <= 0 or event["clipping_norm"] is None or header["clipping"] == "none":
        return _NO_NOISE
    scale = event["expected_batch_size"] / header["expected_batch_size"]
    return sigma, float(header["sample_rate"] * scale)


def _epsilon(rdp: NDArray[np.float64], delta: float) -> float:
    if not rdp.any():
        return 0.0  # took part in nothing
    with warnings.catch_warnings():
        # the best order may lie beyond the grid: ε is then too high, not wrong
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(get_privacy_spent(orders=ORDERS, rdp=rdp, delta=delta)[0])
