"""What each page shows, read from the server's state in one transaction a page."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from markupsafe import Markup
from sqlalchemy import Connection, func, select

from device_sdk.wire.messages import FIXED_POINT
from server.devices.enrolment import count_devices
from server.plans.round import STREAMS, UNDERWAY, RoundState
from server.plots import Bar, Line, bars, lines
from server.registry import marginals as marginal_registry
from server.registry import models as model_registry
from server.registry.models import current_version
from server.registry.retention import check_marginals_present
from server.rounds.rollout import conduct
from server.rounds.store import count_by_state, find_round, list_rounds, view
from server.service import Service
from server.storage.schema import actions, devices, publications, releases, reports, rounds, transitions

RECENT = 40
_TOLD_ELSEWHERE = ("round.close", "round.abandon", "model.push", "marginals.push")
Page = dict[str, Any]


def overview(server: Service) -> Page:
    """The first page: what is current, which rounds are under way, how errors, drift and epsilon went."""
    with server.database.read() as connection:
        newest = [view(connection, row) for row in list_rounds(connection, RECENT)]
        counts = count_by_state(connection)
        lineage = _lineage(connection)
        page: Page = {
            "model": current_version(connection, "model"),
            "marginals": current_version(connection, "marginals"),
            "devices": count_devices(connection),
            "published": counts.get(RoundState.PUBLISHED, 0),
            "abandoned": counts.get(RoundState.ABANDONED, 0),
            "underway": [_live(entry, server.settings.clock()) for entry in newest if entry["state"] in UNDERWAY],
            "events": _events(connection, 8),
        }
    page["privacy"] = _streams(server)
    page["charts"] = _round_charts(newest) + _model_charts(lineage)
    return page


def rounds_page(server: Service) -> Page:
    """Rounds, the newest first."""
    with server.database.read() as connection:
        newest = [view(connection, row) for row in list_rounds(connection, 200)]
    now = server.settings.clock()
    return {"rounds": [_live(entry, now) for entry in newest], "charts": _round_charts(newest[:RECENT])}


def round_page(server: Service, round_id: str) -> Page:
    """One round with its settings, reports, releases and moves. Raises Refusal (404)."""
    with server.database.read() as connection:
        found = view(connection, find_round(connection, round_id))
        arrived = connection.execute(
            select(reports.c.accepted_at, reports.c.stream)
            # Times are forgotten when the round has ended.
            .where(reports.c.round_id == round_id, reports.c.counted, reports.c.accepted_at > 0)
            .order_by(reports.c.accepted_at)
        ).all()
    by_stream = {stream: [row.accepted_at for row in arrived if row.stream == stream] for stream in STREAMS}
    told = {stream: {"facts": flatten(each["mechanism"])} | each for stream, each in found["releases"].items()}
    return {
        "round": _live(found, server.settings.clock()),
        "settings": flatten(found["settings"]),
        "arrivals": {stream: times for stream, times in by_stream.items() if times},
        "releases": told,
        "evaluation": found["evaluation"],
    }


def models(server: Service) -> Page:
    """Every model with its parent, its figures and where it stands."""
    with server.database.read() as connection:
        current = current_version(connection, "model")
        teacher = model_registry.find_model(connection, current).teacher
        lineage = _lineage(connection)
        now = server.settings.clock()
        tried = [conduct.view(connection, row, now) for row in conduct.list_rollouts(connection, 20)]
    running = {entry["version"] for entry in tried if entry["state"] == "running"}
    children = {entry["parent"] for entry in lineage if entry["parent"]}
    for entry in lineage:
        roles = {"current": {current}, "rollout": running, "teacher": {teacher}, "ancestor": children}
        entry["role"] = next((role for role, versions in roles.items() if entry["version"] in versions), "")
    charts = _model_charts(lineage)
    return {"models": lineage[::-1], "current": current, "charts": charts, "rollouts": tried}


def marginals(server: Service, version: int | None, top: int = 15) -> Page:
    """The versions of the global marginal, and what moved from one's parent to it. Raises Refusal (404)."""
    with server.database.read() as connection:
        current = int(current_version(connection, "marginals"))
        row = marginal_registry.find_marginals(connection, current if version is None else version)
        check_marginals_present(row)
        parent = marginal_registry.find_marginals(connection, 0 if row.parent is None else row.parent)
        if not parent.probabilities:  # removed with its round
            parent = marginal_registry.find_marginals(connection, 0)
        versions = [
            marginal_registry.view(each) | {"surviving": each.figures.get("surviving_words")}
            for each in marginal_registry.list_marginals(connection)
        ]
    after, before = (marginal_registry.read_probabilities(each) for each in (row, parent))
    counts = marginal_registry.read_counts(row)
    moved = np.log(after) - np.log(before)
    weight = after - before  # a rare word's ratio is mostly noise, so words are chosen by the weight that moved
    chosen = [*np.argsort(-weight, kind="stable")[:top], *np.argsort(weight, kind="stable")[:top]]
    words: list[Page] = [
        {"word": server.words[index] if index < len(server.words) else f"word {index}"}
        | {"before": float(before[index]), "after": float(after[index]), "ratio": float(np.exp(moved[index]))}
        | {"released": int(counts[index]) / FIXED_POINT}
        for index in dict.fromkeys(int(place) for place in chosen)
        if weight[index] != 0
    ]
    words.sort(key=lambda word: word["before"] - word["after"])
    of = {"current": current, "version": row.version, "parent": parent.version, "noise": math.sqrt(row.variance)}
    return of | {"words": words, "versions": versions, "charts": [bars_of_words(words)] if words else []}


