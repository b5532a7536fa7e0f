"""One utterance at a time through a device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding import RecognitionSession, Recognizer
from device_sdk.hypothesis import Partial, Result

__all__ = ["DeviceSession"]


class DeviceSession:
    """One utterance at a time through a device: as a recognition session, and what it hears is remembered for learning.

    A session keeps the model and the marginals of the moment it was opened or reset.
    """

    def __init__(
        self,
        recogniser: Callable[[], Recognizer],
        heard: Callable[[Result, NDArray[np.float32]], None],
        sample_rate: int,
    ) -> None:
        """recogniser: the newest one. heard: told of every result and the features [F, M] it came from."""
        self._recogniser = recogniser
        self._heard = heard
        self._sample_rate = sample_rate
        self.reset()

    @property
    def utterance_id(self) -> str:
        return self._session.utterance_id

    def reset(self) -> None:
        """Forget the utterance, finished or not, and begin another with the newest model."""
        self._session: RecognitionSession = self._recogniser().session(self._sample_rate)

    def feed(self, samples: NDArray[np.generic]) -> Partial:
        """Hear the next samples; see :meth:`RecognitionSession.feed`."""
        return self._session.feed(samples)

    def partial(self) -> Partial:
        return self._session.partial()

    def finish(self) -> Result:
        """The n-best list; the device's counts are refreshed with it."""
        result = self._session.finish()
        self._heard(result, self._session.features)
        return result
