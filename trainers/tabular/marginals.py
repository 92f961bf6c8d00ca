"""The marginal-based generator: trains it from a table, and samples from what was trained."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trainers.ledger import Header, LedgerWriter
from trainers.tabular.domain import Domain
from trainers.tabular.estimate import fill
from trainers.tabular.fit import fit
from trainers.tabular.measure import MOST_RECORDS, Measurements
from trainers.tabular.network import restored
from trainers.tabular.privacy import ESTIMATED, Privacy, epsilon_of, table_fingerprint
from trainers.tabular.release import LEDGER, Generator, Trained, check_free, save

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def train(
    frame: pd.DataFrame,
    domain: Domain,
    privacy: Privacy,
    out: Path,
    *,
    label: str | None = None,
    signing_key: Ed25519PrivateKey | None = None,
) -> Trained:
    """Learn a generator; writes generator.json, weights.safetensors and ledger.jsonl into ``out``.

    Args:
        frame: the records; the columns are those of the domain.
        domain: where it lacks bounds or levels, a tenth of the budget (of μ²) pays for them.
        label: a column that every other one is to be measured with; name what will be predicted.
        signing_key: an Ed25519 key that signs the ledger's end mark.

    Raises:
        ValueError: if the records do not suit the domain, the label is none of its columns, there
            are more than 2^24 records, or ``out`` holds a run already.
    """
    table = domain.checked(frame)
    if label is not None and label not in domain.names:
        raise ValueError(f"label: {label!r} is no column of the domain")
    if len(table) > MOST_RECORDS:
        raise ValueError(f"holds {len(table)} records, and {MOST_RECORDS} are the most")
    known = {name: column for name, column in domain.columns.items() if column.known}
    if known:  # what does not fit is refused before anything is spent
        Domain(columns=known).encode(table[list(known)])
    check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    path, mu = out / LEDGER, privacy.mu
    with LedgerWriter.create(path, _header(table, privacy, mu)) as ledger:
        measurements = Measurements(ledger, privacy.source(), len(table))
        if domain.unknown:
            domain = fill(domain, table, measurements, mu * math.sqrt(ESTIMATED))
            mu *= math.sqrt(1 - ESTIMATED)
        number = None if label is None else domain.names.index(label)
        network = fit(domain, domain.encode(table), measurements, mu, number)
        generator = Generator("marginals", domain, *network.stored())
        description, weights = save(
            out, generator.method, domain, generator.settings, generator.arrays
        )
        ledger.checkpoint(weights)
        ledger.checkpoint(description)
        spent = epsilon_of(math.sqrt(measurements.spent), privacy.delta)
        ledger.end(epsilon=spent, key=signing_key)
    return Trained(generator, description, weights, path, ledger.steps, spent, privacy.delta)


def sample(
    domain: Domain,
    settings: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    records: int,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """That many records from a trained generator."""
    return restored(settings, arrays).sample(domain, records, rng)


def _header(table: pd.DataFrame, privacy: Privacy, mu: float) -> Header:
    return Header(
        data_fingerprint=table_fingerprint(table),
        records=len(table),
        sampler="full_batch",
        sample_rate=1.0,
        expected_batch_size=len(table),
        clipping="per_sample",
        clipping_norm=1.0,
        noise_multiplier=1 / mu,
        noise_source=privacy.noise,
        delta=privacy.delta,
        epsilon=privacy.epsilon,
        code="trainers.tabular.marginals",
        versions={
            name: importlib.metadata.version(name)
            for name in ("dpassay", "numpy", "pandas", "scipy", "torch")
        },
    )