def privacy(server: Service) -> Page:
    """Epsilon a stream against its cap, and what each number means."""
    with server.database.read() as connection:
        drawn = connection.execute(select(releases).order_by(releases.c.drawn_at.desc()).limit(RECENT)).all()
        numbers = _numbers(connection)
    return {
        "streams": _streams(server),
        "releases": [
            row._asdict()
            | {"round": numbers.get(row.round_id, ""), "at": row.drawn_at}
            | {"mechanism": row.mechanism.get("name", ""), "facts": flatten(row.mechanism)}
            for row in drawn
        ],
    }


def audit(server: Service) -> Page:
    """Everything that changed, the newest first."""
    with server.database.read() as connection:
        return {"events": _events(connection, 300)}


def _lineage(connection: Connection) -> list[Page]:
    """Models, the oldest first, each with its own figures and those of its round's evaluation."""
    judged = connection.execute(select(rounds.c.model_version, rounds.c.evaluation)).all()
    figures = {row.model_version: row.evaluation.get("figures", {}) for row in judged if row.evaluation is not None}
    return [
        model_registry.view(row) | {"figures": {**row.figures, **figures.get(row.version, {})}}
        for row in reversed(model_registry.list_models(connection))
    ]


def _live(entry: Page, now: float) -> Page:
    """A round's view with what a reader wants to know of it at a glance."""
    settings = entry["settings"]
    goal, minimum = settings.get("goal"), settings.get("minimum", 1)
    streams = [
        {"name": stream, "reports": count, "goal": goal, "minimum": minimum}
        | {"missing": max(0, (goal or minimum) - count), "enough": count >= minimum}
        for stream, count in entry["reports"].items()
        if settings.get(stream) is not None
    ]
    left = None
    if entry["state"] == RoundState.OPEN and entry["deadline"] is not None:
        left = max(0.0, entry["deadline"] - now)
    return entry | {"streams": streams, "left": left}


def _streams(server: Service) -> list[Page]:
    streams = []
    for name, line in server.privacy().items():
        cap = server.settings.cap(name)
        epsilon = float(line["epsilon"])
        share = min(1.0, epsilon / cap) if math.isfinite(cap) and math.isfinite(epsilon) else None
        streams.append(line | {"name": name, "cap": cap, "share": share, "epsilon": epsilon})
    return streams


