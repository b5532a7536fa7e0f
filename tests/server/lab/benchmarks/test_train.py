"""The training benchmark: what it counts, and what it tells of a GPU."""

from __future__ import annotations

import pytest
import torch

from device_sdk.bundle.architecture import PRESETS
from server.lab.benchmarks import train


def test_on_a_gpu_the_share_of_its_peak_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {**train.ON_GPU, "device": "A card", "speed": 1.0, "products": 2e14, "peak": 4e14, "peer": "data sheet"}
    monkeypatch.setattr(train, "run_child", lambda *_: answer)
    speed, share = train.benchmark()
    assert "A card" in speed.metric and share.ratio == 0.5


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
