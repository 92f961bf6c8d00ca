"""The Record's JSON: what is written comes back, and what is broken is refused with its field."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.record import Attack, Curve, Finding, Interval, Metric, Record, from_json, to_json
from tests.reports import sample_records

NUMBERS = st.floats(allow_nan=False)
WORDS = st.text(st.characters(), max_size=20)  # lone surrogates too, as in odd file names
VALUES = st.one_of(
    NUMBERS,
    st.integers(-(2**63), 2**63),
    WORDS.filter(lambda w: w not in ("Infinity", "-Infinity")),
    st.booleans(),
    st.none(),
)
INTERVALS = st.builds(
    lambda ends, *rest: Interval(*sorted(ends), *rest),
    st.lists(NUMBERS, min_size=3, max_size=3),
    st.floats(0, 1, exclude_min=True),
    WORDS,
    st.integers(0, 10**9),
)
CURVES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5).map(
    lambda points: Curve("c", "x", "y", tuple(p[0] for p in points), tuple(p[1] for p in points))
)
FINDINGS = st.builds(
    Finding,
    id=WORDS,
    check=WORDS,
    message=WORDS,
    values=st.dictionaries(WORDS, VALUES, max_size=4),
    figures=st.dictionaries(WORDS, INTERVALS, max_size=3),
    evidence=st.just(()),
)
ATTACKS = st.builds(
    Attack,
    metrics=st.lists(
        st.one_of(
            st.builds(Metric, WORDS, INTERVALS),
            st.builds(lambda n, r: Metric(n, None, r), WORDS, WORDS.filter(bool)),
        ),
        max_size=3,
    ).map(tuple),
    roc=CURVES,
    seconds=NUMBERS,
    notes=st.lists(WORDS, max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        lambda title, findings, attacks: dataclasses.replace(
            sample_records.empty(), title=title, findings=findings, attacks=attacks
        ),
        WORDS,
        st.lists(FINDINGS, max_size=3).map(tuple),
        st.lists(ATTACKS, max_size=2).map(tuple),
    )
)
def test_round_trip(record: Record):
    text = to_json(record)
    assert from_json(text) == record
    assert text.encode("utf-8")  # can be written, whatever a stranger named his files
    assert to_json(from_json(text)) == text


@pytest.mark.parametrize("build", sample_records.ALL, ids=lambda b: b.__name__)
def test_samples_round_trip(build):
    assert from_json(to_json(build())) == build()


def test_infinite_values_come_back_as_numbers():
    finding = Finding("a", "a", "measured", "m", {"epsilon": math.inf})
    record = dataclasses.replace(sample_records.empty(), findings=(finding,))
    assert '"Infinity"' in to_json(record)
    assert from_json(to_json(record)).findings[0].values["epsilon"] == math.inf


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "expected a JSON object"),
        ("{}", "schema_version"),
        ("{", "Expecting"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema_version": "2.0"}', "'2.0' is not readable"),
    ],
)
def test_what_is_no_record_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_json(text)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"seed": 7', '"seed": "7"', r"record.attacks\[0\].seed: expected int"),
        ('"low": 0', '"low": NaN, "was": 0', "NaN is not JSON"),
        ('"confidence": 0.95', '"confidence": 95', r"interval: Interval: confidence"),
        ('"outcome": "fail"', '"outcome": "ok"', "record.verdict.outcome: 'ok' is none of"),
        ('"n": 569', '"n": 569, "x": 1', "unknown field 'x'"),
        ('"seconds": 41.7', '"seconds": 1' + "0" * 400, "too large"),
        ('"n": 569', '"n": 1' + "0" * 400, "too large"),
    ],
)
def test_a_broken_field_is_named(old, new, complaint):
    text = to_json(sample_records.leaky())
    assert old in text
    with pytest.raises(ValueError, match=complaint):
        from_json(text.replace(old, new))


def test_nan_is_not_written():
    finding = Finding("a", "a", "measured", "m", {"x": math.nan})
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(dataclasses.replace(sample_records.empty(), findings=(finding,)))


def test_the_record_needs_the_standard_library_only():
    import subprocess
    import sys

    code = "import sys, reports.record; print(json_ok := 'jinja2' not in sys.modules)"
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "True", ran.stderr
    assert json.loads(to_json(sample_records.empty()))["schema_version"]
