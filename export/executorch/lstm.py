"""An LSTM layer and its gradient as scans of plain operators, which ExecuTorch runs as loops.

T: steps; B: batch; D: input; H: size. Weights are in ONNX layout: W [4H, D], R [4H, H], B [4H], gates i, o, f, c.
Biases are added after their products: ExecuTorch's own product with an addend is a plain loop, fifty times as slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan


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
    """Backpropagation through time. dy: [T, B, H], the loss' gradient by the outputs.

    Returns gradients by ``W R B`` and by the input, [T * B, D].
    """
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
    gradients = {
        "W": turned @ layer.x.reshape(-1, layer.x.shape[2]),
        "R": turned @ y_before.reshape(-1, size),
        "B": rows.sum(0),
    }
    return gradients, rows @ w


def reverse_scan(step: Callable[..., Any], states: Any, sequences: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a scan from the last step to the first gives at each step, in the order of the steps.

    step: (states, values of every sequence) -> (next states, tuple of what to give).
    """
    _, given = scan(step, states, tuple(each.flip(0) for each in sequences))
    return tuple(each.flip(0) for each in given)


def tanh(x: Tensor) -> Tensor:
    """By the sigmoid, whose kernel in ExecuTorch is six times as quick as that of the hyperbolic tangent."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0
