"""The experiment's document, its table and charts, and which findings hold: functions of finished rows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from examples import runner
from examples.gao_2022.experiment import Row, Scale
from examples.gao_2022.recipes import Recipe
from server.plots import Line, lines, standalone

_IN_ROUNDS = re.compile(r"users, (\d+) a round: (.+)")
_WARM_UP, _AVERAGED, _BY_LOSS, _BY_ERROR = "central: warm-up", "FedAvg", "loss-based", "WER-based"


def summary(recipes: Sequence[Recipe], rows: Sequence[Row], scale: Scale) -> dict[str, Any]:
    """Word errors of every row by language, and what the paper has, in %. ``clients``: figure 4, users' own word
    errors, their mean, and how many have one of 1 or more."""
    document: dict[str, Any] = {"seeds": sorted({row.seed for row in rows}), "scale": asdict(scale), "rows": {}}
    for recipe in recipes:
        entry: dict[str, Any] = {}
        for language in sorted({row.language for row in rows if row.name == recipe.name}):
            own = [row for row in rows if (row.name, row.language) == (recipe.name, language)]
            users = sorted(value for row in own for value in row.clients if value is not None)
            entry[language] = {
                "wer": runner.rates({row.seed: row.error for row in own}),
                "paper": recipe.paper.get(language),
                "clients": {
                    "mean": float(np.mean(users)) if users else None,
                    "above_one": float(np.mean([value >= 1.0 for value in users])) if users else None,
                    "sorted": users,
                },
                "effective": float(np.mean([value for row in own for value in row.effective] or [0.0])),
                "seconds": float(np.mean([row.seconds for row in own])),
            }
        if entry:
            document["rows"][recipe.name] = entry
    document["findings"] = list(judge(document))
    return document


def judge(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the paper found, and whether it is so here; those findings that the rows allow. Differences are of one
    seed's rows each."""
    rows: Mapping[str, Any] = document["rows"]
    for language in _languages(document):
        wer = {name: entry[language]["wer"] for name, entry in rows.items() if language in entry}
        for holders in ("silos", "pairs", "users"):
            names = [f"{holders}: {kind}" for kind in (_AVERAGED, _BY_LOSS, _BY_ERROR)]
            if not set(names) <= set(wer):
                continue
            plain, loss, errors = (wer[name] for name in names)
            for text, first, second in (
                ("loss-based minus FedAvg", plain, loss),
                ("WER-based minus loss-based", loss, errors),
            ):
                change = runner.seed_difference(first, second)
                yield runner.finding(f"{language}, {holders}: {text}", change, "at most 0", lambda value: value <= 0)
            if _WARM_UP in wer:
                best = min((plain, loss, errors), key=lambda each: float(each["mean"]))
                change = runner.seed_difference(wer[_WARM_UP], best)
                yield runner.finding(
                    f"{language}, {holders}: best minus warm-up", change, "below 0", lambda value: value < 0
                )
        for kind in ("FedAvg", "FedProx", "FedAdam"):
            alone, warm = f"from scratch: {kind}", f"users: {_AVERAGED}"
            if {alone, warm} <= set(wer):
                text = f"{language}, from scratch with {kind} minus with a warm-up"
                change = runner.seed_difference(wer[warm], wer[alone])
                yield runner.finding(text, change, "above 0.5: it does not converge", lambda value: value > 0.5)


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent beside the paper's."""

    def entry(row: tuple[str, Any], language: str) -> dict[str, Any]:
        found = row[1].get(language, {})
        mean, paper = found.get("clients", {}).get("mean"), found.get("paper")
        shown = "" if mean is None else f"{100 * mean:.1f}", "" if paper is None else f"{paper:.2f}"
        return {"own": shown[0], "paper": shown[1], "wer": runner.percent(found.get("wer"))}

    columns: dict[str, Any] = {"row": lambda row: row[0]}
    for each in _languages(document):
        columns[each] = lambda row, each=each: entry(row, each)["wer"]
        columns[f"{each}, paper"] = lambda row, each=each: entry(row, each)["paper"]
        columns[f"{each}, own speech"] = lambda row, each=each: entry(row, each)["own"]
    title = f"Word errors in %, mean of seeds {', '.join(map(str, document['seeds']))} (± deviation)"
    return runner.table(title, document["rows"].items(), columns)


def charts(document: Mapping[str, Any]) -> dict[str, str]:
    """SVG pages by name: ``table_1`` word errors of every row; ``figure_3`` by how many devices make a round;
    ``figure_4`` users' own word errors, sorted."""
    rows, languages = document["rows"], _languages(document)
    colours = {f"c{number}": colour for number, colour in enumerate(runner.COLOURS)}
    groups = ((name, {each: found["wer"]["mean"] for each, found in entry.items()}) for name, entry in rows.items())
    drawn = {"table_1": runner.chart(groups)}
    for language in languages:
        by_round: dict[str, dict[int, float]] = {}
        for name, entry in rows.items():
            if (match := _IN_ROUNDS.fullmatch(name)) and language in entry:
                by_round.setdefault(match[2], {})[int(match[1])] = entry[language]["wer"]["mean"]
        if by_round:
            cohorts = sorted(set().union(*by_round.values()))
            series = [
                Line(strategy, colour, [rates.get(cohort) for cohort in cohorts])
                for (strategy, rates), colour in zip(by_round.items(), colours, strict=False)
            ]
            labels = [f"{cohort} devices" for cohort in cohorts]
            drawn[f"figure_3_{language}"] = standalone(lines(series, labels, "word errors", percent=True), colours)
        series = [
            Line(name, colour, np.interp(np.linspace(0, 1, 21), np.linspace(0, 1, len(values)), values).tolist())
            for name, colour in ((_WARM_UP, "c4"), (f"users: {_AVERAGED}", "c0"), (f"users: {_BY_ERROR}", "c1"))
            if (values := rows.get(name, {}).get(language, {}).get("clients", {}).get("sorted"))
        ]
        if series:
            labels = [f"{share} %" if share % 25 == 0 else "" for share in range(0, 101, 5)]
            curves = lines(series, labels, "word errors of users, sorted", percent=True)
            drawn[f"figure_4_{language}"] = standalone(curves, colours)
    return drawn


def _languages(document: Mapping[str, Any]) -> list[str]:
    return sorted({language for entry in document["rows"].values() for language in entry})
