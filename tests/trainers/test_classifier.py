"""The classifier's trainer: clipping, noise, sampling, what the ledger says, files, refusals."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load_file
from scipy import stats
from torch.nn.functional import cross_entropy

from audit.accounting import rdp
from audit.accounting.events import SampledGaussian
from audit.ledger import Ledger, read
from audit.ledger_batches import LEVEL, poisson_test
from audit.ledger_checks import fingerprint, verify
from trainers.classifier import (
    ClassifierConfig,
    Privacy,
    TrainedClassifier,
    fit_classifier,
    train,
)
from trainers.networks import build

ROOT = Path(__file__).parents[2]


def _records(n: int, width: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, width))
    return x, (x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def _config(**changes: Any) -> ClassifierConfig:
    """One SGD step at learning rate 1: the weights move by minus the gradient that was released."""
    settings: dict[str, Any] = {
        "classes": 2,
        "hidden": (8,),
        "epochs": 1,
        "batch_size": 20,
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "privacy": Privacy(noise_multiplier=1e-9, clipping_norm=0.5, noise="seeded"),
    }
    return ClassifierConfig(**(settings | changes))


def _released(config: ClassifierConfig, trained: TrainedClassifier, width: int = 5) -> torch.Tensor:
    """The noisy sum of one step, from how far the weights moved."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        first = build("mlp", width, config.classes, config.hidden)
    before = torch.cat([p.detach().flatten() for p in first.parameters()])
    after = torch.cat([p.detach().flatten() for p in trained.model.parameters()])
    return (before - after).double() * config.batch_size / config.learning_rate


