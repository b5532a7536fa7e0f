"""Batches of utterances of like length, padded.

F: feature frames (10 ms); M: mel bins; B: batch; U: tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from server.lab.training.data.examples import Example, Features

__all__ = ["Batch", "batches", "collate", "stream"]


@dataclass(frozen=True, slots=True)
class Batch:
    """features: [B, F, M] float32, padded by repeating the last frame; frames: [B] int64 stacked frames (30 ms);
    tokens: [B, U] int64, padded with 0; lengths: [B] int64."""

    features: Tensor
    frames: Tensor
    tokens: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(*(value.to(device) for value in (self.features, self.frames, self.tokens, self.lengths)))


def batches(lengths: Sequence[int], budget: int, most: int, generator: np.random.Generator) -> list[list[int]]:
    """Indices in batches of like length: at most ``most`` of them and ``budget`` frames, padding included.

    Order within a length class and among batches is random.
    """
    jitter = np.asarray(lengths) * generator.uniform(0.9, 1.1, len(lengths))
    result: list[list[int]] = [[]]
    longest = 0
    for index in np.argsort(jitter):
        longest = max(longest, lengths[index])
        if result[-1] and (len(result[-1]) >= most or (len(result[-1]) + 1) * longest > budget):
            result.append([])
            longest = lengths[index]
        result[-1].append(int(index))
    order = generator.permutation(len(result))
    return [result[position] for position in order if result[position]]


def collate(items: Iterable[tuple[Features, Sequence[int]]], subsampling: int) -> Batch:
    """A batch of (features [F, M], tokens)."""
    chosen = list(items)
    longest = max(features.shape[0] for features, _ in chosen)
    width = max(1, *(len(tokens) for _, tokens in chosen))
    padded = np.stack([np.pad(f, ((0, longest - f.shape[0]), (0, 0)), mode="edge") for f, _ in chosen])
    tokens = np.zeros((len(chosen), width), np.int64)
    for row, (_, given) in enumerate(chosen):
        tokens[row, : len(given)] = given
    return Batch(
        torch.from_numpy(padded.astype(np.float32, copy=False)),
        torch.tensor([f.shape[0] // subsampling for f, _ in chosen]),
        torch.from_numpy(tokens),
        torch.tensor([len(given) for _, given in chosen]),
    )


def stream(
    examples: Sequence[Example],
    encode: Callable[[str], list[int]],
    change: Callable[[Example, np.random.Generator], Features],
    generator: np.random.Generator,
    *,
    subsampling: int,
    budget: int = 16_000,
    most: int = 32,
) -> Iterator[Batch]:
    """One pass over the examples in random batches, as ``change`` makes their features. Too short ones are skipped."""
    for chosen in batches([example.features.shape[0] for example in examples], budget, most, generator):
        items = []
        for index in chosen:
            example = examples[index]
            tokens = encode(example.text)
            features = change(example, generator)
            repeats = sum(a == b for a, b in pairwise(tokens))
            if tokens and features.shape[0] // subsampling > len(tokens) + repeats:
                items.append((features, tokens))
        if items:
            yield collate(items, subsampling)
