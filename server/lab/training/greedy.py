"""Greedy RNN-T decoding of whole batches in torch, to watch training. Devices have their own beam search.

B: batch; F: feature frames; M: mel bins; T: stacked frames."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from device_sdk.bundle.architecture import BLANK
from device_sdk.feedback.distance import edit_distance
from export.networks.rnnt import RNNT
from export.networks.stateless import StatelessTransducer
from server.lab.training.data import Example, collate


@torch.no_grad()
def greedy(network: RNNT | StatelessTransducer, features: Sequence[NDArray[np.floating]]) -> list[list[int]]:
    """Token ids of each utterance [F, M]; at most 4 tokens a frame."""
    device = network.mean.device
    batch = collate([(f.astype(np.float32), []) for f in features], network.architecture.subsampling_factor).to(device)
    encoded = network.encode(batch.features)
    size = encoded.shape[0]
    result: list[list[int]] = [[] for _ in range(size)]
    predicted, state = network.step(torch.full((size,), BLANK, device=device))
    for frame in range(encoded.shape[1]):
        active = frame < batch.frames
        for _ in range(4):
            best = network.join(encoded[:, frame], predicted).argmax(-1)
            emitting = (active & (best != BLANK)).nonzero()[:, 0]
            if emitting.numel() == 0:
                break
            active = torch.zeros_like(active)
            active[emitting] = True
            predicted[emitting], moved = network.step(best[emitting], [each[:, emitting] for each in state])
            for each, new in zip(state, moved, strict=True):
                each[:, emitting] = new
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


Decode = Callable[[Sequence[NDArray[np.floating]]], list[str]]
"""Features of several utterances [F, M] to their texts."""


def transcribe(features: Sequence[NDArray[np.floating]], decode: Decode, at_once: int = 32) -> list[str]:
    """The text of each utterance, decoded in batches of like length."""
    texts, order = [""] * len(features), sorted(range(len(features)), key=lambda index: len(features[index]))
    for chosen in (order[start : start + at_once] for start in range(0, len(order), at_once)):
        for index, text in zip(chosen, decode([features[index] for index in chosen]), strict=True):
            texts[index] = text
    return texts


def count_errors(examples: Sequence[Example], decode: Decode) -> list[tuple[int, int]]:
    """(wrong words, words said) of each example."""
    texts = transcribe([example.features for example in examples], decode)
    pairs = [(example.text.split(), text.split()) for example, text in zip(examples, texts, strict=True)]
    return [(edit_distance(truth, heard), len(truth)) for truth, heard in pairs]


def word_errors(examples: Sequence[Example], decode: Decode) -> dict[str, float]:
    """Word error rate per source, micro-averaged."""
    sums: dict[str, tuple[int, int]] = {}
    for example, (wrong, said) in zip(examples, count_errors(examples, decode), strict=True):
        before = sums.get(example.source, (0, 0))
        sums[example.source] = before[0] + wrong, before[1] + said
    return {source: wrong / max(1, said) for source, (wrong, said) in sorted(sums.items())}
