"""Budgets along a graph of stages, against sums, maxima and closed forms worked out by hand."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import numpy as np
import pytest

from audit.accounting.convert import gdp_mu, gdp_to_epsilon
from audit.lineage import Lineage, read_lineage
from trainers.ledger import Header, LedgerWriter

FIXTURES = Path(__file__).parents[2] / "fixtures" / "lineage"


def lineage(tmp_path: Path, text: str) -> Lineage:
    path = tmp_path / "lineage.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return read_lineage(path)


def epsilon(found: Lineage, stage: str, population: str) -> tuple[float, float]:
    [one] = [e for e in found.exposures if (e.stage, e.population) == (stage, population)]
    return one.account.high, one.delta


def states(found: Lineage) -> dict[str, str]:
    return {f.id: f.state for f in found.findings}


def test_the_same_people_pay_twice() -> None:
    found = read_lineage(FIXTURES / "same_people.yaml")
    assert epsilon(found, "pretrain", "patients") == pytest.approx((1.0, 1e-5))
    assert epsilon(found, "finetune", "patients") == pytest.approx((1.32, 2e-5))
    assert epsilon(found, "generate", "patients") == pytest.approx((1.32, 2e-5))
    assert states(found)["lineage/promise/0"] == "supported"


def test_known_gaussians_compose_to_1066(tmp_path: Path) -> None:
    text = (FIXTURES / "same_people.yaml").read_text(encoding="utf-8")
    text = text.replace("1.0e-5}", "1.0e-5, gaussian: true}").replace(
        "epsilon: 1.32, delta: 2.0e-5", "epsilon: 1.067, delta: 1.0e-5"
    )
    found = lineage(tmp_path, text)
    mu = math.hypot(gdp_mu(1.0, 1e-5), gdp_mu(0.32, 1e-5))
    assert epsilon(found, "generate", "patients")[0] == pytest.approx(1.066, abs=5e-4)
    assert epsilon(found, "generate", "patients")[0] == pytest.approx(gdp_to_epsilon(mu, 1e-5))
    assert states(found)["lineage/promise/0"] == "supported"
    replaced = lineage(
        tmp_path, text.replace("\npopulations", "\nrelation: replace-one\npopulations", 1)
    )
    assert epsilon(replaced, "generate", "patients")[0] == pytest.approx(1.066, abs=5e-4)


def test_at_the_same_delta_the_sum_is_not_shown(tmp_path: Path) -> None:
    text = (FIXTURES / "same_people.yaml").read_text(encoding="utf-8")
    found = lineage(tmp_path, text.replace("delta: 2.0e-5", "delta: 1.0e-5"))
    assert states(found)["lineage/promise/0"] == "inconclusive"


def test_disjoint_people_pay_once() -> None:
    found = read_lineage(FIXTURES / "disjoint_people.yaml")
    assert epsilon(found, "generate", "ward-a")[0] == pytest.approx(1.0)
    assert epsilon(found, "generate", "ward-b")[0] == pytest.approx(0.32)
    assert states(found)["lineage/promise/0"] == "supported"


def test_populations_may_overlap_unless_they_are_stated_to_be_disjoint(tmp_path: Path) -> None:
    text = (FIXTURES / "disjoint_people.yaml").read_text(encoding="utf-8")
    found = lineage(tmp_path, text.replace("disjoint: [[ward-a, ward-b]]\n", ""))
    for ward in ("ward-a", "ward-b"):
        assert epsilon(found, "generate", ward)[0] == pytest.approx(1.066, abs=5e-4)
    assert states(found)["lineage/promise/0"] == "refuted"


def test_raw_data_spoil_every_descendant_and_the_stage_is_named() -> None:
    found = read_lineage(FIXTURES / "raw_pretraining.yaml")
    for stage in ("base", "finetune", "generate"):
        assert epsilon(found, stage, "patients")[0] == math.inf
    [raw] = [f for f in found.findings if f.check == "lineage.raw"]
    assert raw.state == "refuted"
    assert raw.values["subject"] == "base"
    assert raw.values["descendants"] == "finetune, generate"
    assert "base" in raw.meaning
    assert states(found)["lineage/promise/0"] == "refuted"
    assert not [e for e in found.exposures if e.population == "web"]  # public: nothing to lose


def test_a_filter_that_looks_at_originals_is_no_post_processing() -> None:
    found = read_lineage(FIXTURES / "filter_near_originals.yaml")
    assert epsilon(found, "generate", "patients")[0] == pytest.approx(5.086, abs=1e-3)
    assert epsilon(found, "drop-near-copies", "patients")[0] == math.inf
    assert epsilon(found, "release", "patients")[0] == math.inf
    assert states(found)["lineage/promise/0"] == "supported"
    assert states(found)["lineage/promise/1"] == "refuted"
    [raw] = [f for f in found.findings if f.check == "lineage.raw"]
    assert raw.message == "lineage.filter"


def test_post_processing_is_free_and_a_diamond_counts_once(tmp_path: Path) -> None:
    found = lineage(
        tmp_path,
        """
        populations: {people: {}}
        stages:
          - {id: train, reads: [people], budget: {epsilon: 1.0, delta: 1.0e-6}}
          - {id: left, inputs: [train]}
          - {id: right, inputs: [train]}
          - {id: both, inputs: [left, right]}
        """,
    )
    assert epsilon(found, "both", "people") == pytest.approx((1.0, 1e-6))


def test_two_models_merged_cost_both(tmp_path: Path) -> None:
    found = lineage(
        tmp_path,
        """
        populations: {people: {}}
        stages:
          - {id: merged, inputs: [a, b]}
          - {id: a, reads: [people], budget: {epsilon: 1.0}}
          - {id: b, reads: [people], budget: {epsilon: 0.5}}
        promises:
          - {stage: merged, epsilon: 1.0, delta: 1.0e-5}
        """,
    )
    assert epsilon(found, "merged", "people")[0] == pytest.approx(1.5)
    assert states(found)["lineage/promise/0"] == "inconclusive"  # bare ε are only upper bounds


def test_groups_of_three_wards(tmp_path: Path) -> None:
    """a and b are disjoint, c may share people with either: at most a+c or b+c."""
    found = lineage(
        tmp_path,
        """
        populations: {a: {}, b: {}, c: {}}
        disjoint: [[a, b]]
        stages:
          - {id: one, reads: [a], budget: {epsilon: 1.0}}
          - {id: two, inputs: [one], reads: [b], budget: {epsilon: 2.0}}
          - {id: three, inputs: [two], reads: [c], budget: {epsilon: 4.0}}
        """,
    )
    assert epsilon(found, "three", "a")[0] == pytest.approx(5.0)
    assert epsilon(found, "three", "b")[0] == pytest.approx(6.0)
    assert epsilon(found, "three", "c")[0] == pytest.approx(6.0)


def write_ledger(path: Path, noise_source: str = "secure") -> None:
    rng = np.random.default_rng(5)
    header = Header(
        data_fingerprint="a" * 64, records=1000, sampler="poisson", sample_rate=0.1,
        expected_batch_size=100, clipping="per_sample", clipping_norm=1.0, noise_multiplier=2.0,
        noise_source=noise_source,  # type: ignore[arg-type]
    )  # fmt: skip
    with LedgerWriter.create(path, header) as ledger:
        for _ in range(40):
            ledger.step(
                batch_size=int(rng.binomial(1000, 0.1)), expected_batch_size=100,
                noise_multiplier=2.0, clipping_norm=1.0,
            )  # fmt: skip
        ledger.end()


LEDGER_STAGE = """
populations: {people: {}}
stages:
  - {id: train, reads: [people], budget: {ledger: run.jsonl}}
  - {id: out, inputs: [train]}
promises:
  - {stage: out, epsilon: 8.0, delta: 1.0e-5}
"""


def test_a_stage_with_a_ledger_costs_what_the_ledger_says(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run.jsonl")
    found = lineage(tmp_path, LEDGER_STAGE)
    stated = lineage(
        tmp_path,
        LEDGER_STAGE.replace(
            "{ledger: run.jsonl}",
            "{mechanisms: [{noise_multiplier: 2.0, sample_rate: 0.1, steps: 40}]}",
        ),
    )
    assert epsilon(found, "out", "people") == epsilon(stated, "out", "people")
    assert states(found)["lineage/promise/0"] == "supported"


def test_seeded_noise_guarantees_nothing(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run.jsonl", noise_source="seeded")
    found = lineage(tmp_path, LEDGER_STAGE)
    assert epsilon(found, "out", "people")[0] == math.inf
    assert states(found)["lineage/train/ledger"] == "inconclusive"
    assert states(found)["lineage/promise/0"] == "inconclusive"


def test_a_broken_ledger_guarantees_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_ledger(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    found = lineage(tmp_path, LEDGER_STAGE)
    assert epsilon(found, "out", "people")[0] == math.inf
    assert states(found)["lineage/promise/0"] != "supported"
