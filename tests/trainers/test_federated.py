"""Federated averaging: its arithmetic, each site's ledger, what a person pays, and refusals."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from audit.accounting import rdp
from audit.accounting.events import SampledGaussian
from audit.cli.lineage import command as lineage_command
from audit.ledger import read
from audit.ledger_batches import LEVEL, poisson_test
from audit.ledger_checks import fingerprint, verify
from audit.lineage import read_lineage
from trainers.classifier import ClassifierConfig, Privacy, train
from trainers.federated import Federated, average, counts_read, federate
from trainers.federated_site import Site, SiteDropped
from trainers.networks import build

ROOT = Path(__file__).parents[2]
SEEDED = Privacy(noise_multiplier=2.0, noise="seeded")


def _records(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 4))
    return x, (x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def _config(**changes: Any) -> ClassifierConfig:
    settings: dict[str, Any] = {
        "classes": 2,
        "hidden": (6,),
        "epochs": 4,
        "batch_size": 20,
        "privacy": SEEDED,
    }
    return ClassifierConfig(**(settings | changes))


def _site(name: str, n: int = 90, size: int = 100, kind: type[Site] = Site, **changes: Any) -> Site:
    weight = changes.pop("weight", None)
    seed = sum(name.encode())
    return kind(name, _config(**changes), *_records(n, seed), size=size, weight=weight)


def _flat(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[k].flatten() for k in sorted(weights)])


def test_without_noise_it_is_plain_fedavg(tmp_path: Path) -> None:
    """Full batches, nothing clipped, noise next to 0, against plain torch and a weighted mean."""
    sizes, shares, rounds, local = (30, 50, 40), (1.0, 3.0, 2.0), 3, 2
    data = [_records(n, seed) for seed, n in enumerate(sizes)]
    privacy = Privacy(noise_multiplier=1e-9, clipping_norm=1e3, noise="seeded")
    sites = [
        Site(
            f"s{k}",
            _config(
                epochs=rounds * local,
                batch_size=n,
                optimizer="sgd",
                learning_rate=0.3,
                privacy=privacy,
                seed=7,
            ),
            *data[k],
            size=n,
            weight=shares[k],
        )
        for k, n in enumerate(sizes)
    ]
    found = federate(sites, tmp_path / "out", rounds=rounds, public_counts=True)

    with torch.random.fork_rng():
        torch.manual_seed(7)
        models = [build("mlp", 4, 2, (6,)) for _ in sizes]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    first = _flat(models[0].state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), 0.3, momentum=0.9) for m in models]
    for _ in range(rounds):
        for model, optimizer, (x, y) in zip(models, optimizers, data, strict=True):
            for _ in range(local):
                optimizer.zero_grad()
                inputs = torch.tensor(x, dtype=torch.float32)
                cross_entropy(model(inputs), torch.tensor(y)).backward()
                optimizer.step()
        mean = {
            key: sum(
                w / 6 * m.state_dict()[key].clone() for w, m in zip(shares, models, strict=True)
            )
            for key in models[0].state_dict()
        }
        for model in models:
            model.load_state_dict(mean)
    torch.testing.assert_close(_flat(load_file(found.weights)), _flat(mean), rtol=0, atol=2e-5)
    assert (_flat(mean) - first).norm() > 0.5
    assert found.rounds == (("s0", "s1", "s2"),) * 3


@pytest.mark.parametrize("rounds", [1, 3, 7])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_one_site_alone_is_its_single_training(tmp_path: Path, rounds: int, optimizer: Any) -> None:
    config = _config(optimizer=optimizer, epochs=3, seed=5)
    x, y = _records(100, 0)
    alone = train(config, x, y, tmp_path / "alone")
    site = Site("only", config, x, y, size=100)
    found = federate([site], tmp_path / "out", rounds=rounds, public_counts=True)
    for one, other in zip(alone.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(one, other)
    ours, theirs = read(found.ledgers["only"]), read(alone.ledger)
    assert ours.batches == theirs.batches
    assert ours.events() == theirs.events()


def test_another_engine_makes_the_same_steps(tmp_path: Path) -> None:
    found = []
    for engine in ("book-keeping", "opacus"):
        privacy = dataclasses.replace(SEEDED, engine=engine)  # type: ignore[arg-type]
        sites = [_site(name, privacy=privacy, optimizer="sgd") for name in "ab"]
        out = federate(sites, tmp_path / engine, rounds=2).weights
        found.append(_flat(load_file(out)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_the_mean_by_weight() -> None:
    sent = {k: {"w": torch.full((2, 3), v)} for k, v in (("a", 1.0), ("b", 4.0), ("c", -2.0))}
    mean = average(sent, {"a": 1.0, "b": 2.0, "c": 1.0, "absent": 100.0})
    assert torch.equal(mean["w"], torch.full((2, 3), (1 + 8 - 2) / 4))
    alone = average({"a": {"w": torch.tensor([0.1, 1e-8])}}, {"a": 3.7})
    assert torch.equal(alone["w"], torch.tensor([0.1, 1e-8]))  # to the bit


SECURE = Privacy(noise_multiplier=1.5)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Site], Federated]:
    """Sites with noise, rate and number of steps of their own; b and c may share people."""
    sites = [
        _site("a", privacy=SECURE),
        _site("b", n=150, size=200, privacy=Privacy(epsilon=2.0), epochs=6),
        _site("c", n=70, size=80, privacy=Privacy(noise_multiplier=3.0, delta=1e-6)),
    ]
    out = tmp_path_factory.mktemp("run") / "out"
    return sites, federate(sites, out, rounds=5, overlap=[["b", "c"]])


def test_each_ledger_is_verified(three: tuple[list[Site], Federated]) -> None:
    sites, found = three
    for site in sites:
        ledger = read(found.ledgers[site.name])
        data = fingerprint(*_records(site.records, sum(site.name.encode())))
        states = {f.check: f.state for f in verify(ledger, [found.weights], data_fingerprint=data)}
        batches = states.pop("ledger.batches")
        assert states.pop("ledger.ranks") == states.pop("ledger.signature") == "not checkable"
        assert set(states.values()) == {"supported"}, states  # ledger.noise: secure, unasked
        # this source cannot be seeded: an honest run is refused once in a thousand
        assert (
            batches in ("supported", "inconclusive")
            or poisson_test(site.records, ledger.batches).p_value > LEVEL / 1000
        )


def test_the_rate_follows_from_the_public_size(three: tuple[list[Site], Federated]) -> None:
    _, found = three
    [event] = read(found.ledgers["a"]).events()
    assert event == SampledGaussian(1.5, 20 / 100, 20)  # 90 records do not show
    header = read(found.ledgers["a"]).header
    assert header is not None
    assert (header.records, header.expected_batch_size) == (90, 18.0)


def test_records_are_drawn_with_that_rate(tmp_path: Path) -> None:
    """Batches of 60 of a size of 100 are Binomial(60, 0.2): one seed in a thousand fails."""
    site = _site("a", n=60, epochs=40, privacy=SEEDED)
    ledger = read(federate([site], tmp_path / "out", rounds=2).ledgers["a"])
    test = poisson_test(60, ledger.batches)
    assert test.steps == 200
    assert not test.blind
    assert test.p_value > LEVEL


def test_a_person_pays_for_every_site_where_they_are(
    three: tuple[list[Site], Federated],
) -> None:
    """The verifier's accountant on the ledgers' events: alone, and composed."""
    _, found = three
    assert found.delta == 1e-6  # the smallest of the sites'
    events = {name: read(path).events() for name, path in found.ledgers.items()}
    truth = {
        at: rdp.epsilon([e for name in at for e in events[name]], found.delta).epsilon
        for at in (("a",), ("b",), ("c",), ("b", "c"))
    }
    assert {cost.sites for cost in found.people} == truth.keys()
    for cost in found.people:
        assert truth[cost.sites] * (1 - 1e-6) <= cost.epsilon <= truth[cost.sites] * 1.02
    assert found.epsilon == max(cost.epsilon for cost in found.people)
    assert max(truth[("b",)], truth[("c",)]) < truth[("b", "c")] < truth[("b",)] + truth[("c",)]


def test_the_files_name_one_another(three: tuple[list[Site], Federated]) -> None:
    import hashlib

    sites, found = three
    record = json.loads(found.record.read_text(encoding="utf-8"))
    for site in record["sites"]:
        content = (found.record.parent / site["ledger"]).read_bytes()
        assert site["sha256"] == hashlib.sha256(content).hexdigest()
        assert site["steps"] == read(found.ledgers[site["site"]]).steps
    assert record["model"]["sha256"] == hashlib.sha256(found.weights.read_bytes()).hexdigest()
    assert record["rounds"] == [["a", "b", "c"]] * 5
    assert record["raw_data_access"] == {}
    assert record["account"]["worst"]["epsilon"] == found.epsilon
    description = json.loads((found.record.parent / "model.json").read_text(encoding="utf-8"))
    model = build(**description["arguments"])
    model.load_state_dict(load_file(found.weights))
    names = sorted(p.name for p in found.record.parent.rglob("*") if p.is_file())
    assert names == sorted(
        ["federated.json", "lineage.json", "model.json", "model.safetensors"]
        + ["ledger.jsonl"] * len(sites)
    )


def test_the_lineage_recomputes_it(three: tuple[list[Site], Federated]) -> None:
    _, found = three
    path = found.record.with_name("lineage.json")
    lineage = read_lineage(path)
    high = {e.population: e.account.high for e in lineage.exposures if e.stage == "model"}
    ours = {
        cost.sites[0] if len(cost.sites) == 1 else "overlap-1": cost.epsilon
        for cost in found.people
    }
    assert high.keys() == ours.keys()
    for name, epsilon in ours.items():
        assert high[name] == pytest.approx(epsilon, rel=0.15)
        assert high[name] <= epsilon
    assert CliRunner().invoke(lineage_command, [str(path)]).exit_code == 0


def test_without_a_word_one_person_may_be_everywhere(tmp_path: Path) -> None:
    sites = [_site(n, privacy=SECURE) for n in "abc"]
    found = federate(sites, tmp_path / "out", rounds=2)
    [event] = read(found.ledgers["a"]).events()
    together = rdp.epsilon([event] * 3, 1e-5).epsilon
    assert together <= found.epsilon <= together * 1.02
    apart = [_site(n, privacy=SECURE) for n in "abc"]
    other = federate(apart, tmp_path / "apart", rounds=2, overlap=[])
    assert other.epsilon == pytest.approx(rdp.epsilon([event], 1e-5).epsilon, rel=0.02)


class Away(Site):
    """Takes no part in the rounds 2 and 4; what it made in round 3 is lost on the way."""

    def train(self, number: int, weights: Any) -> Any:
        if number in (1, 3):
            raise SiteDropped
        sent = super().train(number, weights)
        if number == 2:
            raise SiteDropped
        return sent


def test_a_site_that_drops_out_is_left_out_and_what_it_spent_counts(tmp_path: Path) -> None:
    sites = [_site("a", privacy=SECURE), _site("b", kind=Away, privacy=SECURE)]
    found = federate(sites, tmp_path / "out", rounds=5)
    assert found.rounds == (("a", "b"), ("a",), ("a",), ("a",), ("a", "b"))
    steps = {name: read(path).steps for name, path in found.ledgers.items()}
    assert steps == {"a": 20, "b": 12}  # rounds 1, 3 and 5
    for path in found.ledgers.values():
        states = {f.check: f.state for f in verify(read(path), [found.weights])}
        assert states["ledger.end"] == states["ledger.steps"] == "supported"
    events = read(found.ledgers["b"]).events()
    [own] = [cost.epsilon for cost in found.people if cost.sites == ("b",)]
    truth = rdp.epsilon(events, 1e-5).epsilon
    assert truth <= own <= 1.02 * truth


def test_the_mean_is_over_those_who_sent(tmp_path: Path) -> None:
    """With b away in the only round, the model is a's own."""

    class Never(Site):
        def train(self, number: int, weights: Any) -> Any:
            raise SiteDropped

    sites = [_site("a"), _site("b", kind=Never)]
    found = federate(sites, tmp_path / "two", rounds=1)
    alone = federate([_site("a")], tmp_path / "one", rounds=1)
    assert torch.equal(_flat(load_file(found.weights)), _flat(load_file(alone.weights)))
    assert [c.epsilon for c in found.people if c.sites == ("b",)] == [0.0]  # no record was read
    empty = federate([_site("b", kind=Never, privacy=SECURE)], tmp_path / "none", rounds=2)
    assert empty.rounds == ((), ())
    assert empty.epsilon == 0.0


