"""Our singling out, linkability and inference beside anonymeter's, on the same frames, in one run.

20,000 records of 12 columns each in train, holdout and release; the release is clean, or 5 % of it
are exact and near copies of train. Several clean releases, so that false alarms can be counted.
Every measurement is a process of its own with one thread; the peer has an environment of its own,
made when it is missing, and gets dates as days. Tables on the terminal, all of it in
``bench-out/criteria.json``. Exits 1 if a bar is missed.
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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures" / "synthetic"))

from frames import mixed, plant

SCRIPTS = Path(__file__).parent / "criteria_peers"
OUT = Path("bench-out")
PEER = OUT / "venv-anonymeter" / "bin" / "python"
PINNED = ("anonymeter==1.1.0",)
FASTER = 5
SECRETS = ("balance", "ward")
# what the peer calls it: our attack, and its modes
PAIRS = {
    "singling out, univariate": ("singling out", ("values", "ranges")),
    "singling out, multivariate": ("singling out", ("conjunctions",)),
    "linkability": ("linkability", ("link",)),
    **{f"inference of {secret}": (f"inference of {secret}", (secret,)) for secret in SECRETS},
}
console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)


@dataclass(frozen=True)
class Bar:
    """A promise, what was measured, and whether it holds."""

    name: str
    measured: str
    holds: bool


def install_peer() -> None:
    if PEER.exists():
        listed = subprocess.run(
            [str(PEER), "-m", "pip", "freeze"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if all(pin in listed for pin in PINNED):
            return
    console.print(f"installing {', '.join(PINNED)} into {PEER.parents[1]}")
    venv.create(PEER.parents[1], with_pip=True)
    subprocess.run([str(PEER), "-m", "pip", "install", "-qq", *PINNED, "pyarrow"], check=True)


def write(name: str, n: int, seed: int, copies: bool) -> list[Path]:
    """Train, holdout and release as Parquet: as they are, and with dates as days."""
    train, holdout, release = (mixed(n, 10 * seed + k) for k in range(3))
    if copies:
        release, _ = plant(release, train, 0.05, seed)
    folders = [OUT / f"criteria-{name}", OUT / f"criteria-{name}-days"]
    for folder, days in zip(folders, (False, True), strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        for table, frame in (("train", train), ("holdout", holdout), ("synthetic", release)):
            told = frame.copy()
            for column in frame.select_dtypes("datetime").columns if days else ():
                told[column] = (frame[column] - pd.Timestamp(0)) / pd.Timedelta(days=1)
            told.to_parquet(folder / f"{table}.parquet", index=False)
    return folders


def child(python: Path, script: str, folder: Path, out: str, plan: dict[str, Any]) -> Any:
    command = [
        str(python), "-W", "ignore", str(SCRIPTS / script), str(folder), str(OUT / out),
        json.dumps(plan),
    ]  # fmt: skip
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    console.print(f"[dim]{time.strftime('%H:%M:%S')} {script} {folder.name}[/dim]")
    environment = os.environ | dict.fromkeys(threads, "1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads((OUT / out).read_text())


def ours_found(measured: dict[str, Any], name: str) -> tuple[bool, str]:
    """Whether an excess risk lies above zero for sure, and the excess risks."""
    attack, modes = PAIRS[name]
    figures = [measured[attack]["figures"].get(f"excess_risk:{mode}") for mode in modes]
    told = [f for f in figures if f]
    return any(low > 0 for _, low, _ in told), "; ".join(interval(*f) for f in told)


def interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def bars(runs: list[dict[str, Any]]) -> list[Bar]:
    found = []
    peer = {name: [run["anonymeter"][name] for run in runs] for name in PAIRS}
    times = {
        "singling out": [n for n in PAIRS if n.startswith("singling")],
        **{n: [n] for n in PAIRS if not n.startswith("singling")},
    }
    for attack, names in times.items():
        ours = sum(run["ours"][attack]["seconds"] for run in runs)
        theirs = sum(told["seconds"] for name in names for told in peer[name])
        found.append(
            Bar(
                f"{attack}: {FASTER} times faster than anonymeter",
                f"{ours / len(runs):.2f} s against {theirs / len(runs):.2f} s: "
                f"{theirs / ours:.1f} times",
                theirs >= FASTER * ours,
            )
        )
    for run in runs:
        if not run["copies"]:
            continue
        for name in PAIRS:
            we, _ = ours_found(run["ours"], name)
            they = run["anonymeter"][name].get("low", 0) > 0
            if they or we:
                who = f"{'found' if we else 'missed'}, anonymeter {'found' if they else 'missed'}"
                found.append(Bar(f"{name}: finds copies where anonymeter does", who, we))
    clean = [run for run in runs if not run["copies"]]
    alarms = sum(ours_found(run["ours"], name)[0] for run in clean for name in PAIRS)
    theirs = sum(run["anonymeter"][name].get("low", 0) > 0 for run in clean for name in PAIRS)
    asked = len(clean) * len(PAIRS)
    allowed = max(theirs, int(binom.ppf(0.95, asked, 0.025)))
    found.append(
        Bar(
            "clean releases: no more false alarms than anonymeter, or than 2.5 % allows",
            f"{alarms} of {asked}, anonymeter {theirs}",
            alarms <= allowed,
        )
    )
    return found


def show(runs: list[dict[str, Any]]) -> None:
    for run in runs:
        table = Table(title=f"{run['frames']}: excess risk, 95 % intervals", title_justify="left")
        for column in ("attack", "ours", "s", "CPU s", "anonymeter", "s", "CPU s"):
            table.add_column(column, justify="right" if "s" in column.split() else "left")
        for name, (attack, _) in PAIRS.items():
            told = run["anonymeter"][name]
            risk = told.get("failed") or interval(told["value"], told["low"], told["high"])
            table.add_row(
                name,
                ours_found(run["ours"], name)[1],
                f"{run['ours'][attack]['seconds']:.2f}",
                f"{run['ours'][attack]['cpu']:.2f}",
                risk,
                f"{told['seconds']:.2f}",
                f"{told['cpu']:.2f}",
            )
        console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--attacks", type=int, default=2_000)
    parser.add_argument("--clean", type=int, default=3, help="clean releases")
    asked = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    install_peer()
    names = list(mixed(10, 0).columns)
    plan = {
        "attacks": asked.attacks,
        "parts": [names[::2], names[1::2]],
        "neighbours": 10,
        "secrets": SECRETS,
    }
    runs: list[dict[str, Any]] = []
    for k in range(asked.clean + 1):
        name = "copies" if k == 0 else f"clean {k}"
        true_dates, days = write(name.replace(" ", "-"), asked.records, k + 1, copies=k == 0)
        ours = child(
            Path(sys.executable), "run_criteria.py", true_dates, "criteria-ours.json", plan
        )
        theirs = child(PEER, "run_anonymeter.py", days, "criteria-anonymeter.json", plan)
        runs.append({"frames": name, "copies": k == 0, "ours": ours, "anonymeter": theirs})
    show(runs)
    judged = bars(runs)
    setting = {p: version(p) for p in ("numpy", "pandas", "scikit-learn")} | {
        "peer": ", ".join(PINNED),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "records": str(asked.records),
        "attacks": str(asked.attacks),
    }
    told = {"setting": setting, "plan": plan, "runs": runs, "bars": [asdict(b) for b in judged]}
    (OUT / "criteria.json").write_text(json.dumps(told, indent=1) + "\n")
    table = Table(
        title="bars; " + ", ".join(f"{k} {v}" for k, v in setting.items()), title_justify="left"
    )
    for column in ("bar", "measured", "holds"):
        table.add_column(column)
    for bar in judged:
        table.add_row(bar.name, bar.measured, "yes" if bar.holds else "NO")
    console.print(table)
    return 0 if all(bar.holds for bar in judged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
