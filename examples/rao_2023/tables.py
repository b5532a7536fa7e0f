"""The experiment's document, its tables, and which of the paper's findings hold: pure functions over finished rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from examples.rao_2023.experiment import INITIAL, Experiment, Row, teacher_name
from examples.rao_2023.measures import Errors, errors
from server.lab.simulation.progress import Shown
from server.lab.statistics import paired_bootstrap
from server.web.dashboard.plots import Bar, bars, standalone

__all__ = ["bar_chart", "judged", "remarks", "summary", "table"]

TESTS = ("requests", "delta", "general")
_EMA, _ORACLE, _STILL = "teacher EMA", "supervised oracle", "teacher not updated"
_WEAK = ("EMA + slots", "EMA + transcript + slots", "EMA + score")


def summary(experiment: Experiment, rows: Sequence[Row]) -> dict[str, Any]:
    """Word errors of every row over all seeds: mean, each seed's, and paired bootstrap intervals over test people.

    ``against``: the difference to the initial model, and to the row with an EMA teacher where there is one, over the
    seeds that a row has; the other row must have them too.
    """
    measured = {(row.name, row.seed): _measure(experiment, row) for row in rows}
    names = list(dict.fromkeys(row.name for row in rows))
    references = [name for name in (INITIAL, _EMA) if name in names]
    document: dict[str, Any] = {"seeds": sorted({row.seed for row in rows}), "scale": _plain(experiment), "rows": {}}
    for name in names:
        seeds = [row.seed for row in rows if row.name == name]
        entry: dict[str, Any] = {"seeds": seeds}
        for test in TESTS:
            mine = [measured[name, seed][test] for seed in seeds]
            rates = [found.rate for found in mine]
            entry[test] = {
                "wer": statistics.fmean(rates),
                "by_seed": rates,
                "spread": statistics.stdev(rates) if len(rates) > 1 else None,
                "against": {
                    other: _difference([measured[other, seed][test] for seed in seeds], mine)
                    for other in references
                    if other != name and all((other, seed) in measured for seed in seeds)
                },
            }
        own = [row for row in rows if row.name == name]
        entry["curve"] = [list(point) for point in own[0].curve] if len(own) == 1 else _mean_curve(own)
        entry["diverged"] = {str(row.seed): row.diverged for row in own if row.diverged is not None}
        entry["seconds"] = statistics.fmean(row.seconds for row in own)
        document["rows"][name] = entry
    return document


def judged(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The paper's findings as bars: what was found, what it should be, whether it holds; those the rows allow."""
    rows: Mapping[str, Any] = document["rows"]
    rate = {name: entry["requests"]["wer"] for name, entry in rows.items()}
    old = {name: entry["general"]["wer"] for name, entry in rows.items()}
    found: list[dict[str, Any]] = []

    def bar(text: str, value: float, expected: str, holds: bool) -> None:
        found.append({"finding": text, "value": value, "expected": expected, "holds": bool(holds)})

    initial = rate[INITIAL]
    bar("initial word error on requests", initial, "0.25 to 0.35", 0.25 <= initial <= 0.35)
    if _EMA in rate:
        cut = 1 - rate[_EMA] / initial
        bar("relative cut by a teacher that follows (EMA)", cut, "at least 0.34", cut >= 0.34)
        if _ORACLE in rate:
            over = rate[_EMA] / rate[_ORACLE] - 1
            bar("EMA above the supervised oracle, relative", over, "at most 0.15", over <= 0.15)
        if _STILL in rate:
            share = (initial - rate[_STILL]) / (initial - rate[_EMA]) if initial > rate[_EMA] else float("nan")
            bar("gain without teacher updates, share of EMA's", share, "at most 0.60", share <= 0.60)
        weak = {name: rows[name]["requests"]["against"][_EMA]["absolute"]["mean"] for name in _WEAK if name in rows}
        if weak:
            best = min(weak, key=lambda name: weak[name])
            bar(f"best of slots and scores ({best}) minus EMA", weak[best], "below 0", weak[best] < 0)
        at_once = document.get("scale", {}).get("at_once")
        if at_once in rows:
            interval = rows[at_once]["requests"]["against"][_EMA]["absolute"]
            worse = bool(rows[at_once]["diverged"]) or interval["low"] > 0
            bar(f"{at_once}, the student itself, minus EMA", interval["mean"], "diverged, or interval above 0", worse)
        if "EMA + rehearsal" in rate:
            lost, kept = old[_EMA] - old[INITIAL], old["EMA + rehearsal"] - old[INITIAL]
            share = kept / lost if lost > 0 else float("nan")
            bar("loss on the old domain with rehearsal, share of that without", share, "at most 0.50", share <= 0.50)
    for name in ("score only, noise 0", "score only, noise 0.4"):
        if name in rows:
            interval = rows[name]["requests"]["against"][INITIAL]["absolute"]
            bar(f"{name}: change of word error", interval["mean"], "interval below 0", interval["high"] < 0)
    if "real" in document:
        found += _judged_real(document["real"])
    return found


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent, with what they changed by against the initial model."""
    result = Table(
        title=f"Word errors in %, mean of seeds {', '.join(map(str, document['seeds']))} "
        "(change against initial, relative, with its 95 % interval)",
        caption="requests: the new domain; delta: where words have become frequent; general: the old domain",
    )
    result.add_column("row")
    for test in TESTS:
        result.add_column(test, justify="right")
    for name, entry in document["rows"].items():
        mark = f" (diverged in {len(entry['diverged'])})" if entry["diverged"] else ""
        result.add_row(name + mark, *(_cell(entry[test]) for test in TESTS))
    return result


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """One line a finding."""
    for each in document["findings"]:
        verdict = "holds" if each["holds"] else "does NOT hold"
        yield f"{verdict}: {each['finding']}: {each['value']:.3f}, expected {each['expected']}"


def bar_chart(document: Mapping[str, Any]) -> str:
    """An SVG of word errors, one group a row, a page of its own."""
    colours = {"requests": "c1", "delta": "c2", "general": "c3"}
    groups = [
        (name, [Bar(test, colours[test], entry[test]["wer"]) for test in TESTS])
        for name, entry in document["rows"].items()
    ]
    drawn = bars(groups, "word errors", percent=True, width=max(560, 110 * len(groups)))
    return standalone(drawn, {"c1": "#2563eb", "c2": "#d97706", "c3": "#6b7280"})


def _measure(experiment: Experiment, row: Row) -> dict[str, Errors]:
    new = errors(experiment.tested(experiment.requests), row.requests)
    return {
        "requests": new,
        "delta": new.where(experiment.delta),
        "general": errors(experiment.tested(experiment.general), row.general),
    }


def _difference(first: Sequence[Errors], second: Sequence[Errors]) -> dict[str, Any] | None:
    """Paired over all seeds' clips; a person's clips, of all seeds, are resampled together."""
    wrong_a, wrong_b, words = (
        np.concatenate(parts)
        for parts in ([e.wrong for e in first], [e.wrong for e in second], [e.words for e in second])
    )
    if words.sum() == 0 or wrong_a.sum() == 0:
        return None
    return paired_bootstrap(wrong_a, wrong_b, words, [person for e in second for person in e.persons]).as_json()


def _judged_real(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Real speech without a transcript: condition ``both`` of the fleet against frozen and supervised."""
    rates = {
        name: {kind: condition[kind]["all"]["mean"] for kind in ("wer", "slot_error")}
        for name, condition in document["conditions"].items()
    }
    rise = rates["both"]["wer"] - rates["frozen"]["wer"]
    interval = document["bootstrap"]["absolute"]
    gain = rates["frozen"]["slot_error"] - rates["both"]["slot_error"]
    taught = rates["frozen"]["slot_error"] - rates["supervised"]["slot_error"]
    found = [
        {"finding": "real speech: rise of word error", "value": rise, "expected": "at most 0", "holds": rise <= 0},
        {
            "finding": "real speech: change of slot error",
            "value": interval["mean"],
            "expected": "interval below 0",
            "holds": interval["high"] < 0,
        },
    ]
    if taught > 0:
        share = gain / taught
        found.append(
            {
                "finding": "real speech: gain in slots, share of the supervised",
                "value": share,
                "expected": "at least 0.80",
                "holds": share >= 0.8,
            }
        )
    return found


def _mean_curve(rows: Sequence[Row]) -> list[list[float]]:
    points: dict[int, list[float]] = {}
    for row in rows:
        for number, value in row.curve:
            points.setdefault(number, []).append(value)
    return [[number, statistics.fmean(values)] for number, values in sorted(points.items())]


def _plain(experiment: Experiment) -> dict[str, Any]:
    scale, cohort = experiment.scale, experiment.scale.cohort
    return {
        "rounds": cohort.rounds,
        "devices": cohort.devices,
        "batch": cohort.batch,
        "learning_rate": cohort.optimizer.learning_rate,
        "test_clips": scale.test,
        "test_people": scale.tested,
        "delta_clips": sum(experiment.delta),
        "base_minutes": scale.base_minutes,
        "at_once": teacher_name(*scale.at_once),
    }


def _cell(entry: Mapping[str, Any]) -> Shown:
    shown = f"{100 * entry['wer']:.1f}"
    difference = entry["against"].get(INITIAL)
    if difference is None:
        return Shown(shown)
    mean, low, high = (100 * difference["relative"][name] for name in ("mean", "low", "high"))
    return Shown(shown, f"({mean:+.0f}: {low:+.0f} to {high:+.0f})")