def test_more_rounds_than_steps(tmp_path: Path) -> None:
    sites = [_site("a", epochs=1, privacy=SECURE), _site("b", epochs=4, privacy=SECURE)]
    found = federate(sites, tmp_path / "out", rounds=10)
    assert {name: read(path).steps for name, path in found.ledgers.items()} == {"a": 5, "b": 20}
    assert [("a" in names) for names in found.rounds] == [False, True] * 5


def test_seeded_sites_draw_different_noise_and_repeat(tmp_path: Path) -> None:
    x, y = _records(90, 0)
    sent: list[torch.Tensor] = []

    class Seen(Site):
        def train(self, number: int, weights: Any) -> Any:
            received = super().train(number, weights)
            sent.append(_flat(received))
            return received

    for run in "xy":
        sites = [Seen(name, _config(), x, y, size=100) for name in "ab"]
        found = federate(sites, tmp_path / run, rounds=1)
    assert not torch.allclose(sent[0], sent[1])
    assert torch.equal(sent[0], sent[2])
    assert torch.equal(sent[1], sent[3])
    assert found.epsilon == math.inf  # a seed guarantees nothing
    assert "comes from a seed" in found.record.read_text(encoding="utf-8")


class Unwritten(Site):
    """Trains, and keeps its ledger as it was."""

    def _record(self, size: int, clipping_norm: float) -> None:
        pass


