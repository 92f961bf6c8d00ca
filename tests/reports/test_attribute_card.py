"""The card of attribute inference: strongest first, every number with what it rests on."""

from __future__ import annotations

import dataclasses
import re

import pytest

from reports.attribute_card import AttributeCard, attributes
from reports.cards import statement
from reports.html import render
from reports.record import Finding
from reports.sentence import figure_name, sentence
from tests.reports import sample_records


def card_of(findings: tuple[Finding, ...], locale: str = "en") -> AttributeCard:
    card = attributes([statement(i, f, locale) for i, f in enumerate(findings, 1)], locale)
    assert card is not None
    return card


def article(locale: str = "en") -> str:
    return (
        render(sample_records.attributes(), locale)
        .split('id="attributes"')[1]
        .split("</article>")[0]
    )


def test_what_leaks_most_is_first_and_nothing_is_left_out() -> None:
    card = card_of(sample_records.attributes().findings)
    lows = [row.statement.finding.figures["advantage"].low for row in card.rows]
    assert lows == sorted(lows, reverse=True)
    assert len(card.rows) == 16
    assert [s.finding.state for s in card.others] == ["error"]
    assert article().count('<tr id="finding-') == 16
    assert "4 more" in article()


def test_a_heading_says_what_all_numbers_rest_on_and_else_each_cell_does() -> None:
    findings = sample_records.attributes().findings
    card = card_of(findings)
    bases = [heading.basis.replace("\u00a0", " ") for heading in card.headings]
    assert bases[0] == "99.17 %, Newcombe 1998, n = 569"
    assert bases[1] == "99.17 %, Clopper-Pearson, n = 284"
    assert not any(number.basis for row in card.rows for number in row.numbers)
    gain = dataclasses.replace(findings[0].figures["advantage"], n=100)
    other = dataclasses.replace(findings[0], figures={**findings[0].figures, "advantage": gain})
    card = card_of((other, *findings[1:]))
    assert card.headings[0].basis == ""
    assert card.rows[0].numbers[0].basis.endswith("n\u00a0=\u00a0100")
    assert card.rows[1].numbers[0].basis.endswith("n\u00a0=\u00a0569")


def test_each_value_that_leaks_stands_once_and_none_of_a_void_attack() -> None:
    findings = sample_records.attributes().findings
    card = card_of(findings)
    assert [(row.column, value) for value, row, _ in card.values] == [
        ("diagnosis", "type_2"),
        ("diagnosis", "none"),
    ]
    assert all(row is card.rows[0] for _, row, _ in card.values)
    void = tuple(dataclasses.replace(f, state="void") for f in findings)
    assert card_of(void).values == ()
    assert "pool at random" in article().split("<table")[0]  # why, before any number


def test_no_attribute_attack_no_card() -> None:
    assert attributes([], "en") is None
    assert 'id="attributes"' not in render(sample_records.leaky())


@pytest.mark.parametrize("locale", ["en", "zh"])
def test_a_decision_leads_to_the_row(locale: str) -> None:
    page = render(sample_records.attributes(), locale)
    (link,) = re.findall(r'<a href="#([^"]+)">(?:evidence|证据)', page)
    assert f'<tr id="{link}"' in article(locale)


def test_an_attack_without_a_control_says_so() -> None:
    record = sample_records.attributes()
    assert "No positive control" not in article()
    bare = tuple(
        dataclasses.replace(
            f, figures={k: v for k, v in f.figures.items() if k != "positive_control_advantage"}
        )
        for f in record.findings
    )
    page = render(dataclasses.replace(record, findings=bare))
    assert "No positive control" in page.split('id="attributes"')[1]


def test_names_of_values_and_of_all_columns() -> None:
    assert figure_name("advantage_where_type_2") == "Advantage where it is type_2"
    assert sentence("attributes.from", {"known": ""}) == "from all other columns"
    assert sentence("attributes.from", {"known": ""}, "zh") == "已知：其余所有列"
    assert sentence("attributes.from", {"known": "a, b"}) == "from a, b"
