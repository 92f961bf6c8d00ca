"""Other people's records: written by the tools themselves where they run here."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import opacus
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant

from audit.accounting import rdp
from audit.accounting.events import (
    ApproximateDP,
    Gaussian,
    GNMax,
    Laplace,
    SampledGaussian,
    ZeroConcentratedDP,
)
from audit.ledger_checks import verify
from audit.ledger_format import LedgerError
from audit.ledger_readers import read


def _file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_opacus_checkpoint_gives_what_its_accountant_says(tmp_path: Path) -> None:
    accountant = RDPAccountant()
    for sigma, steps in ((1.0, 200), (1.5, 100)):
        for _ in range(steps):
            accountant.step(noise_multiplier=sigma, sample_rate=0.01)
    path = tmp_path / "checkpoint.pt"
    saved = {"module_state_dict": {"w": torch.ones(2)}}
    torch.save(saved | {"privacy_accountant_state_dict": accountant.state_dict()}, path)
    ledger = read(path)
    assert ledger.events() == (SampledGaussian(1.0, 0.01, 200), SampledGaussian(1.5, 0.01, 100))
    ours = rdp.epsilon(ledger.events(), 1e-5).epsilon
    theirs = accountant.get_epsilon(1e-5)
    assert theirs * 0.98 <= ours <= theirs * (1 + 1e-4)
    torch.save(accountant.state_dict(), path)
    assert read(path).events() == ledger.events()


@pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook")
def test_a_real_opacus_run_gives_its_steps_rate_and_noise(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.zeros(100, dtype=torch.long))
    engine = opacus.PrivacyEngine(accountant="rdp")
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        data_loader=torch.utils.data.DataLoader(data, batch_size=20),
        noise_multiplier=1.3,
        max_grad_norm=1.0,
    )
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(x), y).backward()
            optimizer.step()
    path = tmp_path / "checkpoint.pt"
    engine.save_checkpoint(path=path, module=private, optimizer=optimizer)
    assert read(path).events() == (SampledGaussian(1.3, 0.2, 15),)


def test_a_damaged_opacus_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"history": [(1.0, 0.1, 5)], "mechanism": "rdp"}, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for size in (4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(LedgerError, match=r"^[^\n]*checkpoint\.pt: [^\n]*$"):
            read(path)
    for _ in range(30):
        noisy = bytearray(whole)
        noisy[rng.integers(4, len(whole))] ^= 0xFF
        path.write_bytes(noisy)
        with contextlib.suppress(LedgerError):
            assert read(path).steps == 5  # the byte was padding


def test_opacus_without_noise_is_infinite(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"history": [(0.0, 0.1, 5)], "mechanism": "rdp"}, path)
    assert read(path).events() == (ApproximateDP(math.inf),)
    assert not read(path).private


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('code ran')",))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "saved",
    [
        {"history": [(1.0, 2.0, 5)]},
        {"history": [(1.0, 0.1)]},
        {"history": [(1.0, 0.1, 2.5)]},
        {"history": [("1", 0.1, 2)]},
        {"weights": torch.ones(1)},
        {"history": _Bomb()},
    ],
)
def test_an_opacus_file_that_cannot_be_understood_is_refused(tmp_path: Path, saved: Any) -> None:
    path = tmp_path / "a.pt"
    torch.save(saved, path)
    with pytest.raises(LedgerError, match=r"a\.pt"):
        read(path)
    path.write_bytes(pickle.dumps(saved.get("history", 1)))
    with pytest.raises(LedgerError):
        read(path, "opacus")


def test_a_dp_event_gives_what_its_own_accountant_says(tmp_path: Path) -> None:
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.1)), 500
            ),
            dp_accounting.GaussianDpEvent(4.0),
            dp_accounting.NoOpDpEvent(),
        ]
    )
    path = _file(tmp_path, "event.json", json.dumps(event.to_named_tuple()))
    ledger = read(path)
    assert ledger.events() == (SampledGaussian(1.1, 0.02, 500), Gaussian(4.0, 1))
    theirs = RdpAccountant().compose(event).get_epsilon(1e-5)
    assert theirs * 0.98 <= rdp.epsilon(ledger.events(), 1e-5).epsilon <= theirs * (1 + 1e-4)


def test_a_dp_event_of_fixed_size_has_twice_our_noise_scale(tmp_path: Path) -> None:
    inner = dp_accounting.GaussianDpEvent(2.0)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, inner)
    path = _file(tmp_path, "event.json", json.dumps(event.to_named_tuple()))
    assert read(path).events() == (SampledGaussian(4.0, 0.01, 1, "without_replacement"),)


@pytest.mark.parametrize(
    ("event", "events"),
    [
        (dp_accounting.NonPrivateDpEvent(), (ApproximateDP(math.inf),)),
        (dp_accounting.LaplaceDpEvent(2.0), (Laplace(2.0, 1),)),
        (
            dp_accounting.SelfComposedDpEvent(dp_accounting.dp_event.ZCDpEvent(0.1), 3),
            (ZeroConcentratedDP(0.1 * 3),),
        ),
    ],
)
def test_other_dp_events(tmp_path: Path, event: Any, events: Any) -> None:
    path = _file(tmp_path, "event.json", json.dumps(event.to_named_tuple()))
    assert read(path).events() == events
    named = {"class_name": "LaplaceDpEvent", "noise_multiplier": 2.0}
    assert read(_file(tmp_path, "named.json", json.dumps(named))).events() == (Laplace(2.0, 1),)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.SampledWithReplacementDpEvent(10, 1, dp_accounting.GaussianDpEvent(1.0)),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
        dp_accounting.dp_event.ZCDpEvent(0.1, 0.2),
        dp_accounting.SingleEpochTreeAggregationDpEvent(1.0, 5),
        dp_accounting.PoissonSampledDpEvent(1.1, dp_accounting.GaussianDpEvent(1.0)),
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), -3),
    ],
)
def test_a_dp_event_without_a_bound_here_is_refused(tmp_path: Path, event: Any) -> None:
    path = _file(tmp_path, "event.json", json.dumps(event.to_named_tuple()))
    with pytest.raises(LedgerError, match=r"event\.json"):
        read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"class_name":\n"DpEvent"', "line 2: is no JSON"),
        ('["m","ComposedDpEvent",[["m","GaussianDpEvent","x"]]]', r"event\.events\[0\]: noise_mul"),
        ('["m","SelfComposedDpEvent",["m","GaussianDpEvent",NaN],3]', r"event\.event: noise_mul"),
        (
            '["m","SampledWithoutReplacementDpEvent",0,0,["m","GaussianDpEvent",1.0]]',
            "sample_size: 0 of 0",
        ),
        ('["m","ComposedDpEvent",5]', "events: must be a list"),
        ("[" * 50_000 + '"DpEvent"', "nested too deeply"),
    ],
)
def test_a_malformed_dp_event_is_refused_where_it_is(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LedgerError, match=rf"^[^\n]*event\.json: [^\n]*{said}"):
        read(_file(tmp_path, "event.json", text))


def test_csv_of_steps(tmp_path: Path) -> None:
    rows = ["epoch,noise_multiplier,sample_rate,loss"]
    rows += ["1,1.1,0.01,2.3"] * 3 + ["2,2.0,0.01,2.1"] + ["3,1.1,0.01,1.9"]
    ledger = read(_file(tmp_path, "steps.csv", "\n".join(rows)))
    assert ledger.events() == (SampledGaussian(1.1, 0.01, 4), SampledGaussian(2.0, 0.01, 1))
    assert ledger.steps == 5
    assert "Poisson is supposed" in ledger.notes[0]
    text = "noise_multiplier, sample_rate, steps, sampling\n1.1, 0.01, 50, shuffled\n"
    shuffled = read(_file(tmp_path, "steps.csv", text))
    assert shuffled.events() == (SampledGaussian(1.1, 0.01, 50, "shuffled"),)
    bare = read(_file(tmp_path, "steps.csv", "noise_multiplier,sample_rate\n0,0.01\n"))
    assert not bare.private


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("noise_multiplier,sample_rate\n", "line 2: is missing"),
        ("noise_multiplier,sample_rate\n1,1,0,01\n", "line 2: has more cells"),
        ("noise_multiplier,sample_rate,sample_rate\n1,0.1,0.2\n", "line 1: column 'sample_rate'"),
        ("noise_multiplier,rate\n1,0.1\n", "line 1: column 'sample_rate' is missing"),
    ],
)
def test_a_csv_that_could_hide_steps_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said):
        read(_file(tmp_path, "steps.csv", text), "csv")


def test_a_csv_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(b"noise_multiplier,sample_rate,r\xe9sum\xe9\n1,0.1,2\n")
    with pytest.raises(LedgerError, match=r"steps\.csv: is no UTF-8"):
        read(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("x,0.01,5,poisson", "line 2: noise_multiplier"),
        ("1.1,1.5,5,poisson", "line 2: sample_rate"),
        ("1.1,0.01,2.5,poisson", "line 2: steps"),
        ("1.1,0.01,-5,poisson", "line 2: steps"),
        ("1.1,0.01,5,guess", "line 2: sampling"),
        ("nan,0.01,5,poisson", "line 2: noise_multiplier"),
        ("1.1", "line 2: sample_rate"),
    ],
)
def test_a_csv_row_that_makes_no_sense_is_refused(tmp_path: Path, row: str, said: str) -> None:
    text = f"noise_multiplier,sample_rate,steps,sampling\n{row}\n"
    with pytest.raises(LedgerError, match=said):
        read(_file(tmp_path, "steps.csv", text))


def test_rdp_log(tmp_path: Path) -> None:
    lines = [
        f"[info] epoch {epoch} worker {worker} loss 1.2 RDP α={order}, λ={value}"
        for epoch in range(3)
        for worker in range(2)
        for order, value in ((2, 0.1), (16, 0.9), (64, 8.0))
    ]
    ledger = read(_file(tmp_path, "train.log", "\n".join(["started", *lines])))
    # order 16: 2.7 + log(15/16) − (log 1e-6 + log 16)/15, the least of the three
    expected = 2.7 + math.log(15 / 16) - (math.log(1e-6) + math.log(16)) / 15
    (event,) = ledger.events()
    assert isinstance(event, ApproximateDP)
    assert event.epsilon == pytest.approx(expected, rel=1e-9)
    assert ledger.problems == ()
    lines[1] = lines[1].replace("λ=0.9", "λ=0.8")
    other = read(_file(tmp_path, "train.log", "\n".join(lines)))
    assert other.events() == ledger.events()  # the larger counts
    assert {f.check: f.state for f in verify(other)}["ledger.ranks"] == "refuted"


def test_rdp_log_of_a_gaussian_gives_its_known_budget(tmp_path: Path) -> None:
    # σ = 4: order α costs α/(2σ²) each epoch; ten of them are 10/32-zCDP
    lines = [
        f"epoch {e} rank {r}: RDP alpha={a}, lambda={a / 32!r}."
        for e in range(1, 11)
        for r in range(4)
        for a in (2, 4, 6, 8, 10, 12, 16, 32)
    ]
    (event,) = read(_file(tmp_path, "train.log", "\n".join(lines))).events()
    assert isinstance(event, ApproximateDP)
    exact = rdp.epsilon((Gaussian(4.0, 10),), event.delta).epsilon
    assert exact <= event.epsilon <= exact * 1.02  # a coarser grid of orders costs a little


def test_rdp_log_two_orders_in_one_line_are_both_read(tmp_path: Path) -> None:
    path = _file(tmp_path, "a.log", "epoch 1 RDP α=2, λ=9; RDP α=16, λ=0.1\n")
    (event,) = read(path).events()
    assert isinstance(event, ApproximateDP)
    assert event.epsilon < 2  # order 2 alone gives above 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch 1 RDP α=2, λ=0.1\nepoch 2 RDP α=2, λ=0,1\n", "line 2: RDP: write"),
        ("epoch 1 RDP α=2, λ=0.1\nepoch 2 RDP α=2 λ=?\n", "line 2: RDP: write"),
        ("epoch 1 RDP α=2, λ=0.1\nepoch 3 RDP α=2, λ=0.1\n", "line 2: epoch 3: no RDP line"),
        ("epoch 2 RDP α=2, λ=0.1\n", "line 1: epoch 2: no RDP line of epoch 1"),
    ],
)
def test_rdp_log_that_could_hide_epochs_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said):
        read(_file(tmp_path, "a.log", text))


def test_rdp_log_where_a_worker_falls_silent(tmp_path: Path) -> None:
    lines = [f"epoch {e} worker {w} RDP α=2, λ=0.1" for e in range(2) for w in range(2)]
    del lines[-1]
    found = {f.check: f for f in verify(read(_file(tmp_path, "a.log", "\n".join(lines))))}
    assert found["ledger.ranks"].state == "refuted"
    assert found["ledger.ranks"].values["line"] == 3


def test_rdp_log_of_nonsense_is_refused(tmp_path: Path) -> None:
    for line in ("RDP α=1, λ=0.1", "RDP α=2, λ=-0.1", "RDP α=2, λ=nan"):
        with pytest.raises(LedgerError, match="line 1"):
            read(_file(tmp_path, "a.log", line))
    uneven = "epoch 1 RDP α=2, λ=0.1\nepoch 2 RDP α=4, λ=0.1\n"
    with pytest.raises(LedgerError, match="every epoch"):
        read(_file(tmp_path, "a.log", uneven))
    infinite = read(_file(tmp_path, "a.log", "epoch 1 RDP α=2, λ=inf"))
    assert not infinite.private


def test_yaml_of_phases(tmp_path: Path) -> None:
    text = """
