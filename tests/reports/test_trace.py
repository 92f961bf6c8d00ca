"""The trace report: its JSON returns, its page answers first, harms nobody and stays small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
import unicodedata
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from scipy.stats import hypergeom

from reports import schema
from reports.excerpt import WIDTH, excerpt
from reports.record import OUTCOMES, Interval
from reports.sentence import FIELD, texts
from reports.trace import (
    VERDICTS,
    BudgetState,
    Hit,
    Layer,
    LedgerState,
    LegacyMarks,
    Reason,
    TracedRecord,
    TraceReport,
    from_json,
    to_json,
)
from reports.trace_html import render
from tests.reports import sample_traces
from tests.reports.test_html import Page

BUILDERS = pytest.mark.parametrize("build", sample_traces.ALL, ids=lambda b: b.__name__)
VALIDATOR = Draft202012Validator(json.loads(schema.TRACE_PATH.read_text(encoding="utf-8")))
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]"
)
WORDS = st.text(st.characters(), max_size=20).filter(lambda w: "Infinity" not in w)
HITS = st.builds(
    Hit,
    st.sampled_from(["invisible", "token choice", "row", "near duplicate", "legacy"]),
    WORDS,
    WORDS,
    WORDS,
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 1)),
)
REASONS = st.builds(
    Reason,
    WORDS,
    st.dictionaries(WORDS, st.one_of(WORDS, st.floats(allow_nan=False), st.none()), max_size=3),
)
RECORDS = st.builds(
    TracedRecord,
    WORDS,
    st.integers(1, 10**12),
    WORDS,
    st.sampled_from(VERDICTS),
    REASONS,
    st.lists(HITS, min_size=2, max_size=3).map(tuple),
)


# ---- the data


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, max_size=4).map(tuple), st.lists(REASONS, max_size=2).map(tuple), WORDS)
def test_round_trip(records, reasons, title):
    report = sample_traces.report(records=records, reasons=reasons, title=title)
    text = to_json(report)
    assert from_json(text) == report
    assert text.encode("utf-8")
    assert VALIDATOR.is_valid(json.loads(text))


@BUILDERS
def test_samples_round_trip_and_are_valid(build):
    report = build()
    assert from_json(to_json(report)) == report
    text = to_json(dataclasses.replace(report, records=report.records[:200]))
    errors = list(VALIDATOR.iter_errors(json.loads(text)))
    assert not errors, errors[0]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"dpassay.trace/1"', '"dpassay.trace/2"', "'dpassay.trace/2' is not readable"),
        ('"outcome": "pass"', '"outcome": "fine"', "trace.outcome: 'fine' is none of"),
        ('"row": 1,', '"row": 0,', r"trace.records\[0\]: TracedRecord: rows count from 1"),
        ('"verdict": "traced"', '"verdict": "good"', r"records\[0\].verdict: 'good'"),
        ('"verdict": "traced"', '"verdict": "conflict"', "conflict needs 2 hits or more, got 1"),
        ('"layer": "invisible"', '"layer": "smell"', r"hits\[0\].layer: 'smell' is none of"),
        ('"false_trace": 4e-10', '"false_trace": NaN', "NaN is not JSON"),
        ('"untraceable": 0', '"untraceable": 101', "0 <= untraceable <= sample"),
        ("audit:***@", "audit:hunter2@", "the URL shows a password"),
        ('"epsilon": 3.0', '"epsilon": "3"', r"runs\[0\].epsilon"),
        ('"seed": 7', '"seed": 7, "x": 1', "unknown field 'x'"),
    ],
)
def test_a_broken_field_is_named(old, new, complaint):
    text = to_json(sample_traces.clean())
    assert old in text
    with pytest.raises(ValueError, match=complaint):
        from_json(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("url", "shows"),
    [
        ("postgresql://u:secret@h/db", True),
        ("postgresql://:secret@h/db", True),
        ("postgresql://u:se/cr@t@h/db", True),
        ("postgresql://u:***@h/db", False),
        ("postgresql://u@h:5432/db", False),
        ("registry.db", False),
        ("sqlite:///C:/data/registry@home.db", False),
    ],
)
def test_a_password_never_enters_a_report(url, shows):
    state = sample_traces.clean().registry
    if not shows:
        assert dataclasses.replace(state, url=url).url == url
        return
    with pytest.raises(ValueError, match=r"put \*\*\* in its place") as caught:
        dataclasses.replace(state, url=url)
    assert "secret" not in str(caught.value)
    assert "cr@t" not in str(caught.value)


def test_the_tightest_bound_is_the_one_that_counts():
    run = sample_traces.run()
    assert run.bound is not None
    assert run.bound.method.startswith("PLD")
    assert dataclasses.replace(run, recomputed=()).bound is None


def test_the_schema_refuses_what_the_reader_refuses():
    data = json.loads(to_json(sample_traces.clean()))
    for change in (
        {"schema": "dpassay.trace/2"}, {"outcome": "fine"}, {"records": {}}, {"extra": 1},
    ):  # fmt: skip
        assert not VALIDATOR.is_valid({**data, **change})
    del data["schema"]
    assert not VALIDATOR.is_valid(data)


def test_a_stale_schema_is_noticed(monkeypatch, tmp_path, capsys):
    stale = tmp_path / "trace.schema.json"
    stale.write_text("{}")
    monkeypatch.setattr(schema, "TRACE_PATH", stale)
    assert schema.main(["--check"]) == 1
    assert "trace.schema.json is stale" in capsys.readouterr().err


# ---- the excerpt


@given(st.text(st.characters(), max_size=400))
def test_an_excerpt_is_short_visible_and_stays_as_it_is(text):
    short = excerpt(text)
    assert len(short) <= WIDTH + 1
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn") for c in short)
    assert not UNSEEN.search(short)
    assert excerpt(short) == short
    short.encode("utf-8")


def test_an_excerpt_says_what_is_hidden_and_how_much():
    marked = "a note" + "".join(chr(0xE0100 + i) for i in range(24)) + " of  two\nlines"
    assert excerpt(marked) == "a note⟨U+E0100 +23⟩ of two lines"
    assert excerpt("\u202egpj.exe") == "⟨U+202E⟩gpj.exe"
    assert excerpt("x" * 200, 10) == "xxxxxxxxxx…"
    assert excerpt("") == excerpt(" \n ") == ""
    assert excerpt("普通中文，没有什么") == "普通中文，没有什么"


@pytest.mark.parametrize("text", ["\U000e0100" * 10_000_000, "w" * 10_000_000, " " * 10_000_000])
def test_ten_megabytes_are_cut_at_once(text):
    start = time.perf_counter()
    assert len(excerpt(text)) <= WIDTH + 1
    assert time.perf_counter() - start < 0.5


# ---- the page


@BUILDERS
@pytest.mark.parametrize("locale", ["en", "zh"])
def test_every_report_renders_as_sound_markup(build, locale):
    page = Page(render(build(), locale))
    assert not page.problems
    assert not page.open
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
        if (attributes.get("href") or "").startswith("#"):
            assert attributes["href"][1:] in ids
    assert page.all("html")[0]["lang"] == {"en": "en", "zh": "zh-Hans"}[locale]
    levels = [int(t[1]) for t, _ in page.elements if re.fullmatch("h[1-6]", t)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table"))


@BUILDERS
def test_no_script_no_request_no_inline_style_and_our_styles_only(build):
    text = render(build())
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in {"script", "img", "iframe", "link", "object", "embed", "base", "form"}
        assert not {"src", "style", "srcset", "action", "xlink:href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    css = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in css
    assert "@import" not in css
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a) or ""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


@pytest.mark.parametrize("locale", ["en", "zh"])
def test_what_a_stranger_wrote_is_shown_and_can_neither_run_nor_hide(locale):
    text = render(sample_traces.hostile(), locale)
    assert "<script" not in text
    assert "<img" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7*7 }}" in text
    assert "⟨U+202E⟩" in text
    assert not UNSEEN.search(text)
    assert len(text) < 150_000
    text.encode("utf-8")


def test_the_answer_comes_first_then_runs_then_records():
    page = Page(render(sample_traces.troubled()))
    assert [a.get("id") for a in page.all("section")] == [
        "verdict", "runs", "records", "tokens", "spot", "legacy", "registry", "provenance",
        "glossary",
    ]  # fmt: skip
    first = next(a for t, a in page.elements if t == "a")
    assert first["href"] == "#verdict"


def answer(report: TraceReport, locale: str = "en") -> str:
    section = render(report, locale).split('id="verdict"')[1].split("</section>")[0]
    return Page(section).text.replace("\u00a0", " ")


def test_the_answer_says_how_many_which_run_which_budget_and_what_the_sample_bounds():
    said = answer(sample_traces.clean())
    assert "Of 100 records 100 lead to a registered run." in said
    assert "“Discharge notes, spring” made 81 of the records." in said
    assert "ε = 3, δ = 1e-5 holds: recomputed at most 2.549, by PLD (dp-accounting)." in said
    assert (
        "Of 100 drawn from 10,000, none could not be traced: at most 2.94 % of the whole release "
        "can be untraceable, at 95 % confidence."
    ) in said
    assert "The registry verifies: 412 entries" in said
    said = answer(sample_traces.troubled())
    assert "Of 10,000 records 9,941 lead to a registered run; 41 of them had lost" in said
    assert "ε = 1, δ = 1e-5 does not hold: recomputed at least 2.536 and at most 2.549" in said
    assert "The registry does not verify. Problems found: 2." in said
    said = answer(sample_traces.open_ended())
    assert "could not be checked" in said
    assert "could have written all of it anew" in said


def test_the_sample_s_bound_agrees_with_the_hypergeometric_law():
    """Clopper-Pearson style inversion without replacement, by scipy: the sample's own figure."""
    fits = [bad for bad in range(10_001) if hypergeom.cdf(0, 10_000, bad, 100) > 0.05]
    check = sample_traces.clean().spot_check
    assert check is not None
    assert check.share_at_most.high == pytest.approx(max(fits) / 10_000, abs=1e-4)


