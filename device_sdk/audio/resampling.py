"""Other sample rates, brought to the one that the features need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.waveform import SAMPLE_RATE
from device_sdk.errors import AudioError

if TYPE_CHECKING:
    from soxr import ResampleStream

__all__ = ["Resampler", "check_sample_rate"]

LOWEST_RATE, HIGHEST_RATE = 4_000, 384_000


def check_sample_rate(rate: int, name: str = "audio") -> int:
    """Raises :class:`AudioError` for a rate (Hz) that is no integer from 4000 to 384000."""
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise AudioError(
            f"{name}: found sample rate {rate!r} Hz, expected an integer from {LOWEST_RATE} to {HIGHEST_RATE}"
        )
    return int(rate)


class Resampler:
    """Owns one stream of samples at ``source`` Hz that come out at ``target`` Hz, the same for any chunking."""

    def __init__(self, source: int, target: int = SAMPLE_RATE, name: str = "audio") -> None:
        self.source, self.target = check_sample_rate(source, name), check_sample_rate(target, name)
        self._stream: ResampleStream | None = None

    def feed(self, samples: NDArray[np.float32], last: bool = False) -> NDArray[np.float32]:
        """samples: [S] float32 at ``source`` Hz. Returns [S'] float32, those that are complete.

        ``last`` ends the stream; the next call starts another one.
        """
        if self.source == self.target:
            return samples
        if self._stream is None:
            from soxr import ResampleStream

            self._stream = ResampleStream(self.source, self.target, 1, dtype="float32")
        resampled: NDArray[np.float32] = self._stream.resample_chunk(samples, last=last)
        if last:
            self._stream = None
        return resampled

    def finish(self) -> NDArray[np.float32]:
        """The samples still inside, [S'] float32."""
        return self.feed(np.zeros(0, np.float32), last=True)