class HalfWritten(Site):
    """Writes every other step."""

    def _record(self, size: int, clipping_norm: float) -> None:
        if self._training.steps % 2:
            super()._record(size, clipping_norm)


class Untrained(Site):
    """Sends weights that no step stands behind."""

    def train(self, number: int, weights: Any) -> Any:
        return {name: w + 1 for name, w in weights.items()}


class Removed(Site):
    """Takes its ledger away after training."""

    def train(self, number: int, weights: Any) -> Any:
        sent = super().train(number, weights)
        assert self._ledger is not None
        self._ledger.path.unlink()
        return sent


class Edited(Site):
    """Takes a step out of its ledger again."""

    def train(self, number: int, weights: Any) -> Any:
        sent = super().train(number, weights)
        assert self._ledger is not None
        lines = self._ledger.path.read_bytes().splitlines(keepends=True)
        self._ledger.path.write_bytes(b"".join(lines[:2] + lines[3:]))
        return sent


class Poisoned(Site):
    """Sends a weight that is no number."""

    def train(self, number: int, weights: Any) -> Any:
        sent = dict(super().train(number, weights))
        sent["4.bias"] = sent["4.bias"] * math.nan
        return sent


class Other(Site):
    """Sends another model's weights."""

    def train(self, number: int, weights: Any) -> Any:
        sent = dict(super().train(number, weights))
        del sent["4.bias"]
        return sent


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Unwritten, "site b: round 1: its ledger lacks the steps"),
        (HalfWritten, "site b: round 1: its ledger lacks the steps"),
        (Untrained, "site b: round 1: its ledger lacks the steps"),
        (Removed, "site b: .*there is no ledger; what it sent is refused"),
        (Edited, "site b: .*line 3 does not follow"),
        (Poisoned, "site b: sent weights that are not finite"),
        (Other, "site b: sent weights of another model"),
    ],
)
def test_what_a_site_sends_without_its_ledger_or_of_another_kind_is_refused(
    tmp_path: Path, kind: type[Site], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        federate([_site("a"), _site("b", kind=kind)], tmp_path / "out", rounds=2)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden": (7,)}, r"site b: hidden: is \(7,\), and \(6,\) at site a"),
        ({"learning_rate": 0.5}, "site b: learning_rate: is 0.5"),
        ({"optimizer": "sgd"}, "site b: optimizer: is 'sgd'"),
        ({"classes": 3}, "site b: classes: is 3"),
        ({"low": -2.0}, "site b: low: is -2.0"),
    ],
)
def test_sites_of_another_model_or_configuration_are_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        federate([_site("a"), _site("b", **change)], tmp_path / "out", rounds=1)
    assert not (tmp_path / "out").exists()


