"""Draws the report's charts as inline SVG: themed by CSS classes, without scripts or styles.

Each function returns a ``Chart``: the drawing, its legend and a small table of the same data for
whoever cannot see it. jinja2 is all that is needed.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from unicodedata import east_asian_width

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from reports.axes import Axis, decades, linear
from reports.record import Curve, Interval
from reports.sentence import figure, figures_text, percent, sentence

WIDTH, HEIGHT = 380, 310
LEFT, RIGHT, TOP, BOTTOM = 48, 366, 26, 266
_ROW, _LABEL = 34, 22  # a forest's row: its label, and below it the interval
NAME = 36  # Latin characters that a forest has room for
_FLOOR = 1e-3  # where the axes of a trade-off begin


@dataclass(frozen=True)
class Line:
    """A curve under the CSS class that gives it colour and dashes."""

    name: str
    style: str
    curve: Curve


@dataclass(frozen=True)
class Mark:
    """A single point, with an error bar where it has an interval."""

    name: str
    style: str
    x: float
    y: Interval | float


@dataclass(frozen=True)
class Row:
    """One interval of a forest."""

    name: str
    style: str
    interval: Interval


@dataclass(frozen=True)
class Chart:
    """A drawing, its legend as (style, name), and its data as a table."""

    svg: Markup
    legend: tuple[tuple[str, str], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """How a chart's data becomes a table: at which x, read off how, and written how."""

    places: Sequence[float]
    show_x: Callable[[float], str]
    show_y: Callable[[float], str]
    read: Callable[[Curve, float], float | None]


def roc(
    id_: str, title: str, lines: Sequence[Line], marks: Sequence[Mark], n: int, locale: str
) -> Chart:
    """A ROC curve on two logarithmic axes that begin at the smallest rate that n records show."""
    floor = 10.0 ** -min(max(math.ceil(math.log10(max(n, 2))), 2), 5)
    ticks = [10.0**e for e in range(round(math.log10(floor)), 1)]
    labelled = tuple((t, percent(t, locale)) for t in ticks)
    x = Axis(floor, 1, LEFT, RIGHT, True, labelled)
    y = Axis(floor, 1, BOTTOM, TOP, True, labelled)
    header = ("chart.fpr", "chart.tpr", "chart.roc.text")
    lines = [dataclasses.replace(line, curve=_bent(line.curve, floor)) for line in lines]
    rates = sorted({*ticks, 0.5})
    show = partial(percent, locale=locale)
    return _chart(
        id_,
        title,
        (x, y),
        ([_chance(floor, locale), *lines], marks),
        [sentence(key, {}, locale) for key in header],
        Table(rates, show, show, _step),
        locale,
    )


def epsilon_curve(
    id_: str, title: str, lines: Sequence[Line], marks: Sequence[Mark], locale: str
) -> Chart | None:
    """ε over δ on a logarithmic δ axis; None where no curve has two finite points to draw."""
    lines = [line for line in map(_finite, lines) if len(line.curve.x) > 1]
    if not lines:
        return None
    deltas = [d for line in lines for d in line.curve.x if d > 0]
    low = 10.0 ** math.floor(math.log10(min(deltas)))
    high = 10.0 ** math.ceil(math.log10(max(deltas)))
    x = Axis(low, max(high, 10 * low), LEFT, RIGHT, True, decades(low, max(high, 10 * low)))
    drawn = [e for line in lines for e in line.curve.y]
    wanted = [m.y for m in marks if isinstance(m.y, float) and m.y <= 4 * max(drawn)]
    y = linear(0, max(drawn + wanted) * 1.05 or 1, BOTTOM, TOP)
    return _chart(
        id_,
        title,
        (x, y),
        (lines, marks),
        ["δ", "ε", sentence("chart.epsilon.text", {}, locale)],
        Table([t for t, _ in x.ticks], figure, figure, _between_logarithms),
        locale,
    )


def trade_off(id_: str, title: str, lines: Sequence[Line], locale: str) -> Chart | None:
    """The most members that any attack can find over its false positive rate; None if empty.

    On the axes of a ROC curve, so that an attack can be held against it.
    """
    lines = [_from(_FLOOR, line) for line in lines if len(line.curve.x) > 1]
    if not lines:
        return None
    ticks = tuple((10.0**e, percent(10.0**e, locale)) for e in range(-3, 1))
    axes = (Axis(_FLOOR, 1, LEFT, RIGHT, True, ticks), Axis(_FLOOR, 1, BOTTOM, TOP, True, ticks))
    show = partial(percent, locale=locale)
    header = ("chart.fpr", "chart.tpr_at_most", "chart.trade_off.text")
    return _chart(
        id_,
        title,
        axes,
        ([_chance(_FLOOR, locale), *lines], ()),
        [sentence(key, {}, locale) for key in header],
        Table([0.001, 0.01, 0.05, 0.1, 0.25, 0.5], show, show, _between),
        locale,
    )


