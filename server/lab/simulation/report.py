"""`report.html`: the whole simulation on one self-contained page."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from server.lab.simulation.outcomes import CONDITIONS, Kind, Outcome, Run, rate, spread
from server.lab.statistics import in_percent
from server.web.dashboard.plots import Bar, Line, bars, lines

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
    bands = " Bands are one standard deviation over seeds." if document["seeds"] > 1 else ""
    sent, received = (f"{document['bytes']['marginals'][way] / 1e3:.1f} kB" for way in ("up", "down"))
    meanings = (f"<dt>{_swatch(name)}</dt><dd>{meaning}</dd>" for name, meaning in MEANINGS.items())
    settings = (
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in document["settings"].items()
    )
    sections = {
        "Errors": (
            _table(document, kinds),
            f'<dl class="meanings">{"".join(meanings)}</dl>',
            _differences(document, kinds),
        ),
        "Round by round": (
            _row(*(_per_round(document, runs, kind) for kind in kinds)),
            f"<p>Every utterance is decoded and scored first and used for learning once, afterwards.{bands}</p>",
        ),
        "Device by device": [_per_device(runs, kind) for kind in kinds],
        "What travels": (
            _row(_bytes(document, runs, "up", "sends"), _bytes(document, runs, "down", "receives")),
            f"<p>Word counts are small: with marginals alone a device sends {sent} and receives {received} a round. "
            "A delta and a model are as large as the weights.</p>",
        ),
        "Privacy": [_privacy(document)],
        "On the device": [_device(document)],
        "Voices": [_voices(document)],
        "How this was made": [
            f'<div class="wide"><table class="plain"><tbody>{"".join(settings)}</tbody></table></div>'
        ],
    }
    body = "".join(f"<section><h2>{title}</h2>{''.join(parts)}</section>" for title, parts in sections.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>idiolect: simulation</title><style>{STYLE}</style></head>"
        f"<body><main>{_headline(document, kinds)}{body}</main></body></html>\n"
    )


def _headline(document: dict[str, Any], kinds: Sequence[Kind]) -> str:
    cards = []
    for kind in kinds:
        frozen, both = (document["conditions"][name][kind]["all"]["mean"] for name in ("frozen", "both"))
        change = (both - frozen) / frozen if frozen else 0.0
        tone = "good" if change < 0 else "bad" if change > 0 else ""
        value = f'{100 * frozen:.1f} % <span class="arrow">→</span> {100 * both:.1f} %'
        cards.append(_card(TITLES[kind], value, f"{100 * change:+.0f} % relative", tone))
    if found := document["against_frozen"]["both"][kinds[0]]["all"]:
        mean, interval = _interval(found)
        verdict = f"{'excludes' if found['absolute']['excludes_zero'] else 'includes'} zero"
        title = f"{TITLES[kinds[0]]}, both − frozen"
        cards.append(_card(title, f"{mean} points", f"95 % interval {interval}: {verdict}"))
    seeds = document["seeds"]
    return (
        "<header><h1>Devices that learn their users</h1>"
        f"<p>{len(document['voices']['devices'])} devices, {document['rounds']} rounds, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}, data <code>{escape(document['data'])}</code>. "
        "Each device is the real SDK with its own state and its own speaker; it shares noised word counts and a "
        "bounded, noised weight delta with a live server, and never audio or text.</p>"
        f'<div class="cards">{"".join(cards)}</div></header>'
    )


def _card(what: str, value: str, change: str, tone: str = "") -> str:
    inner = f'<div class="what">{what}</div><div class="value">{value}</div><div class="change {tone}">{change}</div>'
    return f'<div class="card">{inner}</div>'


def _table(document: dict[str, Any], kinds: Sequence[Kind]) -> str:
    def cell(condition: str, kind: Kind, part: str) -> str:
        figure = document["conditions"][condition][kind][part]
        if figure["mean"] is None:
            return "–"
        deviation = f" <small>± {100 * figure['std']:.1f}</small>" if document["seeds"] > 1 else ""
        return f"{100 * figure['mean']:.1f} %{deviation}"

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

    grid = _grid(list(found), kinds, cell)
    words = "95 % intervals of a bootstrap over voices; bold where it excludes zero."
    return f"<h3>Difference from frozen, in points</h3>{grid}<p>{words}</p>"


def _interval(found: dict[str, Any]) -> tuple[str, str]:
    """A difference's mean and its 95 % interval, in points."""
    mean, low, high = in_percent(found["absolute"])
    return mean, f"{low} to {high}"


def _grid(conditions: Sequence[str], kinds: Sequence[Kind], cell: Callable[[str, Kind, str], str]) -> str:
    """A table with a row a condition, and a column a kind of error and part."""
    head = "".join(f'<th colspan="{len(PARTS)}">{TITLES[kind]}</th>' for kind in kinds)
    under = "".join(f"<th>{title}</th>" for _ in kinds for title in PARTS.values())
    rows = ""
    for condition in conditions:
        cells = "".join(f"<td>{cell(condition, kind, part)}</td>" for kind in kinds for part in PARTS)
        rows += f"<tr><th>{_swatch(condition)}</th>{cells}</tr>"
    head = f'<thead><tr><th rowspan="2"></th>{head}</tr><tr>{under}</tr></thead>'
    return f'<div class="wide"><table>{head}<tbody>{rows}</tbody></table></div>'


