"""The experiment of Liu & Peng 2020 from end to end, on the n-best lists that are shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.liu_2020.lists import open_cache
from examples.liu_2020.rows import BASELINE, EXACT
from tests.examples.scripts import run_script

LISTS = Path(__file__).parent / "lists"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script makes of the shipped lists."""
    folder = tmp_path_factory.mktemp("liu_2020")
    words = "--lists", LISTS, "--repeats", 1, "--output", folder / "x.json", "--plots", folder
    result = run_script("liu_2020", *words)
    assert result.exit_code == 0, result.exception
    for title in ("Table 2", "Table 3", "Table 4", "Beyond the paper", "Curated Video, is not public", "holds: "):
        assert title in result.stdout
    chart = (folder / "rows.svg").read_text()
    assert chart.startswith("<svg") and "epsilon 0.5" in chart
    found: dict[str, Any] = json.loads((folder / "x.json").read_text())
    return found


def test_every_row_of_the_tables_is_there(document: dict[str, Any]) -> None:
    names = {table: [row["name"] for row in rows] for table, rows in document["tables"].items()}
    assert names["2"] == [BASELINE, *(f"FMP, T = {rounds}" for rounds in (1, 2, 5, 10))]
    assert len(names["3"]) == 7 and len(names["5"]) == 4
    assert names["4"] == [EXACT, *(f"epsilon {epsilon} of a count" for epsilon in ("2", "1", "0.5", "0.1"))]
    assert names["4 private"] == [f"epsilon {epsilon} of a user" for epsilon in (1, 2, 4, 8)]
    assert names["3"][0] == "alpha 0.5, beta 0.25, sigma 5"
    wer = {row["name"]: row["wer"] for rows in document["tables"].values() for row in rows}
    assert wer["alpha 0.5, beta 0.25, sigma 5"] == wer["FMP, T = 10"], "the same setting in two tables"


def test_intervals_are_over_meetings_and_figures_are_consistent(document: dict[str, Any]) -> None:
    rows = [row for rows in document["tables"].values() for row in rows]
    for difference in (each for row in rows for each in row["against"].values()):
        relative = difference["relative"]
        assert difference["groups"] == document["data"]["test"]["meetings"]
        assert relative["low"] <= relative["mean"] <= relative["high"]
    first = document["first_pass"]["test"]
    assert first["oracle"] < document["baseline"]["wer"] < first["wer"], "the second pass corrects the first"


def test_the_shipped_lists_are_of_real_first_passes() -> None:
    held = open_cache(LISTS)
    assert {client.name for client in held.test} and {client.name for client in held.development}
    assert max(len(heard.ids) for client in (*held.development, *held.test) for heard in client.heard) == 20
    assert set(held.about["perplexity"]) == {"neural", "ngram"}
