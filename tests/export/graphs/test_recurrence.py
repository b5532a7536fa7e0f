"""Rows times the same matrix at every step, however the matrix is laid out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from device_sdk.bundle.architecture import PRESETS
from device_sdk.runtimes.onnxruntime import open_session
from export.graphs.builder import GraphBuilder, Value
from export.graphs.lstm import BLOCK, LARGE, recurrent_product

pytest.importorskip("torch")

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