def test_a_share_is_rounded_up():
    spot = sample_traces.spot(10_000, 100, 0, 0.0290001)
    assert "at most 2.91 %" in answer(sample_traces.report(spot_check=spot))
    whole = sample_traces.spot(100, 100, 2, 0.02)
    assert "All 100 records of the release were looked at, and 2" in answer(
        sample_traces.report(spot_check=whole)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": None, "delta": None}, "No budget was registered for it"),
        ({"budget": "exceeded", "epsilon": 2.54}, "no less than 2.549 is guaranteed"),
        ({"budget": "exceeded", "recomputed": ()}, "no finite ε is guaranteed"),
        ({"budget": "not checkable"}, "could not be checked"),
    ],
)
def test_a_budget_that_does_not_hold_says_how(changes, words):
    run = dataclasses.replace(sample_traces.run(), **changes)
    assert words in answer(sample_traces.report(runs=(run,)))


def test_epsilon_stands_with_delta_unit_relation_and_accountant():
    rows = re.findall(r"<tr.*?</tr>", render(sample_traces.clean()), re.S)
    row = next(r for r in rows if "ε = 3" in r)
    for words in ("δ", "one record, add or remove one", "PLD (dp-accounting)", "RDP (Mironov"):
        assert words in row


def test_an_infinite_bound_is_no_figure_of_a_guarantee():
    endless = Interval(math.inf, math.inf, math.inf, 1, "RDP", 1)
    run = dataclasses.replace(sample_traces.run(), budget="exceeded", recomputed=(endless,))
    assert "no finite ε is guaranteed" in answer(sample_traces.report(runs=(run,)))


