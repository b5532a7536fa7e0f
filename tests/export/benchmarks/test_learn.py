"""The benchmark of a local step: one small measurement of each side, and the figures made from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from export.benchmarks import learn

pytest.importorskip("torch")


def test_figures_compare_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(side: str, case: learn.Case, folder: Path) -> learn.Measurement:
        for file in {"top": ("training.top.onnx", "frozen.top.int8.onnx")}.get(case.subset, ("training.onnx",)):
            assert (folder / f"{case.preset}.{file}").stat().st_size > 1_000
        cost = {"whole": 20.0, "top": 10.0}[case.subset] * (2.0 if case.hypotheses == 4 else 1.0)
        return learn.Measurement(cost, 100.0) if side == "onnxruntime" else learn.Measurement(2 * cost, 300.0)

    monkeypatch.setattr(learn, "_measure", measured)
    figures = learn.benchmark()
    assert [figure.unit for figure in figures] == ["ms of CPU", "MB"] * 6
    assert [figure.ratio for figure in figures[:8]] == pytest.approx([0.5, 1 / 3] * 4)
    assert [figure.ratio for figure in figures[8:]] == pytest.approx([2.0, 1.0, 0.5, 1.0])
    assert [figure.target for figure in figures] == [
        0.85,
        0.45,
        0.85,
        0.45,
        None,
        None,
        0.85,
        None,
        2.2,
        None,
        0.55,
        None,
    ]
    assert all(figure.holds is not False for figure in figures)
    assert len({figure.metric for figure in figures[:8]}) == 8


SMALL = learn.Case("bench", 9, 3, 2, steps=1)


def test_both_sides_take_the_same_step(tmp_path: Path) -> None:
    """After one step on the same problem both sides have the same likelihoods, so the comparison is of equals."""
    from device_sdk.bundle.architecture import PRESETS
    from device_sdk.runtimes.training import TrainingSession
    from export.graphs import training
    from export.networks.rnnt import RNNT

    architecture, problem = PRESETS["bench"], learn.problem(SMALL)
    before = {name: value.copy() for name, value in problem.weights.items()}
    learn._write_graphs(SMALL, tmp_path)
    network = learn.torch_step(problem, SMALL, tmp_path)()
    ours = learn.onnxruntime_step(problem, SMALL, tmp_path)()
    assert isinstance(network, RNNT)
    session = TrainingSession(graph=training(architecture), architecture=architecture)
    found = [
        session.run(weights, problem.features, problem.tokens.tolist(), [1.0, 1.0]).negative_log_likelihoods
        for weights in (before, ours, network.to_parameters())
    ]
    assert found[1] == pytest.approx(found[2], rel=1e-5)
    assert found[1].sum() < found[0].sum()


@pytest.mark.parametrize(("side", "subset"), [("onnxruntime", "whole"), ("onnxruntime", "top"), ("torch", "whole")])
def test_a_child_measures_itself(side: str, subset: learn.Subset, tmp_path: Path) -> None:
    case = replace(SMALL, subset=subset)
    learn._write_graphs(case, tmp_path)
    found = learn.Measurement(**learn.measure_here(side, case, tmp_path))
    assert found.milliseconds > 0 and found.megabytes > 10
