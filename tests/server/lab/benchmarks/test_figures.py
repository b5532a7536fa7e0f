"""Every benchmark of this folder at a size that a test can afford: finite figures; its times are not asserted."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from device_sdk.benchmarks import Figure
from server.lab.benchmarks import aggregate, rnnt_loss

SMALL: dict[str, dict[str, Any]] = {
    "aggregate": {"VALUES": 40_000},
    "cohort": {"SECONDS": 0.0, "COHORT": 2, "FEW": 60, "MANY": 120},
    "download": {"LENGTHS": (1.0,)},
    "ingest": {"DELTAS": 4, "COUNTS": 6, "REPEATS": 1, "DISK_SECONDS": 0.05},
    "rescore": {"RUNS": 2, "COUNTS": 200},
    "rnnt_loss": {"UTTERANCES": 2, "FRAMES": 20, "TOKENS": 4, "PIECES": 16, "TURNS": 3},
    "train": {"ON_CPU": {"preset": "tiny", "utterances": 2, "frames": 60, "tokens": 4, "steps": 2}},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_figure_is_measured(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = import_module(f"server.lab.benchmarks.{name}")
    for constant, value in SMALL[name].items():
        monkeypatch.setattr(module, constant, value)
    if hasattr(module, "run_child"):  # the sizes hold in this process only
        monkeypatch.setattr(module, "run_child", lambda _, call, *environment: getattr(module, call)())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_PEERS", raising=False)
    threads = torch.get_num_threads()
    try:
        figures: list[Figure] = module.benchmark()
    finally:
        torch.set_num_threads(threads)
    assert figures and len({(figure.metric, figure.peer) for figure in figures}) == len(figures)
    values = [value for figure in figures for value in (figure.ours, figure.peer_value) if value is not None]
    assert all(math.isfinite(value) for value in values)
    assert list(tmp_path.iterdir()) == [], "it cleans up"


def test_sums_of_updates_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "VALUES", 40_000)
    assert 0 < aggregate.measure()["error"] < aggregate.ERROR


@pytest.mark.slow
def test_the_loss_is_as_fast_as_it_should_be() -> None:
    for figure in rnnt_loss.benchmark():
        assert figure.holds, figure


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    assert rnnt_loss.measure_gpu() == {"missing": "no CUDA device"}
