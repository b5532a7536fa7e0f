"""The script of Ramesh et al. 2023 on finished outcomes; how they are made is tested beside the modules that make
them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.ramesh_2023.rows import read_rows
from examples.ramesh_2023.settings import SMALL
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
    folder = tmp_path / "work" / hashlib.sha256(repr(SMALL).encode()).hexdigest()[:12]
    generator = np.random.default_rng(0)
    for seed in (1, 2, 3):
        for table, rows in read_rows().items():
            for row in rows:
                chance = 0.5 if row.way == "none" else 0.4 if row.whole else 0.45
                errors = {
                    name: {
                        "wrong": generator.binomial(4, chance, 60).tolist(),
                        "said": [4] * 60,
                        "speakers": [f"s{number // 3}" for number in range(60)],
                    }
                    for name in ("clean", "other")
                }
                own = folder / f"seed-{seed}" / f"table-{table}" / row.name.replace(", ", "-").replace(" ", "-")
                own.mkdir(parents=True)
                (own / "outcome.json").write_text(json.dumps({"errors": errors, "about": {}}))
    return tmp_path / "work"


def test_tables_json_and_chart(finished: Path, tmp_path: Path) -> None:
    output, plot = tmp_path / "o" / "x.json", tmp_path / "o" / "x.svg"
    result = run("--work", str(finished), "--output", str(output), "--plot", str(plot))
    assert result.returncode == 0, result.stderr
    for shown in ("Table 2", "Table 3", "federated 70, part", "continued, central", "18.42", "32.6", "holds: table 2"):
        assert shown in result.stdout
    document = json.loads(output.read_text())
    assert {table: len(rows) for table, rows in document["tables"].items()} == {"2": 7, "3": 7}
    assert [len(row["sets"]["clean"]["by_seed"]) for row in document["tables"]["2"]] == [3] * 7
    assert plot.read_text().startswith("<svg")


def test_rows_that_do_not_exist_are_named() -> None:
    result = run("--row", "teleport")
    assert result.returncode == 2 and "federated 48" in result.stderr