def forest(
    id_: str, title: str, description: str, rows: Sequence[Row], reference: float, name: str
) -> Chart:
    """Intervals under each other on one axis, with a reference line (a claim, or chance)."""
    ends = [v for r in rows for v in (r.interval.low, r.interval.value, r.interval.high)]
    finite = [v for v in (*ends, reference) if math.isfinite(v)]
    bottom = TOP + _ROW * len(rows)
    positive = [v for v in finite if v > 0]
    start, end = 12, WIDTH - 12
    if all(0 <= v <= 1 for v in finite) and max(finite) > 0.3:
        low = math.floor(10 * min(*finite, 0.45)) / 10
        axis = linear(low, 1, start, end)
    elif min(finite) >= 0 and positive and max(positive) > 40 * min(positive):
        low, high = min(positive) / 1.5, max(positive) * 1.5
        axis = Axis(low, high, start, end, True, decades(low, high))
    else:
        axis = linear(min(0, *finite), max(finite) * 1.1 or 1, start, end)
    drawn = [
        {
            "name": shortened(row.name, NAME),
            "style": row.style,
            "text": figures_text(row.interval),
            "label_y": TOP + _ROW * i + 8,
            "y": TOP + _ROW * i + _LABEL,
            "low": axis.at(row.interval.low),
            "value": axis.at(row.interval.value),
            "high": axis.at(row.interval.high),
            "open_low": not axis.holds(row.interval.low),
            "open_high": not axis.holds(row.interval.high),
            "beyond": not axis.holds(row.interval.value),
        }
        for i, row in enumerate(rows)
    ]
    svg = _template("forest.svg")(
        id=id_,
        title=title,
        description=description,
        width=WIDTH,
        height=bottom + 26,
        top=TOP,
        bottom=bottom,
        ticks=[(axis.at(v), text) for v, text in axis.ticks],
        rows=drawn,
        reference=axis.at(reference),
        reference_name=f"{name} {figure(reference)}",
        reference_anchor="end" if axis.at(reference) > WIDTH * 0.7 else "start",
    )
    return Chart(svg, (), (), ())


def shortened(text: str, room: int) -> str:
    """The text, cut with an ellipsis where it is wider than the room, in Latin characters."""
    if width(text) <= room:
        return text
    while width(text) >= room:
        text = text[:-1]
    return text + "…"


def width(text: str) -> int:
    """The width of a text in Latin characters: an ideograph is as wide as two."""
    return len(text) + sum(east_asian_width(c) in "WF" for c in text)


def _chart(
    id_: str,
    title: str,
    axes: tuple[Axis, Axis],
    drawn: tuple[Sequence[Line], Sequence[Mark]],
    words: Sequence[str],
    table: Table,
    locale: str,
) -> Chart:
    (x, y), (lines, marks) = axes, drawn
    x_label, y_label, description = words
    named = [line for line in lines if line.style != "chance"]
    svg = _template("chart.svg")(
        id=id_,
        title=title,
        description=description,
        width=WIDTH,
        height=HEIGHT,
        box=(LEFT, RIGHT, TOP, BOTTOM),
        x_label=x_label,
        y_label=y_label,
        x_ticks=[(x.at(v), text) for v, text in x.ticks],
        y_ticks=[(y.at(v), text) for v, text in y.ticks],
        bands=[(line.style, _band(line.curve, x, y)) for line in lines if line.curve.low],
        lines=[(line.style, _path(line.curve, x, y)) for line in lines],
        marks=[_mark(m, x, y) for m in marks if x.holds(m.x)],
    )
    legend = {(line.style, line.name): None for line in (*named, *lines)}
    legend |= {(f"mark {m.style}", m.name): None for m in marks if x.holds(m.x)}
    if any(line.curve.low for line in lines):
        legend[("band", sentence("chart.band", {}, locale))] = None
    numbers = [
        (table.show_x(place), *(_number(table, line.curve, place) for line in named))
        for place in table.places
    ]
    return Chart(svg, tuple(legend), (x_label, *(line.name for line in named)), tuple(numbers))


def _number(table: Table, curve: Curve, place: float) -> str:
    value = table.read(curve, place)
    return "–" if value is None else table.show_y(float(f"{value:.3g}"))


def _path(curve: Curve, x: Axis, y: Axis) -> str:
    points = _thin([(x.at(a), y.at(b)) for a, b in zip(curve.x, curve.y, strict=True)])
    return "M" + "L".join(f"{a:g},{b:g}" for (a, b) in points) if points else ""


def _band(curve: Curve, x: Axis, y: Axis) -> str:
    ends = zip(curve.x, curve.low, curve.high, strict=True)
    points = _thin([(x.at(a), y.at(low), y.at(high)) for a, low, high in ends])
    upper = [(p[0], p[2]) for p in points]
    lower = [(p[0], p[1]) for p in reversed(points)]
    return "M" + "L".join(f"{a:g},{b:g}" for a, b in upper + lower) + "Z" if points else ""


