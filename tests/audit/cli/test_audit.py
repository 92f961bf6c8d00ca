"""``dpassay audit`` from YAML to verdict, for every kind of target and every kind of bad input."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from audit.cli.init import KINDS, template
from audit.cli.main import cli
from reports.record import Record, from_json

TREE = "sklearn.tree._tree.Tree"
POLICY = {"limits": [{"figure": "auc", "at_most": 0.6}]}
Audit = Callable[..., tuple[Result, Path]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a random half of the breast-cancer records as members, the rest as others."""
    bunch = load_breast_cancer()
    frame = pd.DataFrame(bunch.data[:, :8], columns=[f"f{i}" for i in range(8)])
    random = np.random.default_rng(3)
    # every fourth label is wrong, so that a model can only know it by heart
    frame["label"] = np.where(random.random(len(frame)) < 0.25, 1 - bunch.target, bunch.target)
    member = random.permutation(len(frame)) < len(frame) // 2
    frame[member].to_csv(tmp_path / "members.csv", index=False)
    frame[~member].to_csv(tmp_path / "non_members.csv", index=False)
    return tmp_path


@pytest.fixture
def audit(folder: Path) -> Audit:
    """Run ``dpassay audit`` on a configuration given as keywords over a usable default."""

    def run(*options: str, **config: Any) -> tuple[Result, Path]:
        whole: dict[str, Any] = {
            "version": 1,
            "title": "Test",
            "target": {"kind": "recipe", "recipe": "random_forest"},
            "records": {
                "members": "members.csv",
                "non_members": "non_members.csv",
                "split": "randomised",
            },
            "policy": POLICY,
        } | config
        file = folder / "AUDIT.yaml"
        file.write_text(yaml.safe_dump({k: v for k, v in whole.items() if v is not None}))
        out = folder / "out"
        result = CliRunner().invoke(
            cli, ["audit", str(file), "--out", str(out), "--quiet", *options]
        )
        return result, out

    return run


def record_of(out: Path) -> Record:
    assert (out / "index.html").stat().st_size > 10_000
    return from_json((out / "audit.json").read_text(encoding="utf-8"))


def auc_of(record: Record, attack: str, subject: str = "target") -> tuple[float, float]:
    found = next(a for a in record.attacks if a.name == attack and a.subject == subject)
    auc = found.metric("auc")
    assert auc is not None
    return auc.low, auc.high


def test_a_forest_without_protection_fails(audit: Audit) -> None:
    result, out = audit(attacks=["loss_threshold", "shadow"], budget={"shadow_models": 4})
    assert result.exit_code == 1, result.output
    record = record_of(out)
    assert record.verdict.outcome == "fail"
    assert auc_of(record, "loss_threshold")[0] > 0.6
    assert {"loss_threshold", "shadow"} <= {a.name for a in record.attacks}
    assert (out / "scores").is_dir()
    digests = {i.role: i.sha256 for i in record.provenance.inputs}
    assert {"configuration", "members", "non-members"} <= set(digests)


def test_a_model_that_never_saw_the_members_passes_beside_a_leaky_control(
    folder: Path, audit: Audit
) -> None:
    import skops.io

    members = pd.read_csv(folder / "members.csv")
    strangers = np.random.default_rng(0).normal(members.drop(columns="label").mean(), 1, (200, 8))
    labels = np.random.default_rng(1).integers(0, 2, 200)
    forest = RandomForestClassifier(50, random_state=0).fit(strangers, labels)
    skops.io.dump(forest, folder / "model.skops")
    result, out = audit(target={"kind": "sklearn", "model": "model.skops", "trusted": [TREE]})
    record = record_of(out)
    low, high = auc_of(record, "loss_threshold")
    assert low < 0.5 < high
    assert auc_of(record, "loss_threshold", "positive control")[0] > 0.6
    assert result.exit_code == 0, result.output


def test_types_that_nobody_vouched_for_are_refused(folder: Path, audit: Audit) -> None:
    import skops.io

    members = pd.read_csv(folder / "members.csv")
    forest = RandomForestClassifier(2).fit(members.drop(columns="label"), members["label"])
    skops.io.dump(forest, folder / "model.skops")
    refused(*audit(target={"kind": "sklearn", "model": "model.skops"}), TREE, "target.trusted")