def test_sites_with_other_columns_are_refused(tmp_path: Path) -> None:
    x, y = _records(90, 0)
    other = Site("b", _config(), x[:, :3], y, size=100)
    with pytest.raises(ValueError, match="site b: features: is 3, and 4 at site a"):
        federate([_site("a"), other], tmp_path / "out", rounds=1)


def test_weights_by_true_counts_are_a_data_access(tmp_path: Path) -> None:
    """Planted: sizes that are the counts, weights that are, and weights in their proportion."""
    honest = [_site("a", n=90, size=100), _site("b", n=40, size=60)]
    assert counts_read(honest) == {}
    assert counts_read([_site("a", n=90, weight=1), _site("b", n=40, weight=1)]) == {}
    sized = [_site("a", n=90, size=90), _site("b", n=40, size=60)]
    assert counts_read(sized).keys() == {"a"}
    weighted = [_site("a", n=90, weight=90), _site("b", n=40, weight=50)]
    assert counts_read(weighted).keys() == {"a"}
    shares = [_site("a", n=90, weight=90 / 130), _site("b", n=40, weight=40 / 130)]
    assert counts_read(shares).keys() == {"a", "b"}

    sites = [_site("a", n=90, size=90, privacy=SECURE), _site("b", n=40, size=60, privacy=SECURE)]
    found = federate(sites, tmp_path / "out", rounds=1, overlap=[])
    record = json.loads(found.record.read_text(encoding="utf-8"))
    assert record["raw_data_access"] == {"a": "its size is its exact number of records"}
    assert found.epsilon == math.inf
    assert record["account"]["worst"] == {"at": ["a"], "epsilon": "Infinity"}
    assert [c.epsilon < math.inf for c in found.people if c.sites == ("b",)] == [True]
    lineage = tmp_path / "out" / "lineage.json"
    assert CliRunner().invoke(lineage_command, [str(lineage)]).exit_code == 1
    exposed = {e.population: e.raw for e in read_lineage(lineage).exposures if e.stage == "model"}
    assert exposed == {"a": ("counts",), "b": ()}

    sites = [_site("a", n=90, size=90, privacy=SECURE), _site("b", n=40, size=60, privacy=SECURE)]
    public = federate(sites, tmp_path / "public", rounds=1, public_counts=True)
    assert public.epsilon < math.inf
    assert "stated to be public" in public.record.read_text(encoding="utf-8")


