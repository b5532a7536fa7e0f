"""The reliability plot as an SVG file, drawn by hand as the charts of reports are."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from server.lab.evaluation.reliability import Reliability

SIDE, LEFT, TOP, RIGHT, BOTTOM = 320, 56, 24, 16, 48
LINE = 18
COLOURS = ("#2c6fbb", "#c2571a", "#3a8f4d", "#8a4fb0", "#a8841a", "#b03060", "#3f8f8f", "#666666")


def reliability_chart(curves: Mapping[str, Reliability], title: str = "") -> str:
    """Accuracy over confidence for each data set, a dot for each of 10 bins of equal width, larger for more words.

    curves: by name. On the dashed line, confidences say how often one is right. Returns a whole SVG document.
    """
    width, height = LEFT + SIDE + RIGHT, TOP + SIDE + BOTTOM + LINE * len(curves)
    parts = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', _text(LEFT, 16, title, "start")]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        (x, y), shown = _place(tick, tick), f"{tick:.1f}"
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + SIDE}M{LEFT} {y:.1f}H{LEFT + SIDE}" stroke="#e4e4e4"/>')
        parts += [_text(x, TOP + SIDE + 16, shown), _text(LEFT - 8, y + 4, shown, "end")]
    parts.append(f'<path d="M{LEFT} {TOP + SIDE}L{LEFT + SIDE} {TOP}" stroke="#888" stroke-dasharray="5 4"/>')
    parts.append(_text(LEFT + SIDE / 2, TOP + SIDE + 36, "confidence"))
    parts.append(f'<g transform="translate(14 {TOP + SIDE / 2}) rotate(-90)">{_text(0, 0, "share that was right")}</g>')
    for number, (name, curve) in enumerate(curves.items()):
        colour, bins = COLOURS[number % len(COLOURS)], curve.bins()
        places = [_place(each.confidence, each.accuracy) for each in bins]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for each, (x, y) in zip(bins, places, strict=True):
            radius = 2.0 + 8.0 * (each.count / len(curve.right)) ** 0.5
            said = f"{name}: {each.low:.1f} to {each.high:.1f}, {each.count}, right {100 * each.accuracy:.1f} %"
            dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.55">'
            parts.append(f"{dot}<title>{escape(said)}</title></circle>")
        y = TOP + SIDE + BOTTOM + LINE * number
        kind, _, path = name.partition(":")
        short = f"{kind}:{path.rstrip('/').rpartition('/')[2]}" if path else name
        figures = f"{short}: {len(curve.right)}, calibration error {100 * curve.ece:.1f} %"
        parts.append(f'<rect x="{LEFT}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(LEFT + 16, y, figures, "start"))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="none"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>{"".join(parts)}</svg>\n'


def _place(confidence: float, accuracy: float) -> tuple[float, float]:
    return LEFT + SIDE * confidence, TOP + SIDE * (1 - accuracy)


def _text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#333" text-anchor="{anchor}">{escape(content)}</text>'
