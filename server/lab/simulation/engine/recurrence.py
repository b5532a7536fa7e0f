"""An LSTM over many clients at once whose gate gradients are an output of the backward pass.

K: clients; W: weights, K, or 1 where all clients share theirs; N: sequences of a client; T: time steps; I: inputs; H:
hidden units. Gates are in torch's order i, f, g, o. A fused LSTM hides the gradients of its gates, which are what the
norm of a client's weight gradient is made of; here they are the gradient of an argument that is read for nothing else.

Everything is kept sequence by sequence, [K, N, T, ...]: a step of all sequences is then a matrix whose rows are equally
far apart, which products take as it is, and so are all steps of a client, of which its weight gradient is a product."""

from typing import Any

import torch
from torch import Tensor

_one_dnn = torch.ops.mkldnn._linear_pointwise if torch._C._has_mkldnn else None


def lstm(
    inputs: Tensor, gates: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(outputs [K, N, T, H] from a zero state, the last of them and the cells after it [K, N, H], what every step took
    in [K, N, T, H + I]: the output before it, then its inputs). Nothing flows back to the weights: see the module.
    inputs: [K, N, T, I]; gates: [K, N, T, 4 H] of any values, which takes the gradient of inputs times their weights
    plus bias; into: [W, 4 H, I]; recurrent: [W, 4 H, H]; bias: [W, 4 H], the sum of both."""
    clients, rows, steps, width = inputs.shape
    if len(recurrent) == 1 and clients > 1:  # one product of all clients' rows
        inputs = inputs.reshape(1, clients * rows, steps, width)
        gates = gates.view(1, clients * rows, steps, -1)
    found = _Lstm.apply(inputs, gates, into, recurrent, bias)  # type: ignore[no-untyped-call]
    outputs, last, cells, taken = [values.view(clients, rows, *values.shape[2:]) for values in found]
    return outputs, last, cells, taken


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, gates: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        clients, rows, steps, width = inputs.shape
        hidden, weights = recurrent.shape[2], torch.cat([recurrent, into], 2)
        taken = inputs.new_empty(clients, rows, steps, hidden + width)
        taken[..., hidden:] = inputs
        taken[:, :, 0, :hidden] = 0.0
        outputs = inputs.new_empty(clients, rows, steps, hidden)
        cells = Cells(outputs)
        for step in range(steps):
            cells.forward(step, product(taken[:, :, step], weights, bias), outputs, taken)
        ctx.cells, ctx.into, ctx.recurrent = cells, into, recurrent  # none of which is what is given
        ctx.mark_non_differentiable(taken)
        ctx.set_materialize_grads(False)
        last = outputs[:, :, -1].clone(memory_format=torch.contiguous_format)
        return outputs, last, cells.cells[-1].clone(), taken

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        cells, into, back = ctx.cells, ctx.into, ctx.recurrent.transpose(1, 2)
        outputs, output, cell, _ = grads
        zero = torch.zeros_like(cells.cells[0])
        outputs = None if outputs is None else outputs.contiguous()
        output = zero if output is None else output.contiguous()
        cell = (zero if cell is None else cell).clone(memory_format=torch.contiguous_format)
        clients, rows, _ = zero.shape
        steps = len(cells.cells)
        found = zero.new_empty(clients, rows, steps, into.shape[1])
        for step in reversed(range(steps)):
            cells.backward(step, outputs, output, cell, found)
            if step:
                output = product(found[:, :, step], back)
        below = None
        if ctx.needs_input_grad[0]:
            below = torch.bmm(found.flatten(1, 2), into.expand(clients, -1, -1)).view(clients, rows, steps, -1)
        return below, found, None, None, None


class Cells:
    """Owns what a pass keeps of the cells of W N sequences: what gates open to, the cells and their squashed values."""

    def __init__(self, outputs: Tensor) -> None:
        """outputs: like those [W, N, T, H] that a pass will write."""
        clients, rows, steps, hidden = outputs.shape
        self.gates: list[Tensor] = []
        self.cells, self.squashed = outputs.new_empty(2, steps, clients, rows, hidden)

    def forward(self, step: int, gates: Tensor, outputs: Tensor, taken: Tensor) -> None:
        """Step after step. gates: [W, N, 4 H], which are kept and overwritten; what comes of them goes into ``outputs``
        [W, N, T, H], and into what the next step takes in [W, N, T, H + I]."""
        enter, keep, new, out = gates.chunk(4, -1)
        gates[..., : 2 * enter.shape[-1]].sigmoid_()
        new.tanh_()
        out.sigmoid_()
        self.gates.append(gates)
        cell = torch.mul(enter, new, out=self.cells[step])
        if step:
            cell.addcmul_(keep, self.cells[step - 1])
        torch.tanh(cell, out=self.squashed[step])
        torch.mul(out, self.squashed[step], out=outputs[:, :, step])
        if step + 1 < len(self.cells):
            taken[:, :, step + 1, : cell.shape[-1]] = outputs[:, :, step]

    def backward(self, step: int, outputs: Tensor | None, output: Tensor, cell: Tensor, found: Tensor) -> None:
        """Writes the gradient of a step's gates into ``found`` [W, N, T, 4 H]. outputs: gradients of all outputs [W, N,
        T, H]; output: of this one by the next step [W, N, H]; cell: of the cells, which becomes that of the step
        before."""
        enter, keep, new, out = self.gates[step].chunk(4, -1)
        d_enter, d_keep, d_new, d_out = found[:, :, step].chunk(4, -1)
        squashed = self.squashed[step]
        if outputs is not None:
            output = output + outputs[:, :, step]
        torch.mul(output * squashed, out - out * out, out=d_out)
        cell += output * out * (1.0 - squashed * squashed)
        torch.mul(cell * new, enter - enter * enter, out=d_enter)
        torch.mul(cell * enter, 1.0 - new * new, out=d_new)
        if step:
            torch.mul(cell * self.cells[step - 1], keep - keep * keep, out=d_keep)
        else:
            d_keep.zero_()
        cell *= keep


def product(rows: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [W, R, I] times weights [W, O, I]^T plus bias [W, O] -> [W, R, O], without a gradient. With one matrix by
    oneDNN, which uses all of a processor's vectors where MKL, behind torch's matrix products, uses half of those of
    other makers' processors."""
    if len(weights) == 1 and _one_dnn is not None and rows.dtype == torch.float32 and rows.device.type == "cpu":
        own = None if bias is None else bias[0]
        found: Tensor = _one_dnn(rows[0], weights[0], own, "none", [], "")
        return found.unsqueeze(0)
    if bias is None:
        return torch.bmm(rows, weights.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), rows, weights.transpose(1, 2))
