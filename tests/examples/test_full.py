"""Every ``--full`` begins: two optimizer steps at the real shapes, within 16 GB and 15 minutes of one core."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.examples.full import RUNS

pytest.importorskip("espeakng_loader")

PARAMETERS = {"gao_2022": 9e6, "pelikan_2023": 255e6, "rao_2023": 56e6}
"""At least."""


@pytest.mark.slow
def test_every_full_size_takes_two_steps(tmp_path: Path) -> None:
    for paper in RUNS:
        command = [sys.executable, "-m", "tests.examples.full", paper, str(tmp_path / paper)]
        given = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "cwd": ROOT, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **given)  # type: ignore[call-overload]
        assert done.returncode == 0, f"{paper}: {done.stderr[-2000:]}"
        found = json.loads(done.stdout.splitlines()[-1])
        assert found.get("values", 0) >= PARAMETERS.get(paper, 0)
        assert all(loss == loss for loss in found.get("losses", [])), "a loss is a number"
        assert len(found.get("losses", [0, 0])) == 2
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_maxrss < 16_000_000, f"{used.ru_maxrss} kB of the largest"
    assert used.ru_utime + used.ru_stime < 900
