"""A few rows times the same matrix at every step of a loop: once it outgrows the cache, reading it takes the time."""

from __future__ import annotations

from collections.abc import Callable

from export.graphs.builder import GraphBuilder, Value

__all__ = ["Product", "recurrent_product"]

Product = Callable[[GraphBuilder, Value, Value], Value]
"""(builder of a body, rows [B, K], what to add [B, N]) -> [B, N]."""

BLOCK = 32
"""Columns that lie together: runs of whole cache lines, and as many sums as vector registers hold."""
LARGE = 1 << 20
"""Entries from which a matrix is laid out in blocks. Smaller ones stay in a core's own cache whatever their layout."""


def recurrent_product(g: GraphBuilder, matrix: Value, shape: tuple[int, int], *, transposed: bool) -> Product:
    """x -> x M + y for bodies of scans, with M = ``matrix`` [K, N], or its transpose where it is [N, K].

    shape: K, N. The product of one row walks down M a few columns at a time. In a large matrix every row of those is a
    page of its own; blocks [N / 32, K, 32], each walked through from end to end, are read up to twice as fast.
    """
    inner, outer = shape
    if inner * outer < LARGE or outer % BLOCK:
        plain = g.transpose(matrix) if transposed else matrix
        return lambda q, rows, add: q.op("Gemm", rows, plain, add)
    if transposed:
        blocks = g.transpose(g.reshape(matrix, -1, BLOCK, inner), 0, 2, 1)
    else:
        blocks = g.transpose(g.reshape(matrix, inner, -1, BLOCK), 1, 0, 2)

    def product(q: GraphBuilder, rows: Value, add: Value) -> Value:
        columns = q.transpose(q.matmul(rows, blocks), 1, 0, 2)
        return q.add(q.reshape(columns, -1, outer), add)

    return product
