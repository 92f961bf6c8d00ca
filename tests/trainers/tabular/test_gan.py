"""The DP-GAN: its account, what the generator sees, what it writes, how a killed run ends."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load_file

from audit.accounting import rdp
from audit.accounting.events import SampledGaussian
from audit.ledger import Ledger, read
from audit.ledger_batches import LEVEL, poisson_test
from audit.ledger_checks import verify
from trainers.dpsgd.plan import plan
from trainers.tabular import gan
from trainers.tabular.domain import Domain
from trainers.tabular.gan_training import Game, GanConfig
from trainers.tabular.privacy import Privacy
from trainers.tabular.release import Trained, load

COLUMNS: dict[str, Any] = {
    "age": {"kind": "integer", "low": 0, "high": 99, "bins": 10},
    "born": {"kind": "date", "low": "1950-01-01", "high": "1999-12-31", "missing": True},
    "visits": {"kind": "integer", "low": 0, "high": 20, "missing": True},
    "dose": {"kind": "number", "low": 0.5, "high": 2.5, "decimals": 2},
    "sex": {"kind": "category", "levels": ["f", "m"]},
    "ward": {"kind": "category", "levels": [1, 2, 3], "missing": True},
    "same": {"kind": "number", "low": 7, "high": 7},
}
DOMAIN = Domain.model_validate({"columns": COLUMNS})
SMALL = GanConfig(
    steps=40, batch_size=20, pool=32, crowd=64, generator_hidden=(16,), critic_hidden=(8,)
)
SEEDED = Privacy(epsilon=2.0, noise="seeded", seed=3)


def people(n: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    days = draw.integers(-7305, 10957, n).astype("datetime64[D]").astype("datetime64[s]")
    gone = draw.random((2, n)) < 0.3
    return pd.DataFrame(
        {
            "age": draw.integers(0, 100, n),
            "born": pd.Series(days).mask(gone[0]),
            "visits": pd.Series(draw.integers(0, 21, n)).astype("Int64").mask(gone[1]),
            "dose": draw.uniform(0.5, 2.5, n),
            "sex": draw.choice(["f", "m"], n),
            "ward": draw.choice(np.array([1, 2, 3, None], dtype=object), n),
            "same": 7.0,
        }
    )


PEOPLE = people(200)


def train(out: Path, **changes: Any) -> Trained:
    given: dict[str, Any] = {"privacy": SEEDED, "config": SMALL, "frame": PEOPLE, "domain": DOMAIN}
    given |= changes
    frame, domain, privacy = (given.pop(name) for name in ("frame", "domain", "privacy"))
    return gan.train(frame, domain, privacy, out, **given)


# the account


def test_the_ledger_alone_gives_the_budget_that_was_promised(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    trained = train(tmp_path, privacy=Privacy(epsilon=2.0, delta=1e-6), signing_key=key)
    ledger = read(trained.ledger)
    sigma = plan(200, 20, steps=40, epsilon=2.0, delta=1e-6).noise_multiplier
    assert ledger.events() == (SampledGaussian(sigma, 0.1, 40),)
    recomputed = rdp.epsilon(ledger.events(), 1e-6).epsilon
    assert 0.95 * 2.0 < recomputed <= 2.0
    assert recomputed * (1 - 1e-6) <= trained.epsilon <= 2.0
    assert (trained.steps, trained.delta) == (40, 1e-6)
    public = key.public_key().public_bytes_raw()
    states = {f.check: f.state for f in verify(ledger, [trained.weights], public_key=public)}
    batches = states.pop("ledger.batches")
    assert states.pop("ledger.ranks") == "not checkable"
    assert set(states.values()) == {"supported"}
    # this source cannot be seeded: an honest run is refused once in a thousand
    assert batches != "refuted" or poisson_test(200, ledger.batches).p_value > LEVEL / 1000


def test_bounds_and_levels_that_are_not_given_cost_a_share_of_the_budget(tmp_path: Path) -> None:
    open_ = {"age": {"kind": "integer"}, "sex": {"kind": "category"}}
    domain = Domain.model_validate({"columns": COLUMNS | open_})
    frame = people(2000)
    trained = train(tmp_path, frame=frame, domain=domain)
    ledger = read(trained.ledger)
    first, critic = ledger.events()
    assert (first.sample_rate, first.steps) == (1.0, 1)
    assert (critic.sample_rate, critic.steps) == (0.01, 40)
    recomputed = rdp.epsilon(ledger.events(), 1e-5).epsilon
    assert 0.95 * 2.0 < recomputed <= 2.0
    assert recomputed * (1 - 1e-6) <= trained.epsilon <= 2.0
    states = {f.check: f.state for f in verify(ledger, [trained.weights])}
    assert states["ledger.drift"] == states["ledger.steps"] == "supported"
    written = load(tmp_path).domain
    assert not written.unknown
    assert written.columns["age"].low is not None
    with pytest.raises(ValueError, match="'age' was estimated by the killed run"):
        train(tmp_path, frame=frame, domain=domain, resume=True)


# what the generator sees


def frozen(frame: pd.DataFrame) -> dict[str, torch.Tensor]:
    """The generator after a whole game against a critic whose updates are too small to be one."""
    features = torch.from_numpy(DOMAIN.features(frame))
    config = GanConfig(**{**vars(SMALL), "critic_rate": 1e-30})
    spending = plan(len(frame), 20, steps=40, noise_multiplier=0.5)
    game = Game(DOMAIN, features, config, spending, source="seeded", seed=5)
    before = {k: v.clone() for k, v in game.critic.state_dict().items()}
    first = {k: v.clone() for k, v in game.generator.state_dict().items()}
    game.play()
    assert all(torch.equal(v, before[k]) for k, v in game.critic.state_dict().items())
    after = game.generator.state_dict()
    assert not all(torch.equal(v, first[k]) for k, v in after.items())  # it did learn
    return after


def test_without_the_critics_updates_the_records_change_nothing_in_the_generator() -> None:
    """Other values, and another number of records, hence other batches: to the bit the same."""
    one = frozen(PEOPLE)
    for other in (people(200, seed=9), people(333, seed=9), PEOPLE.iloc[:20]):
        assert all(torch.equal(v, one[k]) for k, v in frozen(other).items())


def test_with_the_critics_updates_the_records_do_reach_the_generator(tmp_path: Path) -> None:
    files = [train(tmp_path / str(k), frame=people(200, k)).weights.read_bytes() for k in (0, 1)]
    assert files[0] != files[1]


# what comes out


def test_records_obey_the_domain(tmp_path: Path) -> None:
    train(tmp_path)
    table = load(tmp_path).sample(9000, seed=1)  # more than are generated at once
    assert list(table.columns) == list(COLUMNS)
    assert len(table) == 9000
    DOMAIN.encode(table)  # refuses what is missing without leave, or is no level
    assert table["age"].dtype == np.int64
    assert table["age"].between(0, 99).all()
    assert table["visits"].dtype == "Int64"
    assert table["visits"].dropna().between(0, 20).all()
    born = table["born"].dropna()
    assert born.between(pd.Timestamp("1950-01-01"), pd.Timestamp("1999-12-31")).all()
    assert (born == born.dt.normalize()).all()
    assert table["dose"].between(0.5, 2.5).all()
    assert (table["dose"] == table["dose"].round(2)).all()
    assert set(table["ward"].dropna()) <= {1, 2, 3}
    assert (table["same"] == 7).all()
    gone = table.isna().mean()
    assert (gone[["born", "visits", "ward"]] > 0.01).all()
    assert not gone[["age", "dose", "sex", "same"]].any()


@pytest.mark.parametrize("column", ["age", "ward"])
def test_a_table_of_one_column_has_a_generator_too(tmp_path: Path, column: str) -> None:
    domain = Domain.model_validate({"columns": {column: COLUMNS[column]}})
    train(tmp_path, frame=PEOPLE[[column]], domain=domain)
    domain.encode(load(tmp_path).sample(100, seed=1))


def test_files_hold_the_average_generator_and_no_record(tmp_path: Path) -> None:
    trained = train(tmp_path, quasi_identifiers=["age", "sex"], risk_weight=0.5)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "generator.json", "ledger.jsonl", "weights.safetensors",
    ]  # fmt: skip
    said = json.loads(trained.description.read_text(encoding="utf-8"))
    assert said["settings"]["quasi_identifiers"] == ["age", "sex"]
    assert said["settings"]["risk_weight"] == 0.5
    assert Domain.model_validate(said["domain"]) == DOMAIN
    weights = load_file(trained.weights)
    assert sum(w.numel() for w in weights.values()) < 16 * 16 + 5 * 16 + 17 * DOMAIN.width
    assert not any("critic" in name for name in weights)


def test_a_seed_repeats_training_and_sampling_to_the_bit(tmp_path: Path) -> None:
    one, other = (train(tmp_path / name) for name in "ab")
    assert one.weights.read_bytes() == other.weights.read_bytes()
    assert one.ledger.read_bytes() == other.ledger.read_bytes()
    third = train(tmp_path / "c", privacy=Privacy(epsilon=2.0, noise="seeded", seed=4))
    assert third.weights.read_bytes() != one.weights.read_bytes()
    generator = load(tmp_path / "a")
    pd.testing.assert_frame_equal(generator.sample(50, seed=1), generator.sample(50, seed=1))
    assert not generator.sample(50, seed=1).equals(generator.sample(50, seed=2))


def test_secure_runs_differ_and_leave_the_callers_generator_alone(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    files = [train(tmp_path / n, privacy=Privacy(epsilon=2.0)).weights.read_bytes() for n in "ab"]
    assert files[0] != files[1]
    assert torch.equal(state, torch.random.get_rng_state())


def test_weights_of_another_generator_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "a")
    other = train(tmp_path / "b", config=GanConfig(**{**vars(SMALL), "generator_hidden": (8,)}))
    other.weights.replace(tmp_path / "a" / "weights.safetensors")
    with pytest.raises(ValueError, match="weights: are of another generator"):
        load(tmp_path / "a").sample(5)


# killed runs


def stopped(out: Path, at: int, **changes: Any) -> Ledger:
    def stop(step: int, steps: int, epsilon: float) -> None:
        if step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out, on_step=stop, **changes)
    return read(out / "ledger.jsonl")


@pytest.mark.parametrize("every", [0, 6, 10])
def test_a_seeded_run_that_was_killed_ends_as_if_it_had_not_been(
    tmp_path: Path, every: int
) -> None:
    whole = train(tmp_path / "whole")
    assert stopped(tmp_path / "m", at=27, checkpoint_every=every).steps == 27
    assert not (tmp_path / "m" / "weights.safetensors").exists()
    resumed = train(tmp_path / "m", checkpoint_every=every, resume=True)
    assert resumed.weights.read_bytes() == whole.weights.read_bytes()
    assert read(resumed.ledger).steps == 40
    assert read(resumed.ledger).batches == read(whole.ledger).batches


def test_a_secure_run_that_was_killed_goes_on_and_keeps_its_promise(tmp_path: Path) -> None:
    privacy = Privacy(epsilon=2.0)
    stopped(tmp_path, at=27, privacy=privacy, checkpoint_every=10)
    trained = train(tmp_path, privacy=privacy, resume=True)
    ledger = read(trained.ledger)
    assert ledger.steps == trained.steps == 40  # seven of them after the checkpoint, and lost
    assert [(r.after_step, r.checkpoint_step) for r in ledger.resumes] == [(27, 20)]
    assert rdp.epsilon(ledger.events(), 1e-5).epsilon <= 2.0
    assert not (tmp_path / "checkpoint.pt").exists()


def test_resume_refuses_other_records_and_other_networks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run to resume"):
        train(tmp_path / "m", resume=True)
    stopped(tmp_path / "m", at=12, checkpoint_every=5)
    wider = GanConfig(**{**vars(SMALL), "critic_hidden": (9,)})
    stronger = Privacy(epsilon=1.0, noise="seeded", seed=3)
    for said, changes in (
        ("exists; give a new run", {}),
        ("data_fingerprint: is", {"frame": people(200, seed=1), "resume": True}),
        ("in the run to be resumed", {"privacy": stronger, "resume": True}),
        (r"checkpoint\.pt: is of another model", {"config": wider, "resume": True}),
    ):
        with pytest.raises(ValueError, match=said):
            train(tmp_path / "m", **changes)


# what it learns


def test_a_planted_mixture_is_recovered_when_noise_is_small(tmp_path: Path) -> None:
    """Two groups far apart: shares within 0.1, means within 0.6 of a range of 8 (0.3 standard
    deviations of the whole), and each group on its own side."""
    draw = np.random.default_rng(0)
    side = draw.random(400) < 0.3
    frame = pd.DataFrame(
        {
            "x": np.where(side, 2.5, -1.5) + 0.3 * draw.normal(size=400),
            "y": np.where(side, -2.0, 1.0) + 0.3 * draw.normal(size=400),
            "group": np.where(side, "a", "b"),
        }
    )
    bounds = {"kind": "number", "low": -4, "high": 4}
    groups = {"kind": "category", "levels": ["a", "b"]}
    domain = Domain.model_validate({"columns": {"x": bounds, "y": bounds, "group": groups}})
    privacy = Privacy(epsilon=5000.0, noise="seeded")
    train(tmp_path, frame=frame, domain=domain, privacy=privacy, config=GanConfig())
    made = load(tmp_path).sample(4000, seed=1)
    assert abs((made["group"] == "a").mean() - side.mean()) < 0.1
    for group, x, y in (("a", 2.5, -2.0), ("b", -1.5, 1.0)):
        means = made.loc[made["group"] == group, ["x", "y"]].mean()
        assert abs(means["x"] - x) < 0.6
        assert abs(means["y"] - y) < 0.6


# what cannot be trained

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("lacks column 'sex'", {"frame": PEOPLE.drop(columns="sex")}),
    ("column 'more' is not in the domain", {"frame": PEOPLE.assign(more=1)}),
    ("column 'dose': record 3: 'inf' is infinite", {"frame": PEOPLE.assign(
        dose=np.where(np.arange(200) == 3, math.inf, 1.0))}),
    ("column 'sex': record 0 holds 'x'", {"frame": PEOPLE.assign(sex="x")}),
    ("column 'age': record 0 is missing", {"frame": PEOPLE.assign(age=np.nan)}),
    ("holds no records", {"frame": PEOPLE.iloc[:0]}),
    ("batch_size: 20 is more than 19 records", {"frame": PEOPLE.iloc[:19]}),
    ("quasi_identifiers: 'name' is no column", {"quasi_identifiers": ["name"]}),
    ("quasi_identifiers: 'age' is named twice", {"quasi_identifiers": ["age", "age"]}),
    ("risk_weight: needs quasi_identifiers", {"risk_weight": 1.0}),
    ("risk_weight: must be from 0", {"risk_weight": -1.0, "quasi_identifiers": ["age"]}),
    ("risk_weight: must be from 0", {"risk_weight": math.nan, "quasi_identifiers": ["age"]}),
]  # fmt: skip


@pytest.mark.parametrize(("said", "changes"), BROKEN, ids=range(len(BROKEN)))
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(
    tmp_path: Path, said: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=said):
        train(tmp_path / "m", **changes)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("steps: must be at least 1", {"steps": 0}),
        ("partners: must be at least 1", {"partners": 0}),
        ("critic_hidden: must be at least 1", {"critic_hidden": (4, 0)}),
        ("critic_rate: must be positive", {"critic_rate": math.nan}),
        ("clipping_norm: must be positive", {"clipping_norm": math.inf}),
        ("cosines: must be at least 0", {"cosines": -1}),
        ("products: must be at least 0", {"products": -1}),
        ("averaging: must be from 0", {"averaging": 1.0}),
    ],
)
def test_settings_out_of_range_are_refused(said: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=said):
        GanConfig(**changes)