def test_without_a_control_silence_proves_nothing(folder: Path, audit: Audit) -> None:
    logistic = {"kind": "recipe", "recipe": "logistic_regression", "arguments": {"C": 1e-6}}
    result, _ = audit(target=logistic, positive_control="none")
    assert result.exit_code == 3, result.output


def test_an_unknown_split_never_passes(audit: Audit) -> None:
    logistic = {"kind": "recipe", "recipe": "logistic_regression", "arguments": {"C": 1e-6}}
    records = {"members": "members.csv", "non_members": "non_members.csv"}
    result, out = audit(target=logistic, records=records)
    assert result.exit_code == 3, result.output
    assert record_of(out).verdict.outcome == "inconclusive"


def test_members_of_another_kind_make_the_attack_void(folder: Path, audit: Audit) -> None:
    others = pd.read_csv(folder / "non_members.csv")
    others["f0"] += 5 * others["f0"].std()
    others.to_csv(folder / "non_members.csv", index=False)
    result, out = audit()
    assert result.exit_code == 3, result.output
    assert any(f.state == "void" for f in record_of(out).findings)


def test_a_torch_module_from_safetensors_and_a_factory(folder: Path, audit: Audit) -> None:
    from safetensors.torch import save_file

    from trainers.networks import build

    arguments = {"architecture": "mlp", "inputs": 8, "classes": 2, "hidden": [4]}
    arguments |= {"low": 0.0, "high": 3000.0}
    save_file(build(**arguments).state_dict(), folder / "m.safetensors")
    target = {"kind": "torch", "weights": "m.safetensors", "factory": "trainers.networks:build"}
    result, out = audit(target={**target, "arguments": arguments})
    low, high = auc_of(record_of(out), "loss_threshold")
    assert low < 0.5 < high
    assert result.exit_code == 0, result.output


def test_a_trained_folder_with_its_ledger_and_a_claim(folder: Path, audit: Audit) -> None:
    from trainers.classifier import ClassifierConfig, Privacy, train

    members = pd.read_csv(folder / "members.csv")
    config = ClassifierConfig(
        classes=2,
        hidden=(8,),
        epochs=2,
        batch_size=32,
        low=0.0,
        high=3000.0,
        privacy=Privacy(noise_multiplier=2.0),
    )
    features = members.drop(columns="label").to_numpy()
    train(config, features, members["label"].to_numpy(), folder / "run")
    claim = {"family": "dp_guarantee", "statement": "private", "delta": 1e-5}
    claim |= {"relation": "add-remove"}
    result, out = audit(
        target={"kind": "trained", "folder": "run"},
        attacks=["loss_threshold", "shadow"],
        budget={"shadow_models": 4},
        ledger="run/ledger.jsonl",
        model_files=["run/model.safetensors"],
        claims=[{**claim, "id": "low", "epsilon": 0.2}, {**claim, "id": "high", "epsilon": 2.0}],
        policy={**POLICY, "claims": True, "ledger": True},
    )
    record = record_of(out)
    states = {f.claim: f.state for f in record.findings if f.claim}
    assert states == {"low": "refuted", "high": "supported"}
    assert result.exit_code == 1, result.output
    (budget,) = record.budgets
    assert {"RDP", "PLD"} <= {g.accountant for g in budget.guarantees if g.guaranteed}


def test_a_transformers_folder(folder: Path, audit: Audit) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "day"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "lm")
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.BertConfig(
        vocab_size=len(words), intermediate_size=8, num_labels=2, **shape
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "lm")
    random = np.random.default_rng(0)
    for name in ("members", "non_members"):
        texts = [" ".join(random.choice(words[4:], 5)) + f" {name} {i}" for i in range(60)]
        pd.DataFrame({"text": texts, "label": random.integers(0, 2, 60)}).to_csv(
            folder / f"{name}.csv", index=False
        )
    result, out = audit(target={"kind": "transformers", "folder": "lm"})
    assert result.exit_code == 3, result.output  # sixty records and no control: it cannot say
    low, high = auc_of(record_of(out), "loss_threshold")
    assert low < 0.5 < high


def scores(folder: Path, shift: float, n: int = 400) -> dict[str, Any]:
    random = np.random.default_rng(5)
    member = np.arange(n) % 2
    frame = pd.DataFrame({"score": random.normal(size=n) - shift * member, "member": member})
    frame.to_csv(folder / "scores.csv", index=False)
    return {"kind": "scores", "file": "scores.csv", "higher_means": "non-member"}


