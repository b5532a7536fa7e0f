"""The benchmarks run and say what they should; what they measure is not asserted on a shared machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk import decoding
from device_sdk.bundle import Bundle
from device_sdk.compilation import SEARCH, compiled_folder
from export.benchmarks import decode, features, start
from export.benchmarks.stages import NEEDED

pytest.importorskip("sherpa_onnx")


def test_features(monkeypatch):
    monkeypatch.setattr(features, "SECONDS", 2)
    monkeypatch.setattr(features, "RUNS", 3)
    speed, difference = features.benchmark()
    assert speed.unit == "frames/s of CPU"
    assert speed.peer == "kaldi-native-fbank"
    assert speed.ratio is not None
    assert difference.holds


def test_decode(monkeypatch, tiny_bundle):
    monkeypatch.setattr(decode, "RUNS", 1)
    monkeypatch.setattr(decode, "CLIPS", 2)
    monkeypatch.setattr(decode, "_bundle", lambda folder: tiny_bundle)
    monkeypatch.setattr(decode, "LARGE", "tiny")
    monkeypatch.setattr(decode, "HOTWORDS", 20)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    figures = decode.benchmark()
    named = {figure.metric: figure for figure in figures}
    native = named.pop("loops of the search that run as native modules")
    assert native.ours == float(compiled_folder(Path(decoding.__file__).parent, SEARCH) is not None)
    figures.remove(native)
    costs = [figure for figure in figures if "hotwords" in figure.metric]
    assert len(costs) == 1 and costs[0].target == decode.HOTWORD_COST  # on a busy machine they may seem to cost nothing
    figures.remove(costs[0])
    named.pop(costs[0].metric)
    stages = [figure for figure in figures if figure.peer == "all of it"]
    assert len(stages) == 8 * 7 and len({figure.peer_value for figure in stages}) == 8
    assert all(figure.ours > 0.0 or figure in stages for figure in figures)  # a rest may drown in the machine's noise
    assert all(figure.ours > 0.0 for figure in stages if figure.metric.rpartition(": ")[2] in NEEDED)
    assert all((figure.peer is None) == (figure.peer_value is None) for figure in figures)
    for how in ("float32", "files, float32", "int8", "files, int8"):
        encoder = named[f"bound of beam 8, {how}: encoder"]
        needed = named[f"bound of beam 8, {how}: networks and features"]
        assert encoder.ours > needed.ours and encoder.peer_value == needed.peer_value
        by_encoder = named[f"bound of beam 8 by the encoder, {how}: networks and features"]
        assert by_encoder.ours == needed.ours and by_encoder.peer == "it alone"
    assert named["clips whose greedy tokens and times are sherpa-onnx's"].holds
    assert len(named) == len({(figure.metric, figure.unit) for figure in figures}) - 2  # clock and processor
    assert {figure.target for figure in figures} == {None, 0.5, 0.85, 1.0, 2.5, 10.0, decode.LATENCY}


def test_start(monkeypatch):
    monkeypatch.setattr(start, "RUNS", 1)
    figures = start.benchmark()
    assert [figure.unit for figure in figures] == ["s", "s of CPU", "MB"] * 3
    assert all(figure.ours > 0.0 and figure.lower_is_better for figure in figures)
    assert all(figure.holds for figure in figures if figure.unit == "MB")


def test_without_a_packaged_bundle_random_weights_are_decoded(monkeypatch, tmp_path):
    monkeypatch.setattr("device_sdk.bundle.bundle.DEFAULT_BUNDLE", tmp_path / "none")
    bundle = decode._bundle(tmp_path)
    assert isinstance(bundle, Bundle)
    assert bundle.manifest.name == "random bench"
    assert len(decode.speech()) >= 6
