"""A stranger's text as a short excerpt on one line, with what cannot be seen made visible."""

from __future__ import annotations

import re
import unicodedata

WIDTH = 160
_READ = 20_000  # characters looked at: a longer hidden run is counted as this long
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
# Drawn as nothing although their category says otherwise (Unicode, Default_Ignorable_Code_Point),
# and the blank Braille pattern.
_BLANK = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)


def excerpt(text: str, width: int = WIDTH) -> str:
    """The beginning of a text, at most ``width`` characters and an ellipsis.

    White space runs become one space. A run of characters that show nothing (marks, controls,
    direction overrides, lone surrogates) becomes ``⟨U+E0134 +23⟩``: its first code point and how
    many follow. What was made visible stays as it is when it is cut a second time.
    """
    head = text[:width]
    if head.isprintable() and "  " not in head and not _BLANK.search(head) and head == head.strip():
        return head if len(text) <= width else head + "…"
    longer, text = len(text) > _READ, text[:_READ]
    parts: list[str] = []
    shown, at = 0, 0
    while at < len(text):
        end = at
        if text[at].isspace():
            while end < len(text) and text[end].isspace():
                end += 1
            part = " " if parts and end < len(text) else ""
        elif _hidden(text[at]):
            while end < len(text) and _hidden(text[end]):
                end += 1
            more = f" +{end - at - 1}" if end - at > 1 else ""
            part = f"⟨U+{ord(text[at]):04X}{more}⟩"
        else:
            end += 1
            part = text[at]
        if shown + len(part) > width:
            parts.append("…")
            break
        parts.append(part)
        shown += len(part)
        at = end
    else:
        parts.append("…" if longer else "")
    return "".join(parts)


def _hidden(character: str) -> bool:
    if character.isspace():
        return False
    return unicodedata.category(character) in _HIDDEN or _BLANK.match(character) is not None
