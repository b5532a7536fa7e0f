"""One utterance at a time through a device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding import Endpointing, Hotwords, RecognitionSession, Recognizer
from device_sdk.decoding.spellings import Spellings
from device_sdk.hypothesis import Partial, Result

__all__ = ["DeviceSession"]

log = logging.getLogger(__name__)


class DeviceSession(RecognitionSession):
    """A recognition session of a device: what it hears is counted, and remembered for learning.

    An utterance keeps the model and the marginals of the moment it began; the next one has the newest.
    """

    def __init__(
        self,
        check_device: Callable[[], None],
        recognizer: Callable[[], Recognizer],
        heard: Callable[[Result, NDArray[np.float32], NDArray[np.float32] | None, Spellings | None], None],
        serve: Callable[[Result], Result],
        sample_rate: int,
        *,
        mix_down: bool = False,
        endpointing: Endpointing | None = Endpointing(),
        hotwords: Hotwords | None = None,
    ) -> None:
        """check_device: raises SessionError where the device is closed. recognizer: the newest one. heard: told of
        every result, the features [F, M] it came from, the offset [M] that was taken from them, and the spellings that
        its phrases were heard by. serve: puts the hypothesis first that the app is to get."""
        self._check_device = check_device
        self._newest = recognizer
        self._heard = heard
        self._serve = serve
        super().__init__(recognizer(), sample_rate, mix_down=mix_down, endpointing=endpointing, hotwords=hotwords)

    def partial(self) -> Partial:
        self._check_device()
        return super().partial()

    def check(self, samples: NDArray[np.generic]) -> NDArray[np.float32]:
        self._check_device()
        return super().check(samples)

    def _check_open(self) -> None:
        self._check_device()
        super()._check_open()

    def _begin(self) -> None:
        self._check_device()
        self._recognizer = self._newest()
        super()._begin()

    def _result(self) -> Result:
        begun = time.monotonic()
        result = self._serve(super()._result())
        took = 1000 * (time.monotonic() - begun)
        log.debug("recognized %.2f s: %d hypotheses, ended in %d ms", result.seconds, len(result.nbest), took)
        return result

    def _ended(self, result: Result) -> None:
        self._heard(result, self.features, self._recognizer.offset, self._spellings)
