"""One process of the trainer's benchmark; prints JSON.

``run.py time PROBLEM SECONDS LEAST MOST NAME...``: seconds of every call, the named trainers taking
turns, in as many rounds as the time allows. ``run.py memory PROBLEM NAME``: what the process holds
before its steps and at its peak, in MB. ``run.py noise``: the generators alone.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from problems import PROBLEMS
from steps import MAKERS, Step

from trainers.dpsgd.noise import secure_noise, seeded_noise

THREADS = 2
SIZES = (5_351_680, 669_706)  # values to add noise to: about those of GPT-2 and the MLP
NOISE_ROUNDS = 51
WARM = 2  # rounds that do not count; ours checks the model in its first


def times(problem: str, budget: float, least: int, most: int, names: list[str]) -> dict[str, Any]:
    """By trainer, seconds with noise and without of each round, or why there are none."""
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            steps[name] = MAKERS[name](PROBLEMS[problem])
            for _ in range(WARM):
                steps[name](True)
        except Exception as error:  # whatever a peer raises is what its row says
            steps.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    only_once = {"plain", "ours, seeded"}  # without noise they are themselves, or ours, once more
    calls = [(name, noise) for name in steps for noise in (True, False)]
    calls = [(name, noise) for name, noise in calls if noise or name not in only_once]
    seconds: dict[str, dict[str, list[float]]] = {
        name: {"noise": [], "no noise": []} for name in steps
    }
    gc.disable()
    begun = time.perf_counter()
    for k in range(most):
        if k >= least and time.perf_counter() - begun > budget:
            break
        for name, noise in calls:
            start = time.perf_counter()
            steps[name](noise)
            seconds[name]["noise" if noise else "no noise"].append(time.perf_counter() - start)
        gc.collect()
    batch = len(PROBLEMS[problem].inputs()[0])
    return {"seconds": seconds, "failed": failed, "batch": batch}


def noise() -> dict[str, Any]:
    """By number of values and generator, the seconds of every call; torch's does not add."""
    generators: dict[str, Callable[[torch.Tensor], object]] = {
        "secure": partial(secure_noise().add, standard_deviation=1.0),
        "seeded": partial(seeded_noise(0).add, standard_deviation=1.0),
        "torch": torch.Tensor.normal_,
    }
    seconds: dict[int, dict[str, list[float]]] = {}
    for size in SIZES:
        flat = torch.zeros(size)
        seconds[size] = {who: [] for who in generators}
        for _ in range(NOISE_ROUNDS):
            for who, generate in generators.items():
                start = time.perf_counter()
                generate(flat)
                seconds[size][who].append(time.perf_counter() - start)
    return {"seconds": seconds}


def memory(problem: str, name: str) -> dict[str, Any]:
    try:
        step = MAKERS[name](PROBLEMS[problem])
        before = megabytes("VmRSS")
        for _ in range(3):
            step(True)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"before": before, "peak": megabytes("VmHWM")}


def megabytes(field: str) -> float:
    """Of this process, as Linux counts it."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def main() -> None:
    torch.set_num_threads(THREADS)
    what, *rest = sys.argv[1:]
    if what == "time":
        problem, budget, least, most, *names = rest
        found = times(problem, float(budget), int(least), int(most), names)
    elif what == "memory":
        found = memory(*rest)
    else:
        found = noise()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
