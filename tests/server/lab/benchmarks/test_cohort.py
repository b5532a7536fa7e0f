"""The cohort benchmark's own measurements, at a size that a test can afford."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from server.lab.benchmarks import aggregate, cohort


def test_every_network_and_number_of_steps_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort, "SECONDS", 0.0)
    monkeypatch.setattr(cohort, "COHORT", 2)
    found = cohort.measure()
    assert found.keys() == {"mlp-1", "mlp-5", "lstm-1", "lstm-5"}
    assert all(value > 0 for value in found.values())


def test_large_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort, "FEW", 60)
    monkeypatch.setattr(cohort, "MANY", 120)
    found = cohort.scaling()
    assert found.keys() == {"few", "many", "peak_few", "peak_many"}
    assert all(value > 0 for value in found.values())


def test_networks_are_the_peers() -> None:
    """As many parameters as its file says of its own."""
    text = Path(aggregate.__file__).with_name("cohort_peers.py").read_text("utf-8")
    for name in cohort.NETWORKS:
        network = cohort._engine(name, 1, 2, 2).task.network
        assert f"{sum(p.numel() for p in network.parameters()):,} parameters" in text


@pytest.mark.slow
def test_the_peer_runs_where_it_is_installed() -> None:
    python = aggregate.peer_interpreter()
    if python is None:
        pytest.skip("no peers here; run: make peers")
    script = Path(aggregate.__file__).with_name("cohort_peers.py")
    done = subprocess.run([python, script, "2", "3", "0"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]).keys() == {"mlp-1", "mlp-5", "lstm-1", "lstm-5"}