def test_a_scores_file_serves_who_has_no_access(folder: Path, audit: Audit) -> None:
    target = {**scores(folder, 1.0), "split": "randomised"}
    result, out = audit(target=target, records=None)
    assert result.exit_code == 1, result.output
    low, high = auc_of(record_of(out), record_of(out).attacks[0].name)
    assert low < 0.760 < high  # Φ(1/√2)


def test_claims_alone_need_no_target(folder: Path, audit: Audit) -> None:
    claim = {
        "id": "b",
        "family": "dp_guarantee",
        "statement": "ε = 0.982",
        "epsilon": 0.982,
        "delta": 1e-5,
        "noise_multiplier": 1.41,
        "sample_rate": 0.128,
        "steps": 100,
        "sampling": "poisson",
        "relation": "add-remove",
    }
    result, out = audit(target=None, records=None, claims=[claim], policy={"claims": True})
    assert result.exit_code == 1, result.output
    (finding,) = (f for f in record_of(out).findings if f.claim == "b")
    assert finding.state == "refuted"
    assert finding.figures["epsilon"].high == pytest.approx(5.086, abs=2e-3)


def test_the_same_seed_gives_the_same_figures(folder: Path, audit: Audit) -> None:
    _, out = audit(attacks=["shadow"], budget={"shadow_models": 4}, seed=5)
    first = auc_of(record_of(out), "shadow")
    _, out = audit("--force", attacks=["shadow"], budget={"shadow_models": 4}, seed=5)
    assert auc_of(record_of(out), "shadow") == first


@pytest.mark.parametrize("kind", KINDS)
def test_the_template_of_init_is_a_valid_configuration(kind: str) -> None:
    from audit.config import AuditConfig

    AuditConfig.model_validate(yaml.safe_load(template(kind, "AUDIT.yaml")))


def test_an_overlap_is_reported_and_removed(folder: Path, audit: Audit) -> None:
    others, members = pd.read_csv(folder / "non_members.csv"), pd.read_csv(folder / "members.csv")
    pd.concat([others, members.head(7)]).to_csv(folder / "non_members.csv", index=False)
    _, out = audit()
    record = record_of(out)
    overlap = [f for f in record.findings if f.check == "records.overlap"]
    assert len(overlap) == 1
    assert "7" in overlap[0].meaning
    assert record.attacks[-1].non_members <= len(others)


def refused(result: Result, out: Path, *said: str) -> None:
    """One line that says each of these words, exit code 2, no traceback, nothing written."""
    assert result.exit_code == 2, result.output
    lines = [line for line in result.output.splitlines() if line.strip()]
    assert len(lines) == 1, result.output
    for word in said:
        assert word in lines[0]
    assert not out.exists()
    assert not [p for p in out.parent.iterdir() if p.name.startswith((".out", "out"))]


def test_a_file_of_members_that_is_empty(folder: Path, audit: Audit) -> None:
    (folder / "members.csv").write_text("f0,label\n")
    refused(*audit(), "members.csv", "no records")


def test_one_class_only(folder: Path, audit: Audit) -> None:
    for name in ("members", "non_members"):
        frame = pd.read_csv(folder / f"{name}.csv")
        frame[frame.label == 1].to_csv(folder / f"{name}.csv", index=False)
    refused(*audit(), "class")


def test_other_columns(folder: Path, audit: Audit) -> None:
    frame = pd.read_csv(folder / "non_members.csv").rename(columns={"f3": "g3"})
    frame.to_csv(folder / "non_members.csv", index=False)
    refused(*audit(), "non_members.csv", "f3", "g3")


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "high"])
def test_scores_that_are_no_numbers(folder: Path, audit: Audit, bad: str) -> None:
    target = scores(folder, 0.0)
    frame = pd.read_csv(folder / "scores.csv").astype({"score": object})
    frame.loc[4, "score"] = bad
    frame.to_csv(folder / "scores.csv", index=False)
    refused(*audit(target=target, records=None), "scores.csv", "score")


def test_features_that_are_no_numbers(folder: Path, audit: Audit) -> None:
    frame = pd.read_csv(folder / "members.csv")
    frame.loc[2, "f1"] = np.nan
    frame.to_csv(folder / "members.csv", index=False)
    refused(*audit(), "members.csv", "f1", "record 3")


