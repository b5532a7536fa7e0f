"""The functions of :mod:`export.losses.rows` as Triton kernels: one program a row, one pass over what it reads.

The score reads a row of logits once; the gradient reads it twice and writes it once, in the dtype of the matrix
products. They run on CUDA, and on the CPU under ``TRITON_INTERPRET=1``, slowly, to be checked.

C: cells; J: joiner size; V: pieces."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def join(encoded: Tensor, predicted: Tensor, e: Tensor, p: Tensor) -> Tensor:
    """As :func:`export.losses.rows.join`."""
    width = encoded.shape[1]
    hidden = torch.empty((e.shape[0], width), dtype=encoded.dtype, device=encoded.device)
    above, below = encoded.contiguous(), predicted.contiguous()
    _join[(e.shape[0],)](above, below, e, p, hidden, width, **_sizes(encoded))
    return hidden


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`export.losses.rows.score`."""
    cells, width = logits.shape
    found = torch.empty((2, cells), dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
    _score[(cells,)](logits.contiguous(), labels, found, cells, width, **_sizes(logits))
    return found[0], found[1]


def gradient(logits: Tensor, labels: Tensor, to_blank: Tensor, to_label: Tensor, dtype: torch.dtype) -> Tensor:
    """As :func:`export.losses.rows.gradient`."""
    cells, width = logits.shape
    found = torch.empty((cells, width), dtype=dtype, device=logits.device)
    _gradient[(cells,)](logits.contiguous(), labels, to_blank, to_label, found, width, **_sizes(logits))
    return found


def _sizes(rows: Tensor) -> dict[str, Any]:
    """How much of a row is read at once, and in what it is computed."""
    exact = tl.float64 if rows.dtype == torch.float64 else tl.float32
    return {"BLOCK": min(_BLOCK, triton.next_power_of_2(rows.shape[1])), "EXACT": exact}


@triton.jit
def _join(encoded, predicted, e, p, hidden, width, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64)
    above, below = tl.load(e + cell) * width, tl.load(p + cell) * width
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        kept = at < width
        x = tl.load(encoded + above + at, mask=kept, other=0.0).to(EXACT)
        x += tl.load(predicted + below + at, mask=kept, other=0.0).to(EXACT)
        away = tl.exp(-2.0 * tl.abs(x))  # at most 1, so that it cannot overflow
        size = (1.0 - away) / (1.0 + away)
        tl.store(hidden + cell * width + at, tl.where(x < 0.0, -size, size), mask=kept)


@triton.jit
def _normalizer(row, width, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """The log-sum of a row's exponentials, by running maximum and sum."""
    highest = tl.full((), float("-inf"), EXACT)
    total = tl.full((), 0.0, EXACT)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < width, other=float("-inf")).to(EXACT)
        top = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp(highest - top) + tl.sum(tl.exp(x - top), 0)
        highest = top
    return highest + tl.log(total)


@triton.jit
def _score(logits, labels, found, cells, width, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64)
    row = logits + cell * width
    normalizer = _normalizer(row, width, BLOCK, EXACT)
    tl.store(found + cell, tl.load(row).to(EXACT) - normalizer)
    tl.store(found + cells + cell, tl.load(row + tl.load(labels + cell)).to(EXACT) - normalizer)


@triton.jit
def _gradient(logits, labels, to_blank, to_label, found, width, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    cell = tl.program_id(0).to(tl.int64)
    row = logits + cell * width
    normalizer = _normalizer(row, width, BLOCK, EXACT)
    label = tl.load(labels + cell)
    b, y = tl.load(to_blank + cell).to(EXACT), tl.load(to_label + cell).to(EXACT)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        kept = at < width
        x = tl.load(row + at, mask=kept, other=float("-inf")).to(EXACT)
        value = tl.exp(x - normalizer) * (b + y)
        value -= tl.where(at == 0, b, 0.0) + tl.where(at == label, y, 0.0)
        tl.store(found + cell * width + at, value, mask=kept)
