"""Trains a DP-GAN of tables and writes it with its ledger; draws records from what was written."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from trainers.checkpoints import CHECKPOINT, Checkpoints, open_ledger, saved_step
from trainers.dpsgd.training import LEDGER_ORDERS
from trainers.ledger import Header, LedgerWriter
from trainers.tabular.domain import Domain
from trainers.tabular.estimate import fill
from trainers.tabular.gan_budget import Budget, budget
from trainers.tabular.gan_networks import Generator
from trainers.tabular.gan_training import Game, GanConfig
from trainers.tabular.measure import Measurements
from trainers.tabular.privacy import ESTIMATED, Privacy, table_fingerprint
from trainers.tabular.release import LEDGER, Trained, check_free, load, save
from trainers.tabular.risk import UniquenessRisk, check

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BATCH = 8192  # records generated at once
OnStep = Callable[[int, int, float], None]


def train(
    frame: pd.DataFrame,
    domain: Domain,
    privacy: Privacy,
    out: Path,
    *,
    quasi_identifiers: Sequence[str] = (),
    risk_weight: float = 0.0,
    config: GanConfig | None = None,
    on_step: OnStep | None = None,
    signing_key: Ed25519PrivateKey | None = None,
    checkpoint_every: int = 0,
    resume: bool = False,
) -> Trained:
    """Train on the records and write generator.json, weights.safetensors and ledger.jsonl.

    A killed run goes on with ``resume``, as a classifier's does (``trainers.classifier.train``):
    what the ledger holds was spent and stays counted.

    Args:
        frame: the records (n, columns), one for each person.
        domain: its public domain. Bounds and levels that it lacks are estimated first, for a share
            of the budget (``trainers.tabular.estimate``).
        privacy: the budget of the whole run.
        out: a folder without a ledger.
        quasi_identifiers: columns that a stranger may know of a person.
        risk_weight: how much the expected share of records that are unique in these columns adds
            to the generator's loss, in units of the critic's weight bound; 0 for nothing, and 0.5
            already gives up most of what is rare (docs/generators.md has figures).
        on_step: called with each critic step's number, how many there will be, and ε so far.
        signing_key: an Ed25519 key that signs the ledger's end mark.
        checkpoint_every: steps between checkpoints; 0 for none.
        resume: go on with the ledger in ``out``.

    Raises:
        ValueError: if the table does not suit the domain or a setting, or ``out`` has a ledger
            already, or has none of this run to resume.
    """
    config = config or GanConfig()
    table = domain.checked(frame)
    risk_of = _risk(domain, quasi_identifiers, risk_weight, len(table))
    if resume and domain.unknown:
        raise ValueError(
            f"resume: column {domain.unknown[0]!r} was estimated by the killed run, which spent "
            "its share; give bounds and levels, and train anew"
        )
    if known := {n: c for n, c in domain.columns.items() if c.known}:
        Domain(columns=known).features(table[list(known)])  # refuses before a ledger is begun
    first = math.sqrt(ESTIMATED) * privacy.mu if domain.unknown else 0.0
    spending = budget(privacy, len(table), config, first)
    seeded = privacy.noise == "seeded"
    if not resume:
        check_free(out)
    header = _header(table, spending, privacy)
    with open_ledger(out / LEDGER, header, resume=resume) as ledger:
        if domain.unknown:
            measurements = Measurements(ledger, privacy.source(), len(table))
            domain = _filled(domain, table, measurements, first, ledger)
            ledger.change(**spending.setting, reason="critic steps")
        checkpoints = Checkpoints(ledger, out / CHECKPOINT, checkpoint_every)
        repeated = ledger.steps - max(saved_step(checkpoints.file), spending.first_steps)
        game = Game(
            domain, torch.from_numpy(domain.features(table)), config, spending.plan,
            source=privacy.noise, record=_recorder(spending, ledger, on_step, seeded * repeated),
            risk=risk_of(domain), risk_weight=risk_weight,
            seed=privacy.seed if seeded else secrets.randbits(62),
        )  # fmt: skip
        game.training.steps = spending.first_steps
        checkpoints.restore(game.networks, game.optimizers, game.training)
        if not seeded:  # cannot be repeated: what the ledger holds was spent
            game.training.steps = ledger.steps
        game.play(lambda: checkpoints.after_step(game.networks, game.optimizers, game.training))
        ledger.sync()  # what is released must have been counted, also after a power cut
        arrays = {name: value.numpy() for name, value in game.average.state_dict().items()}
        settings = {
            "config": dataclasses.asdict(config),
            "quasi_identifiers": list(quasi_identifiers),
            "risk_weight": risk_weight,
        }
        description, weights = save(out, "gan", domain, settings, arrays)
        ledger.checkpoint(weights)
        ledger.checkpoint(description)
        epsilon = spending.epsilon(ledger.steps)
        ledger.end(epsilon=epsilon, key=signing_key)
    checkpoints.file.unlink(missing_ok=True)
    made = load(out)
    return Trained(made, description, weights, ledger.path, ledger.steps, epsilon, privacy.delta)


def sample(
    domain: Domain,
    settings: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    records: int,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Draw records from a trained generator, as ``trainers.tabular.release.load`` calls it.

    Raises:
        ValueError: if the weights are not those of the settings.
    """
    config = settings["config"]
    generator = Generator(domain.spans, config["latent"], config["generator_hidden"])
    try:
        generator.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()})
    except RuntimeError as error:
        said = str(error).splitlines()[-1].strip()
        raise ValueError(f"weights: are of another generator: {said}") from None
    draw = torch.Generator().manual_seed(int(rng.integers(2**62)))
    sizes = [min(BATCH, records - start) for start in range(0, records, BATCH)]
    with torch.no_grad():
        parts = [generator(size, draw).numpy() for size in sizes]
    return domain.table(np.concatenate(parts) if parts else np.empty((0, domain.width)))


