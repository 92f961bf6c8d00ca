"""A private step of ours beside the same step without privacy, Opacus' and fastDP's.

``make bench-trainer``, or parts of it: ``--problem mlp``. Trainers take turns call by call in one
process of two threads; the figure is the median, over rounds, of a call's time against the plain
call of its round. That process keeps the memory that it once had: else, whoever comes to allocate
a large tensor waits for the system to clear its pages, which took 20 % of a plain step and twice
that in some minutes. Memory is that of processes of one trainer each, which give back what they
may. Tables on the terminal, all of it in ``bench-out/trainer.json``. Exits 1 if a bar is missed.

fastDP is on no registry: it is installed from its source, into a folder of its own, if that can be
had (``--fastdp FOLDER`` for a copy that is here already).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import binom

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent / "trainer_peers"), str(ROOT)]

from problems import PROBLEMS  # noqa: E402
from steps import MAKERS  # noqa: E402

RUN = Path(__file__).parent / "trainer_peers" / "run.py"
OUT = Path("bench-out")
FASTDP = OUT / "fastdp"
FASTDP_SOURCE = (
    "git+https://github.com/awslabs/fast-differential-privacy@"
    "3d5cc561aa337c72f79873ccc4fe8b900b5493b5"
)
SECONDS = 120.0  # of each problem's interleaved calls, about
ROUNDS = (7, 101)  # at least, at most
SECURE_BAR = 1.3  # secure noise against seeded noise
PROCESSES = 5  # of each trainer, for its memory
NOISY = ("noise", "no noise")
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}  # glibc's names

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


@dataclass(frozen=True)
class Ratio:
    """A median and its interval by order statistics, of at least 95 % whatever the distribution."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Bar:
    """A promise, what was measured, and whether it holds."""

    name: str
    measured: str
    by: float

    @property
    def holds(self) -> bool:
        return self.by <= 0


@dataclass
class Report:
    """All that was measured; what ``bench-out/trainer.json`` holds."""

    setting: dict[str, str]
    speed: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def median_ratio(calls: list[float], others: list[float]) -> Ratio:
    """Of paired seconds, round by round."""
    ratios = np.sort(np.divide(calls, others))
    n = len(ratios)
    rank = int(binom.ppf(0.025, n, 0.5))  # P(fewer than rank below the median) <= 2.5 %
    low, high = (ratios[rank - 1], ratios[n - rank]) if rank else (ratios[0], ratios[-1])
    return Ratio(float(np.median(ratios)), float(low), float(high), n)


