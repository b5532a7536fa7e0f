"""The script of Ramesh et al. 2023 on finished outcomes; how they are made is tested beside the modules that make
them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.ramesh_2023.experiment import Outcome
from examples.ramesh_2023.recipes import SMALL, read_rows
from examples.runner import Errors, digest, kept
from tests.architecture.sources import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "220", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "examples.ramesh_2023", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
        cwd=ROOT,
    )


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A work folder in which every row is done, better where there was more speech to pre-train on."""
    folder = tmp_path / "work" / digest(SMALL) / "rows"
    generator = np.random.default_rng(0)
    speakers = [f"s{number // 3}" for number in range(60)]
    for seed in (1, 2, 3):
        for row in read_rows():
            chance = 0.5 if row.way == "none" else 0.4 if row.whole else 0.45
            errors = {
                name: Errors(generator.binomial(4, chance, 60).tolist(), [4] * 60, speakers)
                for name in ("clean", "other")
            }
            outcome = Outcome(row.table, row.name, seed, errors, {})
            kept(folder, (row.table, row.name, seed), row, Outcome, lambda outcome=outcome: outcome)
    return tmp_path / "work"


def test_tables_json_and_chart(finished: Path, tmp_path: Path) -> None:
    output, plot = tmp_path / "o" / "x.json", tmp_path / "o" / "rows.svg"
    result = run("--work", str(finished), "--output", str(output), "--plots", str(plot.parent))
    assert result.returncode == 0, result.stderr
    for shown in ("Table 2", "Table 3", "federated 70, part", "continued, central", "18.42", "32.6", "holds: table 2"):
        assert shown in result.stdout
    document = json.loads(output.read_text())
    assert {table: len(rows) for table, rows in document["tables"].items()} == {"2": 7, "3": 7}
    assert [len(row["sets"]["clean"]["by_seed"]) for row in document["tables"]["2"]] == [3] * 7
    assert plot.read_text().startswith("<svg")


def test_rows_that_do_not_exist_are_named() -> None:
    result = run("--rows", "teleport")
    assert result.returncode != 0 and "federated 48" in result.stderr
