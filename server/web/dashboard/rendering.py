"""From a page's content to HTML: templates beside this file, every value escaped."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

__all__ = ["HEADERS", "render", "style"]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every page: nothing is loaded from elsewhere, nothing runs, nothing is kept."""


def render(template: str, **content: Any) -> str:
    """The page. A name that a template uses and ``content`` lacks is an error, not an empty place."""
    return _environment().get_template(template).render(**content)


@cache
def style() -> str:
    """The style sheet of every page."""
    return files("server.web.dashboard").joinpath("dashboard.css").read_text("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("server.web.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": _moment, "number": _number, "span": _span, "size": _size, "machine": _machine}
    return environment


def _moment(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _machine(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = int(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
