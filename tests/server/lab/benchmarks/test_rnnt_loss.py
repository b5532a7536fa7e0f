"""The RNN-T loss benchmark, at a size that a test can afford."""

from __future__ import annotations

import pytest
import torch

from server.lab.benchmarks import rnnt_loss


def test_both_sides_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UTTERANCES": 2, "FRAMES": 20, "TOKENS": 4, "PIECES": 16, "TURNS": 3}.items():
        monkeypatch.setattr(rnnt_loss, name, value)
    threads = torch.get_num_threads()
    try:
        found = rnnt_loss.measure_cpu()
    finally:
        torch.set_num_threads(threads)
    assert found.keys() == {"ours", "peer"}
    assert min(found.values()) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    assert rnnt_loss.measure_gpu() == {"missing": "no CUDA device"}


def test_figures_have_the_stated_targets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"cpu": {"ours": 20.0, "peer": 5.0}, "gpu": {"missing": "no CUDA device"}}
    monkeypatch.setattr(rnnt_loss, "measured", lambda _, call, *more: found[call.removeprefix("measure_")])
    fast, beside = rnnt_loss.benchmark()
    assert (fast.holds, beside.holds, beside.ratio) == (True, False, 4.0)
    assert "no CUDA device" in capsys.readouterr().err
    found["gpu"] = {"ours": 2.0, "peer": 4.0, "megabytes": 60.0, "peer_megabytes": 100.0}
    *_, speed, memory = rnnt_loss.benchmark()
    assert (speed.ratio, speed.holds, memory.holds) == (2.0, True, False)


@pytest.mark.slow
def test_the_loss_is_as_fast_as_it_should_be() -> None:
    for figure in rnnt_loss.benchmark():
        assert figure.holds, figure
