"""The reliability plot as an SVG file, drawn by hand as the charts of reports are."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from server.lab.evaluation.reliability import Reliability

__all__ = ["reliability_chart"]

SIDE, LEFT, TOP, RIGHT, BOTTOM = 320, 56, 24, 16, 48
LINE = 18
COLOURS = ("#2c6fbb", "#c2571a", "#3a8f4d", "#8a4fb0", "#a8841a", "#b03060", "#3f8f8f", "#666666")


def reliability_chart(curves: Mapping[str, Reliability], title: str = "") -> str:
    """Accuracy over confidence for each data set, a dot for each of 10 bins of equal width, larger for more words.

    curves: by name. On the dashed line, confidences say how often one is right. Returns a whole SVG document.
    """
    width = LEFT + SIDE + RIGHT
    height = TOP + SIDE + BOTTOM + LINE * len(curves)
    parts = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', _text(LEFT, 16, title, "start")]
    for tick in range(0, 11, 2):
        x, y = _x(tick / 10), _y(tick / 10)
        parts += [_line(x, TOP, x, TOP + SIDE), _line(LEFT, y, LEFT + SIDE, y)]
        parts += [_text(x, TOP + SIDE + 16, f"{tick / 10:.1f}"), _text(LEFT - 8, y + 4, f"{tick / 10:.1f}", "end")]
    parts.append(f'<path d="M{_x(0):.1f} {_y(0):.1f}L{_x(1):.1f} {_y(1):.1f}" stroke="#888" stroke-dasharray="5 4"/>')
    parts.append(_text(LEFT + SIDE / 2, TOP + SIDE + 36, "confidence"))
    parts.append(f'<g transform="translate(14 {TOP + SIDE / 2}) rotate(-90)">{_text(0, 0, "share that was right")}</g>')
    for number, (name, curve) in enumerate(curves.items()):
        colour, bins = COLOURS[number % len(COLOURS)], curve.bins()
        points = " ".join(f"{_x(each.confidence):.1f},{_y(each.accuracy):.1f}" for each in bins)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for each in bins:
            radius = 2.0 + 8.0 * (each.count / len(curve.right)) ** 0.5
            said = f"{name}: {each.low:.1f} to {each.high:.1f}, {each.count}, right {100 * each.accuracy:.1f} %"
            parts.append(
                f'<circle cx="{_x(each.confidence):.1f}" cy="{_y(each.accuracy):.1f}" r="{radius:.1f}" '
                f'fill="{colour}" fill-opacity="0.55"><title>{escape(said)}</title></circle>'
            )
        y = TOP + SIDE + BOTTOM + LINE * number
        parts.append(f'<rect x="{LEFT}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        figures = f"{len(curve.right)}, calibration error {100 * curve.ece:.1f} %"
        parts.append(_text(LEFT + 16, y, f"{_short(name)}: {figures}", "start"))
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="none"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" {font}>{"".join(parts)}</svg>\n'
    )


def _x(value: float) -> float:
    return LEFT + SIDE * value


def _y(value: float) -> float:
    return TOP + SIDE * (1 - value)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'


def _text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#333" text-anchor="{anchor}">{escape(content)}</text>'


def _short(name: str) -> str:
    """KIND:PATH with the last part of the path only, so that it fits."""
    kind, separator, path = name.partition(":")
    return f"{kind}{separator}{path.rstrip('/').rpartition('/')[2]}"
