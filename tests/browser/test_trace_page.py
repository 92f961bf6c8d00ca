"""The trace report in a real browser: no overflow, no error, no request, and it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.trace_html import render
from tests.browser.chromium import EXECUTABLE, Chromium
from tests.reports import sample_traces

pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no chromium here; on Debian: apt-get install chromium"
)
NAMES = pytest.mark.parametrize(
    "name",
    ["clean.en", "troubled.zh", "open_ended.en", "hostile.en", "hostile.zh", "huge.en", "empty.en"],
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    chromium = Chromium()
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    sample_traces.main(folder)
    return {path.name.removesuffix(".html"): path for path in folder.iterdir()}


@NAMES
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_never_scrolls_sideways(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@NAMES
def test_no_error_and_no_request(browser, pages, name):
    browser.open(pages[name], 1000)
    methods = [e["method"] for e in browser.events]
    assert "Runtime.exceptionThrown" not in methods
    assert "Runtime.consoleAPICalled" not in methods
    assert "Log.entryAdded" not in methods
    asked = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [pages[name].resolve().as_uri()]


def test_both_style_sheets_pass_the_page_s_own_policy(browser, pages):
    browser.open(pages["clean.en"], 1000)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    assert browser.evaluate(style.format(".card", "borderTopLeftRadius")) == "12px"
    assert browser.evaluate(style.format(".records", "tableLayout")) == "fixed"


def test_it_follows_the_reader_s_colour_scheme(browser, pages):
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    seen = []
    for dark in (False, True):
        browser.open(pages["clean.en"], 1000, dark=dark)
        red = re.match(r"rgb\((\d+)", browser.evaluate(colour))
        assert red
        seen.append(int(red[1]))
    assert seen[0] > 200
    assert seen[1] < 50


def test_on_a_phone_every_figure_of_a_run_is_in_sight(browser, pages):
    browser.open(pages["troubled.en"], 390)
    beyond = """[...document.querySelectorAll('.runs *, .records *')].filter(e =>
        e.checkVisibility() && !e.closest('thead, caption')
        && e.getBoundingClientRect().right > innerWidth).length"""
    assert browser.evaluate(beyond) == 0
    label = "getComputedStyle(document.querySelector('[data-label]'), '::before').content"
    assert "Records" in browser.evaluate(label)


@pytest.mark.parametrize("name", ["clean.en", "troubled.zh", "hostile.en"])
def test_nothing_is_cut_off_on_paper(browser, pages, name):
    browser.open(pages[name], 695)  # A4 less its margins, in CSS pixels
    browser.call("Emulation.setEmulatedMedia", media="print")
    beyond = """[...document.querySelectorAll('main *')].filter(e =>
        e.getBoundingClientRect().right > innerWidth + 1).length"""
    assert browser.evaluate(beyond) == 0


def test_it_prints_to_a4_pages_and_unfolds(browser, pages):
    browser.open(pages["clean.en"], 1000)
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", browser.pdf())
    assert 3 <= len(boxes) <= 9
    assert all(abs(float(w) - 595) < 2 and abs(float(h) - 842) < 2 for w, h in boxes)
    folded = "document.querySelector('#records details table').checkVisibility()"
    assert not browser.evaluate(folded)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(folded)


def test_a_right_to_left_word_leaves_the_rest_of_its_line_in_order(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(render(sample_traces.hostile()), encoding="utf-8")
    browser.open(page, 1000)
    order = browser.evaluate(
        """(() => { const cell = [...document.querySelectorAll('.records th .small')].find(e =>
            e.textContent.startsWith('رؤية')); const file = cell.querySelector('bdi');
            const range = document.createRange(); range.selectNodeContents(cell.lastChild);
            return range.getBoundingClientRect().left - file.getBoundingClientRect().right; })()"""
    )
    assert order >= -1
