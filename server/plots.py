"""Charts as inline SVG, drawn by hand so that a report needs no plotting library and no second file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Line:
    """name: in the legend. colour: a CSS class. values: one a position on the x axis; None leaves a gap.

    spread: half-height of a band around each value, or None for no band."""

    name: str
    colour: str
    values: Sequence[float | None]
    spread: Sequence[float | None] | None = None

    @property
    def known(self) -> list[tuple[int, float]]:
        """Positions that have a value, with it."""
        return [(i, value) for i, value in enumerate(self.values) if value is not None]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a group."""

    name: str
    colour: str
    value: float | None


WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 132, 16, 44
SEPARATION = 15


def lines(series: Sequence[Line], labels: Sequence[str], unit: str, *, percent: bool = False) -> str:
    """A line chart with its legend at the ends of the lines. ``unit`` names the y axis."""
    tops = [value + (line.spread[i] or 0.0 if line.spread else 0.0) for line in series for i, value in line.known]
    scale = _Scale(max(tops, default=1.0))
    step = (WIDTH - LEFT - RIGHT) / max(len(labels) - 1, 1)

    def x(index: int) -> float:
        return LEFT + step * index if len(labels) > 1 else LEFT + (WIDTH - LEFT - RIGHT) / 2

    parts = _axes(scale, unit, percent)
    parts += [_text(x(i), HEIGHT - BOTTOM + 18, label, "tick middle") for i, label in enumerate(labels)]
    ends: list[tuple[float, str, str]] = []
    for line in series:
        if not line.known:
            continue
        if line.spread is not None:
            edges = [
                [(x(i), scale.y(value + side * (line.spread[i] or 0.0))) for i, value in line.known] for side in (1, -1)
            ]
            parts.append(f'<polygon class="band {line.colour}" points="{_points([*edges[0], *reversed(edges[1])])}"/>')
        points = [(x(i), scale.y(value)) for i, value in line.known]
        parts.append(f'<polyline class="line {line.colour}" points="{_points(points)}"/>')
        for (px, py), (i, value) in zip(points, line.known, strict=True):
            title = escape(f"{line.name}, {labels[i]}: {_number(value, percent)}")
            dot = f'<circle class="dot {line.colour}" cx="{px:.1f}" cy="{py:.1f}" r="3.5">'
            parts.append(f"{dot}<title>{title}</title></circle>")
        ends.append((points[-1][1], line.name, line.colour))
    for position, name, colour in _apart(ends):
        parts.append(_text(WIDTH - RIGHT + 12, position + 4, name, f"legend {colour}"))
    return _svg(parts)


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], unit: str, *, percent: bool = False, width: int = WIDTH) -> str:
    """Grouped bars: one group a label on the x axis, its bars side by side, and a legend above."""
    scale = _Scale(max([bar.value for _, group in groups for bar in group if bar.value is not None], default=1.0))
    parts = _axes(scale, unit, percent, width, right=16)
    inner = (width - LEFT - 16) / max(len(groups), 1)
    for index, (label, group) in enumerate(groups):
        start = LEFT + inner * index
        thickness = min(inner * 0.8 / max(len(group), 1), 34.0)
        offset = start + (inner - thickness * len(group)) / 2
        for position, bar in enumerate(group):
            if bar.value is None:
                continue
            top, left = scale.y(bar.value), offset + thickness * position + 1
            size = f'width="{max(thickness - 2, 1):.1f}" height="{max(HEIGHT - BOTTOM - top, 0):.1f}"'
            title = escape(f"{label}, {bar.name}: {_number(bar.value, percent)}")
            drawn = f'<rect class="bar {bar.colour}" x="{left:.1f}" y="{top:.1f}" {size} rx="2">'
            parts.append(f"{drawn}<title>{title}</title></rect>")
        shown = label if len(label) * 6.2 < inner * 1.1 or len(groups) < 4 else label[: max(int(inner / 6.4), 3)] + "…"
        parts.append(_text(start + inner / 2, HEIGHT - BOTTOM + 18, shown, "tick middle"))
    names: dict[str, str] = {bar.name: bar.colour for _, group in groups for bar in group}
    if len(names) > 1:
        cursor = float(LEFT)
        for name, colour in names.items():
            place = f'x="{cursor:.0f}" y="{HEIGHT - 14}"'
            parts.append(f'<rect class="bar {colour}" {place} width="10" height="10" rx="2"/>')
            parts.append(_text(cursor + 15, HEIGHT - 5, name, "tick"))
            cursor += 32 + 6.6 * len(name)
    return _svg(parts, width)


def standalone(drawn: str, colours: Mapping[str, str]) -> str:
    """A drawn chart as a file of its own, outside of any page. colours: CSS class -> fill."""
    fills = "".join(f".{name}{{fill:{it}}}.line.{name}{{fill:none;stroke:{it}}}" for name, it in colours.items())
    style = (
        f"<style>{fills}text{{font:11px sans-serif}}"
        ".band{opacity:.15}.middle{text-anchor:middle}.end{text-anchor:end}line,.grid,.axis{stroke:#d1d5db}</style>"
    )
    head, _, rest = drawn.partition(">")
    space = "" if "xmlns=" in head else ' xmlns="http://www.w3.org/2000/svg"'
    return f"{head}{space}>{style}{rest}"


class _Scale:
    """Maps values from 0 to y, with round numbers at the grid lines."""

    def __init__(self, high: float) -> None:
        raw = (high if high > 1e-9 else 1.0) / 4  # nothing but zeros: any scale will do
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * magnitude for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * magnitude >= raw - 1e-12)
        self.ticks = [step * i for i in range(math.ceil(4 * raw / step - 1e-9) + 1)]

    def y(self, value: float) -> float:
        high = self.ticks[-1]
        return HEIGHT - BOTTOM - min(max(value, 0.0), high) / high * (HEIGHT - BOTTOM - TOP)


def _axes(scale: _Scale, unit: str, percent: bool, width: float = WIDTH, right: int = RIGHT) -> list[str]:
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, _number(tick, percent), "tick end"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="tick middle" transform="translate(12 {middle:.0f}) rotate(-90)">{escape(unit)}</text>')
    return parts


def _apart(ends: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Legend entries moved down until no two overlap, then the whole up if they left the chart."""
    placed: list[tuple[float, str, str]] = []
    for position, name, colour in sorted(ends):
        placed.append((max(position, placed[-1][0] + SEPARATION if placed else float(TOP)), name, colour))
    excess = max(placed[-1][0] - (HEIGHT - BOTTOM), 0.0) if placed else 0.0
    return [(position - excess, name, colour) for position, name, colour in placed]


def _number(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.0f} %" if abs(value * 100 - round(value * 100)) < 1e-6 else f"{100 * value:.1f} %"
    if value == 0:
        return "0"
    if abs(value) >= 1e4:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e") if abs(value) >= 1e6 else f"{value:,.0f}"
    return f"{value:.3g}"


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _text(x: float, y: float, content: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(content)}</text>'


def _svg(parts: Sequence[str], width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {HEIGHT}" role="img">{"".join(parts)}</svg>'