def _round_charts(newest: list[Page]) -> list[Page]:
    ended = [entry for entry in reversed(newest) if entry["state"] not in UNDERWAY]
    if len(ended) < 2:
        return []
    series = {
        stream: [float(entry["reports"][stream]) if entry["settings"].get(stream) else None for entry in ended]
        for stream in STREAMS
    }
    return [lines_of("Reports that came, by round", series, [str(entry["number"]) for entry in ended], "reports")]


def _model_charts(lineage: list[Page]) -> list[Page]:
    trained = [entry for entry in lineage if not entry["note"].startswith("teacher")][-RECENT:]
    if len(trained) < 2:
        return []
    labels = [str(place + 1) for place in range(len(trained))]
    charts = []
    for title, name, percent in (
        ("Word error on held-out speech, by model", "word_error", True),
        ("How far each model moved from its parent (L2)", "update_norm", False),
    ):
        values = [entry["figures"].get(name) for entry in trained]
        if sum(value is not None for value in values) > 1:
            charts.append(lines_of(title, {title: values}, labels, "", percent=percent))
    return charts


def _events(connection: Connection, limit: int) -> list[Page]:
    numbers = _numbers(connection)

    def newest(query: Any, table: Any) -> Any:
        return connection.execute(query.order_by(table.c.id.desc()).limit(limit))

    def event(at: float, what: str, note: str = "", round_id: str | None = None) -> Page:
        of_round = f"round {numbers.get(round_id, '?')}: " if round_id is not None else ""
        return {"at": at, "what": of_round + what, "note": note, "round_id": round_id}

    events = []
    for row in newest(select(transitions), transitions):
        events.append(event(row.at, f"{row.source} → {row.target}", row.note, row.round_id))
    for row in newest(select(publications), publications):
        what = f"rollout of {row.version}" if row.kind == "rollout" else f"{row.kind} {row.version} published"
        events.append(event(row.at, what, row.note))
    for row in newest(select(releases), releases):
        note = f"{row.mechanism.get('name', '')}; inputs {row.inputs_sha256[:12]}"
        events.append(event(row.drawn_at, f"{row.stream} of {row.reports} reports released", note, row.round_id))
    # What else operators do has an event of its own, whose note names them.
    others = select(actions).where(actions.c.action.not_like("%.publish"), actions.c.action.not_in(_TOLD_ELSEWHERE))
    for row in newest(others, actions):
        events.append(event(row.at, f"{row.action} {row.subject}", f"by {row.operator} {row.note}".strip()))
    number, last = connection.execute(select(func.count(), func.max(devices.c.enrolled_at))).one()
    if number:
        events.append(event(last, f"{number} devices enrolled"))
    return sorted(events, key=lambda event: -event["at"])[:limit]


def _numbers(connection: Connection) -> dict[str, int]:
    """Of every round, by its id."""
    return {row.id: row.number for row in connection.execute(select(rounds.c.id, rounds.c.number))}


COLOURS = ("first", "second", "third", "fourth")


def lines_of(
    title: str, series: Mapping[str, Sequence[float | None]], labels: Sequence[str], unit: str, *, percent: bool = False
) -> dict[str, Any]:
    """A line chart: {title, svg}. At most a dozen of the labels are written; a single line has no legend."""
    every = -(-len(labels) // 12)
    shown = [label if place % every == 0 else "" for place, label in enumerate(labels)]
    named = zip(series.items(), COLOURS, strict=False)
    drawn = [Line(name if len(series) > 1 else "", colour, values) for (name, values), colour in named]
    return {"title": title, "svg": _named(lines(drawn, shown, unit, percent=percent), title)}


def bars_of_words(words: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The words whose probability rose most, before and after."""
    risen = [word for word in words if word["after"] > word["before"]][:8]
    colours = {"before": "second", "after": "first"}
    groups = [(word["word"], [Bar(name, colour, word[name]) for name, colour in colours.items()]) for word in risen]
    title = "Words that gained most probability"
    return {"title": title, "svg": _named(bars(groups, "probability", percent=True), title)}


def _named(svg: str, title: str) -> Markup:
    return Markup(svg.replace('role="img"', f'role="img" aria-label="{escape(title)}"', 1))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``a.b`` -> value of nested mappings; what is None, off, is left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value
    return found
