"""SpecAugment in numpy: the student sees masked features, the teacher clean ones (Rao et al. 2023, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.errors import ConfigurationError

__all__ = ["MaskSettings", "masked"]


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """frequency_masks of up to ``frequency_width`` mel bins, time_masks of up to ``time_width`` frames and at most
    ``time_share`` of the utterance in all. 0 masks of both kinds leave the features as they are."""

    frequency_masks: int = 1
    frequency_width: int = 12
    time_masks: int = 2
    time_width: int = 12
    time_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"masks.{name}: found {getattr(self, name)}, expected 0 or more")
        if not 0 <= self.time_share <= 1:
            raise ConfigurationError(f"masks.time_share: found {self.time_share}, expected a number in [0, 1]")


def masked(
    features: npt.NDArray[np.float32],
    mean: npt.NDArray[np.float32],
    settings: MaskSettings,
    generator: np.random.Generator,
) -> npt.NDArray[np.float32]:
    """features [F, M] raw log-mel with bands and spans of it replaced by ``mean`` [M], which the graphs normalize to
    zero. F: frames; M: mel bins. The features given are not changed."""
    frames, bins = features.shape
    result = features.copy()
    for _ in range(settings.frequency_masks):
        width = int(generator.integers(0, min(settings.frequency_width, bins) + 1))
        start = int(generator.integers(0, bins - width + 1))
        result[:, start : start + width] = mean[start : start + width]
    left = int(settings.time_share * frames)
    for _ in range(settings.time_masks):
        width = int(generator.integers(0, min(settings.time_width, left) + 1))
        start = int(generator.integers(0, frames - width + 1))
        result[start : start + width] = mean
        left -= width
    return result
