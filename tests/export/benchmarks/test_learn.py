"""The benchmark of a local step: one small measurement of each side, and the figures made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.benchmarks import learn

pytest.importorskip("torch")


def test_figures_compare_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {"onnxruntime": learn.Measurement(20.0, 100.0), "torch": learn.Measurement(40.0, 300.0)}
    monkeypatch.setattr(learn, "_measure", lambda side, graph, count: sides[side])
    figures = learn.benchmark()
    assert [figure.unit for figure in figures] == ["ms", "MB"] * 2
    assert [figure.ratio for figure in figures] == pytest.approx([0.5, 1 / 3] * 2)
    assert all(figure.holds for figure in figures)


def test_both_sides_take_the_same_step() -> None:
    """After one step on the same problem both sides have the same likelihoods, so the comparison is of equals."""
    from device_sdk.bundle.architecture import PRESETS
    from device_sdk.runtimes.training import TrainingSession
    from export.graphs import training
    from export.networks.rnnt import RNNT

    architecture, problem = PRESETS["bench"], learn.problem(2, frames=12, tokens=3)
    graph = training(architecture)
    ours = learn.onnxruntime_step(problem, graph)()
    network = learn.torch_step(problem, graph)()
    assert isinstance(network, RNNT)
    session = TrainingSession(graph=graph, architecture=architecture)
    found = [
        session.run(weights, problem.features, problem.tokens.tolist(), [1.0, 1.0]).negative_log_likelihoods
        for weights in (problem.weights, ours, network.to_parameters())
    ]
    assert found[1] == pytest.approx(found[2], rel=1e-5)
    assert found[1].sum() < found[0].sum()


def test_a_child_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from device_sdk.bundle.architecture import PRESETS
    from export.graphs import training

    monkeypatch.setattr(learn, "FRAMES", 9)
    graph = tmp_path / "training.onnx"
    graph.write_bytes(training(PRESETS["bench"]))
    for side in ("onnxruntime", "torch"):
        found = learn.Measurement(**learn.measure_here(side, graph, 1))
        assert found.milliseconds > 0 and found.megabytes > 10
