"""The experiment of Liu & Peng 2020 from end to end, on the n-best lists that are shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.liu_2020.lists import open_cache
from examples.liu_2020.rows import BASELINE, EXACT
from tests.architecture.sources import ROOT

LISTS = ROOT / "tests" / "examples" / "liu_2020" / "lists"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.liu_2020", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=ROOT)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script makes of the shipped lists."""
    folder = tmp_path_factory.mktemp("liu_2020")
    result = run("--lists", str(LISTS), "--repeats", "1", "--output", str(folder / "x.json"), "--plots", str(folder))
    assert result.returncode == 0, result.stderr
    for title in ("Table 2", "Table 3", "Table 4", "Beyond the paper", "Curated Video, is not public"):
        assert title in result.stdout
    assert (folder / "rows.svg").read_text().startswith("<svg")
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
    meetings = document["data"]["test"]["meetings"]
    for rows in document["tables"].values():
        for row in rows:
            for difference in row["against"].values():
                relative = difference["relative"]
                assert difference["groups"] == meetings and relative["low"] <= relative["mean"] <= relative["high"]
    first = document["first_pass"]["test"]
    assert first["oracle"] < document["baseline"]["wer"] < first["wer"], "the second pass corrects the first"
    assert {finding["finding"] for finding in document["findings"]}


def test_the_shipped_lists_are_of_real_first_passes() -> None:
    held = open_cache(LISTS)
    assert {client.name for client in held.test} and {client.name for client in held.development}
    assert max(len(heard.ids) for client in (*held.development, *held.test) for heard in client.heard) == 20
    assert set(held.about["perplexity"]) == {"neural", "ngram"}


def test_a_folder_without_lists_is_refused(tmp_path: Path) -> None:
    result = run("--lists", str(tmp_path))
    assert result.returncode != 0 and "words.txt" in result.stderr
