"""Logic rules against brute force, with missing values, and every mistake in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

from attacks.synthetic.tables import code
from audit.quality.rules import RuleResult, check_rules
from audit.quality.rules_file import read_rules
from audit.yaml_file import InputError

ROOT = Path(__file__).resolve().parents[3]
FIXTURE = ROOT / "fixtures" / "quality" / "oncology.yaml"


def draw(n: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "diagnosis": random.choice(["gastric cancer", "prostate cancer"], n),
            "procedure": random.choice(["gastrectomy", "prostatectomy"], n),
            "stage": random.choice(["IIB", "IIIA"], n),
            "imaging": random.choice(["CT", "MRI"], n),
            "sex": random.choice(["female", "male"], n),
            "age": random.integers(0, 100, n),
            "admitted": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(random.integers(0, 900, n), "D"),
        }
    )
    return frame.mask(random.random(frame.shape) < 0.15)


def check(
    text: str | Path, tmp_path: Path, real: pd.DataFrame, synthetic: pd.DataFrame | None = None
) -> tuple[RuleResult, ...]:
    path = text if isinstance(text, Path) else tmp_path / "RULES.yaml"
    if isinstance(text, str):
        path.write_text(text)
    tables = code({"real": real, "synthetic": real if synthetic is None else synthetic})
    return check_rules(read_rules(path), path, tables, "real", "synthetic")


def error(text: str, tmp_path: Path) -> str:
    with pytest.raises(InputError) as caught:
        check(text, tmp_path, draw(50, 0))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_the_rules_of_the_fixture_by_brute_force(tmp_path: Path) -> None:
    real, synthetic = draw(400, 0), draw(300, 1)
    found = {r.id: r for r in check(FIXTURE, tmp_path, real, synthetic)}
    assert len(found) == 6
    for frame, side in ((real, "real"), (synthetic, "synthetic")):
        f = frame
        brute = {
            "gastric-no-prostatectomy": (
                (f.diagnosis == "gastric cancer") & f.procedure.notna(),
                f.procedure == "prostatectomy",
            ),
            "iiia-implies-imaging": (f.stage == "IIIA", f.imaging.isna()),
            "prostate-is-male": (
                (f.diagnosis == "prostate cancer") & f.sex.notna(),
                f.sex == "female",
            ),
            "adults": (f.age.notna(), (f.age < 18) | (f.age > 110)),
            "after-the-start": (f.admitted.notna(), f.admitted < "2021-01-01"),
            "children-no-ct": ((f.age < 18) & f.imaging.notna(), f.imaging.isin(["CT", "PET-CT"])),
        }
        for name, (applies, breaks) in brute.items():
            count = getattr(found[name], side)
            assert (count.applies, count.violations) == (applies.sum(), (applies & breaks).sum())
            rate, tail = count.violation_rate, 0.05 / 12 / 2  # six rules on two tables
            assert rate.value == count.violations / count.applies
            assert rate.high == pytest.approx(
                beta.ppf(1 - tail, count.violations + 1, count.applies - count.violations)
            )


def test_the_example_in_the_manual_is_a_file_of_rules(tmp_path: Path) -> None:
    manual = (ROOT / "docs" / "quality.md").read_text(encoding="utf-8")
    found = check(manual.split("```yaml\n")[1].split("```")[0], tmp_path, draw(300, 0))
    assert [r.id for r in found] == ["gastric-no-prostatectomy", "iiia-implies-imaging"]
    assert all(r.real.state == "violated" for r in found)


@pytest.mark.parametrize(
    ("a", "b", "state", "undecided"),
    [
        ("x", "y", "satisfied", 0),
        ("x", "n", "violated", 0),
        ("x", None, "not checkable", 1),
        ("o", "n", "not checkable", 0),
        ("o", None, "not checkable", 0),
        (None, "y", "not checkable", 0),  # kept whether or not it applies
        (None, "n", "not checkable", 1),
        (None, None, "not checkable", 1),
    ],
)
def test_one_record_in_three_valued_logic(
    tmp_path: Path, a: str | None, b: str | None, state: str, undecided: int
) -> None:
    text = "rules: [{id: r, if: [{column: a, equals: x}], then: [{column: b, equals: y}]}]"
    every = pd.DataFrame({"a": ["x", "o"], "b": ["y", "n"]})  # so that all levels are known
    one = pd.DataFrame({"a": [a], "b": [b]}, dtype=object)
    (found,) = check(text, tmp_path, every, one)
    assert (found.synthetic.state, found.synthetic.undecided) == (state, undecided)


def test_never_is_if_with_the_last_denied(tmp_path: Path) -> None:
    never = "never: [{column: stage, equals: IIIA}, {column: imaging, missing: true}]"
    then = "if: [{column: stage, equals: IIIA}], then: [{column: imaging, present: true}]"
    text = f"rules: [{{id: a, {never}}}, {{id: b, {then}}}]"
    one, other = check(text, tmp_path, draw(200, 0))
    assert one.real == other.real
    assert one.real.violations > 0


def test_a_rule_that_never_applies_is_not_satisfied(tmp_path: Path) -> None:
    text = (
        "rules: [{id: r, if: [{column: age, greater: 200}], then: [{column: sex, equals: male}]}]"
    )
    (found,) = check(text, tmp_path, draw(200, 0))
    assert found.real.state == found.synthetic.state == "not checkable"
    assert found.real.violation_rate is None


@pytest.mark.parametrize(
    "condition",
    [
        "{column: procedure, equals: prostatectomi}",
        "{column: procedure, in: [prostatectomi, other]}",
        "{column: procedure, not_in: [gastrectomy, prostatectomi]}",
        "{column: age, equals: 999}",
        "{column: admitted, equals: 1999-01-01}",
    ],
)
def test_a_value_that_no_table_holds_does_not_satisfy(tmp_path: Path, condition: str) -> None:
    text = f"rules: [{{id: r, never: [{{column: diagnosis, present: true}}, {condition}]}}]"
    (found,) = check(text, tmp_path, draw(200, 0))
    assert found.real.state == "not checkable"
    assert "is it misspelt?" in found.unmeasured


def test_missing_values_leave_a_kept_rule_open(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": ["x"] * 10, "b": ["y"] * 9 + [None]})
    text = "rules: [{id: r, if: [{column: a, equals: x}], then: [{column: b, equals: y}]}]"
    (found,) = check(text, tmp_path, frame)
    assert found.real.state == "inconclusive"
    assert (found.real.applies, found.real.undecided) == (9, 1)


@pytest.mark.parametrize(
    ("column", "condition", "hits"),
    [
        ([1, 2, 3], "equals: 2", 1),
        ([1.5, 2, 3], "in: [1.5, 3]", 2),
        ([1, 2, 3], "between: [2, 3]", 2),
        ([1, 2, 3], "less: 2", 1),
        ([True, False, True], "equals: true", 2),
        (["yes", "no", "no"], "equals: 'no'", 2),
        (["1", "x", "2"], "equals: 1", 1),
        (pd.to_datetime(["2020-01-01", "2021-01-01", "2022-01-01"]), "greater: 2020-06-01", 2),
        (
            pd.to_datetime(["2020-01-01 10:00", "2020-01-01 12:00"], utc=True),
            "less: '2020-01-01T12:30:00+01:00'",
            1,
        ),
    ],
)
def test_values_are_compared_as_what_the_column_holds(
    tmp_path: Path, column: Any, condition: str, hits: int
) -> None:
    text = f"rules: [{{id: r, never: [{{column: v, {condition}}}]}}]"
    (found,) = check(text, tmp_path, pd.DataFrame({"v": column}))
    assert found.real.violations == hits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: []", "RULES.yaml:1: rules: "),
        ("rules: [{id: r}]", "RULES.yaml:1: rules.0: rule 'r': give never, or both if and then"),
        (
            "rules: [{id: r, if: [{column: age, less: 1}]}]",
            "rules.0: rule 'r': give never, or both if and then",
        ),
        (
            "rules: [{id: r, never: [{column: age}]}]",
            "rules.0.never.0: give one of equals, in, not_in, less, greater, between",
        ),
        (
            "rules: [{id: r, never: [{column: age, less: 1, greater: 2}]}]",
            "rules.0.never.0: give one of equals, in, not_in, less, greater, between, missing, "
            "present; this has less and greater",
        ),
        (
            "rules:\n- id: r\n  never:\n  - {column: age, lesser: 1}",
            "RULES.yaml:4: rules.0.never.0.lesser: unknown key; did you mean 'less'?",
        ),
        ("rules: [{id: r, never: [{column: age, in: []}]}]", "rules.0.never.0.in: "),
        ("rules: [{id: r, never: [{column: age, less: .nan}]}]", "rules.0.never.0.less"),
        ("rules: [{id: r, never: [{column: age, between: [1]}]}]", "rules.0.never.0.between"),
        (
            "rules: [{id: r, never: [{column: age, less: 1}]},"
            " {id: r, never: [{column: age, less: 2}]}]",
            "two are called 'r'",
        ),
        (
            "rules: [{id: r, never: [{column: aeg, less: 1}]}]",
            "RULES.yaml: rules.0 (r): never.0.column: no column 'aeg'; there are age",
        ),
        (
            "rules: [{id: r, never: [{column: sex, less: 1}]}]",
            "rules.0 (r): never.0.less: column 'sex' holds text; use equals or in",
        ),
        (
            "rules: [{id: r, if: [{column: age, less: 9}], then: [{column: age, in: [old]}]}]",
            "rules.0 (r): then.0.in: column 'age' holds numbers, got 'old'",
        ),
        (
            "rules: [{id: r, never: [{column: admitted, less: 3}]}]",
            "rules.0 (r): never.0.less: column 'admitted' holds dates, got '3.0'",
        ),
        (
            "rules: [{id: r, never: [{column: age, between: [9, 3]}]}]",
            "rules.0 (r): never.0.between: the first bound is above the second",
        ),
        (
            "rules: [{id: r, never: [{column: sex, equals: no}]}]",
            "rules.0 (r): never.0.equals: false is no value of column 'sex'; YAML reads yes, no",
        ),
        (
            "rules: [{id: r, never: [{column: sex, equals: !!python/name:os.system }]}]",
            "not valid YAML",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_rule_and_field(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in error(text, tmp_path)
