"""An LSTM over many clients at once whose gate gradients are an output of the backward pass.

K: clients; W: weights, K, or 1 where all clients share theirs; N: sequences of a client; T: time steps; H: hidden
units. Gates are in torch's order i, f, g, o. A fused LSTM hides the gradients of its gates, which are what the norm of
a client's weight gradient is made of; here the input's projection is an argument, and its gradient is theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["lstm"]

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def lstm(projected: Tensor, recurrent: Tensor) -> Tensor:
    """Outputs [K, T, N, H] from a zero state. Nothing flows back to ``recurrent``: see the module.

    projected: [K, T, N, 4 H], inputs times their weights plus both biases; recurrent: [W, 4 H, H].
    """
    clients, steps, rows, width = projected.shape
    if len(recurrent) == 1 and clients > 1:  # one product of all clients' rows
        flat = projected.transpose(0, 1).reshape(1, steps, clients * rows, width)
        found: Tensor = _Lstm.apply(flat, recurrent)  # type: ignore[no-untyped-call]
        return found.view(steps, clients, rows, -1).transpose(0, 1)
    outputs: Tensor = _Lstm.apply(projected, recurrent)  # type: ignore[no-untyped-call]
    return outputs


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, recurrent: Tensor) -> Tensor:
        clients, steps, rows, width = projected.shape
        hidden = width // 4
        weights = recurrent.transpose(1, 2)
        gates = projected.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        outputs, cells = (projected.new_empty(steps, clients, rows, hidden) for _ in range(2))
        for step in range(steps):
            gate = gates[step]
            if step:
                gate.baddbmm_(outputs[step - 1], weights)
            new = gate[..., 2 * hidden : 3 * hidden]
            new.mul_(2.0)
            gate.sigmoid_()
            new.mul_(2.0).sub_(1.0)  # tanh x = 2 sigmoid(2 x) - 1, in a third of the time
            torch.mul(gate[..., :hidden], new, out=cells[step])
            if step:
                cells[step].addcmul_(gate[..., hidden : 2 * hidden], cells[step - 1])
            squashed = torch.mul(cells[step], 2.0, out=outputs[step]).sigmoid_().mul_(2.0).sub_(1.0)
            squashed.mul_(gate[..., 3 * hidden :])
        ctx.save_for_backward(gates, cells, recurrent)
        return outputs.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gates, cells, recurrent = ctx.saved_tensors
        steps = len(cells)
        given = grads[0].transpose(0, 1)
        found = torch.empty_like(gates)
        output, cell = given[-1].clone(memory_format=torch.contiguous_format), torch.zeros_like(cells[0])
        for step in reversed(range(steps)):
            enter, keep, new, out = gates[step].chunk(4, -1)
            d_enter, d_keep, d_new, d_out = found[step].chunk(4, -1)
            squashed = torch.mul(cells[step], 2.0).sigmoid_().mul_(2.0).sub_(1.0)
            torch.mul(output, squashed, out=d_out)
            _sigmoid_backward(d_out, out, grad_input=d_out)
            cell.add_(_tanh_backward(output.mul_(out), squashed, grad_input=output))
            _sigmoid_backward(cell * new, enter, grad_input=d_enter)
            _tanh_backward(cell * enter, new, grad_input=d_new)
            if step:
                _sigmoid_backward(cell * cells[step - 1], keep, grad_input=d_keep)
                cell.mul_(keep)
                output = torch.baddbmm(given[step - 1], found[step], recurrent)
            else:
                d_keep.zero_()
        return found.transpose(0, 1), None
