"""The experiment's document, its table and charts, and which findings hold: functions of finished rows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from examples.gao_2022.experiment import Row, Scale
from examples.gao_2022.recipes import Recipe
from server.lab.statistics import mean_interval
from server.web.dashboard.plots import Bar, Line, bars, lines, standalone

__all__ = ["charts", "judged", "remarks", "summary", "table"]

_COLOURS = {"c1": "#2563eb", "c2": "#d97706", "c3": "#6b7280"}
_IN_ROUNDS = re.compile(r"users, (\d+) a round: (.+)")
_WARM_UP, _AVERAGED, _BY_LOSS, _BY_ERROR = "central: warm-up", "FedAvg", "loss-based", "WER-based"


def summary(recipes: Sequence[Recipe], rows: Sequence[Row], scale: Scale) -> dict[str, Any]:
    """Word errors of every row by language: mean over seeds, each seed's, their standard deviation, and what the paper
    has. ``clients``: figure 4, means of users' own word errors, and how many have one of 1 or more."""
    document: dict[str, Any] = {"seeds": sorted({row.seed for row in rows}), "scale": asdict(scale), "rows": {}}
    for recipe in recipes:
        entry: dict[str, Any] = {}
        for language in sorted({row.language for row in rows}):
            own = [row for row in rows if (row.name, row.language) == (recipe.name, language)]
            if not own:
                continue
            rates = [row.error for row in own]
            users = [value for row in own for value in row.clients if value is not None]
            entry[language] = {
                "wer": statistics.fmean(rates),
                "by_seed": {str(row.seed): row.error for row in own},
                "spread": statistics.stdev(rates) if len(rates) > 1 else None,
                "paper": recipe.printed(language),
                "clients": {
                    "mean": statistics.fmean(users) if users else None,
                    "above_one": float(np.mean([value >= 1.0 for value in users])) if users else None,
                    "sorted": sorted(users),
                },
                "seconds": statistics.fmean(row.seconds for row in own),
            }
        if entry:
            document["rows"][recipe.name] = entry
    document["findings"] = list(judged(document))
    return document


def judged(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the paper found, and whether it is so here; those findings that the rows allow. Differences are of one
    seed's rows each; ``low`` and ``high`` bound their mean over seeds, where there are several."""
    rows: Mapping[str, Any] = document["rows"]

    def rates(name: str, language: str) -> Mapping[str, float] | None:
        found: Mapping[str, float] | None = rows.get(name, {}).get(language, {}).get("by_seed")
        return found

    for language in sorted({language for entry in rows.values() for language in entry}):
        begin = rates(_WARM_UP, language)
        for holders in ("silos", "pairs", "users"):
            plain, loss, errors = (rates(f"{holders}: {kind}", language) for kind in (_AVERAGED, _BY_LOSS, _BY_ERROR))
            if plain is None or loss is None or errors is None:
                continue
            where = f"{language}, {holders}"
            yield _finding(f"{where}: loss-based minus FedAvg", loss, plain, "at most 0", lambda value: value <= 0)
            yield _finding(f"{where}: WER-based minus loss-based", errors, loss, "at most 0", lambda value: value <= 0)
            if begin is not None:
                best = min((plain, loss, errors), key=lambda found: statistics.fmean(found.values()))
                yield _finding(f"{where}: best minus warm-up", best, begin, "below 0", lambda value: value < 0)
        for kind in ("FedAvg", "FedProx", "FedAdam"):
            alone = rates(f"from scratch: {kind}", language)
            warm = rates(f"users: {_AVERAGED}", language)
            if alone is not None and warm is not None:
                text = f"{language}, from scratch with {kind} minus with a warm-up"
                yield _finding(text, alone, warm, "above 0.5: it does not converge", lambda value: value > 0.5)


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent beside the paper's."""
    languages = sorted({language for entry in document["rows"].values() for language in entry})
    result = Table(title=f"Word errors in %, mean of seeds {', '.join(map(str, document['seeds']))} (± deviation)")
    result.add_column("row", no_wrap=True)
    for language in languages:
        for heading in (language, "paper", "own speech"):
            result.add_column(heading, justify="right", no_wrap=True)
    for name, entry in document["rows"].items():
        result.add_row(name, *(cell for language in languages for cell in _cells(entry.get(language))))
    return result


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """One line a finding."""
    for each in document["findings"]:
        verdict = "holds" if each["holds"] else "does NOT hold"
        interval = f" ({each['low']:+.3f} to {each['high']:+.3f})" if "low" in each else ""
        yield f"{verdict}: {each['finding']}: {each['value']:+.3f}{interval}, expected {each['expected']}"


def charts(document: Mapping[str, Any]) -> dict[str, str]:
    """SVG pages by name: ``table_1`` word errors of every row; ``figure_3`` by how many devices make a round;
    ``figure_4`` users' own word errors, sorted."""
    languages = sorted({language for entry in document["rows"].values() for language in entry})
    groups = [
        (
            name,
            [
                Bar(language, colour, entry.get(language, {}).get("wer"))
                for language, colour in zip(languages, _COLOURS, strict=False)
            ],
        )
        for name, entry in document["rows"].items()
    ]
    found = {"table_1": bars(groups, "word errors", percent=True, width=max(560, 110 * len(groups)))}
    for language in languages:
        by_round: dict[str, dict[int, float]] = {}
        for name, entry in document["rows"].items():
            if (match := _IN_ROUNDS.fullmatch(name)) and language in entry:
                by_round.setdefault(match[2], {})[int(match[1])] = entry[language]["wer"]
        if by_round:
            cohorts = sorted(set().union(*by_round.values()))
            series = [
                Line(strategy, colour, [rates.get(cohort) for cohort in cohorts])
                for (strategy, rates), colour in zip(by_round.items(), _COLOURS, strict=False)
            ]
            labels = [f"{cohort} devices" for cohort in cohorts]
            found[f"figure_3_{language}"] = lines(series, labels, "word errors", percent=True)
    shown = {_WARM_UP: "c3", f"users: {_AVERAGED}": "c1", f"users: {_BY_ERROR}": "c2"}
    for language in languages:
        curves = {
            name: np.interp(np.linspace(0, 1, 21), np.linspace(0, 1, len(values)), values).tolist()
            for name in shown
            if (values := document["rows"].get(name, {}).get(language, {}).get("clients", {}).get("sorted"))
        }
        if curves:
            series = [Line(name, shown[name], values) for name, values in curves.items()]
            labels = [f"{share} %" if share % 25 == 0 else "" for share in range(0, 101, 5)]
            found[f"figure_4_{language}"] = lines(series, labels, "word errors of users, sorted", percent=True)
    return {name: standalone(drawn, _COLOURS) for name, drawn in found.items()}


def _finding(
    text: str, first: Mapping[str, float], second: Mapping[str, float], expected: str, holds: Callable[[float], bool]
) -> dict[str, Any]:
    """Of first minus second, by seed."""
    found = [rate - second[seed] for seed, rate in first.items() if seed in second]
    value, interval = statistics.fmean(found), mean_interval(found)
    bounds = {} if interval is None else {"low": interval.low, "high": interval.high}
    return {"finding": text, "value": value, **bounds, "expected": expected, "holds": holds(value)}


def _cells(entry: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if entry is None:
        return "", "", ""
    spread = "" if entry["spread"] is None else f" ± {100 * entry['spread']:.1f}"
    printed = "" if entry["paper"] is None else f"{entry['paper']:.2f}"
    own = entry["clients"]["mean"]
    return f"{100 * entry['wer']:.1f}{spread}", printed, "" if own is None else f"{100 * own:.1f}"
