"""Recognition with one loaded model, by any number of sessions."""

from __future__ import annotations

from collections.abc import Iterable

from device_sdk.audio.files import Audio
from device_sdk.decoding.endpoint import Endpointing
from device_sdk.decoding.hotwords import Hotword, Hotwords, hotwords_of
from device_sdk.decoding.model import Model
from device_sdk.decoding.session import RecognitionSession, recognize_whole
from device_sdk.hypothesis import Result


class Recognizer(Model):
    """Owns the sessions of a transducer's graphs. Its attributes are never changed after it is built."""

    def session(
        self,
        sample_rate: int,
        *,
        mix_down: bool = False,
        endpointing: Endpointing | None = Endpointing(),
        hotwords: Hotwords | Iterable[str | Hotword] | None = None,
    ) -> RecognitionSession:
        """A session for audio of this rate (Hz). Raises :class:`AudioError` for a rate that cannot be resampled.

        mix_down: take the mean of several channels instead of refusing them. endpointing: when an utterance is over.
        hotwords: phrases to expect; where there are thousands, build :class:`Hotwords` once and share them. Raises
        :class:`ConfigurationError` for one that this model cannot spell.
        """
        return RecognitionSession(
            self, sample_rate, mix_down=mix_down, endpointing=endpointing, hotwords=hotwords_of(hotwords)
        )

    def recognize(
        self,
        audio: Audio,
        sample_rate: int | None = None,
        *,
        mix_down: bool = False,
        hotwords: Hotwords | Iterable[str | Hotword] | None = None,
    ) -> Result:
        """The n-best list of a whole utterance.

        audio: [S] float32 or float64 in [-1, 1], or int16, with its sample_rate (Hz); or a file, by its path or as its
        bytes, which knows its own. mix_down: take the mean of several channels instead of refusing them.
        hotwords: phrases to expect, as of :meth:`session`.
        Raises :class:`AudioError` as :meth:`RecognitionSession.feed` does, and where the rate is not known.
        """
        return recognize_whole(
            lambda rate: self.session(rate, mix_down=mix_down, hotwords=hotwords), audio, sample_rate
        )