KILLED = """
import sys
from pathlib import Path
import numpy as np
from trainers.classifier import ClassifierConfig, Privacy
from trainers.federated import federate
from trainers.federated_site import Site
config = ClassifierConfig(classes=2, hidden=(6,), epochs=20, batch_size=20,
                          privacy=Privacy(epsilon=2.0))
sites = []
for name in "ab":
    x = np.load(f"{sys.argv[2]}/{name}.npy")
    sites.append(Site(name, config, x, (x[:, 0] > 0).astype(int), size=100))
federate(sites, Path(sys.argv[1]), rounds=25,
         on_round=lambda number, names: print(number, flush=True))
"""


def test_a_run_killed_with_9_goes_on_and_counts_every_step(tmp_path: Path) -> None:
    for k, name in enumerate("ab"):
        np.save(tmp_path / f"{name}.npy", _records(90, k)[0])
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", KILLED, str(out), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.stdout.read()
    assert process.wait() == -signal.SIGKILL
    assert not (out / "model.safetensors").exists()
    killed = {name: read(out / name / "ledger.jsonl") for name in "ab"}
    assert all(20 <= ledger.steps < 100 and ledger.end is None for ledger in killed.values())
    config = _config(epochs=20, privacy=Privacy(epsilon=2.0))
    sites = []
    for name in "ab":
        x = np.load(tmp_path / f"{name}.npy")
        sites.append(Site(name, config, x, (x[:, 0] > 0).astype(int), size=100))
    federate(sites, out, rounds=25, resume=True)
    for name, before in killed.items():
        ledger = read(out / name / "ledger.jsonl")
        assert [r.after_step for r in ledger.resumes] == [before.steps]
        assert 100 - 8 <= ledger.steps <= 100  # a round has 4 steps
        states = {f.check: f.state for f in verify(ledger, [out / "model.safetensors"])}
        for check in ("chain", "steps", "end", "rate", "drift", "file"):
            assert states[f"ledger.{check}"] == "supported", check
        assert rdp.epsilon(ledger.events(), 1e-5).epsilon <= 2.0  # each site's target holds


