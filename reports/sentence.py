"""A message key and its values -> one plain sentence, from ``locales/<locale>/*.json``.

A template names its fields as ``{name}`` or ``{name:format}``; ``_FORMATS`` has the formats. The
folder's files are merged, so that each room keeps its own sentences in a file of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from functools import cache
from pathlib import Path

from reports.record import Finding, Interval, Value

_FOLDER = Path(__file__).parent / "locales"
ADVANTAGE_WHERE = "advantage_where_"  # then a value of the column that an attack guesses
FIELD = re.compile(r"\{(\w+)(?::(\w+))?\}")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_TPR = re.compile(r"tpr\D*([\d.]+(?:e-?\d+)?)$")


@cache
def locales() -> tuple[str, ...]:
    """The locales that have sentences here: ``en``, ``zh``."""
    return tuple(sorted(p.name for p in _FOLDER.iterdir() if p.is_dir()))


@cache
def texts(locale: str) -> Mapping[str, str]:
    """Every template of a locale, key -> template.

    Raises:
        ValueError: if there is no such locale, or two of its files hold the same key.
    """
    if locale not in locales():
        raise ValueError(f"locale: {locale!r} is none of {', '.join(locales())}")
    merged: dict[str, str] = {}
    for path in sorted((_FOLDER / locale).glob("*.json")):
        for key, template in json.loads(path.read_text(encoding="utf-8")).items():
            if key in merged:
                raise ValueError(f"{locale}/{path.name}: key {key!r} stands in two files")
            merged[key] = template
    return merged


def sentence(message: str, values: Mapping[str, Value], locale: str = "en") -> str:
    """The sentence of ``message`` with its fields filled.

    A key that the locale lacks is taken from English; one that English lacks too, as an archived
    record may carry, becomes readable words with the values behind them. A missing value reads "?".

    Raises:
        ValueError: if there is no such locale.
    """
    template = texts(locale).get(message) or texts("en").get(message)
    if template is None:
        words = message.replace(".", " ").replace("_", " ")
        listed = ", ".join(f"{k} {_plain(v, locale)}" for k, v in values.items())
        return f"{words}: {listed}" if listed else words

    def fill(field: re.Match[str]) -> str:
        name, spec = field.groups()
        if name not in values:
            return "?"
        return _FORMATS.get(spec or "", _plain)(values[name], locale)

    return FIELD.sub(fill, template)


def speaks(message: str, values: Mapping[str, Value], locale: str) -> bool:
    """Whether the locale has a sentence for the message and the values fill all its fields."""
    template = texts(locale).get(message)
    return template is not None and all(name in values for name, _ in FIELD.findall(template))


def finish(finding: Finding, locale: str = "en") -> Finding:
    """The finding with ``meaning`` and ``remedy`` written out from its message."""
    remedy = f"{finding.message}.remedy"
    return dataclasses.replace(
        finding,
        meaning=sentence(finding.message, finding.values, locale),
        remedy=sentence(remedy, finding.values, locale) if remedy in texts("en") else "",
    )


def figure(x: float) -> str:
    """A number with three or four significant digits; ``1.2e-7`` where tiny, ∞ where infinite."""
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    size = abs(x)
    if x == int(x) and size < 1e15:
        return f"{int(x):,}"
    if size < 1e-3 or size >= 1e6:
        digits, _, exponent = f"{x:.2e}".partition("e")
        if "." in digits:
            digits = digits.rstrip("0").rstrip(".")
        return f"{digits}e{int(exponent)}"
    return f"{x:.3g}" if size < 1 else f"{x:,.4g}" if size < 1000 else f"{x:,.0f}"


def percent(x: float, locale: str = "en") -> str:
    """A share as a percentage: 0.01 -> ``1 %``."""
    number = figure(float(f"{100 * x:.4g}")) if math.isfinite(x) else figure(x)
    return texts(locale)["number.percent"].replace("{number}", number)


def figures_text(interval: Interval) -> str:
    """An interval's numbers: ``0.712 [0.681, 0.742]``, or the value alone where it has no width.

    As many decimals as the width supports. The bounds are rounded outwards, so that the text never
    claims more than the interval does.
    """
    low, value, high = interval.low, interval.value, interval.high
    if low == high:
        return figure(value)
    size = max(abs(low), abs(high))
    if not 1e-3 <= size < 1e6:  # infinite bounds and extreme ones have no common decimals
        return f"{figure(value)} [{figure(low)}, {figure(high)}]"
    wide = math.floor(math.log10(high - low))
    places = 1 - wide
    if interval.confidence == 1 and value:  # computed: four digits mean something, more rarely
        first = math.floor(math.log10(abs(value)))
        places = max(2 - first, min(places, max(3 - first, -wide)))
    if size <= 1:  # most figures are shares: one number of decimals makes columns comparable
        places = max(places, 3)
    places = min(max(places, 0), 6)
    at_bound = {low: ROUND_FLOOR, high: ROUND_CEILING}
    shown = [_round(x, places, at_bound.get(x, ROUND_HALF_EVEN)) for x in (value, low, high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def at_most(x: float) -> str:
    """An upper bound with four significant digits, rounded up so that it stays one."""
    return _round_bound(x, ROUND_CEILING)


def at_least(x: float) -> str:
    """A lower bound with four significant digits, rounded down so that it stays one."""
    return _round_bound(x, ROUND_FLOOR)


def basis_text(interval: Interval, locale: str = "en") -> str:
    """What an interval rests on: ``95 %, DeLong, n = 569``, or ``computed, RDP, n = 1,000``."""
    kind = "interval.computed" if interval.confidence == 1 else "interval.sampled"
    values: dict[str, Value] = {
        "confidence": interval.confidence,
        "method": interval.method,
        "n": interval.n,
    }
    return sentence(kind, values, locale)


def interval_text(interval: Interval, locale: str = "en") -> str:
    """The whole interval in one line: ``0.712 [0.681, 0.742] (95 %, DeLong, n = 569)``."""
    return f"{figures_text(interval)} ({basis_text(interval, locale)})"


def visible(text: str) -> str:
    """A page's text with a mark where a stranger put what cannot be seen or written.

    Direction overrides would reorder what stands around them, control characters hide, and lone
    surrogates, left over from a path that was no UTF-8, go into no file.
    """
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def figure_name(name: str, locale: str = "en") -> str:
    """A figure's name for a reader: ``auc`` -> AUC, ``tpr_at_fpr_0.01`` -> TPR at 1 % FPR."""
    if f"name.{name}" in texts(locale):
        return texts(locale)[f"name.{name}"]
    if name.startswith("lower_tail_"):
        rest = figure_name(name.removeprefix("lower_tail_"), locale)
        return sentence("name.lower_tail", {"figure": rest}, locale)
    if (rate := false_positive_rate(name)) is not None:
        return sentence("name.tpr_at_fpr", {"rate": rate}, locale)
    if name.startswith(ADVANTAGE_WHERE):
        value = name.removeprefix(ADVANTAGE_WHERE)
        return sentence("name.advantage_where", {"value": value}, locale)
    if name.startswith("epsilon_") and name[8:9].isupper():
        return sentence("name.epsilon_by", {"accountant": name[8:]}, locale)
    return name.replace("_", " ")