def _per_round(document: dict[str, Any], runs: Sequence[Run], kind: Kind) -> str:
    labels = [f"round {number + 1}" for number in range(document["rounds"])]
    series = []
    for condition in CONDITIONS:
        own = [run.outcomes for run in runs if run.condition == condition.name]
        columns = [
            [rate((each for each in outcomes if each.round == number), kind) for outcomes in own]
            for number in range(document["rounds"])
        ]
        found = [spread(column) for column in columns]
        bands = [each["std"] or 0.0 for each in found] if document["seeds"] > 1 else None
        series.append(Line(condition.name, condition.name, [each["mean"] for each in found], bands))
    return _figure(TITLES[kind], lines(series, labels, "errors / references", percent=True))


def _per_device(runs: Sequence[Run], kind: Kind) -> str:
    said: dict[str, dict[str, list[Outcome]]] = {}
    for run in runs:
        for outcome in (each for each in run.outcomes if not each.held_out):
            said.setdefault(outcome.voice, {}).setdefault(run.condition, []).append(outcome)
    groups = [
        (voice, [Bar(name, name, rate(own.get(name, ()), kind)) for name in ("frozen", "both", "supervised")])
        for voice, own in sorted(said.items())
    ]
    rows = [groups[start : start + 12] for start in range(0, len(groups), 12)]
    charts = "".join(bars(row, "errors / references", percent=True, width=1140) for row in rows)
    return f'<figure class="full"><figcaption>{TITLES[kind]}, per device</figcaption>{charts}</figure>'


def _bytes(document: dict[str, Any], runs: Sequence[Run], direction: str, verb: str) -> str:
    groups = []
    for number in range(document["rounds"]):
        group = []
        for name in ("marginals", "learning", "both"):
            moved = [each for run in runs if run.condition == name for each in run.traffic if each.round == number]
            mean = fmean(getattr(each, direction) for each in moved) / 1e6 if moved else None
            group.append(Bar(name, name, mean))
        groups.append((f"round {number + 1}", group))
    return _figure(f"Megabytes a device {verb}", bars(groups, "MB a device and round"))


def _privacy(document: dict[str, Any]) -> str:
    rows, shown = "", []
    for stream, entry in document["epsilon"].items():
        value, by_round = entry["epsilon"], entry["per_round"]
        told = "∞" if _unbounded(value) else f"{value:.4g}"
        told += f" at δ {entry['delta']:g}" if entry.get("delta") else ""
        others = [escape(entry[key]) for key in ("adjacency", "sampling", "trust_model")]
        cells = "".join(f"<td>{each}</td>" for each in (told, *others))
        rows += f"<tr><th>{escape(stream)}</th>{cells}</tr>"
        if not any(map(_unbounded, by_round)):
            labels = [f"round {number + 1}" for number in range(len(by_round))]
            chart = lines([Line(stream, "both", by_round)], labels, "epsilon spent by a device, so far")
            shown.append(_figure(f"Epsilon of {stream}", chart))
    titles = ("stream", "epsilon", "adjacency", "sampling", "who sees what")
    head = f"<thead><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr></thead>"
    return (
        f'<div class="wide"><table class="words">{head}<tbody>{rows}</tbody></table></div>'
        "<p>Epsilon is stated for each stream by itself, as the server's ledger holds it for the device that spent "
        "most. ∞ says that the noise, if any, is too small to promise anything.</p>"
    ) + _row(*shown)


def _unbounded(value: Any) -> bool:
    return isinstance(value, str) or not math.isfinite(value)


def _device(document: dict[str, Any]) -> str:
    times, memory = [], []
    for name, entry in document["device"].items():
        taken = {"recognize": "marginals", "learn": "learning"}
        times.append((name, [Bar(what, colour, 1e3 * entry[f"{what}_seconds"]) for what, colour in taken.items()]))
        memory.append((name, [Bar("peak", name, entry["peak_memory_bytes"] / 1e6)]))
    peak = _figure("Peak resident memory of the device's process", bars(memory, "megabytes"))
    return _row(_figure("Time an utterance", bars(times, "milliseconds")), peak)


def _voices(document: dict[str, Any]) -> str:
    columns = ""
    for name, title in {"base": "base training", "devices": "devices", "heldout": "held out"}.items():
        voices = document["voices"][name]
        items = "".join(f"<li>{escape(voice)}</li>" for voice in voices) or "<li>not listed by the bundle</li>"
        columns += f"<div><h3>{title} ({len(voices)})</h3><ul>{items}</ul></div>"
    return f"<p>The three sets share no voice.</p><div class='columns'>{columns}</div>"


def _swatch(condition: str) -> str:
    return f'<span class="swatch {condition}"></span>{condition}'


def _figure(title: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>"


def _row(*figures: str) -> str:
    return f'<div class="row">{"".join(figures)}</div>'


STYLE = Path(__file__).with_name("report.css").read_text("utf-8") + "".join(
    f".swatch.{name}{{background:var(--{name})}}.line.{name}{{stroke:var(--{name})}}.dot.{name},.band.{name},"
    f".bar.{name},svg text.legend.{name}{{fill:var(--{name})}}"
    for name in MEANINGS
)