class Stopped(Site):
    """Is killed in round 3, after its steps and before the server has them."""

    def train(self, number: int, weights: Any) -> Any:
        sent = super().train(number, weights)
        if number == 2:
            raise KeyboardInterrupt
        return sent


def test_the_round_that_was_cut_off_stays_counted(tmp_path: Path) -> None:
    def sites(kind: type[Site]) -> list[Site]:
        return [_site("a", privacy=SECURE), _site("b", kind=kind, privacy=SECURE)]

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        federate(sites(Stopped), out, rounds=5)
    assert [read(out / n / "ledger.jsonl").steps for n in "ab"] == [12, 12]
    with pytest.raises(ValueError, match="exists; resume its run"):
        federate(sites(Site), out, rounds=5)
    with pytest.raises(ValueError, match="another number of rounds"):
        federate(sites(Site), out, rounds=6, resume=True)
    other = [
        Site("a", _config(privacy=SECURE), *_records(90, 0), size=100),
        _site("b", privacy=SECURE),
    ]
    with pytest.raises(ValueError, match=r"site a: .*data_fingerprint: is"):
        federate(other, out, rounds=5, resume=True)
    found = federate(sites(Site), out, rounds=5, resume=True)
    # rounds 3, 4 and 5 were due 12 steps, of which 8 were left
    assert [read(found.ledgers[n]).steps for n in "ab"] == [20, 20]
    assert found.rounds == (("a", "b"),) * 4 + ((),)
    assert not list(out.rglob("*.pt"))


class Cut(Site):
    """Is killed in the middle of round 3, with two of its four steps on file."""

    def _record(self, size: int, clipping_norm: float) -> None:
        super()._record(size, clipping_norm)
        if self._training.steps == 10:
            raise KeyboardInterrupt


@pytest.mark.parametrize("noise", ["secure", "seeded"])
def test_steps_after_the_checkpoint_stay_counted(tmp_path: Path, noise: Any) -> None:
    privacy = Privacy(noise_multiplier=2.0, noise=noise)
    whole = federate([_site("a", privacy=privacy)], tmp_path / "whole", rounds=5)
    with pytest.raises(KeyboardInterrupt):
        federate([_site("a", kind=Cut, privacy=privacy)], tmp_path / "out", rounds=5)
    found = federate([_site("a", privacy=privacy)], tmp_path / "out", rounds=5, resume=True)
    ledger = read(found.ledgers["a"])
    assert [(r.after_step, r.checkpoint_step) for r in ledger.resumes] == [(10, 8)]
    assert ledger.steps == 20  # and not the 22 of five whole rounds and a half
    if noise == "seeded":  # the streams went on: no batch was drawn twice
        assert ledger.batches == read(whole.ledgers["a"]).batches


def test_a_ledger_that_is_gone_or_older_ends_the_run(tmp_path: Path) -> None:
    def sites(kind: type[Site]) -> list[Site]:
        return [_site("a", privacy=SECURE), _site("b", kind=kind, privacy=SECURE)]

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        federate(sites(Stopped), out, rounds=5)
    ledger = out / "b" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:4]))
    with pytest.raises(ValueError, match=r"site b: .*holds 3 steps, the checkpoint 8"):
        federate(sites(Site), out, rounds=5, resume=True)
    ledger.unlink()
    with pytest.raises(ValueError, match=r"site b: .*is missing; what it held was spent"):
        federate(sites(Site), out, rounds=5, resume=True)
    (out / "rounds.safetensors").write_bytes(b"no state")
    with pytest.raises(ValueError, match="is no state of a federated run"):
        federate(sites(Site), out, rounds=5, resume=True)
    with pytest.raises(ValueError, match="there is no run to resume"):
        federate(sites(Site), tmp_path / "new", rounds=5, resume=True)


