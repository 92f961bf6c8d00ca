"""``dpassay attack generator`` from a table to figures, files and exit codes."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))
import generators

from audit.cli.main import cli

DOMAIN = {
    "columns": {
        **{n: {"kind": "number", "low": a, "high": b} for n, (a, b) in generators.BOUNDS.items()},
        **{n: {"kind": "category", "levels": list(v)} for n, v in generators.LEVELS.items()},
    }
}


@pytest.fixture
def attack(tmp_path, monkeypatch):
    """Run the command on a pool of 120 records, in their folder."""
    generators.population(120, 1).to_csv(tmp_path / "pool.csv", index=False)
    (tmp_path / "domain.yaml").write_text(yaml.safe_dump(DOMAIN))
    monkeypatch.chdir(tmp_path)

    def run(*options, generator="generators:bootstrap", out="out"):
        small = ["--targets", "4", "--quiet"]
        small += [] if "--runs" in options else ["--runs", "16"]
        whole = ["pool.csv", "--generator", generator, "--out", out, *small, *options]
        return CliRunner().invoke(cli, ["attack", "generator", *whole])

    return run


def test_a_memoriser_leaks(attack, tmp_path):
    result = attack("--records", "240", "--runs", "48")
    assert result.exit_code == 1, result.output
    assert "INCONCLUSIVE" not in result.output
    assert sorted(
        p.name for p in tmp_path.iterdir() if p.name not in ("pool.csv", "domain.yaml")
    ) == ["out"]
    written = json.loads((tmp_path / "out" / "generator.json").read_text())
    assert written["leaks"]
    assert written["access"] == "samples"
    assert written["models_trained"] == 48
    figures = {f["name"]: f["estimate"] for f in written["figures"]}
    assert figures["auc"]["low"] > 0.5
    assert figures["auc"]["confidence"] == pytest.approx(0.99)
    assert pq.read_table(tmp_path / "out" / "targets.parquet").num_rows == 4
    assert attack("--records", "240").exit_code == 2  # the folder is there
    assert attack("--records", "240", "--force").exit_code in (1, 3)


@pytest.mark.parametrize("generator", ["generators:ignores", "marginals"])
def test_nothing_found_is_inconclusive(attack, generator):
    ours = ["--domain", "domain.yaml", "--epsilon", "1"] if generator == "marginals" else []
    result = attack(*ours, generator=generator)
    assert result.exit_code == 3, result.output
    assert "INCONCLUSIVE: no leak found" in result.output
    assert "no evidence of any ε" in result.output


@pytest.mark.parametrize(
    ("generator", "options", "message"),
    [
        ("generators:missing", [], "--generator: generators:missing: "),
        ("generators:population", [], "generators:population: raised TypeError"),
        ("marginals", ["--epsilon", "1"], "--generator marginals: needs --domain and --epsilon"),
        ("generators:ignores", ["--epsilon", "1"], "--domain, --epsilon: are for --generator"),
        ("generators:ignores", ["--runs", "15"], "--runs: need an even number of 16 or more"),
        ("generators:ignores", ["--records", "3"], "--records: 3 are too few"),
        ("generators:ignores", ["--delta", "1"], "--delta: must lie in [0, 1)"),
        ("generators:ignores", ["--workers", "many"], "--workers: 'many'"),
        ("generators:ignores", ["--targets", "900"], "--targets: asked for 900"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(attack, tmp_path, generator, options, message):
    result = attack(*options, generator=generator)
    assert result.exit_code == 2, result.output
    assert f"dpassay: {message}" in result.stderr or message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_pool_that_is_missing_is_named(attack, tmp_path):
    (tmp_path / "pool.csv").unlink()
    result = attack()
    assert result.exit_code == 2
    assert "pool.csv: is missing" in result.stderr
