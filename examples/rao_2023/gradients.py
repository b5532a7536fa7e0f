"""The gradient of a whole cohort in one pass: each device's weighted sum over hypotheses, averaged over the devices.

The loss of an utterance is that of the devices' training graph, sum_i w_i NLL_i + c E[M] with p = softmax(-NLL)
(:class:`device_sdk.learning.objectives.Objective`), so with one gradient a round (FedSGD) the server's mean of the
devices' gradients is the gradient of the mean loss, which torch takes as one batch.

B: utterances; R: their hypotheses, all in one list; T: stacked frames (30 ms); M: mel bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.errors import LearningError
from device_sdk.learning.objectives import Objective, Tokens
from export.losses.rnnt import rnnt_loss
from export.networks.rnnt import RNNT
from server.lab.training.data import collate

__all__ = ["gradient", "likelihoods", "mean_loss"]

Arrays = dict[str, NDArray[np.float32]]


def likelihoods(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    hypotheses: Sequence[Sequence[Tokens]],
    *,
    dtype: torch.dtype | None = None,
    pruning: float = 0.0,
) -> Tensor:
    """Negative log-likelihoods [R] (nats, float64) of all hypotheses of B utterances, over one encoder pass.

    features: B times [F, M] raw log-mel; hypotheses: each utterance's. dtype, pruning: of the joint, see
    :func:`export.losses.rnnt.rnnt_loss`.
    """
    index = torch.tensor([place for place, entries in enumerate(hypotheses) for _ in entries])
    rows = [tokens for entries in hypotheses for tokens in entries]
    batch = collate([(f.astype(np.float32), ()) for f in features], network.architecture.subsampling_factor)
    lengths = torch.tensor([len(tokens) for tokens in rows])
    tokens = torch.zeros((len(rows), max(1, int(lengths.max()))), dtype=torch.int64)
    for row, given in enumerate(rows):
        tokens[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    return rnnt_loss(
        network.encode(batch.features).float()[index],
        network.predict(tokens).float(),
        network.joiner_output.weight,
        network.joiner_output.bias,
        tokens,
        batch.frames[index],
        lengths,
        dtype=dtype,
        pruning=pruning,
    )


def mean_loss(nll: Tensor, objectives: Sequence[Objective]) -> Tensor:
    """Mean over B utterances of sum_i w_i NLL_i + c E[M], nats, float64 (Rao et al. 2023, eq. 1 and section 2.3.2).

    nll: [R] of all their hypotheses, utterance after utterance.
    """
    total = nll @ torch.from_numpy(np.concatenate([o.weights for o in objectives]).astype(np.float64))
    start = 0
    for objective in objectives:
        count = len(objective.hypotheses)
        if objective.cost_scale:
            posterior = torch.softmax(-nll[start : start + count], 0)
            total = total + objective.cost_scale * (posterior @ torch.from_numpy(objective.costs.astype(np.float64)))
        start += count
    return total / len(objectives)


def gradient(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    objectives: Sequence[Objective],
    *,
    bfloat16: bool = False,
    pruning: float = 0.0,
) -> tuple[float, Arrays]:
    """(mean loss, its gradient by public parameter name, LSTMs in ONNX layout) of a cohort.

    bfloat16: the networks' matrix products in it; the lattice stays float64. LearningError: no longer a number.
    """
    network.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        dtype = torch.bfloat16 if bfloat16 else None
        hypotheses = [objective.hypotheses for objective in objectives]
        loss = mean_loss(likelihoods(network, features, hypotheses, dtype=dtype, pruning=pruning), objectives)
    loss.backward()  # type: ignore[no-untyped-call]
    found = network.to_gradients()
    value = float(loss.detach())
    if not (np.isfinite(value) and all(np.isfinite(array).all() for array in found.values())):
        raise LearningError("cohort: the gradient is not a number; lower the server's learning rate")
    return value, found
