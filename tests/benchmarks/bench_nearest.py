"""Our nearest-neighbour search, copies and densities beside sdmetrics' and mostlyai-qa's metrics.

Parts: ``--only search`` (100,000 x 20 against 100,000: time and memory), ``copies`` (20,000 x 12,
clean and with 5 % copies), ``density`` (a generator of which a fifth is memorised: calibrated ratio
against plain distance). Every measurement of time is a process of its own; the peers have an
environment of their own, made when it is missing. mostlyai-qa is installed without torch, which
these metrics do not import. Tables on the terminal, all of it in ``bench-out/nearest.json``. Exits
1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import venv
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent / "attacks_peers"))
sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures" / "synthetic"))

import frames
from paired import differences

from attacks.metrics import Estimate, auc, tpr_at_fpr
from attacks.synthetic.registry import run
from attacks.synthetic.tables import code

SCRIPTS = Path(__file__).parent / "nearest_peers"
OUT = Path("bench-out")
PEERS = OUT / "venv-synthetic" / "bin" / "python"
PINNED = ("mostlyai-qa==1.10.11", "sdmetrics==0.32.0")
NEEDED = ("pandas<3", "phik", "model2vec", "xxhash", "networkx", "transformers", "pyarrow",
          "jinja2", "pydantic", "plotly", "scikit-learn", "copulas", "tqdm")  # fmt: skip
SHARE = 0.05  # of the release that is copied
MEMORISED = 0.2
PATIENCE = 1200  # seconds for one measurement

console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)


@dataclass(frozen=True)
class Bar:
    """A promise, what was measured, and whether it holds."""

    name: str
    measured: str
    holds: bool


@dataclass
class Report:
    """All that was measured; what ``bench-out/nearest.json`` holds."""

    setting: dict[str, str]
    search: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    density: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def child(script: str, what: str, folder: Path, peer: bool = False) -> dict[str, Any]:
    """Run a script of ``nearest_peers``: its facts, or why there are none."""
    python = PEERS if peer else Path(sys.executable)
    console.print(f"[dim]{time.strftime('%H:%M:%S')} {script} {what} {folder.name}[/dim]")
    command = [str(python), "-W", "ignore", str(SCRIPTS / script), what, str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {PATIENCE} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def install_peers() -> None:
    """The peers' environment: the packages themselves without what they only declare."""
    if PEERS.exists():
        listed = [str(PEERS), "-m", "pip", "freeze"]
        seen = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        if all(pin in seen.splitlines() for pin in PINNED):
            return
    console.print(f"installing {', '.join(PINNED)} into {PEERS.parents[1]}")
    venv.create(PEERS.parents[1], with_pip=True)
    pip = [str(PEERS), "-m", "pip", "install", "-qq"]
    subprocess.run([*pip, *NEEDED], check=True)
    subprocess.run([*pip, "--no-deps", *PINNED], check=True)


def kept(name: str, tables: dict[str, pd.DataFrame]) -> Path:
    folder = OUT / f"nearest-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    for table, frame in tables.items():
        frame.to_parquet(folder / f"{table}.parquet")
    return folder


