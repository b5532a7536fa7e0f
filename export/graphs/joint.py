"""The additive joint in the training graph, some cells at a time, its logits computed again backwards; its lattice."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from device_sdk.bundle.architecture import factor_names
from export.graphs.builder import DOUBLE, FLOAT, INT64, GraphBuilder, Value
from export.graphs.lstm import matrix_gradients

CELLS_AT_ONCE = 512
"""Cells (pairs of a frame and a prefix) whose logits exist at a time: enough that products run at full speed, so few
that memory stays small."""

NEGLIGIBLE = 1e-9
"""Of what the most visited cell carries: cells with less add nothing that float32 sums would keep."""


@dataclass(frozen=True)
class Joint:
    """What both directions need. T: frames; P: distinct prefixes; R: lattice rows; J: joiner size; V: pieces. frames:
    [T, J] encoded; prefixes: [P, J] predicted; prefix_of: [R] int64, each row's prefix; labels: [R] int64, each row's
    next token (0 after the last); weight: [V, J]; bias: [V]. K, below: frames of a chunk."""

    g: GraphBuilder
    frames: Value
    prefixes: Value
    prefix_of: Value
    labels: Value
    weight: Value
    bias: Value

    def log_probabilities(self) -> tuple[Value, Value]:
        """Log-probabilities (nats) of blank and of the label in every cell: two of [T, R] float32."""
        g = self.g

        def chunk(q: GraphBuilder, _: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
            mixed = q.op(self._activation, q.add(q.unsqueeze(now[0], 1), self.prefixes))
            hidden = q.reshape(mixed, -1, g.sizes.joiner_size)
            log_probs = q.op("LogSoftmax", self._logits(q, hidden), axis=-1)
            by_frame = q.reshape(log_probs, self._frames_at_once, -1)
            return [], [q.op("GatherElements", by_frame, self._places, axis=1)]

        (edges,) = g.scan([], [self._chunks(self.frames, self._width, self._frames_at_once)], chunk)
        rows = g.size(self.labels, 0)
        edges = g.slice(g.reshape(edges, -1, g.add(rows, rows)), g.integers(0), g.size(self.frames, 0), 0)
        return g.slice(edges, g.integers(0), rows, 1), g.slice(edges, rows, g.add(rows, rows), 1)

    def gradients(self, blank: Value, label: Value, wanted: Collection[str], factors: bool = False) -> dict[str, Value]:
        """Backward. blank, label: [T, R] float32, minus d(loss)/d(log-probability) of the two edges of every cell.
        wanted: which of ``frames`` [T, J], ``prefixes`` [P, J], :attr:`weight` [V, J] and :attr:`bias` [V] to return
        d(loss) by, of the latter two by their names. factors: by the weight's factors in place of the weight itself.
        Alignments keep near a path, so most cells of a trained model carry next to nothing, and are left out."""
        g, sizes = self.g, self.g.sizes
        count, rows = g.size(self.prefixes, 0), g.size(self.labels, 0)
        belongs = g.cast(g.op("Equal", g.unsqueeze(self.prefix_of, 1), g.unsqueeze(_range(g, count), 0)), FLOAT)
        of_prefix = g.transpose(belongs)
        carried = g.matmul(g.add(g.op("Abs", blank), g.op("Abs", label)), belongs)
        least = g.multiply(g.op("ReduceMax", carried), g.single(NEGLIGIBLE))
        visited = g.cast(g.op("Not", g.op("Less", carried, least)), FLOAT)  # what is no number is never left out
        most = g.op("ReduceMax", g.sum(visited, 1), keepdims=0)
        at_once = self._fitting(g.op("Max", g.reshape(g.cast(most, INT64), 1), g.integers(1)))
        sums: dict[str, Value] = {}
        if "prefixes" in wanted:
            sums["prefixes"] = g.expand(g.single(0.0), count, sizes.joiner_size)
        if self.weight in wanted:
            for name in factor_names(self.weight) if factors else (self.weight,):
                sums[name] = g.op("Expand", g.single(0.0), g.op("Shape", name))
        if self.bias in wanted:
            sums[self.bias] = g.expand(g.single(0.0), sizes.pieces)

        def chunk(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
            frames, blanks, labels, chosen = now
            frame, prefix = (q.squeeze(each, 0) for each in q.ops("Split", 2, q.op("NonZero", chosen), num_outputs=2))
            mixed = q.add(q.op("Gather", frames, frame, axis=0), q.op("Gather", self.prefixes, prefix, axis=0))
            hidden, own = q.op(self._activation, mixed), q.op("Gather", of_prefix, prefix, axis=0)
            blanks, labels = (q.multiply(q.op("Gather", each, frame, axis=0), own) for each in (blanks, labels))
            edges = q.concat(q.sum(blanks, 1, keep=True), labels, axis=1)
            # A cell's logits move by what its edges carry less what the softmax expects of all visits to its prefix.
            d_logits = q.multiply(q.op("Softmax", self._logits(q, hidden), axis=-1), q.sum(edges, 1, keep=True))
            places = q.expand(q.unsqueeze(self._edges, 0), q.size(frame, 0), q.size(self._edges, 0))
            d_logits = q.op("ScatterElements", d_logits, places, q.op("Neg", edges), axis=1, reduction="add")
            d_mixed = q.multiply(q.matmul(d_logits, self.weight), self._slope(q, hidden))
            before, after = dict(zip(sums, states, strict=True)), {}
            if "prefixes" in sums:
                after["prefixes"] = q.add(before["prefixes"], _gathered(q, d_mixed, prefix, count))
            if self.weight in wanted:
                after |= matrix_gradients(q, self.weight, d_logits, hidden, factors=factors, before=before)
            if self.bias in sums:
                after[self.bias] = q.add(before[self.bias], q.sum(d_logits, 0))
            by_frame = [_gathered(q, d_mixed, frame, at_once)] if "frames" in wanted else []
            return [after[name] for name in sums], by_frame

        widths = ((self.frames, self._width), (blank, rows), (label, rows), (visited, count))
        found = g.scan(list(sums.values()), [self._chunks(each, width, at_once) for each, width in widths], chunk)
        gradients = dict(zip(sums, found, strict=False))
        if "frames" in wanted:
            frames = g.reshape(found[-1], -1, self._width)
            gradients["frames"] = g.slice(frames, g.integers(0), g.size(self.frames, 0), 0)
        return gradients

    def _fitting(self, cells: Value) -> Value:
        """K [1] int64: as many frames of so many cells each as make :data:`CELLS_AT_ONCE`, one at least, and no more
        than there are."""
        g = self.g
        enough = g.op("Max", g.op("Div", g.integers(CELLS_AT_ONCE), cells), g.integers(1))
        return g.op("Min", enough, g.size(self.frames, 0))

    @cached_property
    def _frames_at_once(self) -> Value:
        """K of the forward direction, where every cell counts."""
        return self._fitting(self.g.size(self.prefixes, 0))

    @cached_property
    def _edges(self) -> Value:
        """[1 + R]: the pieces of a cell's edges, blank and every row's label."""
        return self.g.concat(self.g.integers(0), self.labels, axis=0)

    @cached_property
    def _places(self) -> Value:
        """[K, 2 R]: where the blanks, then the labels, of a frame's rows stand among its P * V log-probabilities."""
        g = self.g
        start = g.multiply(self.prefix_of, g.integer(g.sizes.pieces))
        places = g.concat(start, g.add(start, self.labels), axis=0)
        return g.expand(g.unsqueeze(places, 0), self._frames_at_once, g.size(places, 0))

    @property
    def _width(self) -> Value:
        return self.g.integers(self.g.sizes.joiner_size)

    @property
    def _activation(self) -> str:
        return self.g.sizes.activation.capitalize()

    def _slope(self, q: GraphBuilder, hidden: Value) -> Value:
        """The activation's derivative, from what it gave."""
        if self._activation == "Relu":
            return q.cast(q.op("Greater", hidden, q.single(0.0)), FLOAT)
        return q.subtract(q.single(1.0), q.multiply(hidden, hidden))

    def _logits(self, q: GraphBuilder, hidden: Value) -> Value:
        return q.op("Gemm", hidden, self.weight, self.bias, transB=1)

    def _chunks(self, values: Value, width: Value, at_once: Value) -> Value:
        """[T, W] -> [chunks, K, W], the last chunk filled up with zeros."""
        g = self.g
        missing = g.op("Mod", g.op("Neg", g.size(values, 0)), at_once)
        return g.reshape(g.concat(values, g.expand(g.single(0.0), missing, width), axis=0), -1, at_once, width)