def false_positive_rate(name: str) -> float | None:
    """The rate that a figure such as ``tpr_at_fpr_0.01`` is taken at; None for other figures."""
    found = _TPR.match(name)
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def _round_bound(x: float, rounding: str) -> str:
    if not 1e-3 <= abs(x) < 1e6 or x == int(x):
        return figure(x)
    return _round(x, max(3 - math.floor(math.log10(abs(x))), 0), rounding)


def _round(x: float, places: int, rounding: str) -> str:
    if x == 0:
        return "0"
    return f"{Decimal(repr(float(x))).quantize(Decimal(1).scaleb(-places), rounding):,}"


def _plain(value: Value, locale: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return texts(locale)["word.yes" if value else "word.no"]
    return value if isinstance(value, str) else figure(value)


def _percent(value: Value, locale: str) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return percent(float(value), locale) if number and value is not None else _plain(value, locale)


def _columns(value: Value, locale: str) -> str:
    return _plain(value or texts(locale)["word.all_others"], locale)


def _bound(rounding: str) -> Callable[[Value, str], str]:
    """An end of an interval with three significant digits, rounded away from its middle."""

    def write(value: Value, locale: str) -> str:
        finite = isinstance(value, int | float) and not isinstance(value, bool)
        if not finite or value is None or not 1e-3 <= abs(float(value)) < 1000:
            return _plain(value, locale)
        number = float(value)
        places = max(2 - math.floor(math.log10(abs(number))), 0)
        return _round(number, places if abs(number) >= 1 else 3, rounding)

    return write


_FORMATS: Mapping[str, Callable[[Value, str], str]] = {
    "figure": _plain,
    "percent": _percent,
    "low": _bound(ROUND_FLOOR),
    "high": _bound(ROUND_CEILING),
    "columns": _columns,
    "name": lambda value, locale: figure_name(str(value), locale),
}
FORMATS = tuple(_FORMATS)
