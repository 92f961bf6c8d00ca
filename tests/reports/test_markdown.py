"""The Markdown table: one row for each decision, and nothing of a stranger's comes to life."""

from __future__ import annotations

import re

import pytest

from reports.markdown import escape, render
from tests.reports import sample_records


def test_one_row_for_each_decision_worst_first():
    lines = render(sample_records.refuted()).splitlines()
    assert lines[0] == "### ❌ dpassay: Fail · Claims about the DP twin"
    rows = [line for line in lines if re.match(r"\| (✅|❌|❔|⚠️)", line)]
    assert [row.split()[1] for row in rows] == ["❌", "❔", "✅", "✅"]
    assert "At least ε = 2.537 was spent at δ = 1e-5" in rows[0]


@pytest.mark.parametrize("build", sample_records.ALL, ids=lambda b: b.__name__)
@pytest.mark.parametrize("locale", ["en", "zh"])
def test_every_row_has_three_cells(build, locale):
    for line in render(build(), locale).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_it_stays_short_enough_for_a_comment():
    assert len(render(sample_records.huge())) < 20_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<img src=x>", "&lt;img src=x>"),
        ("&lt;", "&amp;lt;"),
        ("@all", "@\u200ball"),
        ("see #12", "see #\u200b12"),
        ("https://x.example", "https://\u200bx.example"),
        ("[a](b)", r"\[a\](b)"),
        ("a\nb", "a b"),
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("1e-5", "1e-5"),
    ],
)
def test_markup_is_shown_and_not_followed(text, shown):
    assert escape(text) == shown


def test_hostile_text_can_be_written():
    text = render(sample_records.hostile())
    text.encode("utf-8")
    assert "<script" not in text
    assert "@all" not in text
    assert "\u202e" not in text
