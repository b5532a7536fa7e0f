"""The additive tanh joint in the training graph, a few frames at a time, its logits computed again backwards."""

from __future__ import annotations

from dataclasses import dataclass

from export.graphs.builder import FLOAT, GraphBuilder, Value

__all__ = ["Joint"]

FRAMES_AT_ONCE = 8


@dataclass(frozen=True)
class Joint:
    """What both directions need. T: frames; P: distinct prefixes; R: lattice rows; J: joiner size; V: pieces.

    frames: [T, J] encoded; prefixes: [P, J] predicted; prefix_of: [R] int64, each row's prefix; labels: [R] int64, each
    row's next token (0 after the last); weight: [V, J]; bias: [V].
    """

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
        transposed, places = g.transpose(self.weight), self._places()

        def chunk(q: GraphBuilder, _: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
            log_probs = q.op("LogSoftmax", self._logits(q, self._hidden(q, now[0]), transposed), axis=-1)
            return [], [q.op("GatherElements", q.reshape(log_probs, FRAMES_AT_ONCE, -1), places, axis=1)]

        (edges,) = g.scan([], [self._chunks(self.frames, self._width)], chunk)
        rows = g.size(self.labels, 0)
        edges = g.slice(g.reshape(edges, -1, g.add(rows, rows)), g.integers(0), g.size(self.frames, 0), 0)
        return g.slice(edges, g.integers(0), rows, 1), g.slice(edges, rows, g.add(rows, rows), 1)

    def gradients(self, blank: Value, label: Value) -> dict[str, Value]:
        """Backward. blank, label: [T, R] float32, minus d(loss)/d(log-probability) of the two edges of every cell.

        Returns d(loss) by frames [T, J], prefixes [P, J], weight [V, J] and bias [V].
        """
        g, sizes = self.g, self.g.architecture
        transposed, places = g.transpose(self.weight), self._places()
        count, rows = g.size(self.prefixes, 0), g.size(self.labels, 0)
        numbers = g.op("Range", g.integer(0), g.squeeze(count, 0), g.integer(1))
        belongs = g.cast(g.op("Equal", g.unsqueeze(self.prefix_of, 1), g.unsqueeze(numbers, 0)), FLOAT)

        def chunk(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
            d_prefixes, d_weight, d_bias = states
            frames, edges, visits = now
            hidden = self._hidden(q, frames)
            probabilities = q.op("Softmax", self._logits(q, hidden, transposed), axis=-1)
            expected = q.reshape(q.multiply(probabilities, q.unsqueeze(visits, 2)), FRAMES_AT_ONCE, -1)
            d_logits = q.op("ScatterElements", expected, places, q.op("Neg", edges), axis=1, reduction="add")
            flat = q.reshape(d_logits, -1, sizes.pieces)
            hidden_rows = q.reshape(hidden, -1, sizes.joiner_size)
            slope = q.subtract(q.single(1.0), q.multiply(hidden_rows, hidden_rows))
            d_mixed = q.multiply(q.matmul(flat, self.weight), slope)
            d_mixed = q.reshape(d_mixed, FRAMES_AT_ONCE, -1, sizes.joiner_size)
            d_weight = q.op("Gemm", flat, hidden_rows, d_weight, transA=1)
            following = [q.add(d_prefixes, q.sum(d_mixed, 0)), d_weight, q.add(d_bias, q.sum(flat, 0))]
            return following, [q.sum(d_mixed, 1)]

        states = [
            g.expand(g.single(0.0), count, sizes.joiner_size),
            g.expand(g.single(0.0), sizes.pieces, sizes.joiner_size),
            g.expand(g.single(0.0), sizes.pieces),
        ]
        # A cell's logits move by what its edges carry less what the softmax expects of all visits to its prefix.
        visits = g.matmul(g.add(blank, label), belongs)
        sequences = [
            self._chunks(self.frames, self._width),
            self._chunks(g.concat(blank, label, axis=1), g.add(rows, rows)),
            self._chunks(visits, count),
        ]
        d_prefixes, d_weight, d_bias, d_frames = g.scan(states, sequences, chunk)
        d_frames = g.slice(g.reshape(d_frames, -1, self._width), g.integers(0), g.size(self.frames, 0), 0)
        return {"frames": d_frames, "prefixes": d_prefixes, "weight": d_weight, "bias": d_bias}

    @property
    def _width(self) -> Value:
        return self.g.integers(self.g.architecture.joiner_size)

    def _places(self) -> Value:
        """[K, 2 R]: where the blanks, then the labels, of a frame's rows stand among its P * V log-probabilities."""
        g = self.g
        start = g.multiply(self.prefix_of, g.integer(g.architecture.pieces))
        places = g.concat(start, g.add(start, self.labels), axis=0)
        return g.expand(g.unsqueeze(places, 0), FRAMES_AT_ONCE, g.size(places, 0))

    def _hidden(self, q: GraphBuilder, frames: Value) -> Value:
        """[K, J] frames -> [K, P, J]."""
        return q.op("Tanh", q.add(q.unsqueeze(frames, 1), self.prefixes))

    def _logits(self, q: GraphBuilder, hidden: Value, transposed: Value) -> Value:
        return q.add(q.matmul(hidden, transposed), self.bias)

    def _chunks(self, values: Value, width: Value) -> Value:
        """[T, W] -> [chunks, K, W], the last chunk filled up with zeros."""
        g = self.g
        missing = g.op("Mod", g.op("Neg", g.size(values, 0)), g.integers(FRAMES_AT_ONCE))
        padded = g.concat(values, g.expand(g.single(0.0), missing, width), axis=0)
        return g.reshape(padded, -1, FRAMES_AT_ONCE, width)