def test_labels_outside_the_classes(folder: Path, audit: Audit) -> None:
    from trainers.classifier import ClassifierConfig, train

    members = pd.read_csv(folder / "members.csv")
    config = ClassifierConfig(classes=2, hidden=(4,), epochs=1, low=0.0, high=3000.0)
    features = members.drop(columns="label").to_numpy()
    train(config, features, members["label"].to_numpy(), folder / "run")
    members.loc[0, "label"] = 7
    members.to_csv(folder / "members.csv", index=False)
    refused(*audit(target={"kind": "trained", "folder": "run"}), "label", "7")


@pytest.mark.parametrize("kind", ["torch", "sklearn"])
def test_a_pickle_is_never_opened(folder: Path, audit: Audit, kind: str) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(folder / "opened"),)

    (folder / "model.pkl").write_bytes(pickle.dumps(Trap()))
    target: dict[str, Any] = {"kind": "sklearn", "model": "model.pkl"}
    if kind == "torch":
        target = {"kind": "torch", "weights": "model.pkl", "factory": "trainers.networks:build"}
        target["arguments"] = {"architecture": "mlp", "inputs": 8, "classes": 2, "hidden": [4]}
    refused(*audit(target=target), "model.pkl")
    assert not (folder / "opened").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"atacks": ["shadow"]}, ["AUDIT.yaml", "atacks"]),
        ({"seed": "seven"}, ["AUDIT.yaml", "seed"]),
        ({"attacks": ["magic"]}, ["magic"]),
        ({"attacks": []}, ["attacks"]),
        ({"target": {"kind": "oracle"}}, ["AUDIT.yaml", "target"]),
        ({"budget": {"shadow_models": 0}}, ["AUDIT.yaml", "shadow_models"]),
        ({"ledger": "none.jsonl"}, ["AUDIT.yaml", "ledger", "none.jsonl"]),
        ({"records": {"members": "members.csv"}}, ["AUDIT.yaml", "non_members"]),
        ({"confidence": 95}, ["AUDIT.yaml", "confidence"]),
    ],
)
def test_a_configuration_that_cannot_be_used(
    audit: Audit, change: dict[str, Any], said: list[str]
) -> None:
    refused(*audit(**change), *said)


def test_a_configuration_that_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(cli, ["audit", str(tmp_path / "no.yaml"), "--out", str(out)])
    refused(result, out, "no.yaml")


def test_a_folder_that_exists_is_refused_and_kept(folder: Path, audit: Audit) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("keep")
    result, out = audit()
    assert result.exit_code == 2
    assert "--force" in result.output
    assert (out / "mine.txt").read_text() == "keep"


