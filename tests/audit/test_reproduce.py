"""What is recomputed from a sealed audit is the same, and every tampered figure is named."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from audit.accounting.events import SampledGaussian
from audit.accounting.guarantee import guarantees
from audit.reproduce import reproduce
from audit.seal import Check, Verified, verify
from reports.record import Record
from tests.audit.sealing import BATCH, POLICY, PUBLIC, STEPS, N, ledger, make, sealed, states


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("audit"))


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the sealed audit in ``out`` and its inputs where it read them."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    sealed(tmp_path / "out")
    return tmp_path


def read() -> tuple[Record, Verified]:
    verified = verify(Path("out"), [PUBLIC])
    assert verified.record is not None
    return verified.record, verified


def again(change: Callable[[Record], Record] = lambda r: r, inputs: Path | None = None) -> Any:
    record, verified = read()
    return reproduce(change(record), verified.texts, inputs)


def differing(checks: tuple[Check, ...]) -> dict[str, str]:
    return {f"{c.part}: {c.subject}": c.detail for c in checks if c.state == "differs"}


def finding(record: Record, name: str, **changed: Any) -> Record:
    findings = [dataclasses.replace(f, **changed) if f.id == name else f for f in record.findings]
    return dataclasses.replace(record, findings=tuple(findings))


def test_an_untouched_audit_comes_out_the_same(here: Path) -> None:
    checks = again()
    assert {c.state for c in checks} == {"same"}
    assert {c.part for c in checks} == {"input", "accounting", "claim", "gate"}
    said = {c.subject: c.detail for c in checks}
    # what comes out is the accountants' figure for the ledger as it was written
    events = (SampledGaussian(1.1, BATCH / N, STEPS),)
    for expected in guarantees(events, 1e-5, relation="add-remove"):
        subject = f"ε at δ = 1e-05, record, add-remove, {expected.accountant}"
        assert float(said[subject]) == pytest.approx(expected.epsilon, rel=1e-5)
    assert (said["budget"], said["distance"], said["code"]) == ("supported",) * 3


def test_the_seal_alone_decides_the_gate_and_what_is_claimed(here: Path) -> None:
    for name in ("AUDIT.yaml", "policy.yaml", "ledger.jsonl", "scores.csv", "step.py", "model.bin"):
        (here / name).unlink()
    shutil.rmtree(here / "before")
    checks = again()
    assert differing(checks) == {}
    known = states(checks, "gate") | states(checks, "claim")
    assert known["rules"] == known["limit.auc attack/precomputed"] == known["distance"] == "same"
    assert known["claims claim/budget"] == known["as configured"] == "same"
    absent = {"budget", "code", "baseline.auc attack/precomputed"}
    assert {name for name, state in known.items() if state == "not at hand"} == absent
    assert states(checks, "accounting") == {"ledger": "not at hand"}


def test_a_ledger_that_was_swapped_for_a_better_one(here: Path) -> None:
    ledger(here / "ledger.jsonl.new", noise=3.0)
    os.replace(here / "ledger.jsonl.new", here / "ledger.jsonl")
    checks = again()
    assert list(differing(checks)) == ["input: ledger ledger.jsonl"]
    # the better ledger is not accounted for: it is not what the audit read
    assert states(checks, "accounting") == {"ledger": "not at hand"}
    assert states(checks, "claim")["budget"] == "not at hand"


def test_inputs_are_found_by_content_under_any_name(here: Path, tmp_path: Path) -> None:
    kept = here / "archive" / "2031"
    kept.mkdir(parents=True)
    for i, name in enumerate(
        ("AUDIT.yaml", "policy.yaml", "ledger.jsonl", "scores.csv", "model.bin")
    ):
        shutil.move(here / name, kept / f"{i}.dat")
    shutil.move(here / "before" / "audit.json", kept / "before.json")
    checks = again(inputs=here / "archive")
    assert differing(checks) == {}
    # the code is no input of its own: it lies beside the configuration, and that moved
    assert [c.subject for c in checks if c.state != "same"] == ["code"]
    ledger(kept / "ledger.jsonl", noise=3.0)
    (kept / "2.dat").unlink()
    assert list(differing(again(inputs=kept))) == ["input: ledger ledger.jsonl"]


def test_a_file_of_the_same_name_elsewhere_says_nothing(here: Path) -> None:
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (here / "AUDIT.yaml").write_text("title: somebody else's\n")
    checks = again(inputs=elsewhere)
    assert differing(checks) == {}
    assert states(checks, "input")["configuration AUDIT.yaml"] == "not at hand"


def _cheaper(record: Record) -> Record:
    (budget,) = record.budgets
    first = budget.guarantees[0]
    high = first.epsilon.high / 2
    epsilon = dataclasses.replace(first.epsilon, low=0.0, value=high, high=high)
    first = dataclasses.replace(first, epsilon=epsilon)
    budget = dataclasses.replace(budget, guarantees=(first, *budget.guarantees[1:]))
    return dataclasses.replace(record, budgets=(budget,))


def test_a_halved_epsilon(here: Path) -> None:
    found = differing(again(_cheaper))
    (name,) = found
    assert name.startswith("accounting: ε at δ = 1e-05, record, add-remove, ")
    assert "epsilon.high" in found[name]
    assert "(+100.00%)" in found[name]


def test_figures_agree_within_rounding_of_floating_point(here: Path) -> None:
    def jitter(factor: float) -> Callable[[Record], Record]:
        def change(record: Record) -> Record:
            (budget,) = record.budgets
            first = budget.guarantees[0]
            epsilon = dataclasses.replace(first.epsilon, high=first.epsilon.high * factor)
            first = dataclasses.replace(first, epsilon=epsilon)
            budget = dataclasses.replace(budget, guarantees=(first, *budget.guarantees[1:]))
            return dataclasses.replace(record, budgets=(budget,))

        return change

    assert differing(again(jitter(1 + 1e-8))) == {}
    assert len(differing(again(jitter(1 + 1e-4)))) == 1


def test_an_accountant_or_a_budget_that_vanished(here: Path) -> None:
    def fewer(record: Record) -> Record:
        (budget,) = record.budgets
        budget = dataclasses.replace(budget, guarantees=budget.guarantees[1:])
        return dataclasses.replace(record, budgets=(budget,))

    (said,) = differing(again(fewer)).values()
    assert said == "is not in the record"
    none = differing(again(lambda record: dataclasses.replace(record, budgets=())))
    assert len(none) == len(read()[0].budgets[0].guarantees)


@pytest.mark.parametrize(
    ("name", "part"),
    [("ledger.chain", "accounting"), ("claim/budget", "claim"), ("claim/distance", "claim")],
)
def test_an_edited_finding(here: Path, name: str, part: str) -> None:
    found = differing(again(lambda record: finding(record, name, state="refuted")))
    own = f"{part}: {name.removeprefix('claim/')}"
    assert "state: 'refuted' recorded, 'supported' recomputed" in found[own]
    assert any(subject.startswith("gate: ") for subject in found)  # and the gate would say fail


def test_an_edited_sentence(here: Path) -> None:
    change = {"meaning": "The claim holds for everybody."}
    found = differing(again(lambda record: finding(record, "claim/distance", **change)))
    assert "meaning" in found["claim: distance"]
    older = {"dpassay": "0.0.1"}  # another version may have said it in other words

    def of_older(record: Record) -> Record:
        made = dataclasses.replace(record.provenance, versions=older)
        return dataclasses.replace(finding(record, "claim/distance", **change), provenance=made)

    found = differing(again(of_older))
    assert "claim: distance" not in found


def test_an_edited_claim(here: Path) -> None:
    def easier(record: Record) -> Record:
        first = record.claims[0]
        figures = {**first.figures, "epsilon": 8.0}
        first = dataclasses.replace(first, figures=figures)
        return dataclasses.replace(record, claims=(first, *record.claims[1:]))

    found = differing(again(easier))
    assert "4 recomputed" in found["claim: as configured"]
    assert "claimed" in found["claim: budget"]


def test_a_claim_without_a_finding_and_a_finding_without_a_claim(here: Path) -> None:
    def without(record: Record) -> Record:
        kept = tuple(f for f in record.findings if f.claim != "distance")
        return dataclasses.replace(record, findings=kept)

    def beyond(record: Record) -> Record:
        (extra,) = (f for f in record.findings if f.claim == "distance")
        extra = dataclasses.replace(extra, claim="other", id="claim/other")
        return dataclasses.replace(record, findings=(*record.findings, extra))

    assert differing(again(without))["claim: distance"] == "the record has no finding on it"
    assert "nobody made" in differing(again(beyond))["claim: other"]


def test_two_findings_of_one_id(here: Path) -> None:
    def doubled(record: Record) -> Record:
        first = dataclasses.replace(record.findings[0], state="supported")
        return dataclasses.replace(record, findings=(first, *record.findings))

    assert f"record: {read()[0].findings[0].id}" in differing(again(doubled))


def test_an_edited_verdict(here: Path) -> None:
    def changed(record: Record, **change: Any) -> Record:
        return dataclasses.replace(record, verdict=dataclasses.replace(record.verdict, **change))

    recorded = read()[0].verdict
    other: Any = "pass" if recorded.outcome != "pass" else "fail"
    assert "gate: verdict" in differing(again(lambda r: changed(r, outcome=other)))
    fewer = differing(again(lambda r: changed(r, decisions=recorded.decisions[1:])))
    assert "is not in the record" in fewer.values()
    twice = recorded.decisions[:1] + recorded.decisions
    assert "gate: verdict" in differing(again(lambda r: changed(r, decisions=twice)))


def test_a_policy_that_was_softened_after_the_audit(here: Path) -> None:
    softer = {**POLICY, "limits": [{"figure": "auc", "at_most": 0.9, "worse_than_baseline": 0.1}]}
    record, verified = read()
    sha = next(i.sha256 for i in record.provenance.inputs if i.role == "policy")
    # a text that does not have the digest of the record is not used, whatever the seal calls it
    texts = {**verified.texts, sha: yaml.safe_dump(softer)}
    assert differing(reproduce(record, texts)) == {}
    (here / "policy.yaml").write_text(yaml.safe_dump(softer))
    found = reproduce(record, {k: v for k, v in verified.texts.items() if k != sha})
    assert list(differing(found)) == ["input: policy policy.yaml"]
    assert states(found, "gate") == {"policy": "not at hand"}


def test_another_policy_than_the_one_that_decided(here: Path) -> None:
    def noted(record: Record) -> Record:
        made = dataclasses.replace(record.provenance, notes=("SHA-256 of the policy: 00",))
        return dataclasses.replace(record, provenance=made)

    assert "gate: policy" in differing(again(noted))

    def softer(record: Record) -> Record:
        first = dataclasses.replace(record.policy[0], limit=0.9)
        return dataclasses.replace(record, policy=(first, *record.policy[1:]))

    assert "0.9 recorded, 0.6 recomputed" in differing(again(softer))["gate: rules"]


def test_a_baseline_that_is_another(here: Path) -> None:
    path = here / "before" / "audit.json"
    path.write_text(path.read_text() + " ")
    checks = again()
    assert list(differing(checks)) == ["input: baseline before/audit.json"]
    assert states(checks, "gate")["baseline.auc attack/precomputed"] == "not at hand"
    assert states(checks, "gate")["verdict"] == "same"


def test_code_that_was_changed_since(here: Path) -> None:
    (here / "step.py").write_text("def step(): ...\n")
    checks = again()
    assert states(checks, "claim")["code"] == "not at hand"
    assert differing(checks) == {}


def test_paths_in_a_record_are_read_only_where_a_file_of_that_size_lies(here: Path) -> None:
    os.mkfifo(here / "pipe")

    def elsewhere(path: str) -> Callable[[Record], Record]:
        def change(record: Record) -> Record:
            inputs = [
                dataclasses.replace(i, path=path) if i.role == "scores" else i
                for i in record.provenance.inputs
            ]
            made = dataclasses.replace(record.provenance, inputs=tuple(inputs))
            return dataclasses.replace(record, provenance=made)

        return change

    for path in ("/dev/zero", str(here / "pipe")):  # either would be read for ever
        assert states(again(elsewhere(path)), "input")[f"scores {path}"] == "differs"
    assert states(again(elsewhere("a\0b")), "input")["scores a\0b"] == "not at hand"
