"""Charts: the right pixels, few points, clean ticks, and the same data as a table."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from reports.axes import Axis
from reports.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Line,
    Mark,
    Row,
    epsilon_curve,
    forest,
    roc,
    trade_off,
)
from reports.record import Curve, Interval
from tests.reports import sample_records

SVG = "{http://www.w3.org/2000/svg}"


def paths(chart, style):
    return re.findall(rf'class="{style}" d="M([^"]*)"', str(chart.svg))


def points(path):
    return [tuple(map(float, p.split(","))) for p in path.rstrip("Z").split("L")]


def curve(x, y):
    return Curve("c", "x", "y", tuple(x), tuple(y))


def test_a_logarithmic_axis_gives_each_decade_the_same_room():
    axis = Axis(1e-3, 1, 0, 300, True)
    assert [axis.at(v) for v in (1e-3, 1e-2, 1e-1, 1)] == [0, 100, 200, 300]
    assert axis.at(0) == 0
    assert axis.at(7) == 300


def test_roc_of_guessing_lies_on_the_chance_line():
    x = [i / 1000 for i in range(1001)]
    chart = roc("r", "t", [Line("Target", "s0", curve(x, x))], [], 1000, "en")
    for px, py in points(paths(chart, "line s0")[0]):
        along = (px - LEFT) / (RIGHT - LEFT)
        assert (BOTTOM - py) / (BOTTOM - TOP) == pytest.approx(along, abs=0.002)
    assert dict(r[:2] for r in chart.rows) == {
        f"{r}\u00a0%": f"{r}\u00a0%" for r in ("0.1", "1", "10", "50", "100")
    }


def test_roc_ticks_are_clean_and_begin_where_the_records_end():
    chart = roc("r", "t", [Line("T", "s0", curve((0, 1), (0, 1)))], [], 285, "en")
    words = re.findall(r">([\d.]+)\u00a0%</text>", str(chart.svg))
    assert words == ["0.1", "1", "10", "100"] * 2


def test_a_step_reads_what_is_reached_and_not_what_comes_next():
    chart = roc("r", "t", [Line("T", "s0", curve((0, 0, 0.5, 1), (0, 0.2, 0.2, 1)))], [], 100, "en")
    assert ("10\u00a0%", "20\u00a0%") in chart.rows


def test_many_points_are_thinned_by_less_than_a_pixel():
    full = sample_records.roc(0.8, 20_000, 20_000)
    chart = roc("r", "t", [Line("T", "s0", full)], [], 20_000, "en")
    drawn = points(paths(chart, "line s0")[0])
    assert len(drawn) < 1500
    x, y = Axis(1e-5, 1, LEFT, RIGHT, True), Axis(1e-5, 1, BOTTOM, TOP, True)
    for a, b in list(zip(full.x, full.y, strict=True))[::97]:
        px, py = x.at(a), y.at(b)
        assert min(max(abs(px - q), abs(py - r)) for q, r in drawn) < 1.5
    assert len(str(chart.svg)) < 40_000


def test_a_mark_stands_where_its_figure_lies():
    mark = Mark("TPR", "s0", 0.01, Interval(0.05, 0.1, 0.2, 0.95, "m", 9))
    chart = roc("r", "t", [Line("T", "s0", curve((0, 1), (0, 1)))], [mark], 100, "en")
    found = re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)"', str(chart.svg))
    assert found
    axis = Axis(1e-2, 1, BOTTOM, TOP, True)
    assert float(found[1]) == LEFT
    assert float(found[2]) == axis.at(0.1)


def test_epsilon_curve_leaves_out_what_no_axis_shows():
    deltas, values = (0.0, 1e-8, 1e-6, 1e-4), (math.inf, math.inf, 2.0, 1.0)
    chart = epsilon_curve("e", "t", [Line("RDP", "a0", curve(deltas, values))], [], "en")
    assert chart is not None
    assert len(points(paths(chart, "line a0")[0])) == 2
    assert chart.rows[0][0] == "1e-6"
    assert float(chart.rows[1][1]) == pytest.approx(1.5)  # halfway in log δ
    infinite = [Line("RDP", "a0", curve(deltas, (math.inf,) * 4))]
    assert epsilon_curve("e", "t", infinite, [], "en") is None


def test_a_claim_far_beyond_the_curve_does_not_flatten_it():
    line = [Line("RDP", "a0", curve((1e-6, 1e-4), (2.0, 1.0)))]
    far = epsilon_curve("e", "t", line, [Mark("Claimed", "claimed", 1e-5, 500.0)], "en")
    near = epsilon_curve("e", "t", line, [], "en")
    assert far is not None
    assert near is not None
    assert paths(far, "line a0") == paths(near, "line a0")


def test_tied_scores_give_guessing_and_not_a_line_across_the_picture():
    """One slanted edge from (0, 0) to (1, 1) is chance, also where the axes begin at 0.1 %."""
    chart = roc("r", "t", [Line("Target", "s0", curve((0, 0.1, 1), (0, 0.1, 1)))], [], 1000, "en")
    drawn = points(paths(chart, "line s0")[0])
    assert drawn[0] == (LEFT, BOTTOM)
    for px, py in drawn:
        along = (px - LEFT) / (RIGHT - LEFT)
        assert (BOTTOM - py) / (BOTTOM - TOP) == pytest.approx(along, abs=0.002)
    one_edge = roc("r", "t", [Line("T", "s0", curve((0, 0.1, 1), (0, 0.5, 1)))], [], 1000, "en")
    at_one_percent = min(points(paths(one_edge, "line s0")[0]), key=lambda p: abs(p[0] - 154))
    assert at_one_percent[1] == pytest.approx(BOTTOM - 80 * math.log10(0.05 / 0.001), abs=3)


def test_a_rate_that_misses_by_a_rounding_error_is_reached():
    exact = curve((0, 1 - 0.99, 1), (0, 0.4, 1))  # 0.010000000000000009
    chart = roc("r", "t", [Line("Target", "s0", exact)], [], 1000, "en")
    assert ("1\u00a0%", "40\u00a0%") in chart.rows


def test_trade_off_table_reads_the_curve():
    chart = trade_off("t", "t", [Line("PLD", "a0", curve((0, 0.5, 1), (0.1, 0.7, 1)))], "en")
    assert chart is not None
    assert ("25\u00a0%", "40\u00a0%") in chart.rows
    assert trade_off("t", "t", [], "en") is None


def test_a_trade_off_stands_on_the_axes_of_a_roc_curve_above_chance():
    rates = tuple(10.0 ** (e / 10) for e in range(-60, 1))
    bound = curve((0.0, *rates), (1e-5, *(min(1.0, 20 * r + 1e-5) for r in rates)))
    chart = trade_off("t", "t", [Line("PLD", "a0", bound)], "en")
    assert chart is not None
    xs, ys = zip(*points(paths(chart, "line a0")[0]), strict=True)
    assert len(set(xs)) == len(xs), "what lies left of the axis must not pile up at its edge"
    assert list(ys) == sorted(ys, reverse=True), "rises from left to right"
    assert points(paths(chart, "line chance")[0]) == [(LEFT, BOTTOM), (RIGHT, TOP)]
    assert (xs[0], xs[-1], ys[-1]) == (LEFT, RIGHT, TOP)
    assert TOP < ys[0] < BOTTOM, "at 0.1 % FPR the bound is 2 %, above chance"


def test_a_value_beyond_the_axis_is_an_arrow_and_no_point():
    infinite = Interval(math.inf, math.inf, math.inf, 1, "m", 1)
    chart = forest("f", "t", "d", [Row("r", "s0", infinite)], 3.0, "Claimed")
    assert "<circle" not in str(chart.svg)


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.5, 3.0, 1e4, math.inf])
def test_a_forest_keeps_every_interval_in_the_picture(value):
    rows = [Row("r", "s0", Interval(0, value, math.inf, 1, "m", 1))]
    chart = forest("f", "t", "d", rows, 1.0, "Claimed")
    for x in re.findall(r'c?x="([-\d.]+)"', str(chart.svg)):
        assert 0 <= float(x) <= 380


def test_a_chart_speaks_to_those_who_cannot_see_it():
    chart = roc("r", "ROC of <x>", [Line("T", "s0", curve((0, 1), (0, 1)))], [], 10, "zh")
    svg = ET.fromstring(str(chart.svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))
    assert svg.get("role") == "img"
    by_id = {e.get("id"): e.text for e in svg.iter() if e.get("id")}
    assert by_id[svg.get("aria-labelledby")] == "ROC of <x>"
    assert by_id[svg.get("aria-describedby")].startswith("真阳性率")
    assert svg.find(f"{SVG}title") is not None
