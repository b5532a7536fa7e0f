"""The document, its findings and its tables, from rows made up here."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from examples.liu_2020.lists import Cached, listeners
from examples.liu_2020.rows import ALL, BASELINE, EXACT, Row
from examples.liu_2020.tables import summary, tables
from tests.examples.liu_2020.made import WORDS, background, client

CLIENTS = tuple(client(name, number) for number, name in enumerate(("A1a", "B1a", "C1a")))


def cached() -> Cached:
    ready = tuple(listeners(CLIENTS, WORDS))
    return Cached(background(), ready, ready, {"perplexity": {"neural": {"test.txt": 81.0}}})


def row(table: str, name: str, of_client: float) -> Row:
    """Errors spread evenly, ``of_client`` a client."""
    return Row(table, name, tuple(np.full(24, of_client / 24) for _ in CLIENTS))


def document(marginals: float = 38.0, noised: float = 38.1, extended: float = 36.0) -> dict[str, Any]:
    rows = [row("2", BASELINE, 40.0), row("2", "FMP, T = 10", marginals), row("4", EXACT, 38.0)]
    rows += [row("4", "epsilon 0.5 of a count", noised), row("5", ALL, extended)]
    return summary(cached(), rows, 7)


def test_rates_and_differences_by_hand() -> None:
    """24 utterances of 4 words each: 96 words a client."""
    found = document()
    assert found["data"]["test"] == {"meetings": 3, "utterances": 72, "words": 288}
    assert found["baseline"]["wer"] == pytest.approx(40 / 96)
    marginals = found["tables"]["2"][1]
    assert marginals["wer"] == pytest.approx(38 / 96)
    change = marginals["against"][BASELINE]
    assert change["relative"]["mean"] == pytest.approx(-0.05) and change["groups"] == 3
    noised = found["tables"]["4"][1]["against"]
    assert noised[EXACT]["relative"]["mean"] == pytest.approx(0.1 / 38) and BASELINE in noised
    first = sum(nbest.errors[0] for each in CLIENTS for nbest in each.utterances)
    assert found["first_pass"]["test"] == {"wer": pytest.approx(first / 288), "oracle": 0.0}
    json.dumps(found)


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, set()),
        ({"marginals": 38.2}, {"relative change by marginals at T = 10"}),
        ({"noised": 38.5}, {"relative cost of epsilon 0.5 in paper mode"}),
        ({"extended": 37.0}, {"relative change by all that earned its place together"}),
    ],
)
def test_findings_hold_or_do_not(changes: dict[str, float], fails: set[str]) -> None:
    found = document(**changes)["findings"]
    assert {each["finding"] for each in found if not each["holds"]} - {"word error of the first pass"} == fails
    assert len(found) == 5


@pytest.mark.parametrize("width", [80, 200])
def test_every_figure_is_there_on_narrow_screens(width: int) -> None:
    found = document()
    for table, (number, rows) in zip(tables(found), found["tables"].items(), strict=True):
        page = io.StringIO()
        Console(file=page, width=width).print(table)
        for each in rows:
            assert f" {100 * each['wer']:.2f} " in page.getvalue(), number
            for other in each["against"].values():
                assert f"{100 * other['relative']['mean']:+.1f} % (" in page.getvalue()
