import re
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from server.plots import HEIGHT, WIDTH, Bar, Line, bars, lines

VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1e7)), min_size=1, max_size=6)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_line_charts_are_well_formed_and_stay_inside(rows: list[list[float | None]]) -> None:
    labels = [f"round {i}" for i in range(max(map(len, rows)))]
    tree = ElementTree.fromstring(lines([Line(f"<{i}>", "both", row) for i, row in enumerate(rows)], labels, "a & b"))
    for circle in tree.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH and 0 <= float(circle.attrib["cy"]) <= HEIGHT


@given(st.lists(VALUES, min_size=1, max_size=12))
def test_bar_charts_are_well_formed_and_never_negative(rows: list[list[float | None]]) -> None:
    groups = [(f"{i}", [Bar(f"bar {j}", "both", value) for j, value in enumerate(row)]) for i, row in enumerate(rows)]
    tree = ElementTree.fromstring(bars(groups, "megabytes"))
    drawn = [rect for rect in tree.iter("rect") if rect.find("title") is not None]
    assert len(drawn) == sum(value is not None for row in rows for value in row)
    assert all(float(rect.attrib["height"]) >= 0 for rect in drawn)


def test_higher_values_are_drawn_higher_and_named() -> None:
    chart = lines([Line("up", "both", [0.1, 0.4], [0.0, 0.05])], ["one", "two"], "rate", percent=True)
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', chart)]
    assert heights[1] < heights[0] and "up, two: 40 %" in chart and "polygon" in chart


def test_legend_entries_never_overlap() -> None:
    chart = lines([Line(f"name{i}", "both", [0.5, 0.5]) for i in range(5)], ["a", "b"], "rate")
    positions = sorted(float(y) for y in re.findall(r'class="legend both" x="[\d.]+" y="([\d.]+)"', chart))
    assert len(positions) == 5 and min(b - a for a, b in pairwise(positions)) >= 14
