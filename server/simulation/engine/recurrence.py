"""An LSTM over many clients at once whose gate gradients are an output of the backward pass.

K: clients; W: weights, K, or 1 where all clients share theirs; N: sequences of a client; T: time steps; I: inputs; H:
hidden units. Gates are in torch's order i, f, g, o. A fused LSTM hides the gradients of its gates, which are what the
norm of a client's weight gradient is made of; here they are the gradient of an argument that is read for nothing else.

Everything is kept sequence by sequence, [K, N, T, ...]: a step of all sequences is then a matrix whose rows are equally
far apart, which products take as it is, and so are all steps of a client, of which its weight gradient is a product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["lstm"]

_one_dnn = torch.ops.mkldnn._linear_pointwise if torch._C._has_mkldnn else None


def lstm(
    inputs: Tensor, gates: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(outputs [K, N, T, H] from a zero state, the last of them and the cells after it [K, N, H], what every step took
    in [K, N, T, H + I]: the output before it, then its inputs). Nothing flows back to the weights: see the module.

    inputs: [K, N, T, I]; gates: [K, N, T, 4 H] of any values, which takes the gradient of inputs times their weights
    plus bias; into: [W, 4 H, I]; recurrent: [W, 4 H, H]; bias: [W, 4 H], the sum of both.
    """
    clients, rows, steps, width = inputs.shape
    if len(recurrent) == 1 and clients > 1:  # one product of all clients' rows
        inputs = inputs.reshape(1, clients * rows, steps, width)
        gates = gates.view(1, clients * rows, steps, -1)
    found = _Lstm.apply(inputs, gates, into, recurrent, bias)  # type: ignore[no-untyped-call]
    outputs, last, cells, taken = [values.view(clients, rows, *values.shape[2:]) for values in found]
    return outputs, last, cells, taken


class _Lstm(torch.autograd.Function):
    """tanh x is 2 sigmoid(2 x) - 1 throughout, in a third of the time: what is kept of the gate g is sigmoid(2 g), and
    of the cell's squashing the same. Cells are kept with their sign turned, so that such a product is one addcmul:
    i - 2 i s is minus i tanh g."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, gates: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        clients, rows, steps, width = inputs.shape
        hidden = recurrent.shape[2]
        weights, offset = torch.cat([recurrent, into], 2), bias.clone()
        for part in (weights[:, 2 * hidden : 3 * hidden], offset[:, 2 * hidden : 3 * hidden]):
            part.mul_(2.0)
        taken = inputs.new_empty(clients, rows, steps, hidden + width)
        taken[..., hidden:] = inputs
        taken[:, :, 0, :hidden] = 0.0
        outputs = inputs.new_empty(clients, rows, steps, hidden)
        kept: list[Tensor] = []
        for step in range(steps):
            gate = product(taken[:, :, step], weights, offset).sigmoid_()
            enter, keep, new, out = gate.chunk(4, -1)
            cell = torch.addcmul(enter, enter, new, value=-2.0)
            if step:
                cell.addcmul_(keep, kept[-2])
            squash = torch.mul(cell, 2.0).sigmoid_()
            output = torch.addcmul(out, out, squash, value=-2.0)
            outputs[:, :, step] = output
            if step + 1 < steps:
                taken[:, :, step + 1, :hidden] = output
            kept += [gate, cell, squash]
        ctx.save_for_backward(into, recurrent, *kept)
        ctx.mark_non_differentiable(taken)
        ctx.set_materialize_grads(False)
        return outputs, output, cell.neg(), taken

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        into, recurrent, *kept = ctx.saved_tensors
        gates, cells, squashed = kept[::3], kept[1::3], kept[2::3]
        given, output, cell, _ = grads
        clients, rows, hidden = cells[0].shape
        found = cells[0].new_empty(clients, rows, len(gates), 4 * hidden)
        back = recurrent.transpose(1, 2)
        output = torch.zeros_like(cells[0]) if output is None else output
        cell = torch.zeros_like(cells[0]) if cell is None else cell.neg()
        all_steps, slope = torch.empty_like(gates[0]), torch.empty_like(gates[0])
        d_enter, d_keep, d_new, d_out = all_steps.chunk(4, -1)
        for step in reversed(range(len(gates))):
            gate, squash = gates[step], squashed[step]
            enter, keep, new, out = gate.chunk(4, -1)
            if given is not None:
                output = output + given[:, :, step]
            torch.addcmul(output, output, squash, value=-2.0, out=d_out)
            cell.addcmul_(output * out, torch.addcmul(squash, squash, squash, value=-1.0), value=-4.0)
            torch.addcmul(cell, cell, new, value=-2.0, out=d_enter)
            torch.mul(cell, enter, out=d_new).mul_(-4.0)
            if step:
                torch.mul(cell, cells[step - 1], out=d_keep)
            else:
                d_keep.zero_()
            # torch's own sigmoid_backward takes five times as long on parts of a matrix.
            all_steps *= torch.addcmul(gate, gate, gate, value=-1.0, out=slope)
            found[:, :, step] = all_steps
            if step:
                cell *= keep
                output = product(all_steps, back)
        below = None
        if ctx.needs_input_grad[0]:
            below = torch.bmm(found.flatten(1, 2), into.expand(clients, -1, -1)).view(clients, rows, len(gates), -1)
        return below, found, None, None, None


def product(rows: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [W, R, I] times weights [W, O, I]^T plus bias [W, O] -> [W, R, O], without a gradient.

    With one matrix by oneDNN, which uses all of a processor's vectors where MKL, behind torch's matrix products, uses
    half of those of other makers' processors.
    """
    if len(weights) == 1 and _one_dnn is not None and rows.dtype == torch.float32:
        own = None if bias is None else bias[0]
        found: Tensor = _one_dnn(rows[0], weights[0], own, "none", [], "")
        return found.unsqueeze(0)
    if bias is None:
        return torch.bmm(rows, weights.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), rows, weights.transpose(1, 2))
