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

_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def lstm(inputs: Tensor, gates: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs [K, N, T, H] from a zero state, those of the step before [K, N, T, H]). Nothing flows back to the
    weights: see the module.

    inputs: [K, N, T, I]; gates: [K, N, T, 4 H] of any values, which takes the gradient of inputs times their weights
    plus bias; into: [W, 4 H, I]; recurrent: [W, 4 H, H]; bias: [W, 4 H], the sum of both.
    """
    clients, rows, steps, width = inputs.shape
    if len(recurrent) == 1 and clients > 1:  # one product of all clients' rows
        inputs = inputs.reshape(1, clients * rows, steps, width)
        gates = gates.view(1, clients * rows, steps, -1)
    outputs, before = _Lstm.apply(inputs, gates, into, recurrent, bias)  # type: ignore[no-untyped-call]
    return outputs.view(clients, rows, steps, -1), before.view(clients, rows, steps, -1)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, gates: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        clients, rows, steps, width = inputs.shape
        hidden = recurrent.shape[2]
        weights, offset = torch.cat([recurrent, into], 2), bias.unsqueeze(1).clone()
        for part in (weights[:, 2 * hidden : 3 * hidden], offset[:, :, 2 * hidden : 3 * hidden]):
            part.mul_(2.0)  # tanh x = 2 sigmoid(2 x) - 1, in a third of the time
        weights = weights.transpose(1, 2)
        taken = inputs.new_empty(clients, rows, steps, hidden + width)
        taken[..., hidden:] = inputs
        taken[:, :, 0, :hidden] = 0.0
        outputs = inputs.new_empty(clients, rows, steps, hidden)
        kept: list[Tensor] = []
        cell = taken[:, :, 0, :hidden]
        for step in range(steps):
            gate = torch.baddbmm(offset, taken[:, :, step], weights).sigmoid_()
            enter, keep, new, out = gate.chunk(4, -1)
            new.mul_(2.0).sub_(1.0)
            after = enter * new
            cell = after.addcmul_(keep, cell) if step else after
            squash = torch.mul(cell, 2.0).sigmoid_().mul_(2.0).sub_(1.0)
            torch.mul(squash, out, out=outputs[:, :, step])
            if step + 1 < steps:
                taken[:, :, step + 1, :hidden] = outputs[:, :, step]
            kept += [gate, cell, squash]
        ctx.save_for_backward(into, recurrent, *kept)
        before = taken[..., :hidden]
        ctx.mark_non_differentiable(before)
        return outputs, before

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        into, recurrent, *kept = ctx.saved_tensors
        gates, cells, squashed = kept[::3], kept[1::3], kept[2::3]
        given = grads[0]
        found = given.new_empty(*given.shape[:3], recurrent.shape[1])
        output, cell = given[:, :, -1].clone(memory_format=torch.contiguous_format), torch.zeros_like(cells[0])
        for step in reversed(range(len(gates))):
            gate, squash = gates[step], squashed[step]
            enter, keep, new, out = gate.chunk(4, -1)
            # torch's own sigmoid_backward takes five times as long on parts of a matrix.
            slope = torch.addcmul(gate, gate, gate, value=-1.0)
            s_enter, s_keep, _, s_out = slope.chunk(4, -1)
            d_enter, d_keep, d_new, d_out = found[:, :, step].chunk(4, -1)
            torch.mul(output * squash, s_out, out=d_out)
            cell += _tanh_backward(output.mul_(out), squash, grad_input=output)
            torch.mul(cell * new, s_enter, out=d_enter)
            _tanh_backward(cell * enter, new, grad_input=d_new)
            if step:
                torch.mul(cell * cells[step - 1], s_keep, out=d_keep)
                cell *= keep
                output = torch.baddbmm(given[:, :, step - 1], found[:, :, step], recurrent)
            else:
                d_keep.zero_()
        below = None
        if ctx.needs_input_grad[0]:
            below = torch.bmm(found.flatten(1, 2), into.expand(len(found), -1, -1)).view(*found.shape[:3], -1)
        return below, found, None, None, None
