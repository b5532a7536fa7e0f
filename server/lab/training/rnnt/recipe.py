"""What decides a run of RNN-T training, besides the speech."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.errors import ConfigurationError
from device_sdk.features.logmel import KALDI, FeatureSettings
from export.networks import stateless
from export.networks.stateless import StatelessShape
from server.lab.training.augmentation import Augmentation
from server.lab.training.rnnt.task import Phases
from server.lab.training.trainer import Budget, Settings
from server.lab.training.trainer.settings import multiplies_bfloat16

NETWORKS: Mapping[str, Architecture | StatelessShape] = {**PRESETS, **stateless.PRESETS}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a run, besides the speech.

    pieces: of the tokenizer (default: the preset's). flat_share, easy_share, ctc_share, sparse_share: shares of the
    budget at which the flat start on a few clear words, CTC on the same words, CTC on whole utterances, and RNN-T on a
    third of the batches end. helper: weight of CTC beside the RNN-T loss (both per token); phones: that of CTC of the
    phones, 0 for none. made_augmented, real_augmented: share of the made and of the real utterances whose features are
    changed at every use, by made_change and real_change; it rises to this over augment_share of the budget. Real
    recordings are few and come back often, so they are changed more. shard: utterances in a shard; makers: processes
    that make them; window: shards of each in an epoch (the newest are fresh). batch: most utterances; seconds: most
    audio in a batch, padding included. clip: largest gradient norm. pruning: see
    :func:`export.losses.rnnt.rnnt_loss`. snapshot_minutes, watch_steps: when word errors are counted on the way. The
    rest is as in :class:`Settings`."""

    preset: str = "small"
    pieces: int | None = None
    seed: int = 1
    budget: Budget = field(default_factory=lambda: Budget(minutes=60.0))
    flat_share: float = 0.008
    easy_share: float = 0.016
    ctc_share: float = 0.5
    sparse_share: float = 0.86
    augment_share: float = 0.25
    made_augmented: float = 0.2
    real_augmented: float = 0.4
    helper: float = 0.2
    phones: float = 0.4
    shard: int = 1200
    makers: int = 1
    window: int = 8
    batch: int = 32
    seconds: float = 140.0
    peak: float = 2e-3
    warmup: int = 200
    weight_decay: float = 1e-3
    clip: float = 2.0
    dropout: float = 0.2
    average: float = 0.999
    pruning: float = 1e-4
    threads: int = 2
    bfloat16: bool = field(default_factory=multiplies_bfloat16)
    snapshot_minutes: float = 5.0
    watch_steps: int = 0
    checkpoint_steps: int = 200
    made_change: Augmentation = field(default_factory=Augmentation)
    real_change: Augmentation = field(
        default_factory=lambda: Augmentation(
            tract=0.2, tempo=0.25, channel=1.0, noise=0.6, time_masks=3, time_width=22, bin_masks=2, bin_width=12
        )
    )

    def __post_init__(self) -> None:
        if self.preset not in NETWORKS:
            raise ConfigurationError(f"preset: found {self.preset!r}, expected one of {', '.join(NETWORKS)}")
        if not 0.0 <= self.flat_share <= self.easy_share <= self.ctc_share < 1.0:
            raise ConfigurationError(
                f"flat_share, easy_share, ctc_share: found {self.flat_share}, {self.easy_share}, {self.ctc_share}; "
                "expected 0 <= flat_share <= easy_share <= ctc_share < 1"
            )
        if self.seconds <= 0 or self.batch < 1:
            found = f"{self.seconds}, {self.batch}"
            raise ConfigurationError(f"seconds, batch: found {found}; expected more than 0 and at least 1")
        _ = self.settings  # which names what makes no sense

    @property
    def architecture(self) -> Architecture | StatelessShape:
        preset = NETWORKS[self.preset]
        return preset if self.pieces is None else replace(preset, pieces=self.pieces)

    @property
    def features(self) -> FeatureSettings:
        """What the network hears: Kaldi's features, where sherpa-onnx gives it those."""
        return KALDI if isinstance(self.architecture, StatelessShape) else FeatureSettings()

    @property
    def phases(self) -> Phases:
        dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        return Phases(self.flat_share, self.ctc_share, self.helper, self.phones, self.pruning, dtype, self.sparse_share)

    @property
    def settings(self) -> Settings:
        """What the trainer needs of it."""
        alike = {each.name for each in fields(Settings)} & {each.name for each in fields(Recipe)}
        return Settings(watch_minutes=self.snapshot_minutes, **{name: getattr(self, name) for name in alike})
