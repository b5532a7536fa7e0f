"""Training of the second pass' word-level Transformer language model.

B: windows of a batch; L: words of the longest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.checks import check_interval
from device_sdk.errors import DataError
from export.networks.language_model import LanguageModel
from export.networks.language_model_shape import LanguageModelShape
from server.lab.training.trainer import Budget, Loss, Sampler, Settings, Task, Trainer


@dataclass(frozen=True, slots=True)
class LanguageModelSettings:
    """batch_words: words of a batch, padding included. unlisted: share of words replaced by ``<unk>`` in training, so
    that what follows an unlisted word is learned even from text that the list covers. bfloat16: multiply matrices in
    bfloat16 where that is faster; weights and losses stay float32."""

    budget: Budget = field(default_factory=lambda: Budget(steps=2000))
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
        for name, interval in {"batch_words": "[1, inf)", "unlisted": "[0, 1)", "peak_rate": "(0, inf)"}.items():
            check_interval(f"language model training, {name}", getattr(self, name), interval)

    @property
    def trainer(self) -> Settings:
        """What the trainer needs of it."""
        given = asdict(self)
        del given["batch_words"], given["unlisted"]
        return Settings(peak=given.pop("peak_rate"), decay_vectors=False, **(given | {"budget": self.budget}))


def train_language_model(
    sentences: Sequence[Sequence[int]],
    shape: LanguageModelShape,
    settings: LanguageModelSettings,
    report: Callable[[float, float], None] | None,
    out: Path,
    shares: NDArray[np.float64] | None = None,
) -> LanguageModel:
    """Train from scratch with AdamW; returns the averaged weights, in evaluation mode, on the CPU. sentences: word ids,
    0 for unlisted words, without boundary ids. Sentences longer than ``shape.positions`` are cut into windows that
    overlap by half. report: is told the share of the budget used, and the mean negative log-likelihood a word over
    recent steps, nats. out: keeps the checkpoint, from which an interrupted run goes on. shares: see
    :class:`LanguageModel`. Raises DataError where there is no sentence."""
    if not sentences:
        raise DataError("language model: the text holds no sentence, expected at least one")
    torch.manual_seed(settings.seed)
    task = LanguageModelTask(LanguageModel(shape))
    if shares is not None:
        task.module.shares.copy_(torch.from_numpy(shares))
    smoothed = math.nan

    def observe(step: int, progress: float, figures: Mapping[str, float]) -> None:
        nonlocal smoothed
        loss = figures["loss/word"]
        smoothed = loss if math.isnan(smoothed) else 0.98 * smoothed + 0.02 * loss
        if report is not None:
            report(progress, smoothed)

    sampler = WindowSampler(_windows(sentences, shape), shape.words, settings)
    Trainer(task, sampler, settings.trainer, out, observers=[observe]).run()
    return task.module.cpu().eval()


@torch.no_grad()
def perplexity(model: LanguageModel, sentences: Sequence[Sequence[int]]) -> float:
    """Perplexity per word, ends of sentences included; sentences longer than the positions as windows without overlap
    of what is scored."""
    model.eval()
    total, count = 0.0, 0.0
    windows = _windows(sentences, model.shape)
    for chosen in _groups(windows, 4096, np.random.default_rng(0)):
        words = _collate([windows[index] for index in chosen], model.shape.words)
        total -= float((model(words.inputs, words.targets) * words.mask).sum())
        count += float(words.mask.sum())
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


@dataclass(frozen=True, slots=True)
class Words:
    """inputs, targets: [B, L] int64; mask: [B, L] float32, 1 where a target is scored."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> Words:
        return Words(*(value.to(device) for value in (self.inputs, self.targets, self.mask)))


class LanguageModelTask(Task[Words]):
    """Cross-entropy a word."""

    module: LanguageModel

    def __init__(self, module: LanguageModel) -> None:
        self.module = module

    def loss(self, batch: Words, progress: float) -> Loss:
        total = -(self.module(batch.inputs, batch.targets).float() * batch.mask).sum()
        return Loss(total, float(batch.mask.sum()), {"word": float(total.detach())})


class WindowSampler(Sampler[Words]):
    """Windows of like length in batches of at most so many words, padding included; some words become unlisted."""

    def __init__(self, windows: Sequence[_Window], boundary: int, settings: LanguageModelSettings) -> None:
        self.windows, self.boundary, self.settings = windows, boundary, settings

    def plan(self, epoch: int, progress: float) -> list[list[int]]:
        generator = np.random.default_rng([self.settings.seed, epoch])
        return _groups(self.windows, self.settings.batch_words, generator)

    def load(self, epoch: int, chosen: Sequence[int]) -> Words:
        generator = np.random.default_rng([self.settings.seed, epoch, chosen[0]])
        return _collate([self.windows[index] for index in chosen], self.boundary, self.settings.unlisted, generator)


def _groups(windows: Sequence[_Window], batch_words: int, generator: np.random.Generator) -> list[list[int]]:
    """Numbers of windows in batches of like length, in random order."""
    lengths = np.array([len(window.symbols) - 1 for window in windows])
    groups: list[list[int]] = [[]]
    for index in np.argsort(lengths + generator.random(len(windows)), kind="stable").tolist():
        if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > batch_words:
            groups.append([])
        groups[-1].append(index)
    return [groups[position] for position in generator.permutation(len(groups) if windows else 0).tolist()]


def _collate(
    chosen: Sequence[_Window], boundary: int, unlisted: float = 0.0, generator: np.random.Generator | None = None
) -> Words:
    """A batch of windows; of its words, a share drawn by ``generator`` is unlisted."""
    symbols = np.full((len(chosen), max(len(window.symbols) for window in chosen)), boundary, dtype=np.int64)
    mask = np.zeros((len(chosen), symbols.shape[1] - 1), dtype=np.float32)
    for row, window in enumerate(chosen):
        symbols[row, : len(window.symbols)] = window.symbols
        mask[row, window.context : len(window.symbols) - 1] = 1.0
    if generator is not None and unlisted:
        symbols[(symbols != boundary) & (generator.random(symbols.shape) < unlisted)] = 0
    return Words(
        torch.from_numpy(symbols[:, :-1].copy()), torch.from_numpy(symbols[:, 1:].copy()), torch.from_numpy(mask)
    )
