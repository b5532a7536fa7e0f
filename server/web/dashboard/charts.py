"""The dashboard's charts: inline SVG with a title that screen readers say and numbers that the tables repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from server.web.dashboard.plots import Bar, Line, bars, lines

__all__ = ["bars_of_words", "lines_of"]

COLOURS = ("first", "second", "third", "fourth")


def lines_of(
    title: str,
    series: Mapping[str, Sequence[float | None]],
    labels: Sequence[str],
    unit: str,
    *,
    percent: bool = False,
    legend: bool = True,
) -> dict[str, Any]:
    """A line chart: {title, svg}. At most a dozen of the labels are written."""
    every = -(-len(labels) // 12)
    shown = [label if place % every == 0 else "" for place, label in enumerate(labels)]
    drawn = [
        Line(name if legend else "", colour, values)
        for (name, values), colour in zip(series.items(), COLOURS, strict=False)
        if any(value is not None for value in values)
    ]
    return {"title": title, "svg": _named(lines(drawn, shown, unit, percent=percent), title)}


def bars_of_words(words: Sequence[Mapping[str, Any]], most: int = 8) -> dict[str, Any]:
    """The words whose probability rose most, before and after."""
    risen = [word for word in words if word["after"] > word["before"]][:most]
    groups = [
        (word["word"], [Bar("before", "second", word["before"]), Bar("after", "first", word["after"])])
        for word in risen
    ]
    title = "Words that gained most probability"
    return {"title": title, "svg": _named(bars(groups, "probability", percent=True), title)}


def _named(svg: str, title: str) -> Markup:
    return Markup(svg.replace('role="img"', f'role="img" aria-label="{escape(title)}"', 1))