def search(report: Report, n: int) -> None:
    names = ("train", "holdout", "synthetic")
    folder = kept("search", {name: frames.wide(n, seed) for seed, name in enumerate(names)})
    runs = {
        "ours, one search": child("run_ours.py", "search", folder),
        "mostlyai-qa, one of its 21 searches": child(
            "run_peers.py", "mostlyai-search", folder, peer=True
        ),
        "sdmetrics, 1,000 of the records": child("run_peers.py", "sdmetrics", folder, peer=True),
    }
    report.search = [{"who": who} | facts for who, facts in runs.items()]
    table = Table(title=f"{n:,} x 20 against {n:,}: nearest records", title_justify="left")
    for column in ("who", "seconds", "CPU seconds", "peak MB"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for who, facts in runs.items():
        if "failed" in facts:
            table.add_row(who, f"failed: {facts['failed']}")
            continue
        cpu = f"{facts['cpu_seconds']:.1f}" if "cpu_seconds" in facts else ""
        table.add_row(who, f"{facts['seconds']:.1f}", cpu, f"{facts['peak_mb']:.0f}")
    console.print(table)
    ours, theirs, _ = runs.values()
    if "failed" in ours:
        raise RuntimeError(ours["failed"])
    seconds, peak = ours["seconds"], ours["peak_mb"]
    report.bars += [
        Bar("one search, 100,000 x 20, below 60 s", f"{seconds:.1f} s", seconds < 60),
        Bar("its process below 2 GB", f"{peak:.0f} MB", peak < 2000),
    ]
    if "failed" not in theirs:
        times = theirs["seconds"] / seconds
        name = "one search faster than one of mostlyai-qa's"
        report.bars.append(Bar(name, f"{times:.1f} times", times > 1))


def copies(report: Report, n: int) -> None:
    table = Table(
        title=f"{n:,} x 12, clean and with {SHARE:.0%} exact and near copies", title_justify="left"
    )
    for column in ("release", "who", "share closer to train", "seconds", "copies found"):
        table.add_column(column, justify="left" if column in ("release", "who") else "right")
    for seed in range(2):
        train, holdout, clean = (frames.mixed(n, 10 * seed + k) for k in range(3))
        planted, listed = frames.plant(clean, train, SHARE, seed)
        for name, release in (("clean", clean), ("copies", planted)):
            tables = {"train": train, "holdout": holdout, "synthetic": release}
            folder = kept(f"{name}-{seed}", tables)
            called = f"{name}, seed {seed}"
            found = child("run_ours.py", "attacks", folder)
            if "failed" in found:
                raise RuntimeError(found["failed"])
            pairs = {tuple(pair) for pair in found["copies"].pop("pairs")}
            share = Estimate(**found["nearest"]["figures"]["share:closer_to_train"])
            excess = Estimate(**found["copies"]["figures"]["excess:edited"])
            wanted = set(zip(listed.synthetic_row, listed.train_row, strict=True))
            right = len(pairs & wanted) if name == "copies" else 0
            report.copies.append({"release": called, "who": "ours", "flagged": len(pairs)} | found)
            shown = f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"
            spent = f"{found['nearest']['seconds']:.1f} + {found['copies']['seconds']:.1f} (copies)"
            table.add_row(called, "ours", shown, spent, f"{len(pairs)}")
            if name == "copies":
                recall, false = right / len(wanted), len(pairs - wanted)
                report.bars += [
                    Bar(f"{called}: recall of copies 0.99", f"{recall:.4f}", recall >= 0.99),
                    Bar(f"{called}: no clean record flagged", f"{false}", false == 0),
                    Bar(f"{called}: excess above 0", f"{excess.low:.4f}", excess.low > 0),
                    Bar(f"{called}: share above one half", f"{shown}", share.low > 0.5),
                ]
            else:
                report.bars += [
                    Bar(f"{called}: nothing flagged", f"{len(pairs)}", not pairs),
                    Bar(f"{called}: share at one half", shown, share.low <= 0.5 <= share.high),
                ]
            for who in ("mostlyai", "sdmetrics"):
                facts = child("run_peers.py", who, folder, peer=True)
                report.copies.append({"release": called, "who": who} | facts)
                if "failed" in facts:
                    table.add_row("", who, f"failed: {facts['failed']}")
                    continue
                said = f"{facts['share']:.3f}" + (
                    f" (score {facts['score']:.2f} of 1)" if "score" in facts else ""
                )
                table.add_row("", who, said, f"{facts['seconds']:.1f}")
        table.add_section()
    console.print(table)


def density(report: Report, n: int) -> None:
    """A release of which a fifth interpolates training records, the rest from the population."""
    table = Table(
        title=f"{n:,} x 10, a fifth of the release interpolated between members",
        title_justify="left",
    )
    for column in ("score", "AUC", "TPR at 10 %", "TPR at 1 %"):
        table.add_column(column, justify="left" if column == "score" else "right")
    train, holdout, other = (frames.clustered(n, seed) for seed in range(3))
    few = round(MEMORISED * n)
    release = pd.concat([frames.memorised(train, few, 0), other.head(n - few)], ignore_index=True)
    result = run("density", code({"train": train, "holdout": holdout, "synthetic": release}))
    member = np.asarray(result.rows["table"] == "train")
    for score in ("distance", "log_ratio", "domias"):
        values = np.asarray(result.rows[score])
        sides = values[member], values[~member]
        found = {"auc": auc(*sides)}
        for fpr in (0.1, 0.01):
            figure = tpr_at_fpr(*sides, fpr).estimate
            assert figure is not None
            found[f"tpr_{fpr:g}"] = figure
        report.density.append({"score": score} | {k: asdict(v) for k, v in found.items()})
        table.add_row(
            score, *(f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in found.values())
        )
    console.print(table)
    plain, ratio = (Estimate(**found["tpr_0.1"]) for found in report.density[:2])
    values = (np.asarray(result.rows[name]) for name in ("log_ratio", "distance"))
    area, rate = differences(*values, member)
    shown = f"{ratio.value:.3f} to {plain.value:.3f}"
    report.bars += [
        Bar("calibrated ratio above plain distance, TPR at 10 %", shown, ratio.low > plain.high),
        Bar("calibrated ratio above plain distance, TPR at 1 %", str(rate), rate.low > 0),
        Bar("calibrated ratio above plain distance, AUC", str(area), area.low > 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("search", "copies", "density"), action="append")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, for a try")
    asked = parser.parse_args()
    parts = asked.only or ["search", "copies", "density"]
    scale = 10 if asked.quick else 1
    OUT.mkdir(exist_ok=True)
    setting = {name: version(name) for name in ("numpy", "pandas")} | {
        "peers": ", ".join(PINNED),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }
    report = Report(setting)
    if {"search", "copies"} & set(parts):
        install_peers()
    if "search" in parts:
        search(report, 100_000 // scale)
    if "copies" in parts:
        copies(report, 20_000 // scale)
    if "density" in parts:
        density(report, 20_000 // scale)
    (OUT / "nearest.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    table = Table(
        title="bars; " + ", ".join(f"{k} {v}" for k, v in setting.items()), title_justify="left"
    )
    for column in ("bar", "measured", "holds"):
        table.add_column(column)
    for bar in report.bars:
        table.add_row(bar.name, bar.measured, "yes" if bar.holds else "NO")
    console.print(table)
    return 0 if all(bar.holds for bar in report.bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