def _thin(points: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Drop points within a pixel of the last one kept: nobody sees them, and files stay small."""
    kept: list[tuple[float, ...]] = []
    previous: tuple[float, ...] | None = None
    for point in points:
        if not kept:
            kept.append(point)
        elif max(abs(a - b) for a, b in zip(point, kept[-1], strict=True)) >= 1:
            # the last point before a long jump is a corner: without it a step becomes a slope
            jump = max(abs(a - b) for a, b in zip(point, previous or point, strict=True)) >= 4
            if jump and previous is not None and previous != kept[-1]:
                kept.append(previous)
            kept.append(point)
        previous = point
    if previous is not None and kept[-1] != previous:
        kept.append(previous)
    return kept


def _mark(mark: Mark, x: Axis, y: Axis) -> dict[str, object]:
    interval = mark.y if isinstance(mark.y, Interval) else None
    value = interval.value if interval else float(mark.y)  # type: ignore[arg-type]
    return {
        "style": mark.style,
        "x": x.at(mark.x),
        "y": y.at(value),
        "low": y.at(interval.low) if interval else None,
        "high": y.at(interval.high) if interval else None,
        "beyond": not y.holds(value),
    }


def _chance(floor: float, locale: str) -> Line:
    name = sentence("chart.chance", {}, locale)
    return Line(name, "chance", Curve("", "", "", (floor, 1), (floor, 1)))


def _from(low: float, line: Line) -> Line:
    """The line from x = low on: what lies left of a logarithmic axis would pile up at its edge."""
    c = line.curve
    points = [(a, b) for a, b in zip(c.x, c.y, strict=True) if a > low]
    if (first := _between(c, low)) is not None:
        points.insert(0, (low, first))
    xs, ys = tuple(p[0] for p in points), tuple(p[1] for p in points)
    return Line(line.name, line.style, Curve(c.name, c.x_label, c.y_label, xs, ys))


def _finite(line: Line) -> Line:
    """The line without the points that no axis can show: infinite ε, and δ = 0."""
    points = [
        (a, b)
        for a, b in zip(line.curve.x, line.curve.y, strict=True)
        if a > 0 and math.isfinite(a) and math.isfinite(b)
    ]
    c = line.curve
    xs, ys = tuple(p[0] for p in points), tuple(p[1] for p in points)
    return Line(line.name, line.style, Curve(c.name, c.x_label, c.y_label, xs, ys))


def _bent(curve: Curve, floor: float) -> Curve:
    """The curve with points along its slanted edges, which logarithmic axes bend.

    An edge is slanted where members and non-members share a score; its rates are those of an
    attacker who accuses a random part of them.
    """
    rows = [curve.x, curve.y, curve.low or curve.y, curve.high or curve.y]
    points = list(zip(*rows, strict=True))
    drawn: list[tuple[float, ...]] = points[:1]
    for start, end in pairwise(points):
        left = max(start[0], floor)
        if left < end[0] and start[1] != end[1]:
            pieces = math.ceil(10 * math.log10(end[0] / left))
            for k in range(pieces):
                share = (left * (end[0] / left) ** (k / pieces) - start[0]) / (end[0] - start[0])
                drawn.append(tuple(a + share * (b - a) for a, b in zip(start, end, strict=True)))
        drawn.append(end)
    x, y, low, high = zip(*drawn, strict=True)
    band = (low, high) if curve.low else ((), ())
    return Curve(curve.name, curve.x_label, curve.y_label, x, y, *band)


def _step(curve: Curve, at: float) -> float | None:
    """The highest y reached at or before x: what a ROC curve of finitely many scores attains."""
    reached = [b for a, b in zip(curve.x, curve.y, strict=True) if a <= at + 1e-12]
    return max(reached) if reached else None


def _between(curve: Curve, at: float) -> float | None:
    """y at x on the straight line between its neighbours; None outside the curve."""
    points = sorted(zip(curve.x, curve.y, strict=True))
    i = bisect_right(points, (at, math.inf))
    if i == 0 or (i == len(points) and points[-1][0] < at):
        return None
    (x0, y0), (x1, y1) = points[i - 1], points[min(i, len(points) - 1)]
    return y0 if x1 == x0 else y0 + (at - x0) / (x1 - x0) * (y1 - y0)


def _between_logarithms(curve: Curve, at: float) -> float | None:
    logs = tuple(math.log(a) for a in curve.x)
    slack = 1e-9  # a curve that ends at 1e-3 up to rounding still has a value there
    at = min(max(math.log(at), min(logs) - slack), max(logs) + slack) if logs else at
    return _between(Curve("", "", "", logs, curve.y), at)


@cache
def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    return Environment(
        loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )


def _template(name: str) -> Callable[..., Markup]:
    template = _environment().get_template(name)
    return lambda **values: Markup(template.render(**values))
