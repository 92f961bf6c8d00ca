"""What holds for every registered attack on tables. A new line in the registry is tested here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))

import frames

from attacks.synthetic.registry import ENTRIES, run
from attacks.synthetic.tables import code

NAMES = [name for name, entry in ENTRIES.items() if not entry.generator]


@pytest.fixture(scope="module")
def tables():
    train, holdout, synthetic = (frames.mixed(400, seed) for seed in range(3))
    planted, _ = frames.plant(synthetic, train, 0.5)
    return code({"train": train, "holdout": holdout, "synthetic": planted})


def deciding(result):
    """Estimates of the figures that say whether there is a leak, with their value without one."""
    no_leak = ENTRIES[result.attack].no_leak
    kinds = [(figure, figure.name.partition(":")[0]) for figure in result.figures]
    return [(f.estimate, no_leak[kind]) for f, kind in kinds if kind in no_leak and f.estimate]


@pytest.mark.parametrize("name", NAMES)
def test_a_release_that_is_half_copies_leaks(name, tables):
    result = run(name, tables, seed=1)
    assert (result.attack, result.title) == (name, ENTRIES[name].title)
    assert result.access == "samples"
    assert result.source
    assert result.seed == 1
    assert any(estimate.low > null for estimate, null in deciding(result))
    for figure in result.figures:
        assert (figure.estimate is None) == bool(figure.unmeasured)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_repeats_the_result(name, tables):
    one, other = (replace(run(name, tables, seed=3), seconds=0.0) for _ in range(2))
    assert one.figures == other.figures
    assert one.notes == other.notes
    assert list(one.rows) == list(other.rows)
    for column in one.rows:
        np.testing.assert_array_equal(one.rows[column], other.rows[column])


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_confidence_widens_what_decides(name, tables):
    narrow, wide = (deciding(run(name, tables, confidence=c)) for c in (0.8, 0.999))
    for (one, _), (other, _) in zip(narrow, wide, strict=True):
        assert other.low <= one.low <= one.value <= one.high <= other.high
        assert one.value == other.value
        assert one.confidence < other.confidence


def test_every_entry_names_a_function_that_exists():
    for entry in ENTRIES.values():
        assert callable(entry.load())
