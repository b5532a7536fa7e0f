"""Liu & Peng 2020 from end to end on the n-best lists that are shipped; its document and tables from made-up rows."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from device_sdk.errors import ConfigurationError
from examples.liu_2020.lists import Cached, listeners, write_client
from examples.liu_2020.rows import (
    AS_DEVICES,
    BASELINE,
    CORRECTED_FOLLOWING,
    CORRECTED_ROUNDS,
    EXACT,
    FOLLOWING,
    GLOBAL,
    PERSONAL,
    TRUTH,
    YARDSTICK,
    Row,
)
from examples.liu_2020.tables import summary, tables
from tests.examples.liu_2020.test_lists import WORDS, background, client
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
    return json.loads((folder / "x.json").read_text())


def test_every_row_of_the_tables_is_there(document: dict[str, Any]) -> None:
    names = {table: [row["name"] for row in rows] for table, rows in document["tables"].items()}
    assert names["2"] == [BASELINE, *(f"FMP, T = {rounds}" for rounds in (1, 2, 5, 10))]
    assert len(names["3"]) == 7 and len(names["5"]) == 2
    assert names["4"] == [EXACT, *(f"epsilon {epsilon} of a count" for epsilon in ("2", "1", "0.5", "0.1"))]
    assert names["4 private"] == [f"epsilon {epsilon} of a user" for epsilon in (1, 2, 4, 8)]
    assert names["4 global"][0] == GLOBAL and names["4 global"][-1] == "epsilon 8 of a user, 256 times as many"
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


THREE = tuple(client(name, number) for number, name in enumerate(("A1a", "B1a", "C1a")))


def test_few_clients_are_measured_by_halves_with_settings_of_the_other_half(tmp_path: Path) -> None:
    """What was said is known here, so every yardstick has its row."""
    for number, name in enumerate(("Bmr", "Bro", "Buw")):
        each = client(name, number)
        said = (nbest.texts[nbest.errors.index(0)] for nbest in each.utterances)
        heard = tuple(
            replace(nbest, said=text, meeting=f"{name}{place // 8}")
            for place, (nbest, text) in enumerate(zip(each.utterances, said, strict=True))
        )
        write_client(tmp_path / "test", replace(each, utterances=heard))
    (tmp_path / "words.txt").write_text(WORDS.text())
    save_file({"unigram": background()}, tmp_path / "background.safetensors")
    result = run_script("liu_2020", "--lists", tmp_path, "--rounds", 3, "--json")
    assert result.exit_code == 0, result.exception
    document = json.loads(result.stdout)
    assert document["data"]["test"] == {"clients": 3, "meetings": 9, "utterances": 72, "words": 288}
    names = [row["name"] for row in document["tables"]["5"]]
    assert names == [PERSONAL, CORRECTED_ROUNDS, FOLLOWING, CORRECTED_FOLLOWING, AS_DEVICES, YARDSTICK, TRUTH]
    assert [each["clients"] for each in document["weights"]] == ["Bro", "Bmr, Buw"]
    assert all(row["against"][BASELINE]["groups"] == 9 for row in document["tables"]["5"]), "intervals by meeting"
    assert "share of what counts of the best entries give" in {each["finding"] for each in document["findings"]}


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    result = run_script("liu_2020", "--setting", "icis", "--work", tmp_path)
    assert isinstance(result.exception, ConfigurationError) and "ami-inside, ami, icsi, crd3" in str(result.exception)


def row(table: str, name: str, of_client: float) -> Row:
    """Errors spread evenly, ``of_client`` a client."""
    return Row(table, name, tuple(np.full(24, of_client / 24) for _ in THREE))


def document_of(marginals: float = 38.0, noised: float = 38.1, extended: float = 36.0) -> dict[str, Any]:
    rows = [row("2", BASELINE, 40.0), row("2", "FMP, T = 10", marginals), row("4", EXACT, 38.0)]
    rows += [row("4", "epsilon 0.5 of a count", noised), row("5", FOLLOWING, extended)]
    ready = tuple(listeners(THREE, WORDS))
    return summary(Cached(background(), ready, ready, {"perplexity": {"neural": {"test.txt": 81.0}}}), rows, 7)


def test_rates_and_differences_by_hand() -> None:
    """24 utterances of 4 words each: 96 words a client."""
    found = document_of()
    assert found["data"]["test"] == {"clients": 3, "meetings": 3, "utterances": 72, "words": 288}
    assert found["baseline"]["wer"] == pytest.approx(40 / 96)
    marginals = found["tables"]["2"][1]
    assert marginals["wer"] == pytest.approx(38 / 96)
    change = marginals["against"][BASELINE]
    assert change["relative"]["mean"] == pytest.approx(-0.05) and change["groups"] == 3
    noised = found["tables"]["4"][1]["against"]
    assert noised[EXACT]["relative"]["mean"] == pytest.approx(0.1 / 38) and BASELINE in noised
    first = sum(nbest.errors[0] for each in THREE for nbest in each.utterances)
    assert found["first_pass"]["test"] == {"wer": pytest.approx(first / 288), "oracle": 0.0}
    json.dumps(found)


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, set()),
        ({"marginals": 38.2}, {"relative change by marginals at T = 10"}),
        ({"noised": 38.5}, {"relative cost of epsilon 0.5 in paper mode"}),
        ({"extended": 37.0}, {"relative change where the personal part follows each utterance"}),
    ],
)
def test_findings_hold_or_do_not(changes: dict[str, float], fails: set[str]) -> None:
    found = document_of(**changes)["findings"]
    assert {each["finding"] for each in found if not each["holds"]} - {"word error of the first pass"} == fails
    assert len(found) == 5


@pytest.mark.parametrize("width", [80, 200])
def test_every_figure_is_there_on_narrow_screens(width: int) -> None:
    found = document_of()
    for table, (number, rows) in zip(tables(found), found["tables"].items(), strict=True):
        page = io.StringIO()
        Console(file=page, width=width).print(table)
        for each in rows:
            assert f" {100 * each['wer']:.2f} " in page.getvalue(), number
            for other in each["against"].values():
                assert f"{100 * other['relative']['mean']:+.1f} % (" in page.getvalue()
