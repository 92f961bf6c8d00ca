"""Sentences: both locales complete, numbers written honestly, unknown keys readable."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.record import Finding, Interval
from reports.sentence import (
    FIELD,
    FORMATS,
    at_least,
    at_most,
    figure,
    figure_name,
    figures_text,
    finish,
    interval_text,
    locales,
    percent,
    sentence,
    texts,
    visible,
)

OTHERS = [name for name in locales() if name != "en"]


def test_english_and_chinese_are_there():
    assert {"en", "zh"} <= set(locales())


@pytest.mark.parametrize("locale", OTHERS)
def test_every_key_stands_in_every_locale(locale):
    assert set(texts(locale)) == set(texts("en"))


@pytest.mark.parametrize("locale", OTHERS)
def test_a_translation_names_the_same_fields_in_the_same_format(locale):
    for key, template in texts("en").items():
        assert sorted(FIELD.findall(texts(locale)[key])) == sorted(FIELD.findall(template)), key


@pytest.mark.parametrize("locale", locales())
def test_templates_hold_no_broken_field_and_no_unknown_format(locale):
    for key, template in texts(locale).items():
        assert not set("{}") & set(FIELD.sub("", template)), key
        assert {spec for _, spec in FIELD.findall(template)} <= {"", *FORMATS}, key


@pytest.mark.parametrize("locale", OTHERS)
def test_a_translation_is_one(locale):
    """A sentence of several words that reads the same in both languages was forgotten."""
    for key, template in texts("en").items():
        if len(re.findall(r"[a-z]{3,}", FIELD.sub("", template))) > 3:
            assert texts(locale)[key] != template, key


def test_fields_are_filled_by_their_format():
    values = {"subject": "Loss", "figure": "tpr_at_fpr_0.01", "limit": 0.05}
    values |= {"estimate": 0.081, "low": 0.0493, "high": 0.1127}
    said = sentence("gate.attack.fail", values)
    assert "TPR at 1\u00a0% FPR is 0.081 [0.049, 0.113]" in said
    assert "0.05" in said
    assert "FPR 为 1% 时的 TPR" in sentence("gate.attack.fail", values, "zh")


def test_an_interval_in_a_sentence_is_rounded_outwards():
    values = {"subject": "Loss", "figure": "auc", "limit": 0.6}
    values |= {"estimate": 0.7321, "low": 0.69099, "high": 0.77401}
    assert "AUC is 0.732 [0.690, 0.775]" in sentence("gate.attack.fail", values)
    values |= {"estimate": -0.02, "low": -0.0301, "high": 0.0}
    assert "by -0.02 [-0.031, 0]" in sentence("gate.baseline.pass", values)
    assert "[–, ∞]" in sentence("gate.attack.fail", values | {"low": None, "high": math.inf})


def test_an_unknown_key_stays_readable():
    assert sentence("old.check_of.year", {"n": 3, "ok": True}) == "old check of year: n 3, ok yes"


def test_a_missing_value_does_not_crash():
    assert sentence("gate.claim.fail", {}) == "The claim “?” is refuted. ?"


def test_a_value_is_never_taken_for_a_template():
    said = sentence("gate.ledger.pass", {"value": "{subject} {0.__class__}", "subject": "secret"})
    assert said.endswith("{subject} {0.__class__}")


def test_an_unknown_locale_is_refused():
    with pytest.raises(ValueError, match="'xx' is none of en, zh"):
        sentence("verdict.pass", {}, "xx")


def test_finish_writes_meaning_and_remedy():
    finding = Finding("a", "a", "error", "gate.not_run.error", {"subject": "LiRA"})
    done = finish(finding)
    assert done.meaning.startswith("LiRA did not run")
    assert done.remedy
    assert finish(finding, "zh").meaning.startswith("LiRA 没有运行")
    assert finish(Finding("a", "a", "measured", "no.such.key")).remedy == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.71234, "0.712"),
        (3.21489, "3.215"),
        (1234.5, "1,234"),
        (999.97, "1,000"),
        (1e-5, "1e-5"),
        (1.234e-7, "1.23e-7"),
        (2.5e9 + 0.5, "2.5e9"),
        (569, "569"),
        (-0.25, "-0.25"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "NaN"),
    ],
)
def test_figure(number, text):
    assert figure(number) == text


def test_percent():
    assert [percent(x) for x in (0.95, 0.001, 1, 0)] == [
        f"{n}\u00a0%" for n in ("95", "0.1", 100, 0)
    ]
    assert percent(0.123456, "zh") == "12.35%"


def test_interval_text():
    sampled = Interval(0.6812, 0.7123, 0.7423, 0.95, "DeLong", 569)
    assert interval_text(sampled).replace("\u00a0", " ") == (
        "0.712 [0.681, 0.743] (95 %, DeLong, n = 569)"
    )
    computed = Interval(2.5, 2.5, 2.5, 1, "RDP", 1000)
    assert interval_text(computed).replace("\u00a0", " ") == "2.5 (computed, RDP, n = 1,000)"
    assert figures_text(Interval(2.70438, 2.70483, 2.70483, 1, "x", 1)) == "2.7049 [2.7043, 2.7049]"
    assert figures_text(Interval(0, 0.0035, 0.0366, 0.95, "x", 1)) == "0.004 [0, 0.037]"
    assert figures_text(Interval(0, 0.3, math.inf, 1, "x", 1)) == "0.3 [0, ∞]"


@given(
    st.lists(st.floats(-1e5, 1e5), min_size=3, max_size=3).map(sorted),
    st.sampled_from([0.95, 1.0]),
)
def test_the_text_never_claims_more_than_the_interval(ends, confidence):
    low, value, high = ends
    if not max(abs(low), abs(high)) >= 1e-3 or high - low < 1e-4:
        return  # written with significant digits, to nearest
    text = figures_text(Interval(low, value, high, confidence, "m", 1)).replace(",", "")
    numbers = [float(x) for x in re.findall(r"-?[\d.]+(?:e-?\d+)?", text)]
    assert numbers[1] <= low
    assert numbers[2] >= high
    assert numbers[1] <= numbers[0] <= numbers[2]


@given(st.floats(1e-3, 9e5))
def test_bounds_stay_bounds_when_rounded(x):
    upper, lower = (float(t.replace(",", "")) for t in (at_most(x), at_least(x)))
    assert lower <= x <= upper
    assert upper - lower <= max(2e-3 * x, 1)


def test_figure_names():
    assert figure_name("auc") == "AUC"
    assert figure_name("lower_tail_tpr_at_fpr_0.001") == "Lower tail, TPR at 0.1\u00a0% FPR"
    assert figure_name("epsilon_PLD") == "ε by PLD"
    assert figure_name("some_new_figure") == "some new figure"


def test_what_cannot_be_seen_is_marked():
    assert visible("a\u202eb\udcff\x00c\n") == "a\ufffdb\ufffd\ufffdc\n"
