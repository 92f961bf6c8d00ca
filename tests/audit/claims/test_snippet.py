"""The verdict on code: what its reading may support, and what a description beside it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from audit.claims import judge
from audit.claims.context import Context
from audit.claims.schema import ClaimsFile
from audit.claims.snippet import noise_factor
from audit.yaml_file import InputError
from reports.record import Finding

SNIPPETS = Path(__file__).parents[3] / "fixtures" / "snippets"
RUN: dict[str, Any] = {
    "noise_multiplier": 1.41, "batch_size": 256, "records": 2000, "steps": 100, "delta": 1e-5,
    "relation": "add-remove",
}  # fmt: skip
ALL = ("bounds_each_record", "accounted_mechanism", "epsilon")


def verdict(folder: Path, **fields: Any) -> Finding:
    entry = {"id": "c", "family": "snippet", "statement": "A claim.", **fields}
    file = ClaimsFile.model_validate({"claims": [entry]})
    [found] = judge(file.as_claims("test"), Context(folder=folder))
    return found


@pytest.mark.parametrize(
    ("name", "bounds", "accounted", "epsilon"),
    [
        ("dpsgd_step", "supported", "supported", "supported"),
        ("record_by_record", "supported", "supported", "supported"),
        ("noise_on_the_mean", "supported", "refuted", "supported"),  # private, over-noised
        ("mask_after_total_clipping", "refuted", "refuted", "refuted"),
        ("mask_and_divided_noise", "refuted", "refuted", "refuted"),
    ],
)
def test_the_five_fixtures(name: str, bounds: str, accounted: str, epsilon: str) -> None:
    states = [
        verdict(SNIPPETS, file=f"{name}.py", asserts=asserts, epsilon=5.09, **RUN).state
        for asserts in ALL
    ]
    assert states == [bounds, accounted, epsilon]


def test_the_file_read_is_the_evidence() -> None:
    found = verdict(SNIPPETS, file="dpsgd_step.py", asserts="bounds_each_record")
    assert found.evidence[0].path == "dpsgd_step.py"
    assert len(found.evidence[0].sha256) == 64


@pytest.mark.parametrize("asserts", ALL)
def test_a_description_cannot_say_what_the_file_does_not_show(tmp_path: Path, asserts: str) -> None:
    (tmp_path / "step.py").write_text("def step(g): return helper(g)\n")
    described = {"clipping": "per_record", "noise_on": "sum", "noise_divided_by_batch": False}
    found = verdict(tmp_path, file="step.py", asserts=asserts, epsilon=5.09, **RUN, **described)
    assert found.state == "not checkable"
    assert verdict(tmp_path, asserts=asserts, epsilon=5.09, **RUN, **described).state == "supported"


def test_a_description_that_contradicts_the_file_is_not_checkable() -> None:
    found = verdict(
        SNIPPETS, file="mask_after_total_clipping.py", asserts="bounds_each_record",
        clipping="per_record",
    )  # fmt: skip
    assert found.state == "not checkable"
    assert "aggregate" in found.meaning


STEP = """
def step(w, grad_sample, C):
    norms = grad_sample.flatten(1).norm(2, dim=1)
    total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
    return total + torch.randn_like(total) * C * 0.7
"""


def test_the_sigma_in_the_code_must_be_the_stated_one(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STEP)
    claim = {"file": "step.py", "asserts": "epsilon", "epsilon": 5.09}
    assert verdict(tmp_path, **claim, **RUN).state == "not checkable"
    assert verdict(tmp_path, **claim, **{**RUN, "noise_multiplier": 0.7}).state == "refuted"
    assert (
        verdict(tmp_path, **{**claim, "epsilon": 30}, **{**RUN, "noise_multiplier": 0.7}).state
        == "supported"
    )


def test_a_seed_in_the_code_refutes_its_epsilon(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("torch.manual_seed(42)\n" + STEP.replace("0.7", "sigma"))
    for asserts, state in zip(ALL, ("supported", "refuted", "refuted"), strict=True):
        found = verdict(tmp_path, file="step.py", asserts=asserts, epsilon=5.09, **RUN)
        assert found.state == state


def test_an_epsilon_needs_all_that_the_account_needs() -> None:
    for missing in RUN:
        fields = {k: v for k, v in RUN.items() if k != missing}
        found = verdict(SNIPPETS, file="dpsgd_step.py", asserts="epsilon", epsilon=50, **fields)
        assert found.state == "not checkable"


def test_noise_over_the_true_sensitivity() -> None:
    assert noise_factor("per_record", "sum", False, 256) == 1
    assert noise_factor("per_record", "mean", False, 256) == 256
    assert noise_factor("per_record", "mean", True, 256) == 1
    assert noise_factor("per_record", "sum", True, 256) == 1 / 256
    assert noise_factor("aggregate", "sum", False, 256) == 1 / 2
    assert noise_factor("none", "sum", False, 256) == 0
    assert noise_factor("per_record", "none", False, 256) == 0


@pytest.mark.parametrize("name", ["absent.py", ".", "../snippets"])
def test_a_file_that_cannot_be_read_is_bad_input(name: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        verdict(SNIPPETS, file=name, asserts="bounds_each_record")
