"""The experiment's document, its tables beside the paper's, and which of its findings hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from examples.ramesh_2023.experiment import Outcome
from examples.ramesh_2023.rows import Row
from examples.ramesh_2023.settings import Sizes
from server.lab.statistics import in_percent, paired_bootstrap
from server.web.dashboard.plots import Bar, bars, standalone

__all__ = ["bar_chart", "judged", "remarks", "summary", "tables"]

SCRATCH = "no pre-training"
TITLES = {"2": "Table 2: pre-training in English", "3": "Table 3: from English to French"}
_CENTRAL = {
    "federated 48": "central",
    "federated 70": "central",
    "federated 48, part": "central, part",
    "federated 70, part": "central, part",
    "direct, federated 48": "direct, central",
    "continued, federated 48": "continued, central",
}
"""What a federated row is compared with: central pre-training on the same speech."""


def summary(outcomes: Sequence[Outcome], rows: Sequence[Row], sizes: Sizes) -> dict[str, Any]:
    """Word error of every row: mean and deviation over seeds, and paired bootstrap intervals of its difference from no
    pre-training and from central pre-training. Speakers are resampled, each with its utterances of all seeds."""
    document: dict[str, Any] = {"sizes": sizes.to_mapping(), "tables": {}}
    for table in TITLES:
        held: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.table == table:
                held.setdefault(outcome.row, []).append(outcome)
        shown = [_row(row, held) for row in rows if row.table == table and row.name in held]
        if shown:
            document["tables"][table] = shown
    document["findings"] = judged(document)
    return document


def judged(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The paper's findings as bars: what was found, what it should be, whether it holds; those that the rows allow."""
    rows = {(table, row["name"]): row for table, held in document["tables"].items() for row in held}
    found: list[dict[str, Any]] = []

    def bar(text: str, value: Mapping[str, Any], expected: str, holds: bool) -> None:
        found.append({"finding": text, "relative": dict(value), "expected": expected, "holds": bool(holds)})

    for (table, name), row in rows.items():
        if (scratch := row["against"].get(SCRATCH)) is not None:
            bar(
                f"table {table}: {name} against {SCRATCH}",
                scratch,
                "below 0, interval excluding 0",
                scratch["high"] < 0,
            )
        if (central := row["against"].get(_CENTRAL.get(name, ""))) is not None:
            bar(
                f"table {table}: {name} against {_CENTRAL[name]}",
                central,
                "at most 4 % above",
                central["mean"] <= 0.04,
            )
    best = [row["against"][SCRATCH]["mean"] for (table, _), row in rows.items() if table == "2" and row["against"]]
    whole = [
        rows["2", name]["against"][SCRATCH]["mean"]
        for name in ("central", "federated 48", "federated 70")
        if ("2", name) in rows and SCRATCH in rows["2", name]["against"]
    ]
    if best and whole:
        mean = float(np.mean(whole))
        bar("table 2: mean of rows on all silos against no pre-training", {"mean": mean}, "-12 %", mean <= -0.12)
    return found


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """One row a way of pre-training, ours beside the paper's."""
    for number, rows in document["tables"].items():
        seeds = len(next(iter(rows[0]["sets"].values()))["by_seed"])
        table = Table(title=f"{TITLES[number]} (word error, percent; {seeds} seeds)")
        table.add_column("row")
        for name in rows[0]["sets"]:
            table.add_column(name, justify="right")
        table.add_column(f"against {SCRATCH}", justify="right")
        table.add_column("against central", justify="right")
        for name in rows[0]["published"]:
            table.add_column(f"{name}\n(paper)", justify="right")
        for row in rows:
            against = row["against"]
            table.add_row(
                row["name"],
                *(f"{100 * own['mean']:.1f} ± {100 * own['deviation']:.1f}" for own in row["sets"].values()),
                _interval(against.get(SCRATCH)),
                _interval(against.get(_CENTRAL.get(row["name"], ""))),
                *(f"{value:g}" for value in row["published"].values()),
            )
        yield table


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for each finding, and what is not as in the paper."""
    for one in document["findings"]:
        relative = one["relative"]
        interval = f" ({100 * relative['low']:+.1f} to {100 * relative['high']:+.1f})" if "low" in relative else ""
        verdict = "holds" if one["holds"] else "does not hold"
        yield f"{verdict}: {one['finding']}: {100 * relative['mean']:+.1f} %{interval}; expected {one['expected']}"
    sizes = document["sizes"]
    if sizes["name"] == "small":
        passes = sizes["federation"]["passes"]
        yield (
            f"Small setting: strings of digits by made voices. Federations go through silos {passes} times at most, "
            "where the paper's devices give everything once. Teaching begins with CTC; the paper's is RNN-T alone."
        )


def bar_chart(document: Mapping[str, Any]) -> str:
    """Word errors by row, a bar for each test set, as an SVG file."""
    colours = dict(
        zip(("first", "second", "third", "fourth"), ("#2563eb", "#f59e0b", "#16a34a", "#9333ea"), strict=True)
    )
    groups = []
    for number, rows in document["tables"].items():
        for row in rows:
            values = [
                Bar(name, colour, own["mean"])
                for (name, own), colour in zip(row["sets"].items(), colours, strict=False)
            ]
            groups.append((f"{number}: {row['name']}", values))
    return standalone(bars(groups, "word error", percent=True, width=max(560, 90 * len(groups))), colours)


def _row(row: Row, held: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    own = sorted(held[row.name], key=lambda outcome: outcome.seed)
    sets = {}
    for name in own[0].errors:
        rates = [sum(one.errors[name]["wrong"]) / sum(one.errors[name]["said"]) for one in own]
        sets[name] = {
            "mean": float(np.mean(rates)),
            "deviation": float(np.std(rates, ddof=1)) if len(rates) > 1 else 0.0,
            "by_seed": [round(rate, 4) for rate in rates],
        }
    against = {}
    for other in (SCRATCH, _CENTRAL.get(row.name, "")):
        if other in held and other != row.name and (found := _difference(held[other], own)) is not None:
            against[other] = found
    return {
        "name": row.name,
        "sets": sets,
        "against": against,
        "published": dict(row.published),
        "about": dict(own[0].about),
    }


def _difference(first: Sequence[Outcome], second: Sequence[Outcome]) -> dict[str, Any] | None:
    """Relative difference over all test sets, of the seeds that both have; None where they share none."""
    pairs = [(one, other) for one in first for other in second if one.seed == other.seed]
    wrong_first: list[int] = []
    wrong_second: list[int] = []
    said: list[int] = []
    speakers: list[str] = []
    for one, other in pairs:
        for name, errors in one.errors.items():
            wrong_first += errors["wrong"]
            wrong_second += other.errors[name]["wrong"]
            said += errors["said"]
            speakers += [f"{name}/{speaker}" for speaker in errors["speakers"]]
    if not pairs or sum(wrong_first) == 0:
        return None
    return paired_bootstrap(wrong_first, wrong_second, said, speakers).relative.as_json()


def _interval(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    mean, low, high = in_percent(found)
    return f"{mean} % ({low} to {high})"
