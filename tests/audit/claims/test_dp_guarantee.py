"""When a guarantee may be called supported, and when its account alone does not suffice."""

from __future__ import annotations

from typing import Any

import pytest

from audit.accounting.events import SampledGaussian
from audit.claims import judge
from audit.claims.context import Context
from audit.claims.schema import ClaimsFile
from reports.record import Finding, Interval

STATED: dict[str, Any] = {  # 5.086 by PLD, 5.626 by RDP; 8.854 under replace-one
    "noise_multiplier": 1.41, "batch_size": 256, "records": 2000, "steps": 100, "delta": 1e-5,
    "relation": "add-remove",
}  # fmt: skip


def verdict(context: Context | None = None, **fields: Any) -> Finding:
    entry = {"id": "c", "family": "dp_guarantee", "statement": "A claim.", **fields}
    file = ClaimsFile.model_validate({"claims": [entry]})
    [found] = judge(file.as_claims("test"), context or Context())
    return found


def ledger(noise: float = 1.41, steps: int = 100, **fields: Any) -> Context:
    sampling = fields.pop("sampling", "poisson")
    rate = fields.pop("rate", 0.128)
    return Context(events=(SampledGaussian(noise, rate, steps, sampling),), **fields)


def test_the_printed_number_is_taken_as_it_is_written() -> None:
    assert verdict(**STATED, epsilon=5.09).state == "supported"
    assert verdict(**STATED, epsilon=5.08).state == "refuted"  # 5.0858 is over 5.085
    assert verdict(**STATED, epsilon=5.085).state == "refuted"
    assert verdict(**STATED, epsilon=5.086).state == "inconclusive"  # 5.08642 rounds to it
    assert verdict(**STATED, epsilon=5).state == "refuted"


def test_an_unstated_relation_is_never_filled_in() -> None:
    unstated = {k: v for k, v in STATED.items() if k != "relation"}
    assert verdict(**unstated, epsilon=5.09).state == "not checkable"
    assert verdict(**unstated, epsilon=8.86).state == "supported"  # under both
    assert verdict(**unstated, epsilon=5.0).state == "refuted"  # under both
    assert verdict(**{**STATED, "relation": "replace-one"}, epsilon=5.09).state == "refuted"


def test_an_unstated_delta_is_never_supported() -> None:
    fields = {k: v for k, v in STATED.items() if k != "delta"}
    for epsilon in (5.09, 100.0, 1e6):
        found = verdict(**fields, epsilon=epsilon)
        assert found.state == "not checkable"
        assert found.values["missing"] == "delta"
    assert verdict(**fields, epsilon=0.1).state == "refuted"  # at no plausible δ


@pytest.mark.parametrize("missing", ["noise_multiplier", "batch_size", "steps"])
def test_what_was_only_tried_is_not_proved(missing: str) -> None:
    fields = {k: v for k, v in STATED.items() if k != missing}
    found = verdict(**fields, epsilon=1e7)
    assert found.state == "not checkable"
    assert "epochs" in str(found.values["missing"]) or missing in str(found.values["missing"])


def test_a_delta_of_one_over_n_or_more_is_warned_of() -> None:
    fields = {**STATED, "delta": 1 / 2000}
    found = verdict(**fields, epsilon=5.0)
    assert found.state == "supported"
    assert "1/2,000" in found.meaning
    assert found.remedy
    assert verdict(**{**STATED, "delta": 0.9 / 2000}, epsilon=5.0).remedy == ""
    context = ledger(records=2000)
    found = verdict(context, epsilon=5.0, delta=1e-3, relation="add-remove")
    assert "1/2,000" in found.meaning


def test_a_published_seed_refutes_whatever_the_account_says() -> None:
    found = verdict(**STATED, epsilon=1e9, noise_seed_published=True)
    assert found.state == "refuted"
    assert found.figures["epsilon"].low == float("inf")


def test_seeded_noise_in_the_ledger_supports_nothing() -> None:
    claim = {"epsilon": 5.09, "delta": 1e-5, "relation": "add-remove"}
    assert verdict(ledger(), **claim).state == "supported"
    assert verdict(ledger(seeded_noise=True), **claim).state == "inconclusive"


