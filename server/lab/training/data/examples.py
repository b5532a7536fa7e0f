"""Utterances ready to train on: features with text, kept in shards on disk.

F: feature frames (10 ms); M: mel bins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from device_sdk.errors import DataError

__all__ = ["Example", "Features", "moments", "read_shard", "write_shard"]

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
        total = total + values.sum(0)
        squares = squares + (values**2).sum(0)
        count += values.shape[0]
    if count == 0:
        raise DataError("training data: found no frame; expected at least one utterance")
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 1e-4))
    return np.asarray(mean, np.float32), np.asarray(1.0 / deviation, np.float32)
