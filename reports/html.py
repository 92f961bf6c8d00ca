"""A Record as one self-contained HTML file: no script, no request, nothing a stranger wrote is run.

``cards.py`` sorts what the record holds onto the page; ``templates/report.html`` lays it out.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports import cards
from reports.attribute_card import attributes
from reports.cards import TONES, AttackCard, Statement
from reports.record import Decision, Record, Value
from reports.sentence import (
    at_least,
    at_most,
    basis_text,
    figure,
    figure_name,
    figures_text,
    sentence,
    texts,
    visible,
)

_TEMPLATES = Path(__file__).parent / "templates"
_POWER = re.compile(r"\d[\d.]*e-\d+\)?")


def render(record: Record, locale: str = "en") -> str:
    """The record as one HTML file in the given language.

    Raises:
        ValueError: if there is no such locale.
    """
    texts(locale)
    placed = tuple(cards.statement(i, f, locale) for i, f in enumerate(record.findings, 1))
    claims = tuple(cards.claim(i, c, placed, locale) for i, c in enumerate(record.claims, 1))
    attacks = tuple(cards.attacks(record, placed, locale))
    guessed = attributes(placed, locale)
    shown = {s.anchor for card in claims for s in card.statements}
    shown |= {s.anchor for card in attacks for s in card.statements}
    if guessed:
        shown |= {s.anchor for s in (*(row.statement for row in guessed.rows), *guessed.others)}
    by_id = {s.finding.id: s for s in reversed(placed)}
    css = _stylesheet()
    html = (
        _environment()
        .get_template("report.html")
        .render(
            record=record,
            locale=locale,
            language={"zh": "zh-Hans"}.get(locale, locale),
            css=css,
            css_digest=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            claims=claims,
            attacks=attacks,
            guessed=guessed,
            glance=cards.glance(record, locale),
            budgets=tuple(
                cards.budget(i, b, record, locale) for i, b in enumerate(record.budgets, 1)
            ),
            others=tuple(s for s in placed if s.anchor not in shown),
            decisions=[(d, _said(d, by_id)) for d in record.verdict.decisions],
            anchors=_anchors(by_id, attacks),
            tones=TONES,
            **_words(locale),
        )
    )
    return visible(html)


def _words(locale: str) -> dict[str, Any]:
    """The functions by which the template turns keys and numbers into text."""

    def t(key: str, **values: Value) -> str:
        return sentence(key, values, locale)

    return {
        "t": t,
        "say": lambda message, values: sentence(message, values, locale),
        "known": lambda key: key in texts("en"),
        "name": lambda figure_: figure_name(figure_, locale),
        "figure": figure,
        "figures": figures_text,
        "basis": lambda interval: basis_text(interval, locale),
        "infinity": math.inf,
        "at_most": at_most,
        "at_least": at_least,
    }


def _said(decision: Decision, placed: Mapping[str, Statement]) -> Mapping[str, Value]:
    """A decision's values; where it quotes its finding, in the sentence of the page's language."""
    s = placed.get(decision.finding)
    if s and s.finding.meaning and decision.values.get("value") == s.finding.meaning:
        return {**decision.values, "value": s.meaning}
    return decision.values


def _anchors(placed: Mapping[str, Statement], attacks: Sequence[AttackCard]) -> dict[str, str]:
    """Where on the page the evidence of a decision stands, by the id that the decision names."""
    found = {f"attack/{card.runs[0].name}": f"attack-{i}" for i, card in enumerate(attacks, 1)}
    return found | {id_: s.anchor for id_, s in placed.items()}


def _prose(text: str) -> Markup:
    """Text in which a number such as 1e-5 is kept on one line."""
    safe = str(escape(text))
    return Markup(_POWER.sub(r'<span class="nowrap">\g<0></span>', safe))


@cache
def _stylesheet() -> Markup:
    return Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    return environment
