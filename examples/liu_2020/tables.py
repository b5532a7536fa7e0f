"""The experiment's document, its tables, and which of the paper's findings hold: pure functions over finished rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from examples.liu_2020.cache import Cached
from examples.liu_2020.extensions import ALL
from examples.liu_2020.rows import BASELINE, EXACT, Row
from examples.liu_2020.scores import Listener
from server.lab.statistics import in_percent, paired_bootstrap
from server.web.dashboard.plots import Bar, bars, standalone

__all__ = ["TITLES", "bar_chart", "judged", "remarks", "summary", "tables"]

TITLES = {
    "2": "Table 2: rounds",
    "3": "Table 3: weights and bandwidth",
    "4": "Table 4: noise as in the paper, sigma 0.1",
    "4 private": "Table 4, by this project's default: a user's epsilon over all rounds",
    "5": "Beyond the paper",
}
_WIDTH = len("-12.3 % (-12.3 to -12.3)")
_REFERENCE = {"4": EXACT, "4 private": EXACT}
"""Rows that a table's others are compared with, besides the second pass without marginals."""


def summary(cached: Cached, rows: Sequence[Row], rounds: int) -> dict[str, Any]:
    """Word error of every row with paired bootstrap intervals over test meetings, which are resampled whole.

    rounds: T of all tables but the second.
    """
    test = cached.test
    held = {(row.table, row.name): row for row in rows}
    document: dict[str, Any] = {
        "rounds": rounds,
        "data": {
            stage: {
                "meetings": len(clients),
                "utterances": sum(map(len, clients)),
                "words": int(sum(client.said.sum() for client in clients)),
            }
            for stage, clients in (("development", cached.development), ("test", test))
        },
        "about": dict(cached.about),
        "first_pass": {
            stage: {
                "wer": _rate([client.first_errors for client in cached.clients[stage]], clients),
                "oracle": _rate([client.least_errors for client in cached.clients[stage]], clients),
            }
            for stage, clients in (("development", cached.development), ("test", test))
        },
        "baseline": {"name": BASELINE, "wer": _rate(held["2", BASELINE].errors, test)},
        "tables": {},
    }
    for row in rows:
        entry: dict[str, Any] = {"name": row.name, "wer": _rate(row.errors, test), "against": {}}
        for table, name in (("2", BASELINE), (row.table, _REFERENCE.get(row.table, ""))):
            other = held.get(("4" if name == EXACT else table, name))
            if other is not None and other is not row:
                entry["against"][name] = _difference(other, row, test)
        document["tables"].setdefault(row.table, []).append(entry)
    return document


def judged(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings as bars: what was found, what it should be, whether it holds; those that the rows allow."""
    found: list[dict[str, Any]] = []

    def bar(text: str, value: float, expected: str, holds: bool) -> None:
        found.append({"finding": text, "value": value, "expected": expected, "holds": bool(holds)})

    first = document["first_pass"]["test"]["wer"]
    bar("word error of the first pass", first, "0.15 to 0.45", 0.15 <= first <= 0.45)
    rows = {(table, row["name"]): row for table, held in document["tables"].items() for row in held}

    def cut(table: str, name: str, reference: str = BASELINE) -> float | None:
        row = rows.get((table, name))
        return None if row is None else -row["against"][reference]["relative"]["mean"]

    marginals = cut("2", "FMP, T = 10")
    if marginals is not None:
        bar("relative cut by marginals at T = 10", marginals, "at least 0.048", marginals >= 0.048)
        row = rows["2", "FMP, T = 10"]["against"][BASELINE]["relative"]
        bar("the same, its interval", row["high"], "below 0", row["high"] < 0)
    noised = cut("4", "epsilon 0.5 of a count", EXACT)
    if noised is not None:
        bar("relative cost of epsilon 0.5 in paper mode", -noised, "below 0.01", -noised < 0.01)
    whole = cut("5", ALL)
    if whole is not None:
        bar("relative cut by all that earned its place together", whole, "at least 0.08", whole >= 0.08)
    return found


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """One a table of the paper, and those that it has not; word errors in percent."""
    for number, rows in document["tables"].items():
        reference = _REFERENCE.get(number)
        rounds = "" if number == "2" else f", T = {document['rounds']}"
        table = Table(title=TITLES[number] + rounds)
        table.add_column("row")  # alone gives way on narrow screens
        table.add_column("word error", justify="right", min_width=5)
        table.add_column("against no marginals (95 %)", justify="right", min_width=_WIDTH)
        if reference is not None:
            table.add_column("against no noise (95 %)", justify="right", min_width=_WIDTH)
        for row in rows:
            cells = [_cell(row, BASELINE), *([] if reference is None else [_cell(row, reference)])]
            table.add_row(row["name"], f"{100 * row['wer']:.2f}", *cells)
        yield table


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """What the tables rest on, then one line a finding."""
    data, first = document["data"]["test"], document["first_pass"]["test"]
    yield (
        f"{data['meetings']} AMI test meetings, {data['utterances']:,} utterances, {data['words']:,} words; first pass "
        f"{100 * first['wer']:.1f} %, best entries of the lists {100 * first['oracle']:.1f} %."
    )
    yield "The paper's other set, Curated Video, is not public; there is no row for it."
    for model, figures in document["about"].get("perplexity", {}).items():
        values = ", ".join(f"{name.removesuffix('.txt')} {value:.0f}" for name, value in figures.items())
        yield f"Perplexity a word of the {model} language model, which has heard other AMI meetings: {values}."
    for each in document.get("findings", []):
        verdict = "holds" if each["holds"] else "does NOT hold"
        yield f"{verdict}: {each['finding']}: {each['value']:.4f}, expected {each['expected']}"


def bar_chart(document: Mapping[str, Any]) -> str:
    """An SVG of word errors, one group a row, a page of its own."""
    groups = [
        (row["name"], [Bar("word error", "c1", row["wer"])]) for rows in document["tables"].values() for row in rows
    ]
    drawn = bars(groups, "word errors", percent=True, width=max(560, 90 * len(groups)))
    return standalone(drawn, {"c1": "#2563eb"})


def _rate(errors: Sequence[Any], clients: Sequence[Listener]) -> float:
    return float(sum(found.sum() for found in errors) / sum(client.said.sum() for client in clients))


def _difference(other: Row, row: Row, clients: Sequence[Listener]) -> dict[str, Any]:
    sizes = np.concatenate([client.said for client in clients])
    groups = [client.name for client in clients for _ in range(len(client))]
    return paired_bootstrap(np.concatenate(other.errors), np.concatenate(row.errors), sizes, groups).as_json()


def _cell(row: Mapping[str, Any], reference: str) -> str:
    difference = row["against"].get(reference)
    if difference is None:
        return ""
    mean, low, high = in_percent(difference["relative"])
    return f"{mean} % ({low} to {high})"
