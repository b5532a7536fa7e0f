"""The experiment's document, its tables, and which of the paper's findings hold: pure functions over finished rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from examples import runner
from examples.liu_2020.adaptation import Method
from examples.liu_2020.lists import Cached, Heard, Listener, over_heard
from examples.liu_2020.rows import (
    AS_DEVICES,
    BASELINE,
    CORRECTED_FOLLOWING,
    CORRECTED_ROUNDS,
    EXACT,
    FOLLOWING,
    GLOBAL,
    MARGINALS,
    PERSONAL,
    SCALES,
    YARDSTICK,
    Row,
    alone_rows,
    edges,
    every_row,
    extend,
    run,
    tuned_baseline,
    tuned_marginals,
)
from examples.runner import Errors
from rescoring.combination import CombinationWeights
from server.lab.simulation.progress import Tell
from server.plans.round import RoundSettings

TITLES = {
    "2": "Table 2: rounds",
    "3": "Table 3: weights and bandwidth",
    "4": "Table 4: noise as in the paper, sigma 0.1",
    "4 private": "Table 4, by this project's default: a user's epsilon over all rounds",
    "4 global": "The global part alone, by this project's default",
    "5": "Beyond the paper",
}
_REFERENCE = {"4": EXACT, "4 private": EXACT, "4 global": GLOBAL}
"""Rows that a table's others are compared with, besides the second pass without marginals."""


_SMOOTHING = RoundSettings().smoothing

_FIRST_PASS: Mapping[str, Callable[[Heard], NDArray[np.int64]]] = {
    "wer": lambda heard: heard.errors[heard.first[:-1]],
    "oracle": lambda heard: heard.errors[heard.best(-heard.errors)],
}


def summary(cached: Cached, rows: Sequence[Row], rounds: int) -> dict[str, Any]:
    """Word error of every row with paired bootstrap intervals over test meetings, which are resampled whole. rounds: T
    of all tables but the second."""
    test, every = cached.test, {"development": cached.development, "test": cached.test}
    stages = {stage: clients for stage, clients in every.items() if clients}
    held = {(row.table, row.name): row for row in rows}
    document: dict[str, Any] = {
        "rounds": rounds,
        "data": {
            stage: {
                "clients": len(clients),
                "meetings": len({meeting for client in clients for meeting in client.meetings}),
                "utterances": sum(map(len, clients)),
                "words": int(sum(client.said.sum() for client in clients)),
            }
            for stage, clients in stages.items()
        },
        "about": dict(cached.about),
        "first_pass": {
            stage: {
                name: _rate([pick(client.heard) for client in clients], clients) for name, pick in _FIRST_PASS.items()
            }
            for stage, clients in stages.items()
        },
        "baseline": {"name": BASELINE, "wer": _rate(held["2", BASELINE].errors, test)},
        "tables": {},
    }
    for row in rows:
        entry: dict[str, Any] = {"name": row.name, "wer": _rate(row.errors, test), "against": {}}
        for table, name in (("2", BASELINE), (row.table, _REFERENCE.get(row.table, ""))):
            other = held.get(({EXACT: "4", GLOBAL: "4 global"}.get(name, table), name))
            if other is not None and other is not row:
                entry["against"][name] = runner.difference(_errors(other, test), _errors(row, test))
        document["tables"].setdefault(row.table, []).append(entry)
    document["findings"] = list(judge(document))
    return document


def measure(cached: Cached, tell: Tell, rounds: int, repeats: int) -> dict[str, Any]:
    """Tune on development meetings, then every row on test meetings, once. Returns the document with its findings.
    Beside what is tuned, weights are the paper's alpha, beta and sigma, with a personal part renewed once a round."""
    development, background = cached.development, cached.background
    plain = tuned_baseline(development, partial(tell, "weights of the second pass"))
    paper = Method(replace(plain, alpha=0.5, beta=0.25, sigma=5.0, smoothing=_SMOOTHING), renewed="round")
    tuned = tuned_marginals(development, background, paper, rounds, MARGINALS, partial(tell, "lambda"))
    methods, errors = extend(development, background, tuned, rounds, tell, hearing=cached.hearing)
    settings = list(every_row(background, tuned, rounds, repeats, methods))
    document = summary(cached, run(cached.test, background, plain, settings, tell), rounds)
    document["extensions"] = {"development_errors": errors}
    document["weights"] = [_chosen("every client", plain, {"marginals": replace(paper, weights=tuned), **methods})]
    return document


def measure_alone(cached: Cached, tell: Tell, rounds: int) -> dict[str, Any]:
    """The personal part alone, of few clients that say much: the settings for every other one are those that are best
    for the rest. Returns the document with its findings."""
    test, background, hearing = over_heard(cached.test, cached.background, cached.hearing)
    halves = test[::2], test[1::2]
    errors: dict[tuple[str, str], dict[str, Any]] = {}
    weights: list[dict[str, Any]] = []
    for chosen_on, tested in (halves, halves[::-1]):
        plain = tuned_baseline(chosen_on, partial(tell, "weights of the second pass"))
        start = replace(plain, alpha=0.0, beta=0.25, sigma=5.0, smoothing=_SMOOTHING)
        methods, _ = extend(chosen_on, background, start, rounds, tell, alone=True, hearing=hearing)
        for row in run(tested, background, plain, list(alone_rows(methods, rounds)), tell):
            names = (client.name for client in tested)
            errors.setdefault((row.table, row.name), {}).update(zip(names, row.errors, strict=True))
        weights.append(_chosen(", ".join(each.name for each in tested), plain, methods))
    rows = [Row(*row, tuple(own[client.name] for client in test)) for row, own in errors.items()]
    return summary(cached, rows, rounds) | {"weights": weights}


