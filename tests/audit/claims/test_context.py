"""A real ledger behind a claim: what ran goes before what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.claims import check_claims
from audit.claims.context import read_ledger
from trainers.ledger import Header, LedgerWriter

CLAIM = """
ledger: run.jsonl
claims:
  - id: budget
    family: dp_guarantee
    statement: The run costs ε = {epsilon}.
    relation: add-remove
    epsilon: {epsilon}
    delta: {delta}
"""


def write_ledger(path: Path, steps: int = 40, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "data_fingerprint": "a" * 64, "records": 1000, "sampler": "poisson", "sample_rate": 0.1,
        "expected_batch_size": 100, "clipping": "per_sample", "clipping_norm": 1.0,
        "noise_multiplier": 2.0, "noise_source": "secure", **changes,
    }  # fmt: skip
    rng = np.random.default_rng(5)
    fixed = fields["sampler"] != "poisson"
    with LedgerWriter.create(path, Header(**fields)) as ledger:
        for _ in range(steps):
            ledger.step(
                batch_size=100 if fixed else int(rng.binomial(1000, 0.1)), expected_batch_size=100,
                noise_multiplier=fields["noise_multiplier"], clipping_norm=fields["clipping_norm"],
            )  # fmt: skip
        ledger.end()


def state(tmp_path: Path, epsilon: float, delta: str = "1.0e-5") -> str:
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIM.format(epsilon=epsilon, delta=delta), encoding="utf-8")
    [found] = check_claims(path)
    assert found.evidence[0].path.endswith("run.jsonl")
    return found.state


def test_poisson_batches_support_the_poisson_figure(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run.jsonl")
    assert state(tmp_path, 2.0) == "supported"  # 1.4 by PLD
    assert state(tmp_path, 1.0) == "refuted"


def test_shuffled_batches_do_not(tmp_path: Path) -> None:
    """Four epochs count as four releases with σ = 2: μ = 1, ε = 4.38 at δ = 1e-5."""
    write_ledger(tmp_path / "run.jsonl", sampler="shuffled")
    assert state(tmp_path, 2.0) in ("inconclusive", "refuted")
    assert state(tmp_path, 4.3) in ("inconclusive", "refuted")
    assert state(tmp_path, 4.4) == "supported"


def test_a_run_without_noise_or_clipping_refutes_every_epsilon(tmp_path: Path) -> None:
    for changes in ({"noise_multiplier": 0.0}, {"clipping": "none", "clipping_norm": None}):
        path = tmp_path / "run.jsonl"
        path.unlink(missing_ok=True)
        write_ledger(path, **changes)
        assert state(tmp_path, 1e6) == "refuted"


def test_seeded_noise_supports_nothing(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run.jsonl", noise_source="seeded")
    assert state(tmp_path, 2.0) == "inconclusive"


def test_a_changed_ledger_supports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_ledger(path)
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier": 2.0', b'"noise_multiplier": 9.0')
    )
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier":2.0', b'"noise_multiplier":9.0')
    )
    assert state(tmp_path, 2.0) == "not checkable"


def test_the_ledgers_record_count_warns_of_a_large_delta(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run.jsonl")
    context = read_ledger(tmp_path / "run.jsonl")
    assert (context.records, context.group_size, context.seeded_noise) == (1000, 1, False)
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIM.format(epsilon=2.0, delta="1.0e-3"), encoding="utf-8")
    [found] = check_claims(path)
    assert found.state == "supported"
    assert found.message == "claims.dp_guarantee.supported_large_delta"


@pytest.mark.parametrize("name", ["absent.jsonl", "claims.yaml"])
def test_a_ledger_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    from audit.yaml_file import InputError

    path = tmp_path / "claims.yaml"
    text = CLAIM.format(epsilon=2.0, delta="1.0e-5").replace("run.jsonl", name)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=name):
        check_claims(path)


@pytest.mark.parametrize("event", ['["m","ComposedDpEvent",[]]', '["m","NoOpDpEvent"]'])
def test_a_record_of_nothing_supports_nothing(tmp_path: Path, event: str) -> None:
    (tmp_path / "run.json").write_text(event, encoding="utf-8")
    path = tmp_path / "claims.yaml"
    text = CLAIM.format(epsilon=3.0, delta="1.0e-5").replace("run.jsonl", "run.json")
    path.write_text(text, encoding="utf-8")
    [found] = check_claims(path)
    assert (found.state, found.values["problem"]) == (
        "not checkable",
        "it records no step that ran",
    )


def test_a_ledger_without_a_step_supports_nothing(tmp_path: Path) -> None:
    write_ledger(tmp_path / "run.jsonl", steps=0)
    assert state(tmp_path, 3.0) == "not checkable"
