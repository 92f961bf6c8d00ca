"""One site of a federated run: its records, its DP training and its ledger."""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from trainers.checkpoints import CHECKPOINT, Checkpoints
from trainers.classifier import (
    ClassifierConfig,
    Privacy,
    checked_records,
    network_arguments,
    new_optimizer,
    spending_plan,
)
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.plan import Plan
from trainers.dpsgd.training import LEDGER_ORDERS, PrivateTraining
from trainers.ledger import Header, LedgerWriter, fingerprint
from trainers.networks import build

Weights = Mapping[str, torch.Tensor]
LEDGER = "ledger.jsonl"
_NAME = re.compile(r"(?!overlap-|model$|counts$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class SiteDropped(Exception):
    """A site that takes no part in this round; it may be back in the next."""


class Site:
    """One site. Of its records, only the weights that ``train`` returns leave it.

    Args:
        name: also that of its folder.
        config: of the model and of this site's training, with ``privacy``. ``epochs`` are those of
            all rounds together.
        features, labels: as ``trainers.classifier.train`` takes them.
        size: a public number, at least that of the records. Sample rate, number of steps and
            (without ``weight``) the weight in the average follow from it alone.
        weight: another public weight.

    Attributes:
        arguments: what builds the model.
        plan: rate, steps and noise.

    Raises:
        ValueError: naming the site, if something does not suit.
    """

    def __init__(
        self,
        name: str,
        config: ClassifierConfig,
        features: np.ndarray,
        labels: np.ndarray,
        *,
        size: int,
        weight: float | None = None,
    ) -> None:
        self.name, self.config, self.size = name, config, size
        self.weight = float(size if weight is None else weight)
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"site {name!r}: name: must be letters, digits, '_', '-', and not taken"
            )
        if not 0 < self.weight < math.inf:
            raise ValueError(f"site {name}: weight: must be positive and finite, got {weight}")
        if size < len(features):
            raise ValueError(f"site {name}: size: {size} is below its number of records")
        self.privacy, self.plan = _private(name, config, size)
        try:
            self._x, self._y = checked_records(config, features, labels)
        except ValueError as error:
            raise ValueError(f"site {name}: {error}") from None
        self.records = len(self._x)
        self.arguments = network_arguments(config, features.shape[1:])
        self._fingerprint = fingerprint(features, labels)
        self._ledger: LedgerWriter | None = None

    def begin(self, folder: Path, rounds: int, number: int, resume_at: int | None) -> None:
        """Open the ledger in ``folder`` and get ready for ``rounds`` rounds.

        Args:
            number: of the site: seeded sites draw different noise.
            resume_at: how many steps the ledger of a run that resumes has at least; None for a new
                run.

        Raises:
            ValueError: naming the site, if the ledger exists, is missing, or is another run's.
        """
        self._rounds = rounds
        path = folder / LEDGER
        try:
            if resume_at is None:
                folder.mkdir(parents=True, exist_ok=True)
                self._ledger = LedgerWriter.create(path, self._header())
            elif not _has_ended(path):
                self._ledger = LedgerWriter.resume(path, resume_at, header=self._header())
            else:
                (folder / CHECKPOINT).unlink(missing_ok=True)
                return  # the model was about to be released: there is nothing left to do here
            self._prepare(folder, number, resume_at is not None)
        except FileExistsError:
            said = f"{path}: exists; resume its run, or give a new run a folder of its own"
            raise ValueError(f"site {self.name}: {said}") from None
        except FileNotFoundError:
            said = f"{path}: is missing; what it held was spent, so the run cannot go on without"
            raise ValueError(f"site {self.name}: {said}") from None
        except ValueError as error:
            raise ValueError(f"site {self.name}: {error}") from None

    def train(self, number: int, weights: Weights) -> Weights:
        """This site's weights after its steps of round ``number`` (from 0) from the server's.

        Raises:
            SiteDropped: if it has no step to take.
        """
        if self._ledger is None:
            raise ValueError(f"site {self.name}: its ledger is closed")
        steps = due(self.plan.steps, self._rounds, number, self._training.steps)
        if not steps:
            raise SiteDropped(f"site {self.name}: has no step to take in round {number + 1}")
        self._model.load_state_dict(weights)
        for batch in islice(self._training, steps):
            # numbers beyond the records stand for nobody: the rate depends on no count
            self._training.step(batch[batch < self.records], self._losses)
        self._checkpoints.after_step(self._model, self._optimizer, self._training)
        return {name: w.detach().clone() for name, w in self._model.state_dict().items()}

    def finish(self, model: Path) -> None:
        """Enter the model file that the run releases, and set the ledger's end mark."""
        if self._ledger is not None:
            self._ledger.checkpoint(model)
            self._ledger.end(epsilon=self.plan.epsilon(self._ledger.steps))
            self._checkpoints.file.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the ledger; without ``finish`` it has no end mark and the run can be resumed."""
        if self._ledger is not None:
            self._ledger.close()

    def _prepare(self, folder: Path, number: int, resume: bool) -> None:
        assert self._ledger is not None
        self._model = build(**self.arguments)
        self._optimizer = new_optimizer(self.config, self._model)
        self._training = PrivateTraining(
            self._model,
            self._optimizer,
            self.plan,
            clipping=Flat(self.privacy.clipping_norm),
            source=self.privacy.noise,
            seed=self.config.seed + number,
            record=self._record,
            engine=self.privacy.engine,
        )
        self._checkpoints = Checkpoints(self._ledger, folder / CHECKPOINT, every=1)
        if resume:
            self._checkpoints.restore(self._model, self._optimizer, self._training)
            # what ran after it was spent; a seeded stream must not draw the same again
            done = {"step": self._ledger.steps}
            stand = {"steps": self._ledger.steps, "sampler": done, "noise": done}
            self._training.restore(stand)

    def _losses(self, rows: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self._model(self._x[rows]), self._y[rows], reduction="none")

    def _record(self, size: int, clipping_norm: float) -> None:
        assert self._ledger is not None
        self._ledger.step(
            batch_size=size,
            expected_batch_size=self.plan.sample_rate * self.records,
            noise_multiplier=self.plan.noise_multiplier,
            clipping_norm=clipping_norm,
            rdp=[self.plan.step_rdp(LEDGER_ORDERS)],
        )

    def _header(self) -> Header:
        packages = ("dpassay", "torch", "opacus", "numpy")
        return Header(
            data_fingerprint=self._fingerprint,
            records=self.records,
            sampler="poisson",
            sample_rate=self.plan.sample_rate,
            expected_batch_size=self.plan.sample_rate * self.records,
            clipping="per_sample",
            clipping_norm=self.privacy.clipping_norm,
            noise_multiplier=self.plan.noise_multiplier,
            noise_source=self.privacy.noise,
            orders=LEDGER_ORDERS,
            planned_steps=self.plan.steps,
            delta=self.privacy.delta,
            epsilon=self.privacy.epsilon,
            code="trainers.federated",
            versions={name: importlib.metadata.version(name) for name in packages},
        )


def due(planned: int, rounds: int, number: int, done: int) -> int:
    """How many of a site's planned steps fall to round ``number`` (from 0), after ``done`` steps.

    A site that missed rounds does not make up for them, and none exceeds its plan.
    """
    share = planned * (number + 1) // rounds - planned * number // rounds
    return max(0, min(share, planned - done))


def _private(name: str, config: ClassifierConfig, size: int) -> tuple[Privacy, Plan]:
    try:
        spending = spending_plan(config, size)
    except ValueError as error:
        raise ValueError(f"site {name}: {error}") from None
    if config.privacy is None or spending is None:
        raise ValueError(f"site {name}: privacy: is missing; every site trains with DP")
    return config.privacy, spending


def _has_ended(path: Path) -> bool:
    lines = path.read_bytes().splitlines()
    try:
        return bool(lines) and json.loads(lines[-1])["kind"] == "end"
    except (ValueError, KeyError, TypeError):
        return False  # cut off in the middle, or no ledger: whoever resumes it will say so
