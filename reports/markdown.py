"""A Record as a short Markdown table, for a comment under a change or a job's summary.

What a stranger wrote is shown as text: no markup of theirs, no mention, no link comes to life.
"""

from __future__ import annotations

import re

from reports.record import Decision, Outcome, Record
from reports.sentence import sentence, texts, visible

_ICONS: dict[Outcome, str] = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "error": "⚠️"}
_MARKUP = re.compile(r"([\\`*_\[\]|~$])")
_LIVE = re.compile(r"@|#(?=\d)|://|\bwww(?=\.)|\bGH(?=-\d)")
_SHOWN = 50  # rows; a comment has a size limit, and the report has the rest


def render(record: Record, locale: str = "en") -> str:
    """The verdict in one line, what it means, and one row for each decision, worst first.

    Raises:
        ValueError: if there is no such locale.
    """
    texts(locale)

    def t(key: str) -> str:
        return sentence(key, {}, locale)

    outcome = record.verdict.outcome
    lines = [
        f"### {_ICONS[outcome]} dpassay: {t(f'verdict.{outcome}')} · {escape(record.title)}",
        "",
        t(f"verdict.{outcome}.meaning"),
        "",
        f"*{t('verdict.means_not')}:* {t(f'verdict.{outcome}.not_meaning')}",
    ]
    decisions = record.verdict.decisions
    if decisions:
        lines += ["", f"| {t('verdict.title')} | {t('verdict.rule')} | {t('verdict.decisions')} |"]
        lines += ["|---|---|---|"]
        lines += [_row(d, locale) for d in decisions[:_SHOWN]]
    if len(decisions) > _SHOWN:
        rest = sentence("verdict.more", {"count": len(decisions) - _SHOWN}, locale)
        lines += ["", rest]
    return visible("\n".join(lines) + "\n")


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = _LIVE.sub(lambda found: found[0] + "\u200b", " ".join(text.split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return _MARKUP.sub(r"\\\1", text)


def _row(decision: Decision, locale: str) -> str:
    said = escape(sentence(decision.message, decision.values, locale))
    if decision.reason:
        said += f" ({escape(decision.reason)})"
    if decision.waiver:
        said += f" {sentence('verdict.waiver', {}, locale)}: {escape(decision.waiver)}"
    word = sentence(f"verdict.{decision.outcome}", {}, locale)
    return f"| {_ICONS[decision.outcome]} {word} | {escape(decision.rule)} | {said} |"
