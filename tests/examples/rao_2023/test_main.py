"""The experiment of Rao et al. 2023 from end to end, as small as it can be: every part is the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from examples.rao_2023.experiment import INITIAL, Experiment, Scale, run_rows
from examples.rao_2023.methods import CohortSettings
from examples.rao_2023.tables import judged, summary
from tests.architecture.sources import ROOT
from tests.examples.rao_2023.data import write_data

SMALL = Scale(persons=3, tested=2, test=4, development=2, cohort=CohortSettings(rounds=2, devices=2, evaluate_every=2))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def experiment(data: Path, work: Path, bundle: Bundle) -> Experiment:
    return Experiment(data, work, SMALL, base=bundle.path / "weights.safetensors", bundle=bundle)


def test_rows_are_run_kept_and_summed_up(data: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    rows = run_rows(experiment(data, tmp_path, tiny_bundle), [1, 2], ["slots"])
    assert [(row.name, row.seed) for row in rows] == [
        (name, seed) for name in (INITIAL, "EMA + transcript + slots", "EMA + slots") for seed in (1, 2)
    ]
    learned = [row for row in rows if row.name != INITIAL]
    assert all(len(row.losses) == 2 and [number for number, _ in row.curve] == [2] for row in learned)
    again = run_rows(experiment(data, tmp_path, tiny_bundle), [1, 2], ["slots"])
    assert again == rows, "finished rows are read, not run again"

    document: dict[str, Any] = summary(experiment(data, tmp_path, tiny_bundle), rows)
    initial = document["rows"][INITIAL]["requests"]
    assert initial["by_seed"][0] == initial["by_seed"][1], "one base model and one test for all seeds"
    change = document["rows"]["EMA + slots"]["requests"]["against"][INITIAL]
    assert change["rate_a"] == pytest.approx(initial["wer"]) and change["groups"] == 2
    assert judged(document)[0]["finding"].startswith("initial")
    json.dumps(document)


def test_a_name_that_no_row_has_is_answered_with_those_there_are(
    data: Path, tmp_path: Path, tiny_bundle: Bundle
) -> None:
    with pytest.raises(DataError, match="teacher EMA"):
        run_rows(experiment(data, tmp_path, tiny_bundle), [1], ["EMA", "nonsense"])


def test_a_damaged_row_is_named(data: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    held = experiment(data, tmp_path, tiny_bundle)
    held.row(None, 1)
    (path,) = (tmp_path / "rows").iterdir()
    path.write_text("{}")
    with pytest.raises(DataError, match=r"initial-1\.json: not a finished row"):
        held.row(None, 1)


def test_rows_of_other_settings_are_not_mixed_in(data: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    experiment(data, tmp_path, tiny_bundle).row(None, 1)
    weights = tiny_bundle.path / "weights.safetensors"
    longer = replace(SMALL, cohort=replace(SMALL.cohort, rounds=3))
    with pytest.raises(DataError, match=r"settings\.json: cohort\.rounds: .* made with 2, this run has 3;"):
        Experiment(data, tmp_path, longer, base=weights, bundle=tiny_bundle).row(None, 1)
    other = tmp_path / "other.safetensors"
    other.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(DataError, match=r"settings\.json: base: "):
        Experiment(data, tmp_path, SMALL, base=other, bundle=tiny_bundle).row(None, 1)


def test_the_script_tells_what_it_takes() -> None:
    command = [sys.executable, "-m", "examples.rao_2023", "--help"]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    assert all(
        option in result.stdout for option in ("--work", "--seeds", "--full", "--json", "--output", "--plot", "--real")
    )
