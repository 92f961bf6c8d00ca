"""What every page here shares: the environment of the templates, their words, and the styles."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports.cards import TONES
from reports.record import Value
from reports.sentence import (
    at_least,
    at_most,
    basis_text,
    figure,
    figure_name,
    figures_text,
    sentence,
    texts,
)

_TEMPLATES = Path(__file__).parent / "templates"
_POWER = re.compile(r"\d[\d.]*e-\d+\)?")


def words(locale: str) -> dict[str, Any]:
    """The language of a page and the functions that turn keys and numbers into its text.

    Raises:
        ValueError: if there is no such locale.
    """
    texts(locale)

    def t(key: str, **values: Value) -> str:
        return sentence(key, values, locale)

    return {
        "locale": locale,
        "language": {"zh": "zh-Hans"}.get(locale, locale),
        "tones": TONES,
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


@cache
def styles(*names: str) -> dict[str, Any]:
    """The named style sheets as one, and the digest by which a page's policy allows it."""
    css = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return {"css": Markup(css), "css_digest": digest}


@cache
def environment() -> Environment:
    """Templates in which whatever is filled in is escaped and a missing name is an error."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["prose"] = _prose
    return made


def _prose(text: str) -> Markup:
    """Text in which a number such as 1e-5 is kept on one line."""
    safe = str(escape(text))
    return Markup(_POWER.sub(r'<span class="nowrap">\g<0></span>', safe))
