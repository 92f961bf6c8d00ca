"""The report: self-contained, harmless, complete, in order, and legible."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import reports.html
from reports.cards import TONES
from reports.html import render
from reports.record import ClaimState, Finding, to_json
from tests.reports import sample_records

BUILDERS = pytest.mark.parametrize("build", sample_records.ALL, ids=lambda b: b.__name__)
VOID = {"meta", "link", "br", "img", "input", "hr", "base"}


class Page(HTMLParser):
    """Elements in order, the text, and whether every element was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.problems: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@BUILDERS
@pytest.mark.parametrize("locale", ["en", "zh"])
def test_every_record_renders_as_sound_markup(build, locale):
    page = Page(render(build(), locale))
    assert not page.problems
    assert not page.open
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            if name in attributes:
                assert attributes[name] in ids
        if (attributes.get("href") or "").startswith("#"):
            assert attributes["href"][1:] in ids
    assert page.all("html")[0]["lang"] == {"en": "en", "zh": "zh-Hans"}[locale]


@BUILDERS
def test_no_script_no_request_no_inline_style(build):
    page = Page(render(build()))
    for tag, attributes in page.elements:
        assert tag not in {"script", "img", "iframe", "link", "object", "embed", "base", "form"}
        assert not {"src", "style", "srcset", "action", "xlink:href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    css = (Path(reports.html.__file__).parent / "templates" / "report.css").read_text()
    assert "url(" not in css
    assert "@import" not in css


def test_the_policy_allows_our_style_sheet_and_nothing_else():
    text = render(sample_records.private())
    policy = next(a["content"] for a in Page(text).all("meta") if "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    css = text.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


def test_what_a_stranger_wrote_is_shown_and_not_run():
    text = render(sample_records.hostile())
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7*7 }}" in text
    assert "\u202e" not in text
    text.encode("utf-8")


def test_headings_descend_one_step_at_a_time():
    for build in sample_records.ALL:
        levels = [int(t[1]) for t, _ in Page(render(build())).elements if re.fullmatch("h[1-6]", t)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))


def test_landmarks_captions_and_scopes():
    page = Page(render(sample_records.private()))
    for landmark in ("header", "main", "nav", "footer"):
        assert len(page.all(landmark)) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    charts = [a for a in page.all("svg") if "chart" in (a.get("class") or "")]
    assert charts
    assert all(a.get("role") == "img" for a in charts)
    first = next(a for t, a in page.elements if t == "a")
    assert first["href"] == "#verdict"


def test_the_verdict_comes_first_then_claims_attacks_budget_checks_provenance():
    page = Page(render(sample_records.refuted()))
    sections = [a.get("id") for a in page.all("section")]
    assert sections == [
        "verdict", "claims", "attacks", "budget", "findings", "provenance", "glossary",
    ]  # fmt: skip


def test_claimed_and_recomputed_stand_side_by_side():
    text = render(sample_records.refuted())
    row = next(r for r in re.findall(r"<tr>.*?</tr>", text, re.S) if ">ε</th>" in r)
    assert "<bdi>0.5</bdi>" in row
    assert "2.549 [2.536, 2.549]" in row
    assert "computed, PLD, n\u00a0=\u00a0230" in row


def test_every_finding_stands_on_the_page_once():
    record = sample_records.refuted()
    text = render(record)
    for finding in record.findings:
        assert text.count(f"{finding.meaning}</bdi></p>\n<dl") <= 1
    assert len(re.findall(r'class="statement"', text)) == len(record.findings)


def test_every_metric_shows_interval_n_and_reason():
    text = Page(render(sample_records.leaky())).text.replace("\u00a0", " ")
    assert "0.732 [0.690, 0.775]" in text
    assert "95 %, Newcombe 2006, n = 569" in text
    assert "too few non-members to say" in text


def _state_of(*states: str) -> str:
    record = sample_records.private()
    findings = tuple(
        Finding(f"f{i}", "c", s, "m", claim="model-card")  # type: ignore[arg-type]
        for i, s in enumerate(states)
    )
    text = render(dataclasses.replace(record, findings=findings))
    article = text.split('id="claim-1">')[1].split("</h3>")[0]
    return re.sub("<[^>]+>", "", article.split("<q>")[0]).strip()