def _range(g: GraphBuilder, count: Value) -> Value:
    """[count] int64: 0, 1 and so on. count: [1]."""
    return g.op("Range", g.integer(0), g.squeeze(count, 0), g.integer(1))


def _gathered(g: GraphBuilder, rows: Value, place: Value, count: Value) -> Value:
    """[count, J]: the sums of the ``rows`` [S, J] of each place. place: [S]."""
    return g.matmul(g.cast(g.op("Equal", g.unsqueeze(_range(g, count), 1), g.unsqueeze(place, 0)), FLOAT), rows)


def distinct_prefixes(g: GraphBuilder, tokens: Value, lengths: Value) -> tuple[Value, Value]:
    """Which rows of N padded hypotheses are the same prefix: n-best lists share most of them, and each is joined once.

    N: hypotheses; U: tokens of the longest; P: distinct prefixes, the empty one among them.

    tokens: [N, U] int64, padded with 0; lengths: [N] int64. A row is a pair (u, i), the first u tokens of hypothesis i,
    numbered u * N + i. Returns the number of the first row of each distinct prefix [P] and the prefix of each row [(U +
    1) * N] (that of a row past its hypothesis' end means nothing)."""
    count = g.size(tokens, 0)
    differs = g.cast(g.op("Not", g.op("Equal", g.unsqueeze(tokens, 1), g.unsqueeze(tokens, 0))), INT64)
    differs = g.concat(g.expand(g.integer(0), count, count, 1), differs, axis=2)
    same = g.cast(g.op("Equal", g.op("CumSum", differs, g.integer(2)), g.integer(0)), INT64)
    # [U + 1, N]: the first hypothesis that begins with the same u tokens.
    first = g.transpose(g.op("ArgMax", same, axis=1, keepdims=0))
    hypothesis, length = _range(g, count), g.unsqueeze(_range(g, g.size(first, 0)), 1)
    real = g.op("LessOrEqual", length, g.unsqueeze(lengths, 0))
    chosen = g.op("And", g.op("Equal", first, g.unsqueeze(hypothesis, 0)), real)
    representatives = g.reshape(g.op("NonZero", g.reshape(chosen, -1)), -1)
    counted = g.op("CumSum", g.cast(g.reshape(chosen, -1), INT64), g.integer(0))
    number = g.reshape(g.subtract(counted, g.integer(1)), -1, count)
    return representatives, g.reshape(g.op("GatherElements", number, first, axis=1), -1)