class Last(Site):
    """Is killed while the run ends."""

    def finish(self, model: Path) -> None:
        raise KeyboardInterrupt


def test_a_kill_between_the_end_marks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        federate([_site("a"), _site("b", kind=Last)], out, rounds=2)
    ended = (out / "a" / "ledger.jsonl").read_bytes()
    assert read(out / "a" / "ledger.jsonl").end is not None
    model = (out / "model.safetensors").read_bytes()
    found = federate([_site("a"), _site("b")], out, rounds=2, resume=True)
    assert found.ledgers["a"].read_bytes() == ended
    assert found.weights.read_bytes() == model
    states = {f.check: f.state for f in verify(read(found.ledgers["b"]), [found.weights])}
    assert states["ledger.end"] == states["ledger.file"] == "supported"


X, Y = _records(90, 0)
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("site '../a': name: must be", {"name": "../a"}),
    ("site 'model': name: must be", {"name": "model"}),
    ("site a: size: 80 is below its number of records", {"size": 80}),
    ("site a: weight: must be positive", {"weight": 0.0}),
    ("site a: weight: must be positive", {"weight": math.nan}),
    ("site a: privacy: is missing", {"config": _config(privacy=None)}),
    ("site a: batch_size: must lie", {"config": _config(batch_size=200)}),
    ("site a: labels: must lie between 0 and 1", {"labels": Y + 1}),
    ("site a: features: record 0 holds NaN", {"features": X * np.nan}),
    ("site a: labels: need one for each", {"labels": Y[:-1]}),
]


@pytest.mark.parametrize(("said", "changes"), BROKEN, ids=range(len(BROKEN)))
def test_a_site_that_cannot_be_is_refused(said: str, changes: dict[str, Any]) -> None:
    given = {"name": "a", "config": _config(), "features": X, "labels": Y, "size": 100} | changes
    with pytest.raises(ValueError, match=said):
        Site(**given)


def test_a_run_that_cannot_be_is_refused(tmp_path: Path) -> None:
    sites, out = [_site("a"), _site("b")], tmp_path / "out"
    with pytest.raises(ValueError, match="sites: there are none"):
        federate([], out, rounds=1)
    with pytest.raises(ValueError, match="rounds: must be at least 1"):
        federate(sites, out, rounds=0)
    with pytest.raises(ValueError, match="site a: name: two sites have it"):
        federate([sites[0], _site("a")], out, rounds=1)
    with pytest.raises(ValueError, match="overlap: there is no site 'c'"):
        federate(sites, out, rounds=1, overlap=[["a", "c"]])
    assert not out.exists()
    (out / "b").mkdir(parents=True)
    (out / "b" / "ledger.jsonl").write_text("another run's")
    with pytest.raises(ValueError, match=r"site b: .*exists"):
        federate(sites, out, rounds=1)


def test_the_callers_generator_is_left_alone(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    federate([_site("a")], tmp_path / "out", rounds=1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_privacy_may_differ_and_is_each_sites_own(tmp_path: Path) -> None:
    sites = [
        _site("a", privacy=SECURE),
        _site("b", privacy=dataclasses.replace(SECURE, noise_multiplier=4.0, clipping_norm=0.5)),
    ]
    found = federate(sites, tmp_path / "out", rounds=2, overlap=[])
    headers = {name: read(path).header for name, path in found.ledgers.items()}
    assert {n: h.noise_multiplier for n, h in headers.items() if h} == {"a": 1.5, "b": 4.0}
    a, b = (cost.epsilon for cost in found.people)
    assert b < a


def test_the_manuals_example(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1].split("```")[0]
    exec(compile(example, "docs/federated.md", "exec"), {"__name__": "manual"})
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" ε")[0] for line in said] == ["north", "south", "west", "north and south"]
