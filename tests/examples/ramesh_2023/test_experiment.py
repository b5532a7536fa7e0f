"""Ramesh et al. 2023 from end to end, at a size that learns nothing but goes through everything; and its script."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from device_sdk.errors import ConfigurationError
from examples.ramesh_2023.experiment import Outcome, run
from examples.ramesh_2023.recipes import SMALL, Federation, Row, Sizes, Teaching, read_row, read_rows
from examples.ramesh_2023.speech import made_speech
from examples.ramesh_2023.tables import summary
from examples.runner import Errors, digest, kept
from export.networks.cpc import ContextShape, Contrast
from tests.examples.scripts import run_script

pytest.importorskip("espeakng_loader")

TINY = Sizes(
    name="tiny",
    shape=ContextShape(256, 3, 1, 12, 1, 16),
    contrast=Contrast(2, 4),
    speakers=4,
    each=3,
    part=0.4,
    taught=20,
    tested=20,
    central_steps=3,
    central_batch=4,
    central_rate=1e-3,
    federation=Federation(rounds=4, batch=2, rate=1e-3, passes=3),
    teaching=Teaching(4, 1e-3, 4, 24, 1, 8, 8, 12),
)
ROWS = (
    Row("2", "no pre-training", "none"),
    Row("2", "central", "central"),
    Row("2", "federated 48", "federated", 3, published={"test-other": 16.34}),
    Row("2", "federated 70, part", "federated", 2, whole=False),
    Row("3", "direct, central", "central"),
    Row("3", "continued, federated 48", "federated", 3, continued=True),
)


def done(work: Path) -> list[Outcome]:
    return run(TINY, (1, 2), lambda language: made_speech(TINY, language, work / "speech"), work, ROWS, lambda *_: None)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    work = tmp_path_factory.mktemp("ramesh_2023")
    torch.set_num_threads(1)
    return work, done(work)


def test_every_row_runs_at_every_seed(outcomes: tuple[Path, list[Outcome]]) -> None:
    _, found = outcomes
    assert [(one.seed, one.table, one.row) for one in found] == [
        (seed, row.table, row.name) for seed in (1, 2) for row in ROWS
    ]
    assert all(set(one.errors) == {"clean", "other"} for one in found)
    for errors in (each for one in found for each in one.errors.values()):
        assert len(errors.wrong) == len(errors.words) == len(errors.speakers) == 20
        assert all(1 <= words <= 4 for words in errors.words)
    about = {one.row: one.about for one in found if one.seed == 1}
    assert about["no pre-training"] == {} and about["central"] == {"steps": 3, "utterances": 12}
    assert (about["federated 48"]["rounds"], about["federated 48"]["utterances"]) == (4, 12)
    assert about["federated 70, part"]["utterances"] == 4
    assert about["continued, federated 48"]["continued"]["rounds"] == 2


def test_what_is_finished_is_not_done_again(outcomes: tuple[Path, list[Outcome]], monkeypatch: Any) -> None:
    work, found = outcomes
    monkeypatch.setattr("examples.ramesh_2023.experiment.taught", None)
    assert done(work) == found


@pytest.mark.parametrize(
    ("central", "federated", "lower", "near"),
    [([1] * 10, [1] * 10, True, True), ([1] * 10, [2] * 10, False, False), ([2] * 10, [1] * 10, True, True)],
)
def test_findings_follow_from_errors(central: list[int], federated: list[int], lower: bool, near: bool) -> None:
    """Against two errors an utterance without pre-training."""
    errors = {"no pre-training": [2] * 10, "central": central, "federated 48": federated}
    speakers = [f"s{index // 2}" for index in range(10)]
    given = [
        Outcome("2", row, seed, {"clean": Errors(own, [4] * 10, speakers)}, {})
        for seed in (1, 2, 3)
        for row, own in errors.items()
    ]
    document = summary(given, ROWS, SMALL)
    held = {one["finding"]: one["holds"] for one in document["findings"]}
    assert held["table 2: federated 48 against no pre-training"] == lower
    assert held["table 2: federated 48 against central"] == near
    row = next(row for row in document["tables"]["2"] if row["name"] == "federated 48")
    assert row["sets"]["clean"]["mean"] == federated[0] / 4 and row["sets"]["clean"]["std"] == 0.0


def test_rows_are_the_paper_s() -> None:
    second, third = ([row for row in read_rows() if row.table == table] for table in ("2", "3"))
    ways = ("central", "federated 48", "federated 70")
    assert [row.name for row in second] == ["no pre-training", *(f"{way}, part" for way in ways), *ways]
    assert len(third) == 7 and sum(row.continued for row in third) == 3
    assert all(len(row.published) == 4 for row in second) and all(len(row.published) == 2 for row in third)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('table = "2"\nname = "x"\nway = "federated"', "cohort: found 0"),
        ('table = "4"\nname = "x"\nway = "none"', "'4'"),
        ('table = "2"\nname = "x"\nway = "none"\ncolour = 1', "colour"),
        ("table =", "not a row"),
    ],
)
def test_a_row_that_cannot_be_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "row.toml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"(?s)row.toml.*{message}"):
        read_row(path)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A work folder in which every row is done, better where there was more speech to pre-train on."""
    folder = tmp_path / "work" / digest(SMALL) / "rows"
    generator = np.random.default_rng(0)
    speakers = [f"s{number // 3}" for number in range(60)]
    for seed, row in product((1, 2, 3), read_rows()):
        chance = 0.5 if row.way == "none" else 0.4 if row.whole else 0.45
        wrong = {name: generator.binomial(4, chance, 60).tolist() for name in ("clean", "other")}
        errors = {name: Errors(own, [4] * 60, speakers) for name, own in wrong.items()}
        outcome = Outcome(row.table, row.name, seed, errors, {})
        kept(folder, (row.table, row.name, seed), row, Outcome, lambda outcome=outcome: outcome)
    return tmp_path / "work"


def test_tables_json_and_chart(finished: Path, tmp_path: Path) -> None:
    output, plot = tmp_path / "o" / "x.json", tmp_path / "o" / "rows.svg"
    result = run_script("ramesh_2023", "--work", finished, "--output", output, "--plots", plot.parent)
    assert result.exit_code == 0, result.exception
    for shown in ("Table 2", "Table 3", "federated 70, part", "continued, central", "18.42", "32.6", "holds: table 2"):
        assert shown in result.stdout
    document = json.loads(output.read_text())
    assert {table: len(rows) for table, rows in document["tables"].items()} == {"2": 7, "3": 7}
    assert [len(row["sets"]["clean"]["by_seed"]) for row in document["tables"]["2"]] == [3] * 7
    assert document["tables"]["2"][0]["published"]["test-other"] == 18.42
    assert plot.read_text().startswith("<svg")
    assert "federated 48" in str(run_script("ramesh_2023", "--rows", "teleport").exception)
