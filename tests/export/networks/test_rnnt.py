from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.errors import BundleError
from export.networks.rnnt import RNNT

SHAPE = Architecture(2, 12, 2, 10, 7, 9, 16)


def network(seed: int = 0) -> RNNT:
    torch.manual_seed(seed)
    made = RNNT(SHAPE)
    made.mean.uniform_(-1, 1)
    made.scale.uniform_(0.5, 2)
    return made


def test_parameters_have_the_public_names_and_shapes() -> None:
    found = network().to_parameters()
    assert {name: value.shape for name, value in found.items()} == SHAPE.constant_shapes() | SHAPE.parameter_shapes()
    assert all(value.dtype == np.float32 for value in found.values())


def test_every_trainable_parameter_is_exported() -> None:
    merged = sum(lstm.bias_hh_l0.numel() * lstm.num_layers for lstm in (network().encoder, network().predictor))
    assert sum(p.numel() for p in network().parameters()) - merged == SHAPE.parameter_count()


def test_parameters_survive_the_way_there_and_back() -> None:
    source, target = network(1).double(), network(2)
    parameters = source.to_parameters()
    target.from_parameters(parameters)
    for name, value in target.to_parameters().items():
        np.testing.assert_allclose(value, parameters[name], rtol=1e-6, atol=1e-7)
    features, tokens = torch.randn(2, 14, 64), torch.randint(1, 16, (2, 3))
    for one, other in (
        (source.float().encode(features), target.encode(features)),
        (source.predict(tokens), target.predict(tokens)),
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_layer_in_onnx_layout_is_the_same_layer(batch: int) -> None:
    """The exported W, R and B, given to ONNX's own LSTM, give torch's output."""
    made = network()
    parameters = made.to_parameters()
    w, r, b = (parameters[f"encoder.0.{part}"] for part in "WRB")
    constants = {"W": w[None], "R": r[None], "B": np.concatenate([b, np.zeros_like(b)])[None]}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=SHAPE.encoder_size)],
        "layer",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [5, batch, 192])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((5, batch, 192)).astype(np.float32)
    (found,) = session.run(None, {"x": x})
    layer = torch.nn.LSTM(192, SHAPE.encoder_size)
    layer.load_state_dict({name: getattr(made.encoder, name) for name in layer.state_dict()})
    expected = layer(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_three_frames_are_stacked_after_normalization() -> None:
    made = network()
    features = torch.randn(1, 8, 64)
    stacked = made.stack(features)
    assert stacked.shape == (1, 2, 192)
    expected = ((features[0, 3:6] - made.mean) * made.scale).reshape(-1)
    torch.testing.assert_close(stacked[0, 1], expected)


def test_the_future_does_not_change_the_past() -> None:
    made = network().eval()
    features = torch.randn(1, 30, 64)
    changed = features.clone()
    changed[:, 15:] += 1.0
    torch.testing.assert_close(made.encode(features)[:, :5], made.encode(changed)[:, :5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("joiner.output.bias"), "joiner.output.bias is missing"),
        (lambda p: p.update({"encoder.1.R": np.zeros((3, 3))}), r"encoder.1.R has shape \(3, 3\), expected \(48, 12\)"),
    ],
)
def test_wrong_parameters_are_refused_by_name(change: object, message: str) -> None:
    parameters = network().to_parameters()
    change(parameters)  # type: ignore[operator]
    with pytest.raises(BundleError, match=message):
        network().from_parameters(parameters)


def test_the_small_preset_has_about_two_million_parameters() -> None:
    assert 2.0e6 < PRESETS["small"].parameter_count() < 2.6e6
