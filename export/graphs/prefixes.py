"""Which rows of N padded hypotheses are the same prefix: n-best lists share most of them, and each is joined once."""

from __future__ import annotations

from export.graphs.builder import INT64, GraphBuilder, Value

__all__ = ["distinct_prefixes"]


def distinct_prefixes(g: GraphBuilder, tokens: Value, lengths: Value) -> tuple[Value, Value]:
    """N: hypotheses; U: tokens of the longest; P: distinct prefixes, the empty one among them.

    tokens: [N, U] int64, padded with 0; lengths: [N] int64. A row is a pair (u, i), the first u tokens of hypothesis i,
    numbered u * N + i. Returns the number of the first row of each distinct prefix [P] and the prefix of each row
    [(U + 1) * N] (that of a row past its hypothesis' end means nothing).
    """
    count = g.size(tokens, 0)
    equal = g.op("Equal", g.unsqueeze(tokens, 1), g.unsqueeze(tokens, 0))
    differs = g.cast(g.op("Not", equal), INT64)
    differs = g.concat(g.expand(g.integer(0), count, count, 1), differs, axis=2)
    mismatches = g.op("CumSum", differs, g.integer(2))
    same = g.cast(g.op("Equal", mismatches, g.integer(0)), INT64)
    # [U + 1, N]: the first hypothesis that begins with the same u tokens.
    first = g.transpose(g.op("ArgMax", same, axis=1, keepdims=0))

    hypothesis = g.op("Range", g.integer(0), g.squeeze(count, 0), g.integer(1))
    length = g.unsqueeze(g.op("Range", g.integer(0), g.squeeze(g.size(first, 0), 0), g.integer(1)), 1)
    real = g.op("LessOrEqual", length, g.unsqueeze(lengths, 0))
    chosen = g.op("And", g.op("Equal", first, g.unsqueeze(hypothesis, 0)), real)
    representatives = g.reshape(g.op("NonZero", g.reshape(chosen, -1)), -1)

    counted = g.op("CumSum", g.cast(g.reshape(chosen, -1), INT64), g.integer(0))
    number = g.reshape(g.subtract(counted, g.integer(1)), -1, count)
    return representatives, g.reshape(g.op("GatherElements", number, first, axis=1), -1)
