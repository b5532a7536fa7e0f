"""The experiment's document, its tables beside the paper's, and which of its findings hold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich.table import Table

from examples import runner
from examples.ramesh_2023.experiment import Outcome
from examples.ramesh_2023.recipes import Row, Sizes
from examples.runner import Errors

SCRATCH = "no pre-training"
TITLES = {"2": "Table 2: pre-training in English", "3": "Table 3: from English to French"}
_CENTRAL = {
    **{f"federated {cohort}{passes}": "central" for cohort in (48, 70) for passes in ("", ", one pass")},
    **{f"federated {cohort}, part{passes}": "central, part" for cohort in (48, 70) for passes in ("", ", one pass")},
    "direct, federated 48": "direct, central",
    "continued, federated 48": "continued, central",
}
"""What a federated row is compared with: central pre-training on the same speech."""


def summary(outcomes: Sequence[Outcome], rows: Sequence[Row], sizes: Sizes) -> dict[str, Any]:
    """Word error of every row, and relative paired bootstrap intervals of its difference from no pre-training and from
    central pre-training. Speakers are resampled, each with its utterances of all seeds."""
    document: dict[str, Any] = {"sizes": asdict(sizes), "tables": {}}
    for table in TITLES:
        by_name: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.table == table:
                by_name.setdefault(outcome.row, []).append(outcome)
        shown = [_row(row, by_name) for row in rows if row.table == table and row.name in by_name]
        if shown:
            document["tables"][table] = shown
    document["findings"] = list(judge(document))
    return document


def judge(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The paper's findings as bars; those that the rows allow. Values are relative."""
    against = {(table, row["name"]): row["against"] for table, rows in document["tables"].items() for row in rows}
    for (table, name), others in against.items():
        if (scratch := others.get(SCRATCH)) is not None:
            text = f"table {table}: {name} against {SCRATCH}"
            yield runner.finding(text, scratch, "below 0, interval excluding 0", scratch["high"] < 0)
        if (central := others.get(_CENTRAL.get(name, ""))) is not None:
            text = f"table {table}: {name} against {_CENTRAL[name]}"
            yield runner.finding(text, central, "at most 0.04", lambda mean: mean <= 0.04)
    whole = [
        against["2", name][SCRATCH]["mean"]
        for name in ("central", "federated 48", "federated 70")
        if SCRATCH in against.get(("2", name), {})
    ]
    if whole:
        text = "table 2: mean of rows on all silos against no pre-training"
        yield runner.finding(text, float(np.mean(whole)), "-0.12", lambda mean: mean <= -0.12)


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """One row a way of pre-training, ours beside the paper's."""
    for number, rows in document["tables"].items():
        columns: dict[str, Any] = {"row": lambda row: row["name"]}
        for name in rows[0]["sets"]:
            columns[name] = lambda row, name=name: runner.percent(row["sets"][name])
        columns[f"against {SCRATCH}"] = lambda row: runner.interval_in_percent(row["against"].get(SCRATCH))
        columns["against central"] = lambda row: runner.interval_in_percent(
            row["against"].get(_CENTRAL.get(row["name"], ""))
        )
        for name in rows[0]["published"]:
            columns[f"{name}\n(paper)"] = lambda row, name=name: _printed(row["published"].get(name))
        seeds = len(next(iter(rows[0]["sets"].values()))["by_seed"])
        yield runner.table(f"{TITLES[number]} (word error, percent; {seeds} seeds)", rows, columns)


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for each finding, and what is not as in the paper."""
    yield from map(runner.remark, document["findings"])
    sizes = document["sizes"]
    if sizes["name"] == "small":
        passes = sizes["federation"]["passes"]
        yield (
            f"Small setting: strings of digits by made voices. Federations go through silos {passes} times at most but "
            "for rows of one pass, as the paper's devices do. Teaching begins with CTC; the paper's is RNN-T alone."
        )


def chart(document: Mapping[str, Any]) -> str:
    """Word errors by row, a bar for each test set."""
    return runner.chart(
        (f"{number}: {row['name']}", {name: own["mean"] for name, own in row["sets"].items()})
        for number, rows in document["tables"].items()
        for row in rows
    )


def _printed(rate: float | None) -> str:
    return "" if rate is None else f"{rate:g}"


def _row(row: Row, by_name: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    own = sorted(by_name[row.name], key=lambda outcome: outcome.seed)
    against = {}
    for other in (SCRATCH, _CENTRAL.get(row.name, "")):
        if other in by_name and other != row.name and (change := _difference(by_name[other], own)) is not None:
            against[other] = change["relative"]
    return {
        "name": row.name,
        "sets": {name: runner.rates({one.seed: one.errors[name].rate for one in own}) for name in own[0].errors},
        "against": against,
        "published": dict(row.published),
        "about": dict(own[0].about),
    }


def _difference(first: Sequence[Outcome], second: Sequence[Outcome]) -> dict[str, Any] | None:
    """Over all test sets, of the seeds that both have."""
    pairs = [(one, other) for one in first for other in second if one.seed == other.seed]

    def errors(place: int) -> Errors:
        return runner.join(
            replace(each, speakers=[f"{name}/{speaker}" for speaker in each.speakers])
            for pair in pairs
            for name, each in pair[place].errors.items()
        )

    return runner.difference(errors(0), errors(1))
