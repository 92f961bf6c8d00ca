"""Times and values of our accountants beside dp-accounting's and Opacus', in one run.

``make bench-accounting``. Each call is repeated and its median taken, after one call to warm up.
Exits 1 if one of our own bars is missed: an RDP query of 10,000 steps in 2 ms, a calibration in 20.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import dp_accounting
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from rich.console import Console
from rich.table import Table

from audit.accounting import calibrate, pld, rdp
from audit.accounting.events import SampledGaussian

SIGMA, RATE, STEPS, DELTA, TARGET = 1.0, 0.01, 10_000, 1e-5, 1.0
BARS_MS = {"RDP query": 2.0, "calibration (RDP)": 20.0}


@dataclass(frozen=True)
class Measured:
    """Median seconds, and what came out."""

    task: str
    who: str
    seconds: float
    value: float


def run() -> list[SampledGaussian]:
    return [SampledGaussian(SIGMA, RATE, STEPS)]


def google_event(sigma: float) -> dp_accounting.DpEvent:
    step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, STEPS)


def google(accountant: Callable[[], dp_accounting.PrivacyAccountant]) -> float:
    return float(accountant().compose(google_event(SIGMA)).get_epsilon(DELTA))


def google_calibration() -> float:
    return float(
        dp_accounting.calibrate_dp_mechanism(
            RdpAccountant,
            google_event,
            TARGET,
            DELTA,
            dp_accounting.LowerEndpointAndGuess(0.1, 1.0),
            tol=1e-4,
        )
    )


def opacus(accountant: type[RDPAccountant] | type[PRVAccountant]) -> float:
    one = accountant()
    one.history = [(SIGMA, RATE, STEPS)]
    return float(one.get_epsilon(delta=DELTA))


def opacus_calibration() -> float:
    return float(
        get_noise_multiplier(
            target_epsilon=TARGET,
            target_delta=DELTA,
            sample_rate=RATE,
            steps=STEPS,
            accountant="rdp",
            epsilon_tolerance=1e-4,
        )
    )


TASKS: dict[str, dict[str, Callable[[], float]]] = {
    "RDP query": {
        "ours": lambda: rdp.epsilon(run(), DELTA).epsilon,
        "dp-accounting": lambda: google(RdpAccountant),
        "opacus": lambda: opacus(RDPAccountant),
    },
    "calibration (RDP)": {
        "ours": lambda: calibrate.noise_multiplier(TARGET, DELTA, sample_rate=RATE, steps=STEPS),
        "dp-accounting": google_calibration,
        "opacus": opacus_calibration,
    },
    "PLD query": {
        "ours": lambda: pld.compose(run()).epsilon(DELTA),
        "dp-accounting": lambda: google(PLDAccountant),
        "opacus (PRV)": lambda: opacus(PRVAccountant),
    },
}


def measure(task: str, who: str, call: Callable[[], float], repetitions: int) -> Measured:
    value = call()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - start)
    return Measured(task, who, statistics.median(seconds), value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=11)
    repetitions = parser.parse_args().repetitions
    warnings.simplefilter("ignore")
    rows = [
        measure(task, who, call, repetitions if who == "ours" else max(3, repetitions // 3))
        for task, calls in TASKS.items()
        for who, call in calls.items()
    ]
    packages = ("numpy", "scipy", "dp-accounting", "opacus")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    table = Table(
        title=f"q = {RATE:g}, σ = {SIGMA:g}, T = {STEPS:,}, δ = {DELTA:g}; calibration to "
        f"ε = {TARGET:g}\n{versions}, Python {platform.python_version()}, {platform.machine()}",
        title_justify="left",
    )
    for column in ("task", "by", "median, ms", "times ours", "value"):
        table.add_column(column, justify="left" if column in ("task", "by") else "right")
    ours = {row.task: row.seconds for row in rows if row.who == "ours"}
    for row in rows:
        table.add_row(
            row.task,
            row.who,
            f"{1e3 * row.seconds:.2f}",
            f"{row.seconds / ours[row.task]:.1f}",
            f"{row.value:.5f}",
        )
    Console(highlight=False).print(table)
    missed = [task for task, bar in BARS_MS.items() if 1e3 * ours[task] > bar]
    for task in missed:
        print(f"{task}: over its bar of {BARS_MS[task]:g} ms", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
