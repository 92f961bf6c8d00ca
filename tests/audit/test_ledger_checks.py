"""Every planted fault is found by the check that is meant for it, and honest ledgers pass."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy import stats

from audit.ledger import read
from audit.ledger_batches import LEVEL, poisson_test, shuffled_sizes
from audit.ledger_checks import verify
from reports.record import Finding
from reports.sentence import texts
from trainers.ledger import Header, LedgerWriter

N, B, STEPS = 1000, 100, 60
Events = list[dict[str, Any]]


def _events(ranks: int = 2) -> Events:
    """An honest run's events, before they are chained."""
    header = {
        "kind": "header", "schema": "dpassay.ledger/1", "data_fingerprint": "a" * 64, "records": N,
        "sampler": "poisson", "sample_rate": B / N, "expected_batch_size": B,
        "clipping": "per_sample", "clipping_norm": 1.0, "noise_multiplier": 1.1,
        "noise_source": "secure", "unit": "record", "group_size": 1, "ranks": ranks,
        "orders": [2.0, 8.0], "planned_steps": STEPS, "delta": 1e-5, "epsilon": 3.0, "code": "",
        "versions": {},
    }  # fmt: skip
    sizes = np.random.default_rng(1).binomial(N, B / N, STEPS).tolist()
    steps = [
        {
            "kind": "step", "step": i, "batch_size": size, "expected_batch_size": B,
            "noise_multiplier": 1.1, "clipping_norm": 1.0, "rdp": [[0.012, 0.063]] * ranks,
        }
        for i, size in enumerate(sizes, 1)
    ]  # fmt: skip
    checkpoint = {
        "kind": "checkpoint",
        "step": STEPS,
        "file": "model.safetensors",
        "sha256": hashlib.sha256(b"model").hexdigest(),
    }
    return [header, *steps, checkpoint, {"kind": "end", "steps": STEPS, "epsilon": 3.0}]


def _chained(path: Path, events: Events) -> Path:
    """What a forger writes who knows the format: every digest right."""
    head, lines = "0" * 64, []
    for event in events:
        line = json.dumps({"prev": head, **event}, separators=(",", ":")).encode()
        head = hashlib.sha256(line).hexdigest()
        lines.append(line + b"\n")
    path.write_bytes(b"".join(lines))
    return path


def _found(path: Path, **options: Any) -> dict[str, Finding]:
    return {f.check.removeprefix("ledger."): f for f in verify(read(path), **options)}


def test_an_honest_ledger_passes_every_check(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"model")
    path = _chained(tmp_path / "l.jsonl", _events())
    found = _found(path, files=[model], data_fingerprint="a" * 64)
    assert {name: f.state for name, f in found.items()} == {
        **dict.fromkeys(
            ("chain", "steps", "end", "rate", "batches", "drift", "data", "ranks", "file", "noise"),
            "supported",
        ),
        "signature": "not checkable",
    }
    assert found["batches"].values["n"] == STEPS
    assert "nine times in ten" in found["batches"].power
    assert all("n" in f.values or f.check == "ledger.signature" for f in found.values())


def _edit(index: int, **fields: Any) -> Callable[[Events], None]:
    return lambda events: events[index].update(fields)


def _edit_steps(**fields: Any) -> Callable[[Events], None]:
    def apply(events: Events) -> None:
        for event in events:
            if event["kind"] == "step":
                event.update(fields)

    return apply


