"""A generator on disk: generator.json says what it is, weights.safetensors holds its arrays."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trainers.files import write_whole
from trainers.tabular.domain import Domain

SCHEMA = "dpassay.generator/1"
DESCRIPTION, WEIGHTS, LEDGER = "generator.json", "weights.safetensors", "ledger.jsonl"
# method -> where sample(domain, settings, arrays, records, rng) is found
METHODS = {"marginals": "trainers.tabular.marginals", "gan": "trainers.tabular.gan"}


@dataclass(frozen=True, eq=False)
class Generator:
    """A generator that draws records of its domain; it knows nothing else of those it learnt from.

    Attributes:
        method: a key of ``METHODS``.
        settings: JSON that the method wrote.
        arrays: its weights by name.
    """

    method: str
    domain: Domain
    settings: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def sample(self, records: int, seed: int | None = None) -> pd.DataFrame:
        """A table of that many records; without a seed, another one at every call.

        Raises:
            ValueError: if ``records`` is below 1.
        """
        if records < 1:
            raise ValueError(f"records: must be at least 1, got {records}")
        draw: Callable[..., pd.DataFrame] = importlib.import_module(METHODS[self.method]).sample
        rng = np.random.default_rng(seed)
        try:
            return draw(self.domain, self.settings, self.arrays, records, rng)
        except (TypeError, KeyError, IndexError, AttributeError, RuntimeError, ValueError) as error:
            # a stranger may have written settings and arrays
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(
                f"generator: settings and weights are of no {self.method} generator ({said}); "
                "train it anew"
            ) from None


@dataclass(frozen=True)
class Trained:
    """A generator's files. ``epsilon`` at ``delta`` is the trainer's own figure for what was spent.

    ``steps`` is how many measurements, or critic steps, were released.
    """

    generator: Generator
    description: Path
    weights: Path
    ledger: Path
    steps: int
    epsilon: float
    delta: float


def check_free(out: Path) -> None:
    """Refuse a folder that holds a run already.

    Raises:
        ValueError: naming what is there.
    """
    for name in (LEDGER, DESCRIPTION, WEIGHTS):
        if (out / name).exists():
            raise ValueError(f"{out / name}: exists; give a new run a folder of its own")


def save(
    out: Path,
    method: str,
    domain: Domain,
    settings: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> tuple[Path, Path]:
    """Write a generator's two files into the folder, each whole or not at all; their paths."""
    description, weights = out / DESCRIPTION, out / WEIGHTS
    text = json.dumps(
        {
            "schema": SCHEMA,
            "method": method,
            "domain": domain.model_dump(mode="json"),
            "settings": settings,
        },
        ensure_ascii=False,
        indent=1,
    )
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_whole(weights, lambda temporary: save_file(whole, temporary))
    write_whole(description, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))
    return description, weights


def load(folder: Path) -> Generator:
    """The generator in a folder. No code in it is run.

    Raises:
        ValueError: naming the file, if one is missing or no such thing.
    """
    description, weights = folder / DESCRIPTION, folder / WEIGHTS
    for path in (description, weights):
        if not path.is_file():
            raise ValueError(f"{path}: is missing; give a folder that dpassay train tabular wrote")
    try:
        found = json.loads(description.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA or found["method"] not in METHODS:
            raise ValueError(f"schema or method: this program reads {SCHEMA} only")
        domain = Domain.model_validate(found["domain"])
        return Generator(found["method"], domain, found["settings"], load_file(weights))
    except (ValidationError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{description}: is no generator; train it anew") from None
    except SafetensorError as error:
        raise ValueError(f"{weights}: cannot be read: {error}") from None
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{description}: is no generator: {error}") from None
