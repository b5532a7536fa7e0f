"""Training of the second pass' word-level Transformer language model.

B: windows of a batch; L: words of the longest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from device_sdk.errors import ConfigurationError, DataError
from export.networks.language_model import LanguageModel
from export.networks.language_model_shape import LanguageModelShape
from server.training.trainer import Average, Budget, learning_rate

__all__ = ["LanguageModelSettings", "Progress", "perplexity", "train_language_model"]

DEFAULT_BUDGET = Budget(steps=2000)


@dataclass(frozen=True, slots=True)
class LanguageModelSettings:
    """batch_words: words of a batch, padding included. unlisted: share of words replaced by ``<unk>`` in training, so
    that what follows an unlisted word is learned even from text that the list covers. bfloat16: multiply matrices in
    bfloat16 where that is faster; weights and losses stay float32."""

    budget: Budget = DEFAULT_BUDGET
    batch_words: int = 2048
    peak_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.05
    clip: float = 1.0
    average: float = 0.995
    unlisted: float = 0.01
    bfloat16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_words < 1 or not 0 <= self.unlisted < 1 or self.peak_rate <= 0:
            raise ConfigurationError(
                f"language model training: found batch_words={self.batch_words}, unlisted={self.unlisted}, "
                f"peak_rate={self.peak_rate}; expected at least 1, a share in [0, 1) and more than 0"
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """share: of the budget, 0 to 1; loss: mean negative log-likelihood a word over recent steps, nats."""

    step: int
    share: float
    loss: float


def train_language_model(
    sentences: Sequence[Sequence[int]],
    shape: LanguageModelShape,
    settings: LanguageModelSettings,
    report: Callable[[Progress], None] | None = None,
    device: str = "cpu",
) -> LanguageModel:
    """Train from scratch with AdamW; returns the averaged weights, in evaluation mode, on the CPU.

    sentences: word ids, 0 for unlisted words, without boundary ids. Sentences longer than ``shape.positions`` are cut
    into windows that overlap by half. Raises DataError where there is no sentence.
    """
    if not sentences:
        raise DataError("language model: the text holds no sentence, expected at least one")
    torch.manual_seed(settings.seed)
    generator = np.random.default_rng(settings.seed)
    model = LanguageModel(shape).to(device)
    matrices = [value for value in model.parameters() if value.ndim > 1]
    vectors = [value for value in model.parameters() if value.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.peak_rate, betas=(0.9, 0.98))
    average = Average(model, settings.average)
    windows = _windows(sentences, shape)
    started, step, recent, share = time.monotonic(), 0, math.nan, 0.0
    while share < 1.0:
        for words, targets, mask in _batches(windows, shape.words, settings, generator):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(share, step, settings.peak_rate, settings.warmup)
            kept = mask.to(device)
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=settings.bfloat16):
                log_probs = model(words.to(device), targets.to(device)).float()
            loss = -(log_probs * kept).sum() / kept.sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            average.update(model)
            step += 1
            value = float(loss.detach())
            recent = value if math.isnan(recent) else 0.98 * recent + 0.02 * value
            share = settings.budget.progress(step, time.monotonic() - started)
            if report is not None:
                report(Progress(step, share, recent))
            if share >= 1.0:
                break
    average.copy_to(model)
    return model.cpu().eval()


@torch.no_grad()
def perplexity(model: LanguageModel, sentences: Sequence[Sequence[int]], batch_words: int = 4096) -> float:
    """Perplexity per word, ends of sentences included; sentences longer than the positions as windows without overlap
    of what is scored."""
    model.eval()
    total, count = 0.0, 0.0
    settings = LanguageModelSettings(batch_words=batch_words, unlisted=0.0)
    windows = _windows(sentences, model.shape)
    for words, targets, mask in _batches(windows, model.shape.words, settings, np.random.default_rng(0)):
        total -= float((model(words, targets) * mask).sum())
        count += float(mask.sum())
    return math.exp(total / count) if count else math.nan


@dataclass(frozen=True, slots=True)
class _Window:
    """symbols: one more than inputs (inputs are all but the last, targets all but the first); the first ``context``
    targets only give context."""

    symbols: tuple[int, ...]
    context: int


def _windows(sentences: Sequence[Sequence[int]], shape: LanguageModelShape) -> list[_Window]:
    boundary, size = shape.words, shape.positions
    windows = []
    for sentence in sentences:
        symbols = (boundary, *sentence, boundary)
        start = context = 0
        while True:
            stop = min(start + size, len(symbols) - 1)
            windows.append(_Window(symbols[start : stop + 1], context))
            if stop == len(symbols) - 1:
                break
            start, context = stop - size // 2, size // 2
    return windows


def _batches(
    windows: Sequence[_Window], boundary: int, settings: LanguageModelSettings, generator: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """words, targets int64 [B, L] and mask float32 [B, L] of batches of like length, in random order."""
    lengths = np.array([len(window.symbols) - 1 for window in windows])
    groups: list[list[int]] = [[]]
    for index in np.argsort(lengths + generator.random(len(windows)), kind="stable").tolist():
        if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > settings.batch_words:
            groups.append([])
        groups[-1].append(index)
    for position in generator.permutation(len(groups) if windows else 0).tolist():
        chosen = [windows[index] for index in groups[position]]
        symbols = np.full((len(chosen), max(len(window.symbols) for window in chosen)), boundary, dtype=np.int64)
        mask = np.zeros((len(chosen), symbols.shape[1] - 1), dtype=np.float32)
        for row, window in enumerate(chosen):
            symbols[row, : len(window.symbols)] = window.symbols
            mask[row, window.context : len(window.symbols) - 1] = 1.0
        if settings.unlisted:
            symbols[(symbols != boundary) & (generator.random(symbols.shape) < settings.unlisted)] = 0
        yield torch.from_numpy(symbols[:, :-1].copy()), torch.from_numpy(symbols[:, 1:].copy()), torch.from_numpy(mask)
