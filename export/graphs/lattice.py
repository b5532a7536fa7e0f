"""The RNN-T lattice in a graph: likelihoods and edge occupancies of N hypotheses at once, in float64.

Node (t, u) has consumed t frames and emitted u tokens. Nodes with equal n = t + u depend only on those of n - 1, so the
lattice is walked diagonal by diagonal. A hypothesis of U tokens ends at node (T, U); nodes with larger u are no
ancestors of it, so shorter hypotheses of a padded batch are exact without a mask.
"""

from __future__ import annotations

from export.graphs.builder import DOUBLE, GraphBuilder, Value

__all__ = ["lattice"]

IMPOSSIBLE = -1e30


def lattice(g: GraphBuilder, blank: Value, emit: Value, lengths: Value) -> tuple[Value, Value, Value]:
    """T: frames; U: tokens of the longest hypothesis; N: hypotheses.

    blank, emit: [T, U + 1, N] float64 log-probabilities of the two edges that leave node (t, u): blank to (t + 1, u),
    the next token to (t, u + 1). lengths: [N] int64.
    Returns negative log-likelihoods [N] and occupancies of both kinds of edges, each [T, U + 1, N]: the posterior
    probability that the alignment uses the edge, which is d(log-likelihood)/d(edge's log-probability).
    """
    frames, columns, count = g.size(blank, 0), g.size(blank, 1), g.size(blank, 2)
    diagonals = g.subtract(g.add(frames, columns), g.integers(1))
    impossible = g.double(IMPOSSIBLE)
    blank, emit = (_by_diagonal(g, edge, frames, columns, count, diagonals) for edge in (blank, emit))

    def advance(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        stay = q.add(states[0], now[0])
        move = q.shift(q.add(states[0], now[1]), 1, impossible)
        larger = q.op("Max", stay, move)
        ratio = q.op("Exp", q.subtract(q.op("Min", stay, move), larger))
        total = q.add(larger, q.op("Log", q.add(ratio, q.double(1.0))))
        return [total], [total]

    # Forward variables: alpha[n][u] for n = 0 (only u = 0 is reached) and, from the scan, n = 1 .. T + U.
    first = g.concat(
        g.expand(g.double(0.0), 1, count), g.expand(impossible, g.subtract(columns, g.integers(1)), count), axis=0
    )
    _, alpha = g.scan([first], [blank, emit], advance, kind=DOUBLE)

    # final[n][u] is 1 where hypothesis i ends: n + 1 = T + lengths[i], u = lengths[i].
    column = g.op("Range", g.integer(0), g.squeeze(columns, 0), g.integer(1))
    diagonal = g.op("Range", g.integer(1), g.squeeze(g.add(diagonals, g.integers(1)), 0), g.integer(1))
    ends = g.op("Equal", g.unsqueeze(diagonal, 1), g.unsqueeze(g.add(frames, lengths), 0))
    tops = g.op("Equal", g.unsqueeze(column, 1), g.unsqueeze(lengths, 0))
    final = g.op("And", g.unsqueeze(ends, 1), g.unsqueeze(tops, 0))
    likelihood = g.sum(g.op("Where", final, alpha, g.double(0.0)), 0, 1)

    # Occupancy flows back from the final node, split at each node by the share that each incoming edge has in alpha.
    before = g.concat(g.unsqueeze(first, 0), g.slice(alpha, 0, -1, 0), axis=0)
    blank_share = g.op("Exp", g.subtract(g.add(before, blank), alpha))

    def retreat(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        here = q.add(states[0], now[0])
        by_blank = q.multiply(here, now[1])
        by_token = q.shift(q.subtract(here, by_blank), -1, q.double(0.0))
        return [q.add(by_blank, by_token)], [by_blank, by_token]

    nothing = g.expand(g.double(0.0), columns, count)
    _, by_blank, by_token = g.scan([nothing], [g.cast(final, DOUBLE), blank_share], retreat, kind=DOUBLE, reverse=True)
    by_blank, by_token = (_by_frame(g, edge, frames, columns, count, diagonals) for edge in (by_blank, by_token))
    return g.op("Neg", likelihood), by_blank, by_token


def _by_diagonal(g: GraphBuilder, edges: Value, frames: Value, columns: Value, count: Value, diagonals: Value) -> Value:
    """[T, U + 1, N] -> [T + U, U + 1, N] with row n, column u holding (t = n - u, u), impossible outside the lattice.

    Each column is padded to T + U + 1 entries and read back with a period of T + U, which shifts column u by u.
    """
    padding = g.expand(g.double(IMPOSSIBLE), columns, columns, count)
    padded = g.concat(g.transpose(edges, 1, 0, 2), padding, axis=1)
    flat = g.slice(g.reshape(padded, -1, count), g.integers(0), g.multiply(columns, diagonals), 0)
    return g.transpose(g.reshape(flat, columns, diagonals, count), 1, 0, 2)


def _by_frame(g: GraphBuilder, edges: Value, frames: Value, columns: Value, count: Value, diagonals: Value) -> Value:
    """The inverse of :func:`_by_diagonal`: [T + U, U + 1, N] -> [T, U + 1, N]."""
    flat = g.reshape(g.transpose(edges, 1, 0, 2), -1, count)
    padded = g.concat(flat, g.expand(g.double(0.0), columns, count), axis=0)
    columns_first = g.reshape(padded, columns, g.add(diagonals, g.integers(1)), count)
    return g.transpose(g.slice(columns_first, g.integers(0), frames, 1), 1, 0, 2)