def test_the_troubling_records_and_runs_stand_first_and_the_rest_is_counted():
    report = sample_traces.troubled()
    text = render(report)
    seen = re.findall(r'<h3><span class="badge tone-\w+">.*?</svg>(\w+)</span>', text)
    assert seen[:5] == ["Forged", "Conflict", "Unknown", "Stripped", "Traced"]
    assert report.counts == {
        "forged": 12, "conflict": 3, "unknown": 44, "stripped": 41, "traced": 9_900,
    }  # fmt: skip
    assert len(re.findall(r'class="preview"', text)) == 12 + 3 + 44 + 41 + 24
    assert "9,876 more are in trace.json." in text
    assert text.index("Discharge notes, autumn") < text.index("Discharge notes, spring")


def test_a_conflict_names_both_runs():
    text = render(sample_traces.troubled())
    group = text.split(">Conflict</span>")[2].split('<div class="group">')[0]
    assert "Discharge notes, spring" in group
    assert "Discharge notes, autumn" in group


def test_legacy_marks_bring_their_weaknesses():
    text = Page(render(sample_traces.troubled())).text
    for words in ("anyone can compute", "77,163 batches", "reader sees its digits", "sanitisers"):
        assert words in text
    assert 'id="legacy"' not in render(sample_traces.clean())