def _filled(
    domain: Domain, table: pd.DataFrame, measurements: Measurements, mu: float, ledger: LedgerWriter
) -> Domain:
    try:
        return fill(domain, table, measurements, mu)
    except ValueError:
        if not ledger.steps:  # nothing was measured: leave no ledger behind
            ledger.path.unlink()
        raise


def _risk(
    domain: Domain, quasi_identifiers: Sequence[str], weight: float, records: int
) -> Callable[[Domain], UniquenessRisk | None]:
    """Refuses what is wrong at once; what comes back wants all bounds and levels."""
    if not 0 <= weight < float("inf"):
        raise ValueError(f"risk_weight: must be from 0 to below infinity, got {weight}")
    if weight and not quasi_identifiers:
        raise ValueError("risk_weight: needs quasi_identifiers; name the columns, or leave it 0")
    check(domain, quasi_identifiers)
    return lambda known: UniquenessRisk(known, quasi_identifiers, records) if weight else None


def _header(table: pd.DataFrame, spending: Budget, privacy: Privacy) -> Header:
    packages = ("dpassay", "torch", "opacus", "numpy", "pandas")
    return Header(
        data_fingerprint=table_fingerprint(table),
        records=len(table),
        sampler="poisson",
        sample_rate=spending.plan.sample_rate,
        clipping="per_sample",
        noise_source=privacy.noise,
        orders=LEDGER_ORDERS,
        planned_steps=spending.plan.steps,
        delta=privacy.delta,
        epsilon=privacy.epsilon,
        code="trainers.tabular.gan",
        versions={name: importlib.metadata.version(name) for name in packages},
        **spending.setting,
    )


def _recorder(
    spending: Budget, ledger: LedgerWriter, on_step: OnStep | None, repeated: int
) -> Callable[[int, float], None]:
    """What puts each critic step into the ledger; ``repeated`` ones are in it already.

    These were released before, to the bit: nothing new is spent.
    """
    rdp = [spending.plan.step_rdp(LEDGER_ORDERS)]

    def record(size: int, clipping_norm: float) -> None:
        nonlocal repeated
        if repeated:
            repeated -= 1
            return
        ledger.step(batch_size=size, rdp=rdp, **spending.setting)
        if on_step is not None:
            on_step(ledger.steps, spending.plan.steps, spending.epsilon(ledger.steps))

    return record
