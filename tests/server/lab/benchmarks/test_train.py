"""The training benchmark, at a size that a test can afford."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_sdk.bundle.architecture import PRESETS
from server.lab.benchmarks import train


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the CPU where there is no GPU")
def test_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"preset": "tiny", "utterances": 2, "frames": 60, "tokens": 4, "steps": 2}
    monkeypatch.setattr(train, "ON_CPU", shape)
    found = train.measure()
    assert found["device"] == "cpu"
    assert found["speed"] > 0
    assert {name: found[name] for name in shape} == shape


def test_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {**train.ON_CPU, "device": "cpu", "speed": 1000.0}
    monkeypatch.setattr(train, "measured", lambda *_: found)
    (figure,) = train.benchmark()
    assert figure.ours == 1000.0 and "small" in figure.metric
    assert "no GPU" in capsys.readouterr().err
    found |= {"device": "A card", "products": 2e14, "peak": 4e14, "peer": "data sheet"}
    speed, share = train.benchmark()
    assert "A card" in speed.metric
    assert share.ratio == 0.5


def test_products_are_those_of_the_layers() -> None:
    """Counted by torch for the linear layers, and by hand for the LSTMs, which it does not know."""
    from torch.utils.flop_counter import FlopCounterMode

    a = PRESETS["tiny"]
    size, frames, tokens = 2, 60, 4
    stacked, positions = frames // 3, tokens + 1
    layers = [
        (torch.nn.Linear(a.encoder_size, a.joiner_size), size * stacked, 2),  # the joint's and the CTC head's
        (torch.nn.Linear(a.joiner_size, a.pieces), size * stacked, 1),
        (torch.nn.Linear(a.predictor_size, a.joiner_size), size * positions, 1),
    ]
    expected = 0
    for linear, rows, times in layers:
        with FlopCounterMode(display=False) as counter:
            linear(torch.zeros(rows, linear.in_features, requires_grad=True)).sum().backward()
        expected += times * counter.get_total_flops()
    expected += 2 * size * stacked * positions * a.joiner_size * a.pieces
    for rows, lstm in (
        (size * stacked, torch.nn.LSTM(a.mel_bins * 3, a.encoder_size, a.encoder_layers)),
        (size * positions, torch.nn.LSTM(a.embedding_size, a.predictor_size, a.predictor_layers)),
    ):
        expected += 3 * 2 * rows * sum(value.numel() for name, value in lstm.named_parameters() if "weight" in name)
    assert train.products(a, size, frames, tokens) == expected
