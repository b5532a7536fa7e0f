"""Greedy RNN-T decoding of whole batches in torch, to watch training. Devices have their own beam search.

B: batch; F: feature frames; M: mel bins; T: stacked frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from device_sdk.bundle.architecture import BLANK
from device_sdk.feedback.distance import edit_distance
from export.networks.rnnt import RNNT
from server.lab.training.data import Example, collate


@torch.no_grad()
def greedy(network: RNNT, features: Sequence[NDArray[np.floating]]) -> list[list[int]]:
    """Token ids of each utterance [F, M]; at most 4 tokens a frame."""
    device = network.mean.device
    batch = collate([(f.astype(np.float32), []) for f in features], network.architecture.subsampling_factor).to(device)
    encoded = network.encode(batch.features)
    size = encoded.shape[0]
    result: list[list[int]] = [[] for _ in range(size)]
    output, state = network.predictor(network.embedding(torch.full((size, 1), BLANK, device=device)))
    predicted = network.joiner_predictor(output)[:, 0]
    for frame in range(encoded.shape[1]):
        active = frame < batch.frames
        for _ in range(4):
            best = network.join(encoded[:, frame], predicted).argmax(-1)
            emitting = (active & (best != BLANK)).nonzero()[:, 0]
            if emitting.numel() == 0:
                break
            active = torch.zeros_like(active)
            active[emitting] = True
            chosen = (state[0][:, emitting], state[1][:, emitting])
            output, moved = network.predictor(network.embedding(best[emitting, None]), chosen)
            state[0][:, emitting], state[1][:, emitting] = moved
            predicted[emitting] = network.joiner_predictor(output)[:, 0]
            for row in emitting.tolist():
                result[row].append(int(best[row]))
    return result


@torch.no_grad()
def ctc_greedy(log_probs: torch.Tensor, frames: torch.Tensor) -> list[list[int]]:
    """Best path of [B, T, V], repeats merged and blanks dropped."""
    result = []
    for row, count in zip(log_probs.argmax(-1).tolist(), frames.tolist(), strict=True):
        path = row[:count]
        result.append([t for i, t in enumerate(path) if t != BLANK and (i == 0 or path[i - 1] != t)])
    return result


def word_errors(
    examples: Sequence[Example], decode: Callable[[Sequence[NDArray[np.floating]]], list[str]]
) -> dict[str, float]:
    """Word error rate per source, micro-averaged. ``decode`` takes features of several utterances to their texts."""
    order = sorted(examples, key=lambda example: example.features.shape[0])
    errors: dict[str, list[int]] = {}
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        for example, text in zip(chosen, decode([example.features for example in chosen]), strict=True):
            truth = example.text.split()
            tally = errors.setdefault(example.source, [0, 0])
            tally[0] += edit_distance(truth, text.split())
            tally[1] += len(truth)
    return {source: wrong / max(1, total) for source, (wrong, total) in sorted(errors.items())}
