"""Utterances ready to train on: features with text, kept in shards on disk, and padded batches of like length.

F: feature frames (10 ms); M: mel bins; B: batch; U: tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from device_sdk.errors import DataError

Features = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Example:
    """features: [F, M] raw log-mel (float16 in memory); text: lower-case words; source: where it came from."""

    features: NDArray[np.floating]
    text: str
    source: str


def write_shard(path: Path, examples: Sequence[Example]) -> None:
    """Write atomically, so that a reader in another process sees all of it or nothing."""
    temporary = path.with_suffix(".part")
    counts = np.array([example.features.shape[0] for example in examples], np.int64)
    labels = json.dumps([[example.text, example.source] for example in examples])
    features = np.concatenate([example.features.astype(np.float16) for example in examples])
    save_file({"features": features, "counts": counts}, temporary, {"labels": labels})
    temporary.replace(path)


def read_shard(path: Path) -> list[Example]:
    """The examples of a shard. Raises DataError when it is damaged."""
    try:
        with safe_open(path, "numpy") as file:
            features, counts = file.get_tensor("features"), file.get_tensor("counts")
            labels = json.loads(file.metadata()["labels"])
    except Exception as error:  # safetensors has no common error type
        raise DataError(f"{path}: not a readable shard of speech ({error}); delete it to have it made again") from error
    ends = np.cumsum(counts)
    return [
        Example(features[end - count : end], text, source)
        for end, count, (text, source) in zip(ends, counts, labels, strict=True)
    ]


def moments(examples: Iterable[Example]) -> tuple[Features, Features]:
    """Mean [M] and 1 / standard deviation [M] over all frames, float32."""
    total, squares, count = 0.0, 0.0, 0
    for example in examples:
        values = example.features.astype(np.float64)
        total, squares = total + values.sum(0), squares + (values**2).sum(0)
        count += values.shape[0]
    if count == 0:
        raise DataError("training data: found no frame; expected at least one utterance")
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 1e-4))
    return np.asarray(mean, np.float32), np.asarray(1.0 / deviation, np.float32)


@dataclass(frozen=True, slots=True)
class Batch:
    """features: [B, F, M] float32, padded by repeating the last frame; frames: [B] int64 stacked frames;
    tokens: [B, U] int64, padded with 0; lengths: [B] int64; labels: [B, P] int64, padded with 0: phones."""

    features: Tensor
    frames: Tensor
    tokens: Tensor
    lengths: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        values = self.features, self.frames, self.tokens, self.lengths, self.labels
        return Batch(*(value.to(device) for value in values))


def batches(lengths: Sequence[int], budget: int, most: int, generator: np.random.Generator) -> list[list[int]]:
    """Indices in batches of like length: at most ``most`` of them and ``budget`` frames, padding included. Order within
    a length class and among batches is random."""
    jitter = np.asarray(lengths) * generator.uniform(0.9, 1.1, len(lengths))
    result: list[list[int]] = [[]]
    longest = 0
    for index in np.argsort(jitter):
        longest = max(longest, lengths[index])
        if result[-1] and (len(result[-1]) >= most or (len(result[-1]) + 1) * longest > budget):
            result.append([])
            longest = lengths[index]
        result[-1].append(int(index))
    return [result[position] for position in generator.permutation(len(result)) if result[position]]


def collate(
    items: Iterable[tuple[NDArray[np.floating], Sequence[int]]], subsampling: int, labels: Sequence[Sequence[int]] = ()
) -> Batch:
    """A batch of (features [F, M], tokens), and what else a network learns of each."""
    chosen = list(items)
    longest = max(features.shape[0] for features, _ in chosen)
    padded = np.stack([np.pad(f, ((0, longest - f.shape[0]), (0, 0)), mode="edge") for f, _ in chosen])
    return Batch(
        torch.from_numpy(padded.astype(np.float32, copy=False)),
        torch.tensor([f.shape[0] // subsampling for f, _ in chosen]),
        _padded([tokens for _, tokens in chosen]),
        torch.tensor([len(tokens) for _, tokens in chosen]),
        _padded(labels),
    )


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    width = max([1, *map(len, rows)])
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64).reshape(-1, width)


def alignable(frames: int, tokens: Sequence[int]) -> bool:
    """Whether CTC can align the tokens with so many stacked frames: one each, one between equal ones, and one more."""
    return frames > len(tokens) + sum(one == other for one, other in pairwise(tokens))
