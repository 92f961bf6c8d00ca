"""The report in a real browser: no overflow, no error, no request, and it prints."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.html import render
from tests.browser.chromium import EXECUTABLE, Chromium
from tests.reports import sample_records

pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no chromium here; on Debian: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    chromium = Chromium()
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for build in sample_records.ALL:
        for locale in ("en", "zh"):
            path = folder / f"{build.__name__}.{locale}.html"
            path.write_text(render(build(), locale), encoding="utf-8")
            found[f"{build.__name__}.{locale}"] = path
    return found


NAMES = pytest.mark.parametrize(
    "name",
    [f"{b.__name__}.{locale}" for b in sample_records.ALL for locale in ("en", "zh")],
)


@NAMES
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@NAMES
def test_no_error_and_no_request(browser, pages, name):
    browser.open(pages[name], 1000)
    methods = [e["method"] for e in browser.events]
    assert "Runtime.exceptionThrown" not in methods
    assert "Runtime.consoleAPICalled" not in methods
    logged = [e["params"]["entry"] for e in browser.events if e["method"] == "Log.entryAdded"]
    assert not logged
    asked = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [pages[name].resolve().as_uri()]


def test_the_style_sheet_passes_the_page_s_own_policy(browser, pages):
    """A wrong digest would leave the page unstyled, without any error that a reader sees."""
    browser.open(pages["private.en"], 1000)
    radius = "getComputedStyle(document.querySelector('.card')).borderTopLeftRadius"
    assert browser.evaluate(radius) == "12px"


def test_the_browser_follows_the_reader_s_colour_scheme(browser, pages):
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    seen = []
    for dark in (False, True):
        browser.open(pages["private.en"], 1000, dark=dark)
        red = re.match(r"rgb\((\d+)", browser.evaluate(colour))
        assert red
        seen.append(int(red[1]))
    assert seen[0] > 200
    assert seen[1] < 50


def test_print_opens_what_is_folded_on_screen(browser, pages):
    browser.open(pages["private.en"], 794)
    shown = "document.querySelector('#glossary details p').checkVisibility()"
    assert not browser.evaluate(shown)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(shown)


@pytest.mark.parametrize("name", ["private.en", "refuted.zh", "attributes.en", "hostile.en"])
def test_nothing_is_cut_off_on_paper(browser, pages, name):
    browser.open(pages[name], 695)  # A4 less its margins, in CSS pixels
    browser.call("Emulation.setEmulatedMedia", media="print")
    beyond = """[...document.querySelectorAll('main *')].filter(e =>
        e.getBoundingClientRect().right > innerWidth + 1).length"""
    assert browser.evaluate(beyond) == 0


def test_it_prints_to_a4_pages(browser, pages):
    browser.open(pages["private.en"], 1000)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert 3 <= len(boxes) <= 10
    assert all(abs(float(w) - 595) < 2 and abs(float(h) - 842) < 2 for w, h in boxes)


def test_the_keyboard_reaches_the_skip_link_first_and_it_shows(browser, pages):
    browser.open(pages["private.en"], 1000)
    for kind in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab",
                     windowsVirtualKeyCode=9)  # fmt: skip
    focused = "document.activeElement.className"
    assert browser.evaluate(focused) == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().top") >= 0


@pytest.mark.parametrize("locale", ["en", "zh"])
@pytest.mark.parametrize("shift", [0.5, 4.0])  # at 4.0 the numbers have four decimals
def test_names_and_numbers_of_a_forest_never_meet(browser, tmp_path, locale, shift):
    record = sample_records.leaky()
    title = "Shadow models, one attack model per class"
    runs = tuple(dataclasses.replace(a, title=title) for a in sample_records.attacks(shift))
    page = tmp_path / "page.html"
    page.write_text(render(dataclasses.replace(record, attacks=runs), locale), encoding="utf-8")
    browser.open(page, 1000)
    gaps = browser.evaluate(
        """[...document.querySelectorAll('.forest .row')].map(row => {
            const [name, number] = row.querySelectorAll('text');
            return number.getBoundingClientRect().left - name.getBoundingClientRect().right;
        })"""
    )
    assert len(gaps) == 5
    assert min(gaps) > 2
