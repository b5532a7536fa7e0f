"""What the server makes of a delta is what torch makes of the same delta, permuted: bit for bit in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from device_sdk.bundle.architecture import Architecture
from device_sdk.wire.delta_codec import encode
from device_sdk.wire.messages import DeltaPlan
from server.aggregation import deltas, optimizers
from server.aggregation.validation import read_delta
from server.aggregation.weights_file import dump_weights, parse_weights
from server.plans.optimizer import OptimizerSettings
from server.registry.models import trainable

torch = pytest.importorskip("torch")

ARCHITECTURE = Architecture(2, 24, 2, 16, 12, 20, 40)
PLAIN = {"predictor.embedding": "embedding.weight"}
PLAIN |= {
    f"joiner.{part}": f"joiner_{part}"
    for part in ("encoder.weight", "encoder.bias", "predictor.weight", "output.weight", "output.bias")
}


def torch_rows(rows: np.ndarray) -> np.ndarray:
    """ONNX's gates i, o, f, c as torch's i, f, g, o."""
    inputs, outputs, forgets, cells = np.split(rows, 4)
    return np.concatenate((inputs, forgets, cells, outputs))


def applied_in_torch(network: Any, delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adds the delta to torch's own parameters, every gate where torch has it; returns all of torch's parameters."""
    state = dict(network.named_parameters())
    for name, array in delta.items():
        if name in PLAIN:
            own, value = PLAIN[name], array
        else:
            stack, layer, part = name.split(".")
            kind = {"W": "weight_ih", "R": "weight_hh", "B": "bias_ih"}[part]
            own, value = f"{stack}.{kind}_l{layer}", torch_rows(array)
        with torch.no_grad():
            state[own].add_(torch.from_numpy(np.ascontiguousarray(value)))
    return {name: value.detach().numpy() for name, value in state.items()}


def aggregated(base: dict[str, np.ndarray], body: bytes, plan: DeltaPlan) -> dict[str, np.ndarray]:
    """The server's way: read the body, add up, mean, a step of SGD with rate 1, the weights file."""
    shapes = trainable(base)
    total = deltas.add(deltas.init(shapes), read_delta(body, shapes, plan), 1.0)
    settings = OptimizerSettings()
    moved, _ = optimizers.apply(settings, optimizers.init(settings, shapes), base, deltas.finish(total))
    return parse_weights(dump_weights(moved))


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_ingest_is_exact(encoding: Any) -> None:
    from export.networks.rnnt import RNNT

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    base = RNNT(ARCHITECTURE).to_parameters()
    plan = DeltaPlan(clip_norm=1e3, encoding=encoding)
    delta = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in trainable(base).items()}
    body = save(encode(delta, encoding))
    if encoding != "float32":  # what was sent is what both are given
        delta = read_delta(body, trainable(base), plan)
    ours = RNNT(ARCHITECTURE).from_parameters(aggregated(base, body, plan))
    theirs = applied_in_torch(RNNT(ARCHITECTURE).from_parameters(base), delta)
    found = dict(ours.named_parameters())
    assert found.keys() == theirs.keys()
    for name, value in theirs.items():
        assert np.array_equal(found[name].detach().numpy().view(np.uint32), value.view(np.uint32)), name
    assert all(np.array_equal(ours.to_parameters()[name], base[name]) for name in ("features.mean", "features.scale"))