phases:
  - sampled_gaussian: {noise_multiplier: 1.1, sample_rate: 0.01, steps: 1000, sampling: shuffled}
  - laplace: {scale: 2}
  - gnmax: {sigma: 40, votes: 200}
"""
    ledger = read(_file(tmp_path, "phases.yaml", text))
    assert ledger.events() == (
        SampledGaussian(1.1, 0.01, 1000, "shuffled"),
        Laplace(2.0),
        GNMax(40.0, 200),
    )
    assert ledger.steps == 1201
    findings = {f.check: f for f in verify(ledger)}
    assert findings["ledger.chain"].state == "not checkable"


def test_yaml_of_phases_gives_the_true_account(tmp_path: Path) -> None:
    text = """
phases:
  - sampled_gaussian: {noise_multiplier: 1.41, sample_rate: 0.128, steps: 40}
  - sampled_gaussian: {noise_multiplier: 1.41, sample_rate: 0.128, steps: 60}
"""
    # the oracle value of 100 steps at δ = 1e-5
    ledger = read(_file(tmp_path, "phases.yaml", text))
    assert rdp.epsilon(ledger.events(), 1e-5).epsilon == pytest.approx(5.626, abs=2e-3)


@pytest.mark.parametrize(
    "phase",
    [
        "sampled_gaussian: {noise_multiplier: 0, sample_rate: 0.01, steps: 5}",
        "sampled_gaussian: {noise_multiplier: 1, sample_rate: 0.01, steps: 5, color: red}",
        "sampled_gaussian: {noise_multiplier: 1, sample_rate: 0.01}",
        "teleport: {scale: 2}",
        "{laplace: {scale: 2}, gaussian: {noise_multiplier: 2}}",
        "laplace: null",
    ],
)
def test_a_phase_that_makes_no_sense_is_refused(tmp_path: Path, phase: str) -> None:
    with pytest.raises(LedgerError, match=r"phases\.yaml"):
        read(_file(tmp_path, "phases.yaml", f"phases:\n  - {phase}\n"))


def test_the_examples_in_the_docs_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
    text = text.split("## Other people's records")[1]
    steps = SampledGaussian(1.1, 0.01, 1000)
    for name, events in {
        "dp-event": (steps,),
        "csv": (steps,),
        "yaml": (steps, Laplace(2.0)),
    }.items():
        example = text.split(f"**`{name}`**")[1].split("```")[1].partition("\n")[2]
        ledger = read(_file(tmp_path, "example", example))
        assert (ledger.format, ledger.events()) == (name, events)
    log = text.split("**`rdp-log`**")[1].split("```")[1]
    assert read(_file(tmp_path, "example", log)).format == "rdp-log"


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is no record of training"):
        read(_file(tmp_path, "poem.txt", "Roses are red\n"))
    with pytest.raises(LedgerError, match="cannot be read"):
        read(tmp_path / "missing")
    with pytest.raises(LedgerError, match="is none of"):
        read(_file(tmp_path, "poem.txt", ""), "sonnet")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "noise_multiplier,sample_rate,steps\n1e-300,0.1,1\n"),
        ("b.csv", "noise_multiplier,sample_rate,steps\n1e300,1e-300,1\n"),
        ("c.csv", f"noise_multiplier,sample_rate,steps\n1,0.1,{'9' * 400}\n"),
        ("d.json", f'["m","GaussianDpEvent",{"9" * 400}]'),
        ("e.json", f'["m","SelfComposedDpEvent",["m","ZCDpEvent",1.0],{"9" * 400}]'),
        ("f.json", f'["m","SelfComposedDpEvent",["m","GaussianDpEvent",1.0],{"9" * 5000}]'),
        ("g.log", f"epoch {'9' * 5000} RDP α=2, λ=0.1\n"),
    ],
)
def test_numbers_beyond_floating_point_are_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(LedgerError, match=name):
        read(_file(tmp_path, name, text))
