"""The batches of RNN-T training: windows of shards, changed afresh at every use."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from device_sdk.bundle.architecture import BLANK
from export.networks.rnnt import RNNT
from export.networks.stateless import StatelessTransducer
from server.lab.training.augmentation import augment
from server.lab.training.data import Batch, Example, alignable, batches, collate
from server.lab.training.rnnt.recipe import Recipe
from server.lab.training.speech import ShardMaker
from server.lab.training.trainer import Sampler


class Labels(Protocol):
    """How a text is written besides in pieces: in phones."""

    def encode(self, text: str) -> list[int]: ...


class ShardSampler(Sampler[Batch]):
    """Epochs over the last few shards. Before ``easy_share`` of the budget they are over shard 0: a few clear words.
    begun: whether the network has been trained before, so that there is nothing easy. network: its mean features are
    what masks hold. labels: what else is learned of every text, as a batch's ``labels``."""

    def __init__(
        self,
        recipe: Recipe,
        maker: ShardMaker,
        tokenizer: sentencepiece.SentencePieceProcessor,
        network: RNNT | StatelessTransducer,
        *,
        begun: bool = False,
        labels: Labels | None = None,
    ) -> None:
        self.labels = labels
        self.recipe, self.maker, self.tokenizer, self.network = recipe, maker, tokenizer, network
        self.begun, self.passes, self.easy, self.strength = begun, 0, False, 0.0
        self.examples: list[Example] = []

    def plan(self, epoch: int, progress: float) -> Sequence[Sequence[int]]:
        recipe = self.recipe
        self.easy = not self.begun and progress < recipe.easy_share
        self.strength = 0.0 if self.easy else min(1.0, progress / max(1e-9, recipe.augment_share))
        self.mean = self.network.mean.cpu().numpy()
        self.passes += not self.easy
        first = max(0, self.passes - recipe.window) * recipe.makers + 1
        window = (0, 0) if self.easy else (first, self.passes * recipe.makers)
        self.examples = self.maker.window(*window)
        lengths = [example.features.shape[0] for example in self.examples]
        return batches(lengths, round(100 * recipe.seconds), recipe.batch, np.random.default_rng([recipe.seed, epoch]))

    def load(self, epoch: int, chosen: Sequence[int]) -> Batch | None:
        """Utterances that are too short for their tokens, or have letters that the pieces lack, are left out; those in
        which nothing is said have no tokens."""
        subsampling = self.network.architecture.subsampling_factor
        items, labels = [], []
        for number in chosen:
            example = self.examples[number]
            tokens = self.tokenizer.encode(example.text)
            features = self.change(example, np.random.default_rng([self.recipe.seed, epoch, number]))
            known = BLANK not in tokens and bool(tokens) == bool(example.text)
            if known and alignable(features.shape[0] // subsampling, tokens):
                items.append((features, tokens))
                if self.labels is not None:
                    labels.append(self.labels.encode(example.text))
        return collate(items, subsampling, labels) if items else None

    def change(self, example: Example, generator: np.random.Generator) -> NDArray[np.float32]:
        """An utterance's features as this use of it has them, [F, M]."""
        recipe, made = self.recipe, example.source == "made"
        features = example.features.astype(np.float32)
        if generator.random() >= self.strength * (recipe.made_augmented if made else recipe.real_augmented):
            return features
        return augment(features, self.mean, recipe.made_change if made else recipe.real_change, generator)

    def ends(self, progress: float) -> bool:
        return self.easy and progress >= self.recipe.easy_share

    def state(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.passes = state["passes"]
