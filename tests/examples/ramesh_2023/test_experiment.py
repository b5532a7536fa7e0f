"""The experiment of Ramesh et al. 2023 from end to end, at a size that learns nothing but goes through everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from device_sdk.errors import ConfigurationError
from examples.ramesh_2023.experiment import Outcome, run
from examples.ramesh_2023.recipes import SMALL, Federation, Row, Sizes, Teaching, read_row, read_rows
from examples.ramesh_2023.speech import made_speech
from examples.ramesh_2023.tables import chart, remarks, summary, tables
from examples.runner import Errors
from export.networks.cpc import ContextShape, Contrast

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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work, done(work)
    finally:
        torch.set_num_threads(threads)


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


def test_tables_name_every_row_beside_the_paper_s(outcomes: tuple[Path, list[Outcome]]) -> None:
    document = summary(outcomes[1], ROWS, TINY)
    assert json.loads(json.dumps(document)) == document
    assert [row["name"] for row in document["tables"]["2"]] == [row.name for row in ROWS if row.table == "2"]
    assert document["tables"]["2"][2]["published"]["test-other"] == 16.34
    shown = list(tables(document))
    assert [table.row_count for table in shown] == [4, 2]
    assert chart(document).count("<title>") == 12
    assert list(remarks(document))


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
    rows = {table: [row for row in read_rows() if row.table == table] for table in ("2", "3")}
    assert [row.name for row in rows["2"]] == [
        "no pre-training",
        *(f"{way}, part" for way in ("central", "federated 48", "federated 70")),
        *("central", "federated 48", "federated 70"),
    ]
    assert len(rows["3"]) == 7 and sum(row.continued for row in rows["3"]) == 3
    assert all(len(row.published) == 4 for row in rows["2"]) and all(len(row.published) == 2 for row in rows["3"])


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
