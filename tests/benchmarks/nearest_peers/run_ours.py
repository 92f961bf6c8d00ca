"""Our side of ``bench_nearest.py``, a process for each measurement: ``run_ours.py WHAT FOLDER``.

WHAT is ``search`` (train and synthetic of the folder, one nearest record each) or ``attacks``
(copies and nearest on train, holdout and synthetic). Facts as JSON on standard output.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from attacks.synthetic.distances import nearest, points
from attacks.synthetic.registry import run
from attacks.synthetic.tables import code


def search(folder: Path) -> dict[str, Any]:
    names = ("train", "synthetic")
    tables = code({name: pd.read_parquet(folder / f"{name}.parquet") for name in names})
    spent, started = time.process_time(), time.perf_counter()
    places = points(tables)
    distances, _ = nearest(places["synthetic"], places["train"])
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - spent,
        "mean": float(distances.mean()),
    }


def attacks(folder: Path) -> dict[str, Any]:
    names = ("train", "holdout", "synthetic")
    frames = {name: pd.read_parquet(folder / f"{name}.parquet") for name in names}
    started = time.perf_counter()
    tables = code(frames)
    found: dict[str, Any] = {"coding_seconds": time.perf_counter() - started}
    for name in ("copies", "nearest"):
        result = run(name, tables)
        figures = {f.name: asdict(f.estimate) for f in result.figures if f.estimate}
        found[name] = {"seconds": result.seconds, "figures": figures}
        if name == "copies":
            pairs = (result.rows["synthetic_row"], result.rows["train_row"])
            found[name]["pairs"] = [[int(x) for x in pair] for pair in zip(*pairs, strict=True)]
    return found


def main() -> None:
    what, folder = sys.argv[1:]
    facts = {"search": search, "attacks": attacks}[what](Path(folder))
    facts["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
