"""The examples in docs/claims.md and docs/lineage.md get the verdicts that stand below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from audit.claims import FAMILIES, judge
from audit.claims.context import Context
from audit.claims.schema import read_claims
from audit.lineage import read_lineage

ROOT = Path(__file__).parents[3]
EXAMPLES = re.findall(
    r"\n## (\w+): .*?```yaml\n(.*?)```\n\n```text\n(.*?)```",
    (ROOT / "docs" / "claims.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


def test_every_family_has_an_example() -> None:
    assert sorted(family for family, _, _ in EXAMPLES) == sorted(FAMILIES)


@pytest.mark.parametrize(("family", "source", "output"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_the_example_is_judged_as_shown(
    tmp_path: Path, family: str, source: str, output: str
) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(f"claims:\n{source}", encoding="utf-8")
    file = read_claims(path)
    [found] = judge(file.as_claims("docs"), Context(folder=ROOT))
    assert found.check == f"claims.{family}"
    shown = " ".join(output.split())
    expected = f"{found.claim}: {found.state}. {found.meaning}"
    full = f"{expected} Remedy: {found.remedy}" if found.remedy else expected
    assert shown == " ".join(full.split())


def test_the_lineage_example_costs_what_the_text_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8")
    path = tmp_path / "lineage.yaml"
    path.write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    found = read_lineage(path)
    assert found.exposures[-1].account.high == pytest.approx(1.32)
    assert [f.state for f in found.findings if f.check == "lineage.promise"] == ["supported"]
