"""The additive tanh joint as scans, a few frames at a time, its logits computed again backwards; the lattice as two
scans over its diagonals, in float64.

T: frames, a multiple of K; P: distinct prefixes; R: lattice rows; J: joiner size; V: pieces."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from device_sdk.runtimes.executorch.manifest import FRAMES_AT_ONCE

Sums = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Joint:
    """frames: [T, J] encoded; prefixes: [P, J] predicted; prefix_of: [R] int64, each row's prefix; labels: [R] int64,
    each row's next token (0 after the last); weight: [V, J]; bias: [V]."""

    frames: Tensor
    prefixes: Tensor
    prefix_of: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities (nats) of blank and of the label in every cell: two of [T, R] float32."""
        transposed, places = self.weight.t().contiguous(), self._places()

        def chunk(state: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
            log_probs = torch.log_softmax(self._hidden(frames) @ transposed + self.bias, -1)
            return state.clone(), torch.gather(log_probs.reshape(FRAMES_AT_ONCE, -1), 1, places)

        _, edges = scan(chunk, torch.zeros(1), self._chunks(self.frames))  # ExecuTorch's scan must carry something
        edges = edges.reshape(-1, 2 * self.rows)
        return edges[:, : self.rows], edges[:, self.rows :]

    def gradients(self, blank: Tensor, label: Tensor, representatives: Tensor) -> dict[str, Tensor]:
        """Backward. blank, label: [T, R] float32, minus d(loss)/d(log-probability) of the two edges of every cell.
        representatives: [P] int64, a row of each prefix. Returns d(loss) by ``frames`` [T, J], by ``rows`` [R, J] (all
        of a prefix at its representative), ``weight`` [V, J] and ``bias`` [V]."""
        transposed, places = self.weight.t().contiguous(), self._places()
        pieces, size = self.weight.shape
        count, steps = self.prefixes.shape[0], self.frames.shape[0]
        # A cell's logits move by what its edges carry less what the softmax expects of all visits to its prefix.
        visits = torch.zeros(steps, count).scatter_add(1, self.prefix_of[None].expand(steps, -1), blank + label)
        at = representatives[:, None].expand(count, size).contiguous()

        def chunk(sums: Sums, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Sums, Tensor]:
            d_rows, d_weight, d_bias = sums
            frames, edges, visits = now
            hidden = self._hidden(frames)
            probabilities = torch.exp(torch.log_softmax(hidden @ transposed + self.bias, -1))
            expected = (probabilities * visits.reshape(-1, 1)).reshape(FRAMES_AT_ONCE, -1)
            d_logits = expected.scatter_add(1, places, -edges).reshape(-1, pieces)
            d_mixed = (d_logits @ self.weight * (1.0 - hidden * hidden)).reshape(FRAMES_AT_ONCE, -1, size)
            # Sums over rows are products with ones: ExecuTorch's own walk memory column by column.
            over_frames = torch.ones(1, FRAMES_AT_ONCE) @ d_mixed.reshape(FRAMES_AT_ONCE, -1)
            over_prefixes = torch.ones_like(visits)[:, None] @ d_mixed
            d_rows = d_rows.scatter_add(0, at, over_frames.reshape(-1, size))
            d_bias = d_bias + torch.ones_like(visits).reshape(1, -1) @ d_logits
            return (d_rows, d_weight + d_logits.t() @ hidden, d_bias), over_prefixes[:, 0].clone()

        start = torch.zeros(self.rows, size), torch.zeros(pieces, size), torch.zeros(1, pieces)
        edges = torch.cat([blank, label], 1)
        sequences = self._chunks(self.frames), self._chunks(edges), self._chunks(visits)
        (d_rows, d_weight, d_bias), d_frames = scan(chunk, start, sequences)
        return {"frames": d_frames.reshape(-1, size), "rows": d_rows, "weight": d_weight, "bias": d_bias[0]}

    @property
    def rows(self) -> int:
        return self.labels.shape[0]

    def _hidden(self, frames: Tensor) -> Tensor:
        """[K, J] -> [K * P, J]."""
        return tanh(frames[:, None] + self.prefixes[None]).reshape(-1, frames.shape[1])

    def _places(self) -> Tensor:
        """[K, 2 R]: where the blanks, then the labels, of a frame's rows stand among its P * V log-probabilities."""
        start = self.prefix_of * self.weight.shape[0]
        return torch.cat([start, start + self.labels])[None].expand(FRAMES_AT_ONCE, -1).contiguous()

    def _chunks(self, values: Tensor) -> Tensor:
        """[T, W] -> [T / K, K, W]."""
        return values.reshape(-1, FRAMES_AT_ONCE, values.shape[1])


