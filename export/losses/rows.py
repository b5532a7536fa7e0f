"""What a transducer's loss does with one row of logits, C rows at a time: in torch, for any device.

C: cells; J: joiner size; V: pieces. :mod:`export.losses.kernels` has the same three functions for CUDA."""

import torch
from torch import Tensor

_FAINT = 1e-30  # below it a float32 share has lost digits, or is zero


def join(encoded: Tensor, predicted: Tensor, e: Tensor, p: Tensor) -> Tensor:
    """The joint's hidden layer tanh(encoded[e] + predicted[p]), [C, J]."""
    return encoded.index_select(0, e).add_(predicted.index_select(0, p)).tanh_()


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of blank (piece 0) and of each row's label, [C] each, in at least float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    shares = logits.softmax(-1)  # log-softmax of whole rows costs twice as much
    two = torch.stack((shares[:, 0], shares.gather(1, labels[:, None])[:, 0]))
    found = two.log()
    faint = (two < _FAINT).any(0).nonzero()[:, 0]
    if faint.numel():
        exact = logits[faint].log_softmax(-1)
        found[:, faint] = torch.stack((exact[:, 0], exact.gather(1, labels[faint, None])[:, 0]))
    return found[0], found[1]


def gradient(logits: Tensor, labels: Tensor, to_blank: Tensor, to_label: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient of the loss to logits [C, V], in ``dtype``. to_blank, to_label: [C] how often a path leaves cells so."""
    shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    shares *= (to_blank + to_label)[:, None]
    shares[:, 0] -= to_blank
    return shares.scatter_add_(1, labels[:, None], -to_label[:, None]).to(dtype)
