"""A Record as one self-contained HTML file: no script, no request, nothing a stranger wrote is run.

``cards.py`` sorts what the record holds onto the page; ``templates/report.html`` lays it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import cards
from reports.attribute_card import attributes
from reports.cards import AttackCard, Statement
from reports.page import environment, styles, words
from reports.record import Decision, Record, Value
from reports.sentence import visible


def render(record: Record, locale: str = "en") -> str:
    """The record as one HTML file in the given language.

    Raises:
        ValueError: if there is no such locale.
    """
    language = words(locale)
    placed = tuple(cards.statement(i, f, locale) for i, f in enumerate(record.findings, 1))
    claims = tuple(cards.claim(i, c, placed, locale) for i, c in enumerate(record.claims, 1))
    attacks = tuple(cards.attacks(record, placed, locale))
    guessed = attributes(placed, locale)
    shown = {s.anchor for card in claims for s in card.statements}
    shown |= {s.anchor for card in attacks for s in card.statements}
    if guessed:
        shown |= {s.anchor for s in (*(row.statement for row in guessed.rows), *guessed.others)}
    by_id = {s.finding.id: s for s in reversed(placed)}
    html = (
        environment()
        .get_template("report.html")
        .render(
            record=record,
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
            **language,
            **styles("report.css"),
        )
    )
    return visible(html)


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