IMPOSSIBLE = -1e30


def lattice(blank: Tensor, label: Tensor, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T: frames, padded; U: tokens, padded; N: hypotheses.

    blank, label: [T, U + 1, N] float64 log-probabilities of the two edges that leave node (t, u). frames: [1] int64,
    how many of T are the utterance's; lengths: [N] int64. A hypothesis ends at node (frames, length). Nodes with larger
    u are no ancestors of it, and no label is emitted behind the last frame, so padding of both kinds is exact. Returns
    negative log-likelihoods [N] and occupancies of both kinds of edges, each [T, U + 1, N]."""
    width, columns, count = blank.shape
    diagonals = width + columns - 1
    label = torch.where(torch.arange(width)[:, None, None] < frames, label, IMPOSSIBLE)
    blank, label = (_by_diagonal(edge, diagonals) for edge in (blank, label))
    none = torch.full((1, count), IMPOSSIBLE, dtype=torch.float64)
    first = torch.cat([torch.zeros(1, count, dtype=torch.float64), none.expand(columns - 1, count)])

    def advance(alpha: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        stay, move = alpha + now[0], torch.cat([none, (alpha + now[1])[:-1]])
        larger = torch.maximum(stay, move)
        total = larger + torch.log(torch.exp(torch.minimum(stay, move) - larger) + 1.0)
        return total, total.clone()

    _, alpha = scan(advance, first, (blank, label))
    ends = torch.arange(1, diagonals + 1)[:, None] == frames + lengths
    tops = torch.arange(columns)[:, None] == lengths
    final = torch.logical_and(ends[:, None], tops[None]).to(torch.float64)
    likelihood = (final * alpha).sum((0, 1))
    share = torch.exp(torch.cat([first[None], alpha[:-1]]) + blank - alpha)
    nothing = torch.zeros(1, count, dtype=torch.float64)

    def retreat(occupancy: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        here = occupancy + now[0]
        by_blank = here * now[1]
        by_label = torch.cat([(here - by_blank)[1:], nothing])
        return by_blank + by_label, (by_blank.clone(), by_label.clone())

    by_blank, by_label = reverse_scan(retreat, torch.zeros(columns, count, dtype=torch.float64), (final, share))
    return -likelihood, _by_frame(by_blank, width), _by_frame(by_label, width)


def _by_diagonal(edges: Tensor, diagonals: int) -> Tensor:
    """[T, U + 1, N] -> [T + U, U + 1, N] with row n, column u holding (t = n - u, u), impossible outside the lattice.
    Each column is padded to T + U + 1 entries and read back with a period of T + U, which shifts column u by u."""
    _, columns, count = edges.shape
    padding = torch.full((columns, columns, count), IMPOSSIBLE, dtype=torch.float64)
    flat = torch.cat([edges.permute(1, 0, 2), padding], 1).reshape(-1, count)
    return flat[: columns * diagonals].reshape(columns, diagonals, count).permute(1, 0, 2)


def _by_frame(edges: Tensor, width: int) -> Tensor:
    """The inverse of :func:`_by_diagonal`: [T + U, U + 1, N] -> [T, U + 1, N]."""
    diagonals, columns, count = edges.shape
    flat = edges.permute(1, 0, 2).reshape(-1, count)
    padded = torch.cat([flat, torch.zeros(columns, count, dtype=torch.float64)])
    return padded.reshape(columns, diagonals + 1, count)[:, :width].permute(1, 0, 2)


class Layer(NamedTuple):
    """A layer's input x [T, B, D], its outputs y and cells c [T, B, H], and its gates after their nonlinearities:
    opening [T, B, 3H] (i, o, f) and candidate [T, B, H]."""

    x: Tensor
    y: Tensor
    c: Tensor
    opening: Tensor
    candidate: Tensor


def lstm(x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> Layer:
    """One layer from a zero state."""
    size, batch = r.shape[1], x.shape[1]
    inputs = (x.reshape(-1, x.shape[2]) @ w.t() + b).reshape(-1, batch, 4 * size)
    recurrent = r.t().contiguous()

    def step(state: tuple[Tensor, Tensor], now: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        h, c = state
        gates = h @ recurrent + now
        opening, candidate = torch.sigmoid(gates[:, : 3 * size]), tanh(gates[:, 3 * size :])
        i, o, f = opening.chunk(3, 1)
        c = f * c + i * candidate
        h = o * tanh(c)
        return (h, c), (h.clone(), c.clone(), opening, candidate)

    zeros = torch.zeros(batch, size)
    _, kept = scan(step, (zeros, zeros.clone()), inputs)
    return Layer(x, *kept)


def lstm_gradients(layer: Layer, dy: Tensor, w: Tensor, r: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Backpropagation through time. dy: [T, B, H], the loss' gradient by the outputs. Returns gradients by ``W R B``
    and by the input, [T * B, D]."""
    size, batch = r.shape[1], layer.x.shape[1]
    i, o, f = layer.opening.chunk(3, 2)
    candidate, squashed = layer.candidate, tanh(layer.c)
    nothing = torch.zeros(1, batch, size)
    y_before, c_before = torch.cat([nothing, layer.y[:-1]]), torch.cat([nothing, layer.c[:-1]])
    # d(loss)/d(gate before its nonlinearity) = (dc, dh, dc, dc) * slopes, in gate order i, o, f, c.
    slopes = [candidate * i * (1.0 - i), squashed * o * (1.0 - o), c_before * f * (1.0 - f), i * (1.0 - candidate**2)]
    through_output = o * (1.0 - squashed * squashed)

    def step(state: tuple[Tensor, Tensor], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor]]:
        d_gates, d_cell = state
        d_output, to_cell, slope, forget = now
        d_hidden = d_gates @ r + d_output
        d_cell = d_hidden * to_cell + d_cell
        d_gates = torch.cat([d_cell, d_hidden, d_cell, d_cell], 1) * slope
        return (d_gates, d_cell * forget), (d_gates.clone(),)

    states = torch.zeros(batch, 4 * size), torch.zeros(batch, size)
    (d_gates,) = reverse_scan(step, states, (dy, through_output, torch.cat(slopes, 2), f))
    rows = d_gates.reshape(-1, 4 * size)
    turned = rows.t()
    gradients = {"W": turned @ layer.x.reshape(-1, layer.x.shape[2]), "R": turned @ y_before.reshape(-1, size)}
    return gradients | {"B": rows.sum(0)}, rows @ w


def reverse_scan(step: Callable[..., Any], states: Any, sequences: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a scan from the last step to the first gives at each step, in the order of the steps. step: (states, values
    of every sequence) -> (next states, tuple of what to give)."""
    _, given = scan(step, states, tuple(each.flip(0) for each in sequences))
    return tuple(each.flip(0) for each in given)


def tanh(x: Tensor) -> Tensor:
    """By the sigmoid, whose kernel in ExecuTorch is six times as quick as that of the hyperbolic tangent."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0
