"""Attribute inference inside ``dpassay audit``: record, verdict, report, evidence and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from audit.cli.main import cli
from reports.html import render
from reports.record import Finding, Record, from_json

Audit = Callable[..., tuple[Result, Path]]
LIMIT = {"limits": [{"figure": "attribute_advantage", "at_most": 0.1}]}
SCORES = {"kind": "scores", "file": "members.csv", "higher_means": "member", "score": "a"}


def draw(n: int, seed: int) -> pd.DataFrame:
    """Noise, a sensitive column, and a label that only a model that saw the record can know."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(n, 4)), columns=list("abcd"))
    frame["smoker"] = random.integers(0, 2, n)
    return frame.assign(id=[f"{seed}-{i}" for i in range(n)], label=random.integers(0, 2, n))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("members", "non_members", "auxiliary")):
        draw(300, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def audit(folder: Path) -> Audit:
    """Run ``dpassay audit`` on a configuration given as keywords over a usable default."""

    def run(*options: str, **config: Any) -> tuple[Result, Path]:
        whole: dict[str, Any] = {
            "version": 1,
            "title": "Smokers",
            "target": {
                "kind": "recipe",
                "recipe": "random_forest",
                "arguments": {"bootstrap": False},
            },
            "records": {
                "members": "members.csv",
                "non_members": "non_members.csv",
                "auxiliary": "auxiliary.csv",
                "split": "randomised",
                "id": "id",
            },
            "attributes": [{"column": "smoker"}],
            "policy": LIMIT,
        } | config
        file, out = folder / "AUDIT.yaml", folder / "out"
        file.write_text(yaml.safe_dump({k: v for k, v in whole.items() if v is not None}))
        command = ["audit", str(file), "--out", str(out), "--quiet"]
        return CliRunner().invoke(cli, [*command, *options]), out

    return run


def record_of(out: Path) -> Record:
    return from_json((out / "audit.json").read_text(encoding="utf-8"))


def guessed(record: Record) -> list[Finding]:
    return [f for f in record.findings if f.check == "attack.attribute"]


def test_a_forest_gives_its_members_away(folder: Path, audit: Audit) -> None:
    result, out = audit()
    assert result.exit_code == 1, result.output
    record = record_of(out)
    findings = guessed(record)
    assert [f.id for f in findings] == [
        "attack/attribute/smoker/all/yeom",
        "attack/attribute/smoker/all/confidence",
    ]
    for finding in findings:
        gain = finding.figures["advantage"]
        assert gain.low > 0
        assert (gain.n, finding.state) == (600, "measured")
        assert finding.figures["positive_control_advantage"].low > 0
        assert "from all other columns" in finding.meaning
        inside, outside = (finding.figures[f"accuracy_{s}members"] for s in ("", "non_"))
        assert gain.value == pytest.approx(inside.value - outside.value)
    (decision,) = record.verdict.decisions
    assert (decision.rule, decision.outcome) == ("limit.attribute_advantage", "fail")
    assert decision.finding in {f.id for f in findings}
    for subject in ("target", "positive-control"):
        guesses = pd.read_parquet(out / "scores" / f"attribute.{subject}.parquet")
        assert len(guesses) == 2 * 600
        joined = guesses[guesses.member].merge(pd.read_csv(folder / "members.csv"), on="id")
        assert len(joined) == 2 * 300
        assert (joined.truth == joined.smoker.astype(str)).all()


def test_every_interval_pays_for_everything_tried(audit: Audit) -> None:
    asked = {"column": "smoker", "known": [["a", "b"]], "triples": list("abcd")}
    _, out = audit(attributes=[{**asked, "attacks": ["confidence"]}, {"column": "a"}])
    record = record_of(out)
    assert len(guessed(record)) == 5 + 2
    each = 1 - 0.05 / (1 + 5 + 2)
    for finding in guessed(record):
        assert finding.figures["advantage"].confidence == pytest.approx(each)
    (target,) = [a for a in record.attacks if a.subject == "target"]
    auc = target.metric("auc")
    assert auc is not None
    assert auc.confidence == pytest.approx(each)


def test_a_rare_value_that_leaks_is_named(folder: Path, audit: Audit) -> None:
    for seed, name in enumerate(("members", "non_members", "auxiliary")):
        one_in_twelve = (np.arange(600) % 12 == 0).astype(int)
        draw(600, seed).assign(smoker=one_in_twelve).to_csv(folder / f"{name}.csv", index=False)
    _, out = audit(attributes=[{"column": "smoker", "attacks": ["confidence"]}])
    (finding,) = guessed(record_of(out))
    assert finding.figures["advantage_where_1"].low > 0
    assert finding.figures["advantage_where_1"].n == 100
    assert "1: 0." in finding.meaning
    assert "Advantage where it is 1" in (out / "index.html").read_text(encoding="utf-8")


def test_a_target_that_saw_nobody_passes_beside_a_leaky_control(folder: Path, audit: Audit) -> None:
    skops = pytest.importorskip("skops.io")
    from sklearn.linear_model import LogisticRegression

    for seed, name in enumerate(("members", "non_members", "auxiliary")):
        draw(1500, seed).to_csv(folder / f"{name}.csv", index=False)
    strangers = draw(500, 9)
    features = strangers.drop(columns=["id", "label"]).to_numpy()
    model = LogisticRegression().fit(features, strangers.label)
    skops.dump(model, folder / "model.skops")
    result, out = audit(
        target={"kind": "sklearn", "model": "model.skops"}, attributes=[{"column": "smoker"}]
    )
    assert result.exit_code == 0, result.output
    result, _ = audit(
        "--force", target={"kind": "sklearn", "model": "model.skops"}, positive_control="none"
    )
    assert result.exit_code == 3, result.output
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "No positive control was run with this attack" in page


def test_sides_that_differ_by_themselves_make_it_void(folder: Path, audit: Audit) -> None:
    draw(300, 1).assign(a=lambda f: f.a + 2).to_csv(folder / "non_members.csv", index=False)
    result, out = audit()
    assert result.exit_code == 3, result.output
    for finding in guessed(record_of(out)):
        assert finding.state == "void"
        assert finding.remedy
        assert "says nothing about it" in finding.meaning


def test_no_time_is_an_error_and_no_pass(audit: Audit) -> None:
    result, out = audit(budget={"seconds": 0.001})
    assert result.exit_code == 4, result.output
    (finding,) = guessed(record_of(out))
    assert (finding.id, finding.state) == ("attack/attribute/smoker", "error")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "budget.seconds" in page.split('id="attributes"')[1].split("</article>")[0]


def test_a_limit_without_attributes_is_inconclusive(audit: Audit) -> None:
    result, _ = audit(attributes=[])
    assert result.exit_code == 3, result.output
    assert "could not be tested" in " ".join(result.output.split()).replace("│ ", "")


def test_the_report_shows_the_table_and_runs_no_column_name(folder: Path, audit: Audit) -> None:
    hostile = "<script>alert(1)</script>{{ 7*7 }}+/"
    for name in ("members", "non_members", "auxiliary"):
        frame = pd.read_csv(folder / f"{name}.csv").rename(columns={"a": hostile})
        frame.to_csv(folder / f"{name}.csv", index=False)
    _, out = audit(attributes=[{"column": "smoker", "known": [[hostile, "b"], ["b"]]}])
    record = record_of(out)
    assert guessed(record)[0].id == (
        "attack/attribute/smoker/<script>alert(1)<%2Fscript>{{ 7*7 }}%2B%2F+b/yeom"
    )
    for locale in ("en", "zh"):
        page = render(record, locale)
        assert "<script" not in page
        assert "{{ 7*7 }}" in page
        card = page.split('id="attributes"')[1].split("</article>")[0]
        assert card.count('<tr id="finding-') == 4
        link = page.split('class="decisions"')[1].split('<a href="#')[1].split('"')[0]
        assert f'<tr id="{link}"' in card
    best = max(guessed(record), key=lambda f: f.figures["advantage"].low)
    first = render(record).split('<tr id="')[1]
    assert f"{best.figures['advantage'].value:.3f} [" in first


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"attributes": [{"column": "x"}]}, "column 'x': there is none; the records have a, b, c"),
        ({"attributes": [{"column": "smoker", "triples": ["a", "b", "smoker"]}]}, "name three"),
        ({"attributes": [{"column": "smoker", "known": [[]]}]}, "attributes.0.known"),
        ({"attributes": [{"column": "smoker", "attacks": ["magic"]}]}, "'magic' is none of yeom"),
        ({"attributes": [{"column": "a"}, {"column": "a"}]}, "a column is named twice"),
        ({"target": SCORES, "records": None}, "need a model of tables to ask"),
        ({"target": {"kind": "transformers", "folder": "."}}, "need a model of tables to ask"),
        ({"target": None, "records": None, "ledger": "members.csv"}, "need a target and records"),
        (
            {
                "target": {"kind": "recipe", "recipe": "random_forest", "access": "label"},
                "attacks": ["label_only"],
                "attributes": [{"column": "smoker", "attacks": ["yeom"]}],
            },
            "yeom needs scores",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    audit: Audit, config: dict[str, Any], said: str
) -> None:
    result, out = audit(**config)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()
