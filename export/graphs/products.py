"""Gradients of a matrix from the rows that went through it, or of its low-rank factors without ever forming its own."""

from __future__ import annotations

from collections.abc import Mapping

from device_sdk.bundle.subsets import factor_names
from export.graphs.builder import GraphBuilder, Value

__all__ = ["matrix_gradients", "no_gradients"]


def matrix_gradients(
    g: GraphBuilder, name: str, dy: Value, x: Value, *, factors: bool = False, before: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """d(loss) by the matrix ``name`` [out, in] of y = x name^T, under its name. R: rows; r: rank.

    dy: [R, out]; x: [R, in]. before: gradients so far, to add to.
    factors: by its factors, up [out, r] and down [r, in], under their names (Hu et al. 2021, LoRA): with up down added
    to the matrix, d(up) = dy^T (x down^T) and d(down) = (dy up)^T x.
    """
    if not factors:
        return {name: _product(g, name, dy, x, before)}
    up, down = factor_names(name)
    return {
        up: _product(g, up, dy, g.op("Gemm", x, down, transB=1), before),
        down: _product(g, down, g.matmul(dy, up), x, before),
    }


def no_gradients(g: GraphBuilder, name: str, *, factors: bool = False) -> dict[str, Value]:
    """Zeros to begin the sums of :func:`matrix_gradients` with."""
    names = factor_names(name) if factors else (name,)
    return {each: g.op("Expand", g.single(0.0), g.op("Shape", each)) for each in names}


def _product(g: GraphBuilder, name: str, dy: Value, x: Value, before: Mapping[str, Value] | None) -> Value:
    return g.op("Gemm", dy, x, *(() if before is None else (before[name],)), transA=1)
