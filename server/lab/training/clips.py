"""Training on clips of speech, in memory or read when they are needed, with text or without.

F: feature frames (10 ms); M: bins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from export.networks.cpc import CPC
from server.lab.corpora.utterance import Utterance, Waveform
from server.lab.training.data import Batch, Example, Features, alignable, batches, collate
from server.lab.training.trainer import Loss, Sampler, Task

Change = Callable[[Features, np.random.Generator], Features]
"""What is drawn afresh at every use of a clip."""


class Clips(Protocol):
    """Clips in a fixed order."""

    @property
    def frames(self) -> Sequence[int]:
        """F of each, or a good guess."""

    def __getitem__(self, index: int) -> Example: ...


class HeldClips(list[Example]):
    """Clips in memory."""

    @property
    def frames(self) -> Sequence[int]:
        return [example.features.shape[0] for example in self]


@dataclass(frozen=True, slots=True)
class ReadClips:
    """Clips whose audio is read every time. seconds: their lengths; transform: waveform to features [F, M]."""

    utterances: Sequence[Utterance]
    seconds: Sequence[float]
    transform: Callable[[Waveform], NDArray[np.float32]]

    @property
    def frames(self) -> Sequence[int]:
        return [max(1, round(100 * seconds)) for seconds in self.seconds]

    def __getitem__(self, index: int) -> Example:
        utterance = self.utterances[index]
        return Example(self.transform(utterance.load()), utterance.text or "", utterance.speaker)


@dataclass(frozen=True, slots=True)
class SomeClips:
    """Some of other clips. places: which of them, by number."""

    clips: Clips
    places: Sequence[int]

    @property
    def frames(self) -> Sequence[int]:
        every = self.clips.frames
        return [every[place] for place in self.places]

    def __getitem__(self, index: int) -> Example:
        return self.clips[self.places[index]]


class ClipSampler(Sampler[Batch]):
    """Epochs over clips in batches of like length. encode: text to tokens; None for training without text. subsampling:
    feature frames that the network makes one. seconds, most: what a batch holds at most."""

    def __init__(
        self,
        clips: Clips,
        encode: Callable[[str], list[int]] | None,
        *,
        subsampling: int,
        seconds: float = 160.0,
        most: int = 32,
        seed: int = 1,
        change: Change | None = None,
    ) -> None:
        self.clips, self.encode, self.change, self.subsampling = clips, encode, change, subsampling
        self.budget, self.most, self.seed = round(100 * seconds), most, seed
        self.lengths = list(clips.frames)

    def plan(self, epoch: int, progress: float) -> Sequence[Sequence[int]]:
        return batches(self.lengths, self.budget, self.most, np.random.default_rng([self.seed, epoch]))

    def load(self, epoch: int, chosen: Sequence[int]) -> Batch | None:
        """Clips that are too short for their tokens are left out, and those of fewer than two frames."""
        items = []
        for number in chosen:
            example = self.clips[number]
            features = example.features.astype(np.float32)
            if self.change is not None:
                features = self.change(features, np.random.default_rng([self.seed, epoch, number]))
            tokens = [] if self.encode is None else self.encode(example.text)
            frames = features.shape[0] // self.subsampling
            if frames >= 2 and (self.encode is None or (tokens and alignable(frames, tokens))):
                items.append((features, tokens))
        return collate(items, self.subsampling) if items else None


class CpcTask(Task[Batch]):
    """Pre-training by contrastive predictive coding (Ramesh et al. 2023): InfoNCE, summed over steps and averaged over
    utterances. It needs no text and decodes nothing; batches count stacked frames and hold raw features."""

    module: CPC

    def __init__(self, network: CPC) -> None:
        self.module = network

    def loss(self, batch: Batch, progress: float) -> Loss:
        losses, right = self.module.losses(batch.features, batch.frames)
        total, count = losses.sum(), float(len(losses))
        return Loss(total, count, {"cpc": float(total.detach()), "right": float(right.mean()) * count})