def _chosen(whom: str, plain: CombinationWeights, methods: Mapping[str, Method]) -> dict[str, Any]:
    """What was chosen for some clients, and what of it lies at an edge of its grid."""
    chosen = {BASELINE: plain, **{name: how.weights for name, how in methods.items()}}
    found = {name: edges(SCALES if each is plain else {**SCALES, **MARGINALS}, each) for name, each in chosen.items()}
    return {
        "clients": whom,
        "weights": {name: each.to_mapping() for name, each in chosen.items()},
        "pseudo": {name: how.pseudo for name, how in methods.items() if how.pseudo is not None},
        "edges": {name: names for name, names in found.items() if names},
    }


def judge(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The findings as bars; those that the rows allow."""
    first = document["first_pass"]["test"]["wer"]
    yield runner.finding("word error of the first pass", first, "0.15 to 0.45", 0.15 <= first <= 0.45)
    rows = {(table, row["name"]): row["against"] for table, held in document["tables"].items() for row in held}

    def change(table: str, name: str, reference: str = BASELINE) -> dict[str, Any] | None:
        relative: dict[str, Any] | None = rows.get((table, name), {}).get(reference, {}).get("relative")
        return relative

    if (marginals := change("2", "FMP, T = 10")) is not None:
        text = "relative change by marginals at T = 10"
        yield runner.finding(text, marginals, "at most -0.048", lambda mean: mean <= -0.048)
        yield runner.finding("the same, its interval", marginals["high"], "below 0", lambda high: high < 0)
    if (noisy := change("4", "epsilon 0.5 of a count", EXACT)) is not None:
        text = "relative cost of epsilon 0.5 in paper mode"
        yield runner.finding(text, noisy, "below 0.01", lambda mean: mean < 0.01)
    if (exact := change("4 global", GLOBAL)) is not None:
        kept = change("4 global", "epsilon 8 of a user")
        share = kept["mean"] / exact["mean"] if kept is not None and exact["mean"] < 0 else float("nan")
        text = "share of the global part's own gain that is left at a user's epsilon 8"
        yield runner.finding(text, share, "at least 0.5", lambda share: share >= 0.5)
    if (whole := change("5", FOLLOWING)) is not None:
        text = "relative change where the personal part follows each utterance"
        yield runner.finding(text, whole, "at most -0.08", lambda mean: mean <= -0.08)
    for name in (CORRECTED_ROUNDS, CORRECTED_FOLLOWING, AS_DEVICES):
        if (told := change("5", name)) is not None:
            yield runner.finding(f"relative change by the {name}", told, "at most -0.05", lambda mean: mean <= -0.05)
    if (own := change("5", PERSONAL)) is not None:
        text = "relative change by the personal part alone"
        yield runner.finding(text, own, "at most -0.05", lambda mean: mean <= -0.05)
        yield runner.finding("the same, its interval", own["high"], "below 0", lambda high: high < 0)
        bound = change("5", YARDSTICK)
        share = own["mean"] / bound["mean"] if bound is not None and bound["mean"] < 0 else float("nan")
        text = "share of what counts of the best entries give"
        yield runner.finding(text, share, "at least 0.5", lambda share: share >= 0.5)


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """One a table of the paper, and those that it has not; word errors in percent."""
    for number, rows in document["tables"].items():
        columns: dict[str, Any] = {
            "row": lambda row: row["name"],
            "word error": lambda row: f"{100 * row['wer']:.2f}",
            "against no marginals (95 %)": lambda row: _against(row, BASELINE),
        }
        if (reference := _REFERENCE.get(number)) is not None:
            columns["against no noise (95 %)"] = lambda row, reference=reference: _against(row, reference)
        rounds = "" if number == "2" else f", T = {document['rounds']}"
        yield runner.table(TITLES[number] + rounds, rows, columns)


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """What the tables rest on, then one line a finding."""
    data, first = document["data"]["test"], document["first_pass"]["test"]
    yield (
        f"{data['clients']} clients at {data['meetings']} test meetings, {data['utterances']:,} utterances, "
        f"{data['words']:,} words; first pass {100 * first['wer']:.1f} %, best entries of the lists "
        f"{100 * first['oracle']:.1f} %."
    )
    yield "The paper's other set, Curated Video, is not public; there is no row for it."
    for model, figures in document["about"].get("perplexity", {}).items():
        values = ", ".join(f"{name.removesuffix('.txt')} {value:.0f}" for name, value in figures.items())
        yield f"Perplexity a word of the {model} language model: {values}."
    for chosen in document.get("weights", ()):
        for name, found in chosen["edges"].items():
            yield f"At the edge of the grid, for {chosen['clients']}: {', '.join(found)} of {name}."
    yield from map(runner.remark, document["findings"])


def chart(document: Mapping[str, Any]) -> str:
    """Word errors, a bar a row."""
    return runner.chart(
        (row["name"], {"word error": row["wer"]}) for rows in document["tables"].values() for row in rows
    )


def _rate(errors: Sequence[Any], clients: Sequence[Listener]) -> float:
    return float(sum(wrong.sum() for wrong in errors) / sum(client.said.sum() for client in clients))


def _errors(row: Row, clients: Sequence[Listener]) -> Errors:
    """By meeting."""
    words = np.concatenate([client.said for client in clients])
    names = [meeting for client in clients for meeting in client.meetings]
    return Errors(np.concatenate(row.errors).tolist(), words.tolist(), names)


def _against(row: Mapping[str, Any], reference: str) -> str:
    return runner.interval_in_percent((row["against"].get(reference) or {}).get("relative"))
