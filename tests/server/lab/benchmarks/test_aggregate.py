"""The aggregation benchmark's own measurements, at a size that a test can afford."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from server.lab.benchmarks import aggregate


def test_measure_counts_every_update_and_finds_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "VALUES", 40_000)
    found = aggregate.measure()
    assert found.keys() == {"add", "copy", "before", "peak", "error"}
    assert found["add"] > 0
    assert found["error"] < aggregate.ERROR


def test_peers_are_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_PEERS", raising=False)
    assert aggregate.peer_interpreter() is None
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv("IDIOLECT_PEERS", str(python))
    assert aggregate.peer_interpreter() == python


@pytest.mark.slow
def test_the_peers_run_where_they_are_installed() -> None:
    python = aggregate.peer_interpreter()
    if python is None:
        pytest.skip("no peers here; run: make peers")
    script = Path(aggregate.__file__).with_name("aggregation_peers.py")
    done = subprocess.run([python, script, "10000", "4", "5", "2"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout).keys() == {"flwr", "pfl"}
