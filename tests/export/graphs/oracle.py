"""An independent float64 reference of the training graph's loss: torch autograd through a plain lattice."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Parameters = Mapping[str, NDArray[np.floating]]


def loss_and_gradients(
    architecture, parameters, features, hypotheses, weights, costs, cost_scale: float, pull=None
) -> tuple:
    """NLLs [N], expected cost, and d(sum w_i NLL_i + c E[M]) by every parameter, all float64. pull: [T, J], the
    derivative of what else the loss is of by the joiner's encoder term, None for nothing."""
    with torch.enable_grad():
        named = {name: torch.tensor(value, dtype=torch.float64) for name, value in parameters.items()}
        trainable = list(architecture.parameter_shapes())
        for name in trainable:
            named[name].requires_grad_(True)
        audio = torch.tensor(features, dtype=torch.float64)
        nll = likelihoods(architecture, named, audio, hypotheses)
        expected = torch.softmax(-nll, 0) @ torch.tensor(costs, dtype=torch.float64)
        loss = nll @ torch.tensor(weights, dtype=torch.float64) + float(cost_scale) * expected
        if pull is not None:
            loss = loss + (encode(architecture, named, audio) * torch.tensor(pull, dtype=torch.float64)).sum()
        gradients = torch.autograd.grad(loss, [named[name] for name in trainable], materialize_grads=True)
    found = {name: each.numpy() for name, each in zip(trainable, gradients, strict=True)}
    return nll.detach().numpy(), float(expected.detach()), found


def gradient_parts(
    architecture, parameters, features, hypotheses, trainable, frozen_layers=0, heard=None, said=None, factors=False
) -> tuple:
    """NLLs [N], and d(NLL_i) by every trainable parameter for each hypothesis, all float64. heard [T, 1, H], said [U +
    1, N, P]: given in place of the lowest ``frozen_layers`` and of the predictor. factors: of the trainable matrices,
    which hold their product already."""
    with torch.enable_grad():
        named = {name: torch.tensor(value, dtype=torch.float64) for name, value in parameters.items()}
        leaves = [f"{name}.{part}" for name in trainable for part in ("up", "down")] if factors else list(trainable)
        for name in leaves:
            named[name].requires_grad_(True)
        for name in trainable if factors else ():
            product = named[f"{name}.up"] @ named[f"{name}.down"]
            named[name] = (named[name] - product.detach()) + product
        given, spoken = (None if each is None else torch.tensor(each, dtype=torch.float64) for each in (heard, said))
        audio = torch.tensor(features, dtype=torch.float64)
        nll = likelihoods(architecture, named, audio, hypotheses, frozen_layers, given, spoken)
        parts = []
        for value in nll:
            asked = [named[name] for name in leaves]
            found = torch.autograd.grad(value, asked, retain_graph=True, materialize_grads=True)
            parts.append({name: each.numpy() for name, each in zip(leaves, found, strict=True)})
    return nll.detach().numpy(), parts


def likelihoods(architecture, named, features, hypotheses, frozen_layers=0, heard=None, said=None) -> Tensor:
    """[N] negative log-likelihoods, one hypothesis at a time, one node at a time."""
    encoded, results = encode(architecture, named, features, frozen_layers, heard), []
    for row, tokens in enumerate(hypotheses):
        y = named["predictor.embedding"][[0, *tokens]] if said is None else said[: len(tokens) + 1, row]
        for layer in range(architecture.predictor_layers if said is None else 0):
            y = lstm(y, *(named[f"predictor.{layer}.{part}"] for part in "WRB"))
        predicted = y @ named["joiner.predictor.weight"].T
        mixed = torch.tanh(encoded[:, None] + predicted[None])
        log_probs = torch.log_softmax(mixed @ named["joiner.output.weight"].T + named["joiner.output.bias"], -1)
        results.append(-path_sum(log_probs, tokens))
    return torch.stack(results)


def encode(architecture, named, features, frozen_layers=0, heard=None) -> Tensor:
    """[T, J], the joiner's encoder term."""
    count = len(features) // architecture.subsampling_factor
    x = (features - named["features.mean"]) * named["features.scale"]
    x = x[: count * architecture.subsampling_factor].reshape(count, -1) if heard is None else heard[:, 0]
    for layer in range(frozen_layers, architecture.encoder_layers):
        x = lstm(x, *(named[f"encoder.{layer}.{part}"] for part in "WRB"))
    return x @ named["joiner.encoder.weight"].T + named["joiner.encoder.bias"]


def path_sum(log_probs: Tensor, tokens: Sequence[int]) -> Tensor:
    """log of the sum over all alignments, by the textbook recursion over single nodes. log_probs: [T, U + 1, V]."""
    alpha: dict[tuple[int, int], Tensor] = {(0, 0): torch.zeros((), dtype=torch.float64)}
    frames = len(log_probs)
    # Taken apart once: indexing a tensor node by node would make autograd write a whole lattice for each.
    blank = [row.unbind() for row in log_probs[:, :, 0].unbind()]
    label = [row.unbind() for row in log_probs[:, range(len(tokens)), list(tokens)].unbind()]
    for t in range(frames):
        for u in range(len(tokens) + 1):
            if (t, u) != (0, 0):
                incoming = []
                if t > 0:
                    incoming.append(alpha[t - 1, u] + blank[t - 1][u])
                if u > 0:
                    incoming.append(alpha[t, u - 1] + label[t][u - 1])
                alpha[t, u] = torch.logsumexp(torch.stack(incoming), 0)
    return alpha[frames - 1, len(tokens)] + blank[frames - 1][len(tokens)]


def lstm(x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> Tensor:
    """[T, D] -> [T, H] from a zero state, rows in gate order i, o, f, c."""
    h = c = torch.zeros(r.shape[1], dtype=torch.float64)
    outputs = []
    for step in x:
        i, o, f, candidate = (w @ step + r @ h + b).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(candidate)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)
