"""`report.html`: the whole simulation on one self-contained page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from server.lab.simulation.outcomes import CONDITIONS, Kind, Outcome, Run, rate
from server.lab.statistics import in_percent
from server.web.dashboard.plots import Bar, Line, bars, lines

__all__ = ["render"]

TITLES: dict[Kind, str] = {"slot_error": "Slot error", "wer": "Word error"}
PARTS = {"all": "devices, all rounds", "last": "devices, last round", "heldout": "held-out voices"}
MEANINGS = {
    "frozen": "the bundle as shipped",
    "marginals": "rescoring with personal and global word counts",
    "learning": "local gradient steps from weak feedback, averaged by the server",
    "both": "marginals and learning",
    "supervised": "as both, but the steps are told the true transcripts: a yardstick, not a product",
}


def render(document: dict[str, Any], runs: Sequence[Run]) -> str:
    """The page. document: the simulation's JSON; runs: what it was computed from."""
    kinds = [kind for kind in TITLES if document["conditions"]["frozen"][kind]["all"]["mean"] is not None]
    sections = [
        _headline(document, kinds),
        _section("Errors", _table(document, kinds), _conditions(), _differences(document, kinds)),
        _section(
            "Round by round",
            _row(*(_per_round(document, runs, kind) for kind in kinds)),
            "<p>Every utterance is decoded and scored first and used for learning once, afterwards. Bands are one "
            "standard deviation over seeds.</p>"
            if document["seeds"] > 1
            else "<p>Every utterance is decoded and scored first and used for learning once, afterwards.</p>",
        ),
        _section("Device by device", *(_per_device(runs, kind) for kind in kinds)),
        _section(
            "What travels",
            _row(_bytes(document, runs, "up"), _bytes(document, runs, "down")),
            f"<p>Word counts are small: with marginals alone a device sends {_kilobytes(document, 'up')} and receives "
            f"{_kilobytes(document, 'down')} a round. A delta and a model are as large as the weights.</p>",
        ),
        _section("Privacy", _privacy(document)),
        _section("On the device", _row(_time(document), _memory(document))),
        _section("Voices", _voices(document)),
        _section("How this was made", _settings(document)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>idiolect: simulation</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _headline(document: dict[str, Any], kinds: Sequence[Kind]) -> str:
    cards = []
    for kind in kinds:
        frozen = document["conditions"]["frozen"][kind]["all"]["mean"]
        both = document["conditions"]["both"][kind]["all"]["mean"]
        change = (both - frozen) / frozen if frozen else 0.0
        tone = "good" if change < 0 else "bad" if change > 0 else ""
        cards.append(
            f'<div class="card"><div class="what">{TITLES[kind]}</div>'
            f'<div class="value">{_percent(frozen)} <span class="arrow">→</span> {_percent(both)}</div>'
            f'<div class="change {tone}">{100 * change:+.0f} % relative</div></div>'
        )
    kind = kinds[0]
    if found := document["against_frozen"]["both"][kind]["all"]:
        mean, interval = _interval(found)
        cards.append(
            f'<div class="card"><div class="what">{TITLES[kind]}, both − frozen</div>'
            f'<div class="value">{mean} points</div>'
            f'<div class="change">95 % interval {interval}: '
            f"{'excludes' if found['absolute']['excludes_zero'] else 'includes'} zero</div></div>"
        )
    seeds = document["seeds"]
    voices = len(document["voices"]["devices"])
    words = "seed" if seeds == 1 else "seeds"
    return (
        "<header><h1>Devices that learn their users</h1>"
        f"<p>{voices} devices, {document['rounds']} rounds, {seeds} {words}, "
        f"data <code>{escape(document['data'])}</code>. "
        "Each device is the real SDK with its own state and its own speaker; it shares noised word counts and a "
        "bounded, noised weight delta with a live server, and never audio or text.</p>"
        f'<div class="cards">{"".join(cards)}</div></header>'
    )


def _table(document: dict[str, Any], kinds: Sequence[Kind]) -> str:
    deviate = document["seeds"] > 1

    def cell(condition: str, kind: Kind, part: str) -> str:
        figure = document["conditions"][condition][kind][part]
        if figure["mean"] is None:
            return "–"
        return _percent(figure["mean"]) + (f" <small>± {100 * figure['std']:.1f}</small>" if deviate else "")

    return _grid([condition.name for condition in CONDITIONS], kinds, cell)


def _differences(document: dict[str, Any], kinds: Sequence[Kind]) -> str:
    found = document["against_frozen"]
    if not any(found["both"][kind]["all"] for kind in kinds):
        return ""

    def cell(condition: str, kind: Kind, part: str) -> str:
        difference = found[condition][kind][part]
        if difference is None:
            return "–"
        mean, interval = _interval(difference)
        shown = f"<b>{mean}</b>" if difference["absolute"]["excludes_zero"] else mean
        return f"{shown} <small>{interval}</small>"

    return (
        "<h3>Difference from frozen, in points</h3>"
        + _grid(list(found), kinds, cell)
        + "<p>95 % intervals of a bootstrap over voices; bold where it excludes zero.</p>"
    )


def _interval(found: dict[str, Any]) -> tuple[str, str]:
    """A difference's mean and its 95 % interval, in points."""
    mean, low, high = in_percent(found["absolute"])
    return mean, f"{low} to {high}"


def _grid(conditions: Sequence[str], kinds: Sequence[Kind], cell: Callable[[str, Kind, str], str]) -> str:
    """A table with a row a condition, and a column a kind of error and part."""
    head = "".join(f'<th colspan="{len(PARTS)}">{TITLES[kind]}</th>' for kind in kinds)
    under = "".join(f"<th>{title}</th>" for _ in kinds for title in PARTS.values())
    rows = [
        f'<tr><th><span class="swatch {condition}"></span>{condition}</th>'
        + "".join(f"<td>{cell(condition, kind, part)}</td>" for kind in kinds for part in PARTS)
        + "</tr>"
        for condition in conditions
    ]
    return (
        f'<div class="wide"><table><thead><tr><th rowspan="2"></th>{head}</tr><tr>{under}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _conditions() -> str:
    items = "".join(
        f'<dt><span class="swatch {name}"></span>{name}</dt><dd>{meaning}</dd>' for name, meaning in MEANINGS.items()
    )
    return f'<dl class="meanings">{items}</dl>'


def _per_round(document: dict[str, Any], runs: Sequence[Run], kind: Kind) -> str:
    rounds = document["rounds"]
    series = []
    for condition in CONDITIONS:
        own = [run for run in runs if run.condition == condition.name]
        columns = [[rate(_in_round(run, number), kind) for run in own] for number in range(rounds)]
        known = [[value for value in column if value is not None] for column in columns]
        means = [statistics.fmean(column) if column else None for column in known]
        bands = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in known]
        series.append(Line(condition.name, condition.name, means, bands if document["seeds"] > 1 else None))
    labels = [f"round {number + 1}" for number in range(rounds)]
    return _figure(TITLES[kind], lines(series, labels, "errors / references", percent=True))


def _in_round(run: Run, number: int) -> list[Outcome]:
    return [outcome for outcome in run.outcomes if outcome.round == number]


def _per_device(runs: Sequence[Run], kind: Kind) -> str:
    shown = ("frozen", "both", "supervised")
    voices = sorted({outcome.voice for run in runs for outcome in run.outcomes if not outcome.held_out})

    def error(voice: str, condition: str) -> float | None:
        return rate(
            (
                outcome
                for run in runs
                if run.condition == condition
                for outcome in run.outcomes
                if outcome.voice == voice and not outcome.held_out
            ),
            kind,
        )

    groups = [(voice, [Bar(name, name, error(voice, name)) for name in shown]) for voice in voices]
    rows = [groups[start : start + 12] for start in range(0, len(groups), 12)]
    charts = "".join(bars(row, "errors / references", percent=True, width=1140) for row in rows)
    return f'<figure class="full"><figcaption>{TITLES[kind]}, per device</figcaption>{charts}</figure>'


def _bytes(document: dict[str, Any], runs: Sequence[Run], direction: str) -> str:
    read: Callable[[Any], int] = (lambda traffic: traffic.up) if direction == "up" else (lambda traffic: traffic.down)
    groups = []
    for number in range(document["rounds"]):
        group = []
        for condition in CONDITIONS:
            if not condition.reports or condition.supervised:
                continue
            own = [run for run in runs if run.condition == condition.name]
            values = [read(traffic) for run in own for traffic in run.traffic if traffic.round == number]
            group.append(Bar(condition.name, condition.name, statistics.fmean(values) / 1e6 if values else None))
        groups.append((f"round {number + 1}", group))
    title = "Megabytes a device sends" if direction == "up" else "Megabytes a device receives"
    return _figure(title, bars(groups, "MB a device and round"))


def _kilobytes(document: dict[str, Any], direction: str) -> str:
    return f"{document['bytes']['marginals'][direction] / 1e3:.1f} kB"


def _privacy(document: dict[str, Any]) -> str:
    rows, shown = [], []
    for stream, entry in document["epsilon"].items():
        value = entry.get("epsilon")
        text = "∞" if _unbounded(value) else f"{value:.4g}"
        if entry.get("delta"):
            text += f" at δ {entry['delta']:g}"
        rows.append(
            f"<tr><th>{escape(stream)}</th><td>{text}</td>"
            + "".join(
                f"<td>{escape(str(entry.get(key, '–')))}</td>" for key in ("adjacency", "sampling", "trust_model")
            )
            + "</tr>"
        )
        by_round = entry.get("per_round") or []
        if by_round and not any(map(_unbounded, by_round)):
            labels = [f"round {number + 1}" for number in range(len(by_round))]
            chart = lines([Line(stream, "both", by_round)], labels, "epsilon spent by a device, so far")
            shown.append(_figure(f"Epsilon of {stream}", chart))
    table = (
        '<div class="wide"><table class="words"><thead><tr><th>stream</th><th>epsilon</th><th>adjacency</th>'
        f"<th>sampling</th><th>who sees what</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    words = (
        "<p>Epsilon is stated for each stream by itself, as the server's ledger holds it for the device that spent "
        "most. ∞ says that the noise, if any, is too small to promise anything.</p>"
    )
    return table + words + _row(*shown)


def _unbounded(value: Any) -> bool:
    return value is None or isinstance(value, str) or not math.isfinite(value)


def _time(document: dict[str, Any]) -> str:
    device = document["device"]
    groups = [
        (
            name,
            [
                Bar("recognize", "marginals", 1e3 * entry["recognize_seconds"]),
                Bar("learn", "learning", 1e3 * entry["learn_seconds"]),
            ],
        )
        for name, entry in device.items()
    ]
    return _figure("Time an utterance", bars(groups, "milliseconds"))


def _memory(document: dict[str, Any]) -> str:
    groups = [
        (name, [Bar("peak", name, entry["peak_memory_bytes"] / 1e6)]) for name, entry in document["device"].items()
    ]
    return _figure("Peak resident memory of the device's process", bars(groups, "megabytes"))


def _voices(document: dict[str, Any]) -> str:
    columns = []
    titles = {"base": "base training", "devices": "devices", "heldout": "held out"}
    for name, title in titles.items():
        voices = document["voices"][name]
        items = "".join(f"<li>{escape(voice)}</li>" for voice in voices) or "<li>not listed by the bundle</li>"
        columns.append(f"<div><h3>{title} ({len(voices)})</h3><ul>{items}</ul></div>")
    return f"<p>The three sets share no voice.</p><div class='columns'>{''.join(columns)}</div>"


def _settings(document: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in document["settings"].items()
    )
    return f'<div class="wide"><table class="plain"><tbody>{rows}</tbody></table></div>'


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"


def _figure(title: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>"


def _row(*figures: str) -> str:
    return f'<div class="row">{"".join(figures)}</div>'


STYLE = Path(__file__).with_name("report.css").read_text("utf-8") + "".join(
    f".swatch.{name}{{background:var(--{name})}}.line.{name}{{stroke:var(--{name})}}.dot.{name},.band.{name},"
    f".bar.{name},svg text.legend.{name}{{fill:var(--{name})}}"
    for name in MEANINGS
)
