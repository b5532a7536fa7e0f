"""The experiment's document, its table, and which of the paper's findings hold: pure functions over finished rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from examples import runner
from examples.rao_2023.experiment import INITIAL, Experiment, Row, errors, teacher_name
from examples.runner import Errors
from server.lab.simulation.progress import Shown

TESTS = ("requests", "delta", "general")
_EMA, _ORACLE, _STILL = "teacher EMA", "supervised oracle", "teacher not updated"
_REHEARSAL = "EMA + rehearsal"
_WEAK = ("EMA + slots", "EMA + transcript + slots", "EMA + score", "EMA + binary")


def summary(experiment: Experiment, rows: Sequence[Row]) -> dict[str, Any]:
    """Word errors of every row over all seeds: mean, each seed's, and paired bootstrap intervals over test people.
    ``against``: the difference to the initial model, and to the row with an EMA teacher where there is one, over the
    seeds that a row has; the other row must have them too."""
    measured = {(row.name, row.seed): _measure(experiment, row) for row in rows}
    names = list(dict.fromkeys(row.name for row in rows))
    references = [name for name in (INITIAL, _EMA) if name in names]
    document: dict[str, Any] = {"seeds": sorted({row.seed for row in rows}), "scale": _plain(experiment), "rows": {}}
    for name in names:
        own = [row for row in rows if row.name == name]
        seeds = [row.seed for row in own]
        entry: dict[str, Any] = {"seeds": seeds}
        for test in TESTS:
            entry[test] = runner.rates({seed: measured[name, seed][test].rate for seed in seeds})
            entry[test]["against"] = {
                other: runner.difference(
                    *(runner.join(measured[each, seed][test] for seed in seeds) for each in (other, name))
                )
                for other in references
                if other != name and all((other, seed) in measured for seed in seeds)
            }
        points: dict[int, list[float]] = {}
        for number, value in (point for row in own for point in row.curve):
            points.setdefault(number, []).append(value)
        entry["curve"] = [[number, float(np.mean(values))] for number, values in sorted(points.items())]
        entry["diverged"] = {str(row.seed): row.diverged for row in own if row.diverged is not None}
        entry["seconds"] = float(np.mean([row.seconds for row in own]))
        document["rows"][name] = entry
    document["findings"] = list(findings(document))
    return document


def findings(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The paper's findings as bars; those that the rows allow."""
    rows: Mapping[str, Any] = document["rows"]
    rate, old = ({name: entry[test]["mean"] for name, entry in rows.items()} for test in ("requests", "general"))

    def against(name: str, other: str) -> Any:
        return rows[name]["requests"]["against"][other]["absolute"]

    initial, ema, finding = rate[INITIAL], rate.get(_EMA), runner.finding
    yield finding("initial word error on requests", initial, "0.25 to 0.35", 0.25 <= initial <= 0.35)
    if ema is not None:
        cut = 1 - ema / initial
        yield finding("relative cut by a teacher that follows (EMA)", cut, "at least 0.34", cut >= 0.34)
        if _ORACLE in rate:
            over = ema / rate[_ORACLE] - 1
            yield finding("EMA above the supervised oracle, relative", over, "at most 0.15", over <= 0.15)
        if _STILL in rate:
            share = (initial - rate[_STILL]) / (initial - ema) if initial > ema else float("nan")
            yield finding("gain without teacher updates, share of EMA's", share, "at most 0.60", share <= 0.60)
        if weak := {name: against(name, _EMA)["mean"] for name in _WEAK if name in rows}:
            best = min(weak, key=lambda name: weak[name])
            yield finding(f"best of slots and scores ({best}) minus EMA", weak[best], "below 0", weak[best] < 0)
        if (at_once := document.get("scale", {}).get("at_once")) in rows:
            interval = against(at_once, _EMA)
            worse = bool(rows[at_once]["diverged"]) or interval["low"] > 0
            text = f"{at_once}, the student itself, minus EMA"
            yield finding(text, interval["mean"], "diverged, or interval above 0", worse)
        if _REHEARSAL in rate:
            lost, kept = old[_EMA] - old[INITIAL], old[_REHEARSAL] - old[INITIAL]
            share = kept / lost if lost > 0 else float("nan")
            text = "loss on the old domain with rehearsal, share of that without"
            yield finding(text, share, "at most 0.50", share <= 0.50)
    for name in (name for name in ("binary only, noise 0", "binary only, noise 0.4") if name in rows):
        interval = against(name, INITIAL)
        text = f"{name}: change of word error"
        yield finding(text, interval["mean"], "interval below 0", interval["high"] < 0)


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent, with what they changed by against the initial model."""

    def name(row: tuple[str, Any]) -> str:
        return row[0] + (f" (diverged in {len(row[1]['diverged'])})" if row[1]["diverged"] else "")

    columns: dict[str, Any] = {"row": name}
    columns |= {test: lambda row, test=test: _cell(row[1][test]) for test in TESTS}
    return runner.table(
        f"Word errors in %, mean of seeds {', '.join(map(str, document['seeds']))} "
        "(change against initial, relative, with its 95 % interval)",
        document["rows"].items(),
        columns,
        "requests: the new domain; delta: where words have become frequent; general: the old domain. Feedback weighs "
        f"{document['scale']['weight']:g} beside the label.",
    )


def chart(document: Mapping[str, Any]) -> str:
    """Word errors, a group of bars a row."""
    rows = document["rows"].items()
    return runner.chart((name, {test: entry[test]["mean"] for test in TESTS}) for name, entry in rows)


def _measure(experiment: Experiment, row: Row) -> dict[str, Errors]:
    new = errors(experiment.tested(experiment.requests), row.requests)
    old = errors(experiment.tested(experiment.general), row.general)
    return {"requests": new, "delta": new.where(experiment.delta), "general": old}


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
        "weight": scale.weight,
    }


def _cell(entry: Mapping[str, Any]) -> Shown:
    shown, difference = f"{100 * entry['mean']:.1f}", entry["against"].get(INITIAL)
    if difference is None:
        return Shown(shown)
    mean, low, high = (100 * difference["relative"][name] for name in ("mean", "low", "high"))
    return Shown(shown, f"({mean:+.0f}: {low:+.0f} to {high:+.0f})")