def test_the_collision_figure_is_the_birthday_bound():
    """By the exact product over 2**32 codes no other number of batches is nearer to even odds."""
    apart, off = 0.0, {}
    for batches in range(2, 77_166):
        apart += math.log1p(-(batches - 1) / 2**32)
        off[batches] = abs(math.exp(apart) - 0.5)
    assert min(off, key=lambda n: off[n]) == LegacyMarks(1).even_odds


@pytest.mark.parametrize("build", [sample_traces.troubled, sample_traces.huge])
def test_ten_thousand_records_render_fast_and_small(build):
    report = build()
    assert len(report.records) == 10_000
    start = time.perf_counter()
    text = render(report)
    assert time.perf_counter() - start < 2
    assert len(text.encode()) < 1_500_000


def test_another_language_takes_its_own_sentences():
    said = answer(sample_traces.clean(), "zh")
    assert "100 条记录中，100 条可追溯到已登记的运行" in said
    text = Page(render(sample_traces.clean(), "zh")).text
    assert "233 行的哈希链完整" in text
    with pytest.raises(ValueError, match="none of en, zh"):
        render(sample_traces.clean(), "fr")


def test_every_key_that_the_page_uses_has_a_sentence():
    """A key without one would be shown as its own words, with dots for spaces."""
    for locale in ("en", "zh"):
        for build in (sample_traces.clean, sample_traces.troubled, sample_traces.open_ended):
            assert not re.search(r">(trace|verdict|provenance) \w+", render(build(), locale))


def test_every_verdict_layer_and_state_has_its_words():
    known = texts("en")
    prefixes = {
        "trace.verdict.": VERDICTS,
        "trace.layer.": get_args(Layer),
        "trace.ledger.": get_args(LedgerState),
        "trace.budget.": get_args(BudgetState),
        "trace.outcome.": OUTCOMES,
    }
    for prefix, words in prefixes.items():
        assert all(prefix + word in known for word in words)
    assert all("{" not in FIELD.sub("", t) for k, t in known.items() if k.startswith("trace."))


def test_nothing_but_jinja2_is_needed_to_render():
    code = (
        "import sys; from reports.trace_html import render; from reports.trace import from_json; "
        "render(from_json(sys.stdin.read())); "
        "print(*{m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        input=to_json(sample_traces.clean()),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert set(ran.stdout.split()) == {"reports", "jinja2", "markupsafe", "__main__"}


def test_the_report_itself_needs_the_standard_library_only():
    code = (
        "import sys, reports.trace, reports.excerpt; "
        "print(*{m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert set(ran.stdout.split()) == {"reports", "__main__"}
