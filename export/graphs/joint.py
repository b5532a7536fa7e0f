"""The additive tanh joint in the training graph, a few frames at a time, its logits computed again backwards."""

from __future__ import annotations

from dataclasses import dataclass

from export.graphs.builder import GraphBuilder, Value

__all__ = ["Joint"]

FRAMES_AT_ONCE = 8


@dataclass(frozen=True)
class Joint:
    """What both directions need. T: frames; R: lattice rows, (U + 1) * N; J: joiner size; V: pieces.

    frames: [T, J] encoded; rows: [R, J] predicted; labels: [R] int64, the next token of each row (0 after the last);
    weight: [V, J]; bias: [V].
    """

    g: GraphBuilder
    frames: Value
    rows: Value
    labels: Value
    weight: Value
    bias: Value

    def log_probabilities(self) -> tuple[Value, Value]:
        """Log-probabilities (nats) of blank and of the label in every cell: two of [T, R] float32."""
        g = self.g
        chosen = g.expand(g.unsqueeze(self.labels, 0, 2), FRAMES_AT_ONCE, g.size(self.labels, 0), 1)
        transposed = g.transpose(self.weight)

        def chunk(q: GraphBuilder, _: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
            logits = self._logits(q, self._hidden(q, now[0]), transposed)
            log_probs = q.op("LogSoftmax", logits, axis=-1)
            return [], [q.slice(log_probs, 0, 1, 2), q.op("GatherElements", log_probs, chosen, axis=2)]

        blank, label = g.scan([], [self._chunks(self.frames, self._width)], chunk)
        return self._unchunk(blank), self._unchunk(label)

    def gradients(self, blank: Value, label: Value) -> dict[str, Value]:
        """Backward. blank, label: [T, R] float32, minus d(loss)/d(log-probability) of the two edges of every cell.

        Returns d(loss) by frames [T, J], rows [R, J], weight [V, J] and bias [V].
        """
        g, sizes = self.g, self.g.architecture
        count = g.size(self.labels, 0)
        chosen = g.expand(g.unsqueeze(self.labels, 0, 2), FRAMES_AT_ONCE, count, 1)
        places = g.concat(g.multiply(chosen, g.integer(0)), chosen, axis=2)
        transposed = g.transpose(self.weight)

        def chunk(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
            d_rows, d_weight, d_bias = states
            frames, by_blank, by_label = now
            hidden = self._hidden(q, frames)
            probabilities = q.op("Softmax", self._logits(q, hidden, transposed), axis=-1)
            d_logits = q.op(
                "ScatterElements",
                q.multiply(probabilities, q.add(by_blank, by_label)),
                places,
                q.op("Neg", q.concat(by_blank, by_label, axis=2)),
                axis=2,
                reduction="add",
            )
            slope = q.subtract(q.single(1.0), q.multiply(hidden, hidden))
            d_mixed = q.multiply(q.matmul(d_logits, self.weight), slope)
            flat = q.reshape(d_logits, -1, sizes.pieces)
            d_weight = q.op("Gemm", flat, q.reshape(hidden, -1, sizes.joiner_size), d_weight, transA=1)
            following = [q.add(d_rows, q.sum(d_mixed, 0)), d_weight, q.add(d_bias, q.sum(flat, 0))]
            return following, [q.sum(d_mixed, 1)]

        states = [
            g.expand(g.single(0.0), count, sizes.joiner_size),
            g.expand(g.single(0.0), sizes.pieces, sizes.joiner_size),
            g.expand(g.single(0.0), sizes.pieces),
        ]
        sequences = [self._chunks(self.frames, self._width)]
        for edge in (blank, label):
            sequences.append(g.unsqueeze(self._chunks(edge, count), 3))
        d_rows, d_weight, d_bias, d_frames = g.scan(states, sequences, chunk)
        d_frames = g.slice(g.reshape(d_frames, -1, self._width), g.integers(0), g.size(self.frames, 0), 0)
        return {"frames": d_frames, "rows": d_rows, "weight": d_weight, "bias": d_bias}

    @property
    def _width(self) -> Value:
        return self.g.integers(self.g.architecture.joiner_size)

    def _hidden(self, q: GraphBuilder, frames: Value) -> Value:
        """[K, J] frames -> [K, R, J]."""
        return q.op("Tanh", q.add(q.unsqueeze(frames, 1), self.rows))

    def _logits(self, q: GraphBuilder, hidden: Value, transposed: Value) -> Value:
        return q.add(q.matmul(hidden, transposed), self.bias)

    def _chunks(self, values: Value, width: Value) -> Value:
        """[T, W] -> [chunks, K, W], the last chunk filled up with zeros."""
        g = self.g
        missing = g.op("Mod", g.op("Neg", g.size(values, 0)), g.integers(FRAMES_AT_ONCE))
        padded = g.concat(values, g.expand(g.single(0.0), missing, width), axis=0)
        return g.reshape(padded, -1, FRAMES_AT_ONCE, width)

    def _unchunk(self, values: Value) -> Value:
        """[chunks, K, R, 1] -> [T, R]."""
        g = self.g
        return g.slice(g.reshape(values, -1, g.size(self.labels, 0)), g.integers(0), g.size(self.frames, 0), 0)