def test_users_need_the_number_of_their_records() -> None:
    fields = {**STATED, "unit": "user"}
    assert verdict(**fields, epsilon=5.09).state == "not checkable"
    assert verdict(**fields, epsilon=5.09, records_per_user=1).state == "supported"
    assert verdict(**fields, epsilon=5.09, records_per_user=3).state == "refuted"


def test_a_claim_cannot_have_fewer_records_per_user_than_the_ledger() -> None:
    claim = {"epsilon": 5.09, "delta": 1e-5, "relation": "add-remove", "unit": "user"}
    found = verdict(ledger(group_size=4), **claim, records_per_user=1)
    assert found.state == "refuted"


def test_shuffled_batches_are_not_accounted_as_poisson() -> None:
    """Without amplification 13 epochs cost 14.9; the Poisson figure of 5.09 guarantees nothing."""
    claim = {"epsilon": 5.09, "delta": 1e-5, "relation": "add-remove"}
    found = verdict(ledger(sampling="shuffled"), **claim)
    assert found.state in ("inconclusive", "refuted")
    assert found.figures["epsilon"].high > 14
    assert "as if Poisson" not in " ".join(found.figures)
    assert verdict(ledger(sampling="shuffled"), **{**claim, "epsilon": 14.9}).state == "supported"
    stated = verdict(**{**STATED, "sampling": "shuffled"}, epsilon=5.09)
    assert stated.state in ("inconclusive", "refuted")


def test_the_ledger_goes_before_what_the_claim_states() -> None:
    assert verdict(ledger(noise=0.7), **STATED, epsilon=5.09).state == "refuted"


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({}, {"noise": 2.0}),
        ({}, {"steps": 50}),
        ({}, {"rate": 0.01}),
        ({}, {"records": 500}),
        ({"sampling": "without_replacement"}, {}),
        ({"release": "model-v2.safetensors"}, {"released": ("model-v1.safetensors", "ab" * 32)}),
    ],
)
def test_a_ledger_of_another_run_or_release_supports_nothing(
    fields: dict[str, Any], context: dict[str, Any]
) -> None:
    found = verdict(ledger(**context), **{**STATED, **fields}, epsilon=6.0)
    assert found.state == "not checkable"
    assert found.values["differs"]


def test_the_release_is_known_by_its_name_or_digest() -> None:
    context = ledger(released=("model-v1.safetensors", "ab" * 32))
    for release in ("model-v1.safetensors", "out/model-v1.safetensors", "ab" * 32):
        assert verdict(context, **STATED, epsilon=5.09, release=release).state == "supported"


def test_a_ledger_that_cannot_be_relied_on_supports_nothing() -> None:
    context = ledger(ledger_problem="The chain is broken.")
    assert verdict(context, **STATED, epsilon=9.0).state == "not checkable"


def test_a_lower_bound_above_the_claim_refutes_it_and_one_below_says_nothing() -> None:
    low = {"audit": Interval(6.0, 6.5, 99.0, 0.95, "one-run", 1000)}
    assert verdict(ledger(epsilon_lower=low), **STATED, epsilon=5.09).state == "refuted"
    few = {"audit": Interval(0.0, 0.0, 99.0, 0.95, "one-run", 1000)}
    assert verdict(Context(epsilon_lower=few), epsilon=1.0, delta=1e-5).state == "not checkable"


def test_meeting_a_limit_is_arithmetic() -> None:
    assert verdict(**STATED, epsilon=5.09, limit=5.0).state == "refuted"
    assert verdict(**STATED, epsilon=5.09, limit=6.0).state == "supported"


def test_epochs_that_may_keep_or_drop_the_last_batch_are_judged_by_the_worse() -> None:
    fields = {k: v for k, v in STATED.items() if k != "steps"}
    few = verdict(**STATED | {"steps": 350}, epsilon=9).figures["epsilon"]
    many = verdict(**STATED | {"steps": 400}, epsilon=9).figures["epsilon"]
    found = verdict(**fields, epochs=50, epsilon=9).figures["epsilon"]
    assert found.high == pytest.approx(many.high)
    assert found.low == pytest.approx(few.low)