def test_one_refutation_decides_a_claim_and_an_error_hides_behind_nothing():
    supported: ClaimState = "supported"
    assert _state_of(supported, "refuted", "error") == "Refuted"
    assert _state_of(supported, "error") == "Error"
    assert _state_of("inconclusive", supported) == "Supported"
    assert _state_of("inconclusive", "not checkable") == "Inconclusive"
    assert _state_of() == "Not checkable"


def test_a_decision_leads_to_its_evidence():
    text = render(sample_records.private())
    links = re.findall(r'<a href="#([^"]+)">evidence', text)
    assert links == ["finding-1", "finding-2", "attack-1"]


def test_a_waiver_is_shown_beside_the_failure():
    text = Page(render(sample_records.leaky())).text
    assert "pilot with public data only" in text
    assert "does not turn it into a pass" in text


def test_an_attack_without_a_control_says_so():
    assert "No positive control was run" in render(sample_records.inconclusive())
    assert "No positive control was run" not in render(sample_records.private())


def test_comparison_only_is_no_guarantee():
    text = render(sample_records.private())
    row = next(r for r in re.findall(r"<tr>.*?</tr>", text, re.S) if "GDP, central" in r)
    assert "Comparison only" in row
    best = re.search(r"At most ε\u00a0=\u00a0([\d.]+)", text)
    assert best
    assert best[1] == "2.549"  # GDP's 2.445 is smaller and no bound


def test_infinite_epsilon_is_shown_and_called_no_guarantee():
    text = Page(render(sample_records.unbounded())).text
    assert "∞" in text
    assert "No finite ε is guaranteed at δ = 1e-5" in text
    assert "At most ε = ∞" not in text
    assert "No bound" in text


def test_nothing_but_jinja2_is_needed_to_render():
    """An archived record must open in years, without whatever else is installed today."""
    code = (
        "import sys; from reports.html import render; import reports.markdown; "
        "from reports.record import from_json; render(from_json(sys.stdin.read())); "
        "print(*{m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        input=to_json(sample_records.private()),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert set(ran.stdout.split()) == {"reports", "jinja2", "markupsafe", "__main__"}


def test_a_record_without_a_title_still_has_a_heading():
    assert "Untitled audit" in render(sample_records.empty())


def test_another_language_takes_its_own_sentences_where_they_fit():
    text = Page(render(sample_records.refuted(), "zh")).text
    assert "233 行的哈希链完整" in text
    assert "未通过" in text
    chain = dataclasses.replace(sample_records.ledger_findings()[0], values={})
    old = dataclasses.replace(sample_records.empty(), findings=(chain,))
    assert chain.meaning in Page(render(old, "zh")).text


def test_an_unknown_locale_is_refused():
    with pytest.raises(ValueError, match="none of en, zh"):
        render(sample_records.empty(), "fr")


def test_the_page_stays_small():
    assert len(render(sample_records.private()).encode()) < 200_000


def test_the_same_record_gives_the_same_page():
    assert render(sample_records.private()) == render(sample_records.private())


def test_every_state_has_a_tone():
    assert set(TONES) >= {"pass", "fail", "inconclusive", "error", "void", "measured"}


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_is_wcag_aa(scheme):
    """WCAG 2.2, 1.4.3: 4.5 for text; 1.4.11: 3 for lines and marks."""
    css = (Path(reports.html.__file__).parent / "templates" / "report.css").read_text()
    block = re.findall(r":root \{(.*?)\}", css, re.S)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", block))
    pairs = [(text, back) for text in ("ink", "muted", "link") for back in ("page", "card")]
    pairs += [(tone, f"{tone}-bg") for tone in ("pass", "fail", "open", "none")]
    pairs += [(tone, "card") for tone in ("pass", "fail", "open", "none")]
    pairs += [("ink", "none-bg")]
    lines = [(f"s{i}", "card") for i in range(6)]
    for wanted, group in ((4.5, pairs), (3.0, lines)):
        for front, back in group:
            light, dark = sorted(map(_luminance, (colours[front], colours[back])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= wanted, (front, back)
