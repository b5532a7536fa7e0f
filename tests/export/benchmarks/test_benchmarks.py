"""Every benchmark runs and gives finite figures; how quick they are is not asserted on a shared machine."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.wire.delta_codec import encode
from export.benchmarks import decode, delta, features, learn, start

pytest.importorskip("sherpa_onnx")
pytest.importorskip("torch")

SMALL = learn.Case("bench", 9, 3, 2, steps=1)


def checked(figures: Sequence[Figure]) -> dict[str, Figure]:
    """By name; none comes twice in one unit against one peer."""
    assert figures and all(math.isfinite(figure.ours) for figure in figures)
    assert all((figure.peer is None) == (figure.peer_value is None) for figure in figures)
    assert len({(figure.metric, figure.unit, figure.peer) for figure in figures}) == len(figures)
    return {figure.metric: figure for figure in figures}


def test_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SECONDS", 2)
    monkeypatch.setattr(features, "RUNS", 3)
    figures = features.benchmark()
    assert checked(figures) and figures[-1].holds


def test_decode(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> None:
    for name, value in (("RUNS", 1), ("CLIPS", 2), ("LARGE", "tiny"), ("HOTWORDS", 20)):
        monkeypatch.setattr(decode, name, value)
    monkeypatch.setattr("device_sdk.bundle.bundle.DEFAULT_BUNDLE", tiny_bundle.path)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    figures = checked(decode.benchmark())
    assert figures["clips whose greedy tokens and times are sherpa-onnx's"].holds
    for how in ("float32", "files, float32", "int8", "files, int8"):
        parts = [figure for name, figure in figures.items() if name.startswith(f"beam 8, {how}: ")]
        assert sum(figure.ours for figure in parts) == pytest.approx(parts[0].peer_value)


def test_the_largest_preset_is_measured_beside_the_packaged_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose language models know other pieces."""
    monkeypatch.setattr(decode, "RUNS", 1)
    monkeypatch.setattr(decode, "LARGE", "bench")
    assert checked(decode._large(decode.shipped_speech()[:1]))


def test_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "RUNS", 1)
    assert all(figure.ours > 0.0 for figure in checked(start.benchmark()).values())


def test_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"SHORT": SMALL, "LONG": replace(SMALL, frames=12), "SEVERAL": replace(SMALL, hypotheses=3)}
    cases |= {"PAPER": replace(SMALL, hypotheses=1), "TOP": replace(SMALL, subset="top")}
    for name, case in cases.items():
        monkeypatch.setattr(learn, name, case)
    monkeypatch.setattr(learn, "TURNS", 1)
    monkeypatch.setattr(learn, "_measure", lambda *given: learn.Measurement(**learn.measure_here(*given)))
    assert all(figure.ours > 0.0 for figure in checked(learn.benchmark()).values())


def test_both_sides_of_a_local_step_do_the_same(tmp_path: Path) -> None:
    """After one step on the same problem both have the same likelihoods, so the comparison is of equals."""
    from device_sdk.bundle.architecture import PRESETS
    from device_sdk.runtimes.training import TrainingSession
    from export.graphs import training

    architecture, problem = PRESETS["bench"], learn.problem(SMALL)
    before = {name: value.copy() for name, value in problem.weights.items()}
    learn._write_graphs(SMALL, tmp_path)
    network = learn.torch_step(problem, SMALL, tmp_path)()
    learn.onnxruntime_step(problem, SMALL, tmp_path)()
    session = TrainingSession(graph=training(architecture), architecture=architecture)
    first, ours, peers = (
        session.run(weights, problem.features, problem.tokens.tolist(), [1.0, 1.0]).negative_log_likelihoods
        for weights in (before, problem.weights, network.to_parameters())
    )
    assert ours == pytest.approx(peers, rel=1e-5) and ours.sum() < first.sum()


def test_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("w", (200, 300)), ("b", 400))}
    assert not [name for name, figure in checked(delta.figures_of(arrays, draws=30)).items() if figure.holds is False]

    def nearest(values, encoding, scale_per):
        return encode({name: np.round(array, 1) for name, array in values.items()}, encoding, scale_per)

    monkeypatch.setattr(delta, "encode", nearest)
    biased = [figure for figure in delta.figures_of(arrays, draws=30) if figure.metric.startswith("bias")]
    assert biased and all(figure.holds is False for figure in biased)


def test_the_delta_is_a_gradient_of_the_shipped_speech() -> None:
    bundle = Bundle.open()
    found = delta.speech_gradient(bundle)
    assert {name: array.shape for name, array in found.items()} == bundle.architecture.parameter_shapes()
    assert all(np.isfinite(array).all() and array.any() for array in found.values())
