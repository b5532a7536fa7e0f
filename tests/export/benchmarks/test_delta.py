"""The benchmark of deltas on small arrays, and its gradient of the shipped speech."""

from __future__ import annotations

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.wire.delta_codec import decode, encode
from export.benchmarks import delta


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"w": rng.normal(size=(200, 300)).astype(np.float32), "b": rng.normal(size=400).astype(np.float32)}


def test_figures_of_every_encoding() -> None:
    found = {figure.metric: figure for figure in delta.figures_of(arrays(), draws=30)}
    assert len(found) == 18
    missed = [figure.metric for figure in found.values() if figure.holds is False]
    assert missed == []
    assert 1e-4 < found["relative error of a draw (float16)"].ours < 1e-3
    assert 1e-3 < found["relative error of a draw (int8, a scale a row)"].ours < 0.03
    assert found["variance added to noise as long as the delta (int8, a scale a row)"].ours < 0.1


def test_a_biased_encoding_is_found(monkeypatch) -> None:
    def nearest(values, encoding, scale_per):
        return encode({name: np.round(array, 1) for name, array in values.items()}, encoding, scale_per)

    monkeypatch.setattr(delta, "encode", nearest)
    monkeypatch.setattr(delta, "decode", decode)
    biased = [figure for figure in delta.figures_of(arrays(), draws=30) if figure.metric.startswith("bias")]
    assert biased and all(figure.holds is False for figure in biased)


def test_the_gradient_is_of_the_shipped_speech() -> None:
    bundle = Bundle.open()
    found = delta.speech_gradient(bundle)
    assert {name: array.shape for name, array in found.items()} == bundle.architecture.parameter_shapes()
    assert all(np.isfinite(array).all() and array.any() for array in found.values())