IMPOSSIBLE = -1e30


def lattice(g: GraphBuilder, blank: Value, emit: Value, lengths: Value) -> tuple[Value, Value, Value]:
    """Node (t, u) has consumed t frames and emitted u tokens. Nodes of one t + u depend only on those before, so the
    lattice is walked diagonal by diagonal. A hypothesis of U tokens ends at node (T, U); nodes with larger u are no
    ancestors of it, so shorter hypotheses of a padded batch are exact without a mask.

    T: frames; U: tokens of the longest hypothesis; N: hypotheses. blank, emit: [T, U + 1, N] float64 log-probabilities
    of the two edges that leave node (t, u): blank to (t + 1, u), the next token to (t, u + 1). lengths: [N] int64.
    Returns negative log-likelihoods [N] and occupancies of both kinds of edges, each [T, U + 1, N]: the posterior
    probability that the alignment uses the edge, which is d(log-likelihood)/d(edge's log-probability)."""
    frames, columns, count = g.size(blank, 0), g.size(blank, 1), g.size(blank, 2)
    diagonals, impossible = g.subtract(g.add(frames, columns), g.integers(1)), g.double(IMPOSSIBLE)
    blank, emit = (_by_diagonal(g, edge, columns, count, diagonals) for edge in (blank, emit))

    def advance(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        stay, move = q.add(states[0], now[0]), q.shift(q.add(states[0], now[1]), 1, impossible)
        larger = q.op("Max", stay, move)
        ratio = q.op("Exp", q.subtract(q.op("Min", stay, move), larger))
        total = q.add(larger, q.op("Log", q.add(ratio, q.double(1.0))))
        return [total], [total]

    # Forward variables: alpha[n][u] for n = 0 (only u = 0 is reached) and, from the scan, n = 1 .. T + U.
    begun, none = g.expand(g.double(0.0), 1, count), g.expand(impossible, g.subtract(columns, g.integers(1)), count)
    first = g.concat(begun, none, axis=0)
    _, alpha = g.scan([first], [blank, emit], advance, kind=DOUBLE)

    # final[n][u] is 1 where hypothesis i ends: n + 1 = T + lengths[i], u = lengths[i].
    column = _range(g, columns)
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


def _by_diagonal(g: GraphBuilder, edges: Value, columns: Value, count: Value, diagonals: Value) -> Value:
    """[T, U + 1, N] -> [T + U, U + 1, N] with row n, column u holding (t = n - u, u), impossible outside the lattice.
    Each column is padded to T + U + 1 entries and read back with a period of T + U, which shifts column u by u."""
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