def _clipped_sum(config: ClassifierConfig, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
    """The truth, one record at a time: each gradient clipped to C, then added up."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = build("mlp", x.shape[1], config.classes, config.hidden)
    assert config.privacy is not None
    norm = config.privacy.clipping_norm
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for row, label in zip(torch.tensor(x, dtype=torch.float32), torch.tensor(y), strict=True):
        loss = cross_entropy(model(row[None]), label[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([g.flatten() for g in parts]).double()
        total += gradient * min(1.0, norm / float(gradient.norm()))
    return total


def test_each_record_is_clipped_for_itself(tmp_path: Path) -> None:
    x, y = _records(20)
    x[7] *= 1e4  # a gradient thousands of times longer than the others
    config = _config()  # batch size = records: everybody is in the one batch
    trained = train(config, x, y, tmp_path / "all")
    truth = _clipped_sum(config, x, y)
    torch.testing.assert_close(_released(config, trained), truth, rtol=0, atol=2e-4)
    assert truth.norm() <= 20 * 0.5
    # without the outlier the sum moves by C and no more, however extreme the record
    others = _clipped_sum(config, np.delete(x, 7, 0), np.delete(y, 7))
    assert float((_released(config, trained) - others).norm()) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_noise_has_standard_deviation_sigma_times_c(tmp_path: Path, noise: Any) -> None:
    x, y = _records(20)
    sigma, norm = 3.0, 0.5
    privacy = Privacy(noise_multiplier=sigma, clipping_norm=norm, noise=noise)
    config = _config(hidden=(2000,), privacy=privacy)
    trained = train(config, x, y, tmp_path / "m")
    noise_drawn = (_released(config, trained) - _clipped_sum(config, x, y)).numpy()
    n = len(noise_drawn)
    assert n > 15_000
    # exact law of the sum of squares, two-sided, false alarm once in a million runs
    law = stats.chi2(n)
    assert 5e-7 < law.cdf((noise_drawn**2).sum() / (sigma * norm) ** 2) < 1 - 5e-7
    assert stats.kstest(noise_drawn / (sigma * norm), "norm").pvalue > 1e-6


def test_an_empty_batch_is_a_step_with_noise(tmp_path: Path) -> None:
    x, y = _records(400)
    config = _config(batch_size=1, epochs=1, privacy=Privacy(noise_multiplier=2.0, noise="seeded"))
    ledger = read(train(config, x, y, tmp_path / "m").ledger)
    assert ledger.steps == 400
    empty = ledger.batches[1][0]
    assert stats.binomtest(empty, 400, (1 - 1 / 400) ** 400).pvalue > 1e-6


def test_the_ledger_states_what_was_asked_for(tmp_path: Path) -> None:
    x, y = _records(2000)
    privacy = Privacy(noise_multiplier=1.41, delta=1e-5, clipping_norm=0.7)
    config = _config(batch_size=256, epochs=13, optimizer="adam", privacy=privacy)
    key = Ed25519PrivateKey.generate()
    trained = train(config, x, y, tmp_path / "m", signing_key=key)
    ledger = read(trained.ledger)
    steps = round(13 * 2000 / 256)
    assert ledger.events() == (SampledGaussian(1.41, 0.128, steps),)  # not 1/len(loader) = 0.125
    assert (trained.steps, trained.sample_rate, trained.noise_multiplier) == (steps, 0.128, 1.41)
    assert ledger.header is not None
    assert (ledger.header.records, ledger.header.clipping_norm) == (2000, 0.7)
    assert ledger.header.noise_source == "secure"
    # their accountant and ours, on the same steps
    ours = rdp.epsilon(ledger.events(), 1e-5).epsilon
    assert ours * (1 - 1e-6) <= trained.epsilon <= ours * 1.02
    states = {
        f.check: f.state
        for f in verify(
            ledger,
            [trained.weights],
            public_key=key.public_key().public_bytes_raw(),
            data_fingerprint=fingerprint(x, y),
        )
    }
    batches = states.pop("ledger.batches")
    assert states.pop("ledger.ranks") == "not checkable"
    assert set(states.values()) == {"supported"}
    # this source cannot be seeded: an honest run is refused once in a thousand
    assert batches == "supported" or poisson_test(2000, ledger.batches).p_value > LEVEL / 1000


def test_batches_are_poisson_and_not_constant(tmp_path: Path) -> None:
    x, y = _records(300)
    config = _config(batch_size=30, epochs=30, seed=1)
    ledger = read(train(config, x, y, tmp_path / "m").ledger)
    test = poisson_test(300, ledger.batches)
    assert test.steps == 300
    assert test.p_value > LEVEL
    assert 0.5 < test.spread_ratio < 2


@pytest.mark.parametrize(
    ("epsilon", "batch", "epochs", "low", "high"),
    [(3.0, 64, 10, 0.7, 2.0), (0.1, 10, 100, 34.0, 37.0), (0.05, 10, 10, 15.0, 40.0)],
)
def test_a_target_is_met_and_not_missed_by_much(
    tmp_path: Path, epsilon: float, batch: int, epochs: int, low: float, high: float
) -> None:
    from trainers.classifier import spending_plan

    config = _config(batch_size=batch, epochs=epochs, privacy=Privacy(epsilon=epsilon))
    plan = spending_plan(config, 1000)
    spent = rdp.epsilon(
        [SampledGaussian(plan.noise_multiplier, plan.sample_rate, plan.steps)], 1e-5
    ).epsilon
    assert 0.95 * epsilon <= spent <= epsilon
    assert low < plan.noise_multiplier < high


def test_without_privacy_the_budget_is_infinite(tmp_path: Path) -> None:
    x, y = _records(100)
    trained = train(_config(privacy=None, batch_size=32, epochs=3), x, y, tmp_path / "m")
    ledger = read(trained.ledger)
    assert trained.epsilon == math.inf
    assert not ledger.private
    assert rdp.epsilon(ledger.events(), 1e-5).epsilon == math.inf
    states = {f.check: f.state for f in verify(ledger, [trained.weights])}
    assert states["ledger.private"] == "measured"
    assert states["ledger.batches"] == states["ledger.file"] == "supported"  # shuffled sizes


@pytest.mark.parametrize("privacy", [None, Privacy(noise_multiplier=1.0, noise="seeded")])
def test_a_seed_repeats_the_model_to_the_bit(tmp_path: Path, privacy: Privacy | None) -> None:
    x, y = _records(200)
    config = _config(privacy=privacy, optimizer="adam", learning_rate=1e-2, epochs=3)
    files = [train(config, x, y, tmp_path / name).weights.read_bytes() for name in "ab"]
    assert files[0] == files[1]
    other = dataclasses.replace(config, seed=1)
    assert train(other, x, y, tmp_path / "c").weights.read_bytes() != files[0]
    shadow = fit_classifier(other, x, y, seed=0)  # the same training, with nothing written
    for name, tensor in load_file(tmp_path / "a" / "model.safetensors").items():
        torch.testing.assert_close(shadow.state_dict()[name], tensor)


def test_secure_noise_does_not_repeat_and_leaves_the_callers_generator_alone(
    tmp_path: Path,
) -> None:
    x, y = _records(50)
    config = _config(privacy=Privacy(noise_multiplier=1.0))
    state = torch.random.get_rng_state()
    files = [train(config, x, y, tmp_path / name).weights.read_bytes() for name in "ab"]
    assert files[0] != files[1]
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(("shape", "architecture"), [((5,), "mlp"), ((1, 8, 8), "cnn")])
def test_files_rebuild_the_model(tmp_path: Path, shape: tuple[int, ...], architecture: Any) -> None:
    x = np.random.default_rng(0).uniform(0, 16, (60, *shape))
    y = np.arange(60) % 3
    config = _config(
        classes=3, architecture=architecture, hidden=(4,), low=0.0, high=16.0, learning_rate=0.1
    )
    trained = train(config, x, y, tmp_path / "m")
    description = json.loads(trained.description.read_text(encoding="utf-8"))
    assert description["factory"] == "trainers.networks:build"
    model = build(**description["arguments"])
    model.load_state_dict(load_file(trained.weights))
    inputs = torch.tensor(x, dtype=torch.float32)
    torch.testing.assert_close(model(inputs), trained.model(inputs))
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "ledger.jsonl",
        "model.json",
        "model.safetensors",
    ]


def test_nothing_is_printed_and_no_warning_raised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = _records(100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(_config(privacy=Privacy(epsilon=5.0)), x, y, tmp_path / "m")
    assert [str(w.message) for w in caught] == []
    assert capfd.readouterr() == ("", "")


X, Y = _records(50)
BROKEN: list[tuple[str, np.ndarray, np.ndarray, dict[str, Any]]] = [
    ("record 3 holds NaN", np.where(np.arange(50)[:, None] == 3, np.nan, X), Y, {}),
    ("record 3 holds NaN or", np.where(np.arange(50)[:, None] == 3, np.inf, X), Y, {}),
    ("record 3 holds NaN or", np.where(np.arange(50)[:, None] == 3, 1e300, X), Y, {}),
    ("labels: all records have label 0", X, np.zeros(50, int), {}),
    ("labels: must be whole numbers", X, np.where(Y, "cat", "dog"), {}),
    ("labels: must be whole numbers", X, Y + 0.5, {}),
    ("labels: must lie between 0 and 1", X, Y + 1, {}),
    ("labels: must lie between 0 and 1", X, Y - 1, {}),
    ("labels: need one for each of 50", X, Y[:-1], {}),
    ("labels: need one for each of 50", X, np.eye(2, dtype=int)[Y], {}),
    ("labels: need one for each of 0", X[:0], Y[:0], {}),
    ("features: must be numbers", X.astype(str), Y, {}),
    ("features: must be numbers", X.astype(object), Y, {}),
    ("features: need one row a record", X[:, 0], Y, {}),
    ("features: need one row a record", X[:, :0], Y, {}),
    ("batch_size: 20 is more than the 10 records", X[:10], Y[:10], {}),
    ("inputs: a cnn needs", X, Y, {"architecture": "cnn"}),
    ("low, high: every upper bound", X, Y, {"low": 1.0}),
    ("low, high: 3 bounds for 5 features", X, Y, {"low": (-1.0,) * 3}),
    ("hidden: must be at least 1", X, Y, {"hidden": (0,)}),
]


@pytest.mark.parametrize(("said", "x", "y", "changes"), BROKEN, ids=range(len(BROKEN)))
def test_records_that_cannot_be_used_are_refused_and_nothing_is_written(
    tmp_path: Path, said: str, x: np.ndarray, y: np.ndarray, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=said):
        train(_config(**changes), x, y, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (Privacy, {}, "give either epsilon or noise_multiplier"),
        (Privacy, {"epsilon": 1.0, "noise_multiplier": 1.0}, "give either"),
        (Privacy, {"noise_multiplier": 0.0}, "noise_multiplier: must lie"),
        (Privacy, {"epsilon": math.nan}, "epsilon: must be positive"),
        (Privacy, {"epsilon": 1.0, "delta": 0.0}, "delta: must lie"),
        (Privacy, {"epsilon": 1.0, "clipping_norm": math.inf}, "clipping_norm: must lie"),
        (ClassifierConfig, {"classes": 1}, "classes: must be at least 2"),
        (ClassifierConfig, {"classes": 2, "epochs": 0}, "epochs: must be at least 1"),
        (ClassifierConfig, {"classes": 2, "learning_rate": math.nan}, "learning_rate: must be"),
    ],
)
def test_settings_out_of_range_are_refused(kind: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**changes)


def test_a_folder_with_a_ledger_is_left_alone(tmp_path: Path) -> None:
    before = train(_config(), X, Y, tmp_path / "m").ledger.read_bytes()
    with pytest.raises(ValueError, match="resume its run, or give a new run"):
        train(_config(), X, Y, tmp_path / "m")
    assert (tmp_path / "m" / "ledger.jsonl").read_bytes() == before


KILLED = """
import sys
from pathlib import Path
import numpy as np
from trainers.classifier import ClassifierConfig, Privacy, train
x = np.load(sys.argv[2])
config = ClassifierConfig(classes=2, epochs=20, batch_size=40, privacy=Privacy(epsilon=2.0))
train(config, x, (x[:, 0] > 0).astype(int), Path(sys.argv[1]), checkpoint_every=20,
      on_step=lambda step, steps, epsilon: print(step, flush=True))
"""


def test_a_run_killed_with_9_goes_on_and_counts_every_step(tmp_path: Path) -> None:
    x, _ = _records(400)
    y = (x[:, 0] > 0).astype(int)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "m"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), str(tmp_path / "x.npy")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    recorded = [int(process.stdout.readline()) for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    recorded += [int(line) for line in process.stdout.read().split()]
    assert process.wait() == -signal.SIGKILL
    assert not (out / "model.safetensors").exists()
    killed = read(out / "ledger.jsonl")
    assert 200 > killed.steps >= recorded[-1] >= 50
    assert killed.end is None
    assert killed.problem("chain") is None

    config = ClassifierConfig(classes=2, epochs=20, batch_size=40, privacy=Privacy(epsilon=2.0))
    again = _stopped(out, config, at=150, every=20, records=(x, y), resume=True)
    assert again.steps == 150  # the steps after the checkpoint stay counted
    train(config, x, y, out, resume=True)
    whole = read(out / "ledger.jsonl")
    assert whole.steps == 200
    assert [r.after_step for r in whole.resumes] == [killed.steps, 150]
    assert all(0 <= r.after_step - r.checkpoint_step <= 20 for r in whole.resumes)
    states = {f.check: f.state for f in verify(whole, [out / "model.safetensors"])}
    for check in ("chain", "steps", "end", "rate", "drift", "file"):
        assert states[f"ledger.{check}"] == "supported", check
    assert rdp.epsilon(whole.events(), 1e-5).epsilon <= 2.0  # the target holds all the same
    assert not (out / "checkpoint.pt").exists()


def _stopped(
    out: Path,
    config: ClassifierConfig,
    at: int,
    every: int,
    records: tuple[np.ndarray, np.ndarray] = (X, Y),
    resume: bool = False,
) -> Ledger:
    def stop(step: int, steps: int, epsilon: float) -> None:
        if step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, *records, out, checkpoint_every=every, resume=resume, on_step=stop)
    return read(out / "ledger.jsonl")


RESUMABLE = _config(
    batch_size=10, epochs=2, privacy=Privacy(noise_multiplier=2.0, noise="seeded"), seed=3
)


@pytest.mark.parametrize("every", [0, 2, 4])
def test_a_seeded_run_that_was_killed_ends_as_if_it_had_not_been(
    tmp_path: Path, every: int
) -> None:
    """To the bit, also what lay after the checkpoint; and no step is counted twice or left out."""
    whole = train(RESUMABLE, X, Y, tmp_path / "whole")
    stopped = _stopped(tmp_path / "m", RESUMABLE, at=7, every=every)
    assert stopped.steps == 7
    resumed = train(RESUMABLE, X, Y, tmp_path / "m", resume=True, checkpoint_every=every)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert read(resumed.ledger).steps == whole.steps
    assert read(resumed.ledger).batches == read(whole.ledger).batches


def test_resume_refuses_other_records_settings_models_and_files(tmp_path: Path) -> None:
    out = tmp_path / "m"
    with pytest.raises(ValueError, match="no run to resume"):
        train(RESUMABLE, X, Y, out, resume=True)
    _stopped(out, RESUMABLE, at=6, every=2)
    before = (out / "ledger.jsonl").read_bytes()
    other = Privacy(noise_multiplier=1.0, noise="seeded")
    for said, config, x in (
        ("data_fingerprint: is", RESUMABLE, X + 0.1),
        ("noise_multiplier: is 2.0", dataclasses.replace(RESUMABLE, privacy=other), X),
        ("only DP runs", dataclasses.replace(RESUMABLE, privacy=None), X),
    ):
        with pytest.raises(ValueError, match=said):
            train(config, x, Y, out, resume=True)
        assert (out / "ledger.jsonl").read_bytes() == before
    with pytest.raises(ValueError, match=r"checkpoint\.pt: is of another model"):
        train(dataclasses.replace(RESUMABLE, hidden=(9,)), X, Y, out, resume=True)
    (out / "checkpoint.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"checkpoint\.pt: is no checkpoint"):
        train(RESUMABLE, X, Y, out, resume=True)


def test_a_run_that_spent_everything_without_a_checkpoint_has_nothing_to_resume(
    tmp_path: Path,
) -> None:
    _stopped(tmp_path / "m", RESUMABLE, at=10, every=0)
    with pytest.raises(ValueError, match="nothing to resume"):
        train(RESUMABLE, X, Y, tmp_path / "m", resume=True)