def child(*arguments: Any) -> Any:
    """What a process of ``trainer_peers/run.py`` prints."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')} {' '.join(map(str, arguments[:3]))}[/dim]")
    path = os.pathsep.join([str(ROOT), str(FASTDP)])
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": path}
    if arguments[0] != "memory":
        environment |= KEEPS_MEMORY
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUN), *map(str, arguments)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {why}")
    return json.loads(done.stdout.splitlines()[-1])


def install_fastdp(source: str) -> bool:
    """Whether fastDP is there; without its dependencies, which ask for a torch of 2022."""
    if (FASTDP / "fastDP").is_dir():
        return True
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps"]
    command += ["--target", str(FASTDP), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(f"fastDP: could not be had from {source}; left out")
    return not done.returncode


def speed(report: Report, key: str, names: list[str], seconds: float) -> None:
    problem = PROBLEMS[key]
    found = child("time", key, seconds, *ROUNDS, *names)
    took, failed = found["seconds"], found["failed"]
    for name in ("plain", "ours"):
        if name in failed:
            raise RuntimeError(f"{problem.title}: {name}: {failed[name]}")
    plain = took["plain"]["noise"]
    table = Table(
        title=f"{problem.title}, batch {found['batch']}, {len(plain)} rounds: times a plain step, "
        f"which takes {np.median(plain) * 1e3:.1f} ms",
        title_justify="left",
    )
    for column in ("trainer", "ms", *NOISY):
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for name in names:
        if name in failed:
            report.speed.append({"problem": key, "trainer": name, "failed": failed[name]})
            table.add_row(name, "fails")
            continue
        calls = took[name]
        ratios = {noise: median_ratio(calls[noise], plain) for noise in NOISY if calls[noise]}
        ms = float(np.median(calls["noise"])) * 1e3
        row = {noise: asdict(ratio) for noise, ratio in ratios.items()}
        report.speed.append({"problem": key, "trainer": name, "ms": ms} | row)
        if name == "plain":
            table.add_row(name, f"{ms:.1f}", "", "1")
        else:
            table.add_row(name, f"{ms:.1f}", *(str(ratios.get(noise, "")) for noise in NOISY))
    console.print(table)
    for name, why in failed.items():
        console.print(f"{name} fails: {why}")
    if problem.bar:
        ratio = median_ratio(took["ours"]["noise"], plain)
        report.bars.append(bar(f"{problem.title}: step with noise", ratio, problem.bar))
    ratio = median_ratio(took["ours"]["noise"], took["ours, seeded"]["noise"])
    report.bars.append(bar(f"{problem.title}: step, secure against seeded", ratio, SECURE_BAR))


def bar(name: str, ratio: Ratio, limit: float) -> Bar:
    return Bar(f"{name}, at most {limit:g}", str(ratio), ratio.value - limit)


def noise(report: Report) -> None:
    """The generator alone, on as many values as GPT-2 and the MLP have weights."""
    for size, took in child("noise")["seconds"].items():
        ratio = median_ratio(took["secure"], took["seeded"])
        for who in ("secure", "seeded", "torch"):
            ns = float(np.median(took[who])) / int(size) * 1e9
            report.speed.append({"problem": f"noise, {size} values", "trainer": who, "ns": ns})
            console.print(f"noise, {int(size):,} values: {who} {ns:.1f} ns a value")
        report.bars.append(bar(f"noise of {int(size):,}: secure against seeded", ratio, SECURE_BAR))


def memory(report: Report, key: str, names: list[str]) -> None:
    """Peaks of whole processes, and what the steps add to a process that has the model."""
    problem = PROBLEMS[key]
    found = {name: median_process(key, name) for name in names}
    plain = found["plain"]
    table = Table(title=f"{problem.title}: memory, MB", title_justify="left")
    for column in ("trainer", "peak", "times plain", "of it the steps'", "times plain's"):
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for name, facts in found.items():
        report.memory.append({"problem": key, "trainer": name} | facts)
        if "failed" in facts:
            table.add_row(name, "fails")
            continue
        added = facts["peak"] - facts["before"]
        table.add_row(
            name, f"{facts['peak']:.0f}", f"{facts['peak'] / plain['peak']:.2f}",
            f"{added:.0f}", f"{added / (plain['peak'] - plain['before']):.2f}",
        )  # fmt: skip
    console.print(table)
    if problem.memory_bar:
        times = found["ours"]["peak"] / plain["peak"]
        name = f"{problem.title}: peak memory, at most {problem.memory_bar:g}"
        report.bars.append(Bar(name, f"{times:.2f}", times - problem.memory_bar))


def median_process(key: str, name: str) -> Any:
    """The one of the middle peak: an allocator's luck moves it by 4 % from process to process."""
    runs = [child("memory", key, name) for _ in range(PROCESSES)]
    if any("failed" in facts for facts in runs):
        return runs[0]
    return sorted(runs, key=lambda facts: facts["peak"])[PROCESSES // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", choices=tuple(PROBLEMS), action="append")
    parser.add_argument("--only", choices=("speed", "noise", "memory"), action="append")
    parser.add_argument("--trainer", choices=tuple(MAKERS), action="append", help="and plain, ours")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for a problem's rounds")
    parser.add_argument("--fastdp", default=FASTDP_SOURCE, help="a folder or what pip takes")
    asked = parser.parse_args()
    parts = asked.only or ["speed", "noise", "memory"]
    keys = asked.problem or list(PROBLEMS)
    chosen = {"plain", "ours", "ours, seeded", *(asked.trainer or MAKERS)}
    OUT.mkdir(exist_ok=True)
    if "fastDP" in chosen and not install_fastdp(asked.fastdp):
        chosen.remove("fastDP")
    names = [name for name in MAKERS if name in chosen]
    packages = ("torch", "opacus", "transformers", "peft", "numpy")
    setting = {name: version(name) for name in packages} | {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
    }
    report = Report(setting)
    if "noise" in parts:
        noise(report)
    for key in keys:
        if "speed" in parts:
            speed(report, key, names, asked.seconds)
        if "memory" in parts:
            memory(report, key, [name for name in names if name != "ours, seeded"])
    found = asdict(report)
    for line, measured in zip(found["bars"], report.bars, strict=True):
        line["holds"] = measured.holds
    (OUT / "trainer.json").write_text(json.dumps(found, indent=1) + "\n")
    table = Table(
        title="bars; " + ", ".join(f"{k} {v}" for k, v in setting.items()), title_justify="left"
    )
    for column in ("bar", "measured, 95 % interval", "holds"):
        table.add_column(column)
    for measured in report.bars:
        verdict = "yes" if measured.holds else f"NO, by {measured.by:.2f}"
        table.add_row(measured.name, measured.measured, verdict)
    console.print(table)
    return 0 if all(measured.holds for measured in report.bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
