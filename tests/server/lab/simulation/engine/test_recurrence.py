"""LSTMs over many clients and clients' gradients against a plain LSTM of torch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from server.lab.simulation.engine.layers import Product, Rows
from server.lab.simulation.engine.recurrence import lstm

CLIENTS, ROWS, STEPS, INPUTS = 3, 4, 5, 7

USES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "every output": lambda outputs, last, cells: outputs.square().sum(),
    "the last output": lambda outputs, last, cells: last.square().sum(),
    "the cells": lambda outputs, last, cells: cells.square().sum(),
    "all of them": lambda outputs, last, cells: outputs.sin().sum() + last.square().sum() - cells.cos().sum(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared weights", "own weights"])
@pytest.mark.parametrize(("dtype", "hidden", "tolerance"), [(torch.float64, 6, 1e-12), (torch.float32, 80, 4e-6)])
def test_it_is_torchs_lstm(dtype: torch.dtype, hidden: int, tolerance: float, shared: bool, use: str) -> None:
    """Outputs, states, and the gradients of inputs and of all weights, of every client."""
    torch.manual_seed(2)
    theirs, read = nn.LSTM(INPUTS, hidden, batch_first=True).to(dtype), USES[use]
    inputs = torch.randn(CLIENTS, ROWS, STEPS, INPUTS, dtype=dtype, requires_grad=True)
    weights = [getattr(theirs, f"{kind}_l0").detach() for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    into, recurrent, *biases = [w.expand(1 if shared else CLIENTS, *w.shape) for w in weights]
    gates = torch.zeros((), dtype=dtype).expand(CLIENTS, ROWS, STEPS, 4 * hidden).requires_grad_()
    outputs, last, cells, taken = lstm(inputs, gates, into, recurrent, biases[0] + biases[1])
    below, found = torch.autograd.grad(read(outputs, last, cells), [inputs, gates])
    rows = Rows(taken.flatten(1, 2), found.flatten(1, 2), (hidden, INPUTS))
    ours = Product(rows, 1, weights[0].shape), Product(rows, 0, weights[1].shape)
    for client in range(CLIENTS):
        own = inputs[client].detach().requires_grad_()
        expected, (h, c) = theirs(own)
        gradients = torch.autograd.grad(read(expected, h[0], c[0]), [own, *theirs.parameters()])
        alone = torch.zeros(CLIENTS, dtype=dtype)
        alone[client] = 1.0
        for mine, other in (
            (outputs[client], expected),
            (last[client], h[0]),
            (cells[client], c[0]),
            (below[client], gradients[0]),
            (ours[0].total(alone), gradients[1]),
            (ours[1].total(alone), gradients[2]),
            (found[client].flatten(0, 1).sum(0), gradients[3]),
            (ours[0].squares()[client].sqrt(), gradients[1].norm()),
            (ours[1].squares()[client].sqrt(), gradients[2].norm()),
        ):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance * float(other.detach().abs().max()))