FAULTS: list[tuple[str, str, Callable[[Events], None]]] = [
    ("missing step", "steps", lambda events: events.pop(30)),
    ("repeated step", "steps", lambda events: events.insert(30, events[30])),
    ("reordered steps", "steps", lambda events: events.insert(20, events.pop(30))),
    ("no end mark", "end", lambda events: events.pop()),
    ("wrong count at the end", "end", _edit(-1, steps=STEPS - 1)),
    ("rate of a loader", "rate", _edit(0, sample_rate=0.125)),
    ("constant batches", "batches", _edit_steps(batch_size=B)),
    ("batches too large", "batches", _edit_steps(batch_size=B + 30)),
    ("more than there is", "batches", _edit(5, batch_size=N + 1)),
    ("noise drifts", "drift", _edit(40, noise_multiplier=0.9)),
    ("clipping drifts", "drift", _edit(40, clipping_norm=2.0)),
    ("batch size drifts", "drift", _edit(40, expected_batch_size=B + 1)),
    ("ranks disagree", "ranks", _edit(40, rdp=[[0.012, 0.063], [0.012, 0.064]])),
    ("a rank is silent", "ranks", _edit(40, rdp=[[0.012, 0.063]])),
]


@pytest.mark.parametrize(("name", "check", "plant"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_refuted_by_its_check(
    tmp_path: Path, name: str, check: str, plant: Callable[[Events], object]
) -> None:
    events = _events()
    plant(events)
    found = _found(_chained(tmp_path / "l.jsonl", events))
    assert found["chain"].state == "supported"  # the forger chains well: content gives it away
    assert found[check].state == "refuted"
    others = {n for n, f in found.items() if f.state == "refuted"} - {check}
    assert others <= {"steps": {"end"}}.get(check, set())


@pytest.mark.parametrize(
    "tamper",
    [
        lambda lines: lines.__setitem__(9, lines[9].replace(b'"batch_size":', b'"batch_size":1')),
        lambda lines: lines.pop(9),
        lambda lines: lines.insert(12, lines.pop(9)),
        lambda lines: lines.insert(9, lines[9]),
        lambda lines: lines.__setitem__(0, lines[0].replace(b'"records":1000', b'"records":9000')),
    ],
    ids=["edited", "dropped", "moved", "doubled", "header"],
)
def test_a_line_that_was_touched_breaks_the_chain(
    tmp_path: Path, tamper: Callable[[list[bytes]], object]
) -> None:
    path = _chained(tmp_path / "l.jsonl", _events())
    lines = path.read_bytes().splitlines(keepends=True)
    tamper(lines)
    path.write_bytes(b"".join(lines))
    assert _found(path)["chain"].state == "refuted"


@pytest.mark.parametrize("lost", [1, 2, 30, 400])
def test_a_tail_that_was_cut_off_leaves_no_end_mark(tmp_path: Path, lost: int) -> None:
    path = _chained(tmp_path / "l.jsonl", _events())
    whole = path.read_bytes()
    by_lines = b"".join(whole.splitlines(keepends=True)[: -min(lost, 61)])
    for cut in (by_lines, whole[:-lost]):  # between lines, and in the middle of one
        path.write_bytes(cut)
        found = _found(path)
        assert found["end"].state == "refuted"
        assert found["chain"].state == "supported"  # what is left is whole


def test_missing_steps_are_accounted_and_never_save_budget(tmp_path: Path) -> None:
    events = _events()
    del events[20:40]
    assert read(_chained(tmp_path / "l.jsonl", events)).steps == STEPS


def test_a_change_that_is_announced_is_no_drift(tmp_path: Path) -> None:
    events = _events()
    setting = {"expected_batch_size": B, "noise_multiplier": 2.0, "clipping_norm": 1.0}
    for event in events[40:61]:
        event.update(setting)
    events.insert(40, {"kind": "change", **setting, "reason": "schedule"})
    assert _found(_chained(tmp_path / "l.jsonl", events))["drift"].state == "supported"


@pytest.mark.parametrize(
    ("source", "state"),
    [("secure", "supported"), ("unseeded", "supported"), ("seeded", "inconclusive")],
)
def test_seeded_noise_carries_no_guarantee(tmp_path: Path, source: str, state: str) -> None:
    events = _events()
    events[0]["noise_source"] = source
    assert _found(_chained(tmp_path / "l.jsonl", events))["noise"].state == state


def test_a_model_file_must_be_in_the_ledger(tmp_path: Path) -> None:
    path = _chained(tmp_path / "l.jsonl", _events())
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.write_bytes(b"model")
    other.write_bytes(b"Model")
    states = {
        f.values["file"]: f.state
        for f in verify(read(path), [mine, other])
        if f.check == "ledger.file"
    }
    assert states == {"mine": "supported", "other": "refuted"}
    assert _found(path)["file"].state == "not checkable"
    assert _found(path, data_fingerprint="b" * 64)["data"].state == "refuted"


def _signed(path: Path, key: Ed25519PrivateKey | None) -> Path:
    header = Header("a" * 64, N, "poisson", B / N, B, "per_sample", 1.0, 1.1, "secure")
    with LedgerWriter.create(path, header) as ledger:
        ledger.step(batch_size=B, expected_batch_size=B, noise_multiplier=1.1, clipping_norm=1.0)
        ledger.end(epsilon=3.0, key=key)
    return path


def test_signatures(tmp_path: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    mine, theirs = (k.public_key().public_bytes_raw() for k in (key, other))
    path = _signed(tmp_path / "signed.jsonl", key)
    assert _found(path, public_key=mine)["signature"].state == "supported"
    assert _found(path)["signature"].state == "inconclusive"
    assert _found(path, public_key=theirs)["signature"].message.endswith("other_key")
    bare = _signed(tmp_path / "bare.jsonl", None)
    assert _found(bare, public_key=mine)["signature"].message.endswith("unsigned")
    text = path.read_text()
    for name, forged in {
        "another epsilon": text.replace('"epsilon":3.0', '"epsilon":1.0'),
        "a field after the signature": text[:-2] + ',"steps":1}\n',
        "another signature": text[:-12] + "0123456789"[:8] + text[-4:],
    }.items():
        other_path = tmp_path / f"{name}.jsonl"
        other_path.write_text(forged)
        assert _found(other_path, public_key=mine)["signature"].state == "refuted", name


def _null_sizes(rng: np.random.Generator, case: int) -> tuple[int, float, dict[int, int]]:
    records, expected, steps = [(285, 64, 90), (2000, 1, 300), (60_000, 256, 40), (500, 250, 12)][
        case % 4
    ]
    sizes = rng.binomial(records, expected / records, steps)
    return records, expected, Counter(sizes.tolist())


def test_honest_runs_are_refuted_no_more_often_than_the_level_says() -> None:
    rng = np.random.default_rng(2024)
    runs = 2000
    alarms = 0
    for case in range(runs):
        if case % 4 >= 2 and case > 160:
            continue  # the simulated tests are slower: 40 of each
        records, expected, sizes = _null_sizes(rng, case)
        alarms += poisson_test(records, {expected: sizes}).p_value <= LEVEL
    # 1,080 honest ledgers at level 0.001: more than 6 alarms has probability below 2e-4
    assert alarms <= stats.binom.ppf(1 - 2e-4, 1080, LEVEL)


# records, expected batch, steps, simulated ledgers: short runs, tiny and huge rates, long runs
HONEST = [
    (285, 64, 90, 20_000),
    (5000, 5, 50, 20_000),
    (8, 4, 100, 20_000),
    (100_000, 0.01, 5000, 20_000),
    (1000, 10, 1, 1000),
    (1, 0.5, 1, 1000),
    (10, 9.5, 3, 1000),
    (20, 10, 49, 150),
    (569, 568, 60, 150),
    (300, 0.5, 400, 60),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_false_alarm_rate_is_the_stated_one_for_runs_of_every_length() -> None:
    rng = np.random.default_rng(0)
    alarms, total = 0, 0
    for records, expected, steps, runs in HONEST:
        found = 0
        for _ in range(runs):
            sizes = Counter(rng.binomial(records, expected / records, steps).tolist())
            found += poisson_test(records, {float(expected): sizes}).p_value <= LEVEL
        # each case above this limit with probability below 1e-5 at the stated level
        assert found <= stats.binom.ppf(1 - 1e-5, runs, LEVEL), (records, expected, steps)
        alarms, total = alarms + found, total + runs
    print(f"false alarms: {alarms} of {total}, at level {LEVEL}")
    assert alarms <= stats.binom.ppf(1 - 1e-5, total, LEVEL)


@pytest.mark.parametrize("drawn", [1, 30])
def test_next_to_empty_batches_are_tested_by_their_total(drawn: int) -> None:
    # 5,000 steps of 0.01 expected records draw 50 in all
    test = poisson_test(100_000, {0.01: {drawn: 4000, 0: 1000}})
    assert test.p_value <= LEVEL
    assert not test.blind


def test_one_step_that_drew_what_it_should_is_no_alarm() -> None:
    test = poisson_test(1000, {10.0: {10: 1}})
    assert test.p_value > LEVEL
    assert test.blind


def test_p_values_of_honest_runs_are_not_too_small_anywhere() -> None:
    rng = np.random.default_rng(7)
    p_values = np.array(
        [
            poisson_test(2000, {128: Counter(rng.binomial(2000, 0.064, 100).tolist())}).p_value
            for _ in range(400)
        ]
    )
    for level in (0.01, 0.05, 0.2):
        hits = int((p_values <= level).sum())
        assert stats.binom.sf(hits - 1, len(p_values), level) > 1e-4


@pytest.mark.parametrize("steps", [5, 10, 49, 50, 1000])
def test_constant_batches_are_found_from_five_steps_on(steps: int) -> None:
    test = poisson_test(285, {64: {64: steps}})
    assert test.p_value <= LEVEL
    assert not test.blind


def test_two_steps_tell_nothing_and_the_finding_says_so(tmp_path: Path) -> None:
    assert poisson_test(285, {64: {64: 2}}).blind
    events = _events()
    del events[3:61]
    events[-1]["steps"] = 2
    events[-2]["step"] = 2
    assert _found(_chained(tmp_path / "l.jsonl", events))["batches"].state == "inconclusive"


def test_the_stated_power_is_reached() -> None:
    rng = np.random.default_rng(11)
    records, expected, steps, runs = 10_000, 400, 200, 200
    law = stats.binom(records, expected / records)
    low, high = poisson_test(
        records, {expected: Counter(law.rvs(steps, random_state=rng))}
    ).seen_spread
    for ratio in (low, high):
        spread = np.sqrt(ratio * law.var())
        found = sum(
            poisson_test(
                records,
                {
                    expected: Counter(
                        np.rint(rng.normal(expected, spread, steps)).astype(int).tolist()
                    )
                },
            ).p_value
            <= LEVEL
            for _ in range(runs)
        )
        assert stats.binom.cdf(found, runs, 0.9) > 1e-3


def test_a_schedule_of_batch_sizes_is_tested_as_a_whole() -> None:
    rng = np.random.default_rng(3)
    expected = np.linspace(50, 150, 200)
    honest = {float(e): {int(rng.binomial(N, e / N)): 1} for e in expected}
    assert poisson_test(N, honest).p_value > LEVEL
    assert poisson_test(N, {float(e): {round(e): 1} for e in expected}).p_value <= LEVEL


def test_sizes_of_shuffled_epochs() -> None:
    assert shuffled_sizes(285, 64, {64: 8, 29: 2})
    assert shuffled_sizes(256, 64, {64: 8})
    assert shuffled_sizes(285, 64, {64: 6, 29: 1})  # killed within the second epoch
    assert not shuffled_sizes(285, 64, {64: 8, 30: 2})
    assert not shuffled_sizes(285, 64, {64: 2, 29: 8})
    assert not shuffled_sizes(285, 64, {65: 8})


def test_every_message_has_its_sentence_in_both_languages(tmp_path: Path) -> None:
    messages = set()
    for _, _, plant in FAULTS:
        events = _events()
        plant(events)
        messages |= {f.message for f in _found(_chained(tmp_path / "l.jsonl", events)).values()}
    for locale in ("en", "zh"):
        assert messages <= texts(locale).keys()
