"""Rows times the same matrix at every step, however the matrix is laid out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from device_sdk.bundle.architecture import PRESETS
from device_sdk.runtimes.onnxruntime import open_session
from device_sdk.runtimes.training import TrainingSession
from export.graphs import training
from export.graphs.builder import GraphBuilder, Value
from export.graphs.recurrence import BLOCK, LARGE, recurrent_product

pytest.importorskip("torch")
from tests.export.graphs import oracle
from tests.export.graphs.test_training import relative_error
from tests.tiny import tiny_weights

SHAPES = {
    "small": (12, 48),
    "large and wide": (512, 2048),
    "large and tall": (2048, 512),
    "large, no whole number of blocks": (1100, 1000),
}


def looped(shape: tuple[int, int], transposed: bool) -> bytes:
    """A graph that takes rows [steps, B, K] and what to add [steps, B, N] to the products of every step."""
    inner, outer = shape
    g = GraphBuilder(PRESETS["tiny"])
    rows, add = g.input("rows", ["S", "B", inner]), g.input("add", ["S", "B", outer])
    matrix = g.input("matrix", shape[::-1] if transposed else shape)
    product = recurrent_product(g, matrix, shape, transposed=transposed)

    def body(q: GraphBuilder, _: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        return [], [product(q, now[0], now[1])]

    g.output("products", g.scan([], [rows, add], body)[0], ["S", "B", outer])
    return g.finish("looped")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("batch", [1, 3])
def test_any_layout_gives_the_product(shape: tuple[int, int], transposed: bool, batch: int) -> None:
    rng = np.random.default_rng(sum(shape) + batch)
    matrix = rng.standard_normal(shape, np.float32)
    rows, add = (rng.standard_normal((2, batch, width), np.float32) for width in shape)
    graph = looped(shape, transposed)
    given = np.ascontiguousarray(matrix.T) if transposed else matrix
    (found,) = open_session(graph, "looped").run(None, {"rows": rows, "add": add, "matrix": given})
    expected = rows.astype(np.float64) @ matrix + add
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    body = next(node for node in onnx.load_from_string(graph).graph.node if node.op_type == "Scan").attribute
    products = {node.op_type for attribute in body for node in attribute.g.node} & {"Gemm", "MatMul"}
    assert products == ({"MatMul"} if shape[0] * shape[1] >= LARGE and shape[1] % BLOCK == 0 else {"Gemm"})


def test_gradients_of_large_layers_agree_with_float64() -> None:
    """Layers whose recurrent matrices are laid out in blocks, for one row (encoder) and for several (predictor)."""
    architecture = replace(PRESETS["tiny"], encoder_size=512, predictor_size=512)
    assert 4 * architecture.encoder_size**2 >= LARGE
    parameters, hypotheses = tiny_weights(architecture, 5), [[3, 7], [9], [3]]
    features = np.random.default_rng(5).normal(-6.0, 3.0, (21, architecture.mel_bins)).astype(np.float32)
    weights, costs = [0.5, -1.0, 0.25], [2.0, 0.0, 1.0]
    session = TrainingSession(graph=training(architecture), architecture=architecture)
    found = session.run(parameters, features, hypotheses, weights, costs, cost_scale=0.5)
    expected = oracle.loss_and_gradients(architecture, parameters, features, hypotheses, weights, costs, 0.5)
    np.testing.assert_allclose(found.negative_log_likelihoods, expected[0], rtol=2e-6, atol=3e-6)
    assert relative_error(dict(found.gradients), expected[2]) <= 1e-5
