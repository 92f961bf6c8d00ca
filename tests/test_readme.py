"""The README's examples, run: what it shows is what the program says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from audit.cli.main import cli

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def shown(command: str) -> str:
    """What the README shows below ``$ command``, up to the end of its block."""
    start = README.index(f"$ {command}\n") + len(f"$ {command}\n")
    return README[start : README.index("```", start)]


def said(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "96")
    monkeypatch.setenv("TERM", "dumb")
    result = CliRunner().invoke(cli, command.split()[1:])
    assert result.exit_code in (0, 1), result.output
    return "\n".join(line.rstrip() for line in result.output.splitlines()) + "\n"


def test_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "dpassay account --noise-multiplier 1.41 --sample-rate 0.128 --steps 100 --delta 1e-5"
    assert said(command, monkeypatch) == shown(command)


def test_the_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.S) if "CLAIMS.yaml" in b)
    monkeypatch.chdir(tmp_path)
    Path("CLAIMS.yaml").write_text(block, encoding="utf-8")
    assert said("dpassay claims CLAIMS.yaml", monkeypatch) == shown("dpassay claims CLAIMS.yaml")


def test_the_policy_is_one(tmp_path: Path) -> None:
    import yaml

    from audit.gate.policy import Policy

    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.S) if "policy:" in b)
    Policy.model_validate(yaml.safe_load(block)["policy"])


def test_every_page_that_it_names_is_there() -> None:
    root = Path(__file__).resolve().parents[1]
    for name in re.findall(r"\]\(([\w./-]+\.md)\)", README):
        assert (root / name).is_file(), name