def test_ctrl_c_leaves_nothing_half_written(folder: Path, audit: Audit) -> None:
    audit(title="")  # writes AUDIT.yaml, and is refused
    text = (folder / "AUDIT.yaml").read_text().replace("title: ''", "title: Long")
    shadows = {"attacks": ["shadow"], "budget": {"shadow_models": 400}}
    (folder / "AUDIT.yaml").write_text(text + yaml.safe_dump(shadows))
    command = [sys.executable, "-m", "dpassay", "audit", str(folder / "AUDIT.yaml")]
    before = {p.name for p in folder.iterdir()}
    process = subprocess.Popen(
        [*command, "--out", str(folder / "out")],
        stderr=subprocess.PIPE,
        text=True,
        # a suite that runs in the background has its interrupts ignored, and so would the child
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while {p.name for p in folder.iterdir()} == before and time.monotonic() < deadline:
        time.sleep(0.2)  # until it has begun its folder
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    # finished shadow models are no half of a report: the next run starts from them
    assert {p.name for p in folder.iterdir()} - {".out.shadows"} == before


def test_audit_json_follows_the_shipped_schema(audit: Audit) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    _, out = audit()
    root = Path(__file__).resolve().parents[3]
    schema = json.loads((root / "reports" / "record.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads((out / "audit.json").read_text(encoding="utf-8")), schema)


def test_a_reversed_attack_has_an_advantage_too(folder: Path, audit: Audit) -> None:
    target = {**scores(folder, 2.0), "split": "randomised", "higher_means": "member"}
    policy = {"limits": [{"figure": "advantage", "at_most": 0.2}]}
    result, _ = audit(target=target, records=None, policy=policy)
    assert result.exit_code == 1, result.output  # TPR - FPR of the reversed rule is 0.68


def test_a_constant_score_is_no_attack(folder: Path, audit: Audit) -> None:
    target = scores(folder, 0.0)
    frame = pd.read_csv(folder / "scores.csv").assign(score=1.5)
    frame.to_csv(folder / "scores.csv", index=False)
    refused(*audit(target=target, records=None), "scores.csv", "1.5", "tells nothing apart")


def test_no_time_at_all_is_an_error_and_no_pass(audit: Audit) -> None:
    result, out = audit(budget={"seconds": 0.001}, attacks=["shadow"])
    assert result.exit_code == 4, result.output
    (decision,) = record_of(out).verdict.decisions
    assert (decision.finding, decision.outcome) == ("attack/shadow", "error")


def test_the_ledger_of_another_model_supports_nothing(folder: Path, audit: Audit) -> None:
    from trainers.classifier import ClassifierConfig, Privacy, train

    members = pd.read_csv(folder / "members.csv")
    features = members.drop(columns="label").to_numpy()
    shape: dict[str, Any] = {"classes": 2, "hidden": (8,), "epochs": 1, "low": 0.0, "high": 3000.0}
    for name, privacy in (("private", Privacy(noise_multiplier=2.0)), ("leaky", None)):
        config = ClassifierConfig(**shape, privacy=privacy)
        train(config, features, members["label"].to_numpy(), folder / name)
    claim = {"id": "c", "family": "dp_guarantee", "statement": "private", "epsilon": 8.0}
    result, out = audit(
        target={"kind": "trained", "folder": "leaky"},
        ledger="private/ledger.jsonl",
        model_files=["private/model.safetensors"],  # the other model's, to look well
        claims=[{**claim, "delta": 1e-5, "relation": "add-remove"}],
        policy={"limits": []},
    )
    record = record_of(out)
    assert [f.state for f in record.findings if f.claim] == ["not checkable"]
    assert [f.state for f in record.findings if f.check == "ledger.file"] == [
        "supported",
        "refuted",
    ]
    assert result.exit_code == 1, result.output


@pytest.mark.parametrize("content", ["not a zip", "broken zip", "one array", "one number"])
def test_an_npz_that_is_none(folder: Path, audit: Audit, content: str) -> None:
    path = folder / "bad.npz"
    rows = np.random.default_rng(0).normal(size=(200, 4))
    if content == "one array":
        with path.open("wb") as file:
            np.save(file, rows)
    else:
        features = np.array(1.0) if content == "one number" else rows
        np.savez_compressed(path, features=features, label=np.arange(200) % 2)
    if content == "not a zip":
        path.write_bytes(b"PK\x03\x04junk")
    if content == "broken zip":
        whole = bytearray(path.read_bytes())
        whole[200:204] = b"\xff\xff\xff\xff"
        path.write_bytes(whole)
    records = {"members": "bad.npz", "non_members": "non_members.csv"}
    refused(*audit(records=records), "bad.npz")


@pytest.mark.parametrize("arguments", [[], {}, {"classes": "two"}, {"classes": 10**12}])
def test_a_model_json_that_describes_no_model(folder: Path, audit: Audit, arguments: Any) -> None:
    (folder / "run").mkdir()
    said = {"factory": "trainers.networks:build", "arguments": arguments, "training": {}}
    (folder / "run" / "model.json").write_text(json.dumps(said))
    refused(*audit(target={"kind": "trained", "folder": "run"}), "model.json", "classes")


def test_a_model_of_other_columns_is_an_input_error(folder: Path, audit: Audit) -> None:
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    rows = np.random.default_rng(0).normal(size=(50, 3))
    skops.dump(LogisticRegression().fit(rows, np.arange(50) % 2), folder / "three.skops")
    target = {"kind": "sklearn", "model": "three.skops"}
    refused(*audit(target=target), "loss_threshold", "3 features")


def test_a_title_cannot_write_to_the_terminal(folder: Path, audit: Audit) -> None:
    target = {**scores(folder, 0.0), "split": "randomised"}
    result, _ = audit(title="\x1b[2J[bold]PASS[/bold]", target=target, records=None)
    assert "\x1b" not in result.output
    assert "[bold]PASS[/bold]" in result.output
