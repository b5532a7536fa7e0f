"""One speaker, one microphone: audio in as it comes, partials out, an n-best list at the end."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.resampling import Resampler
from device_sdk.audio.waveform import check_waveform
from device_sdk.decoding import stream as streams
from device_sdk.decoding.beam import Beam, paths
from device_sdk.decoding.nbest import distinct
from device_sdk.decoding.prefixes import Prefix
from device_sdk.decoding.stream import Stream
from device_sdk.errors import AudioError
from device_sdk.hypothesis import Hypothesis, Partial, Result

if TYPE_CHECKING:
    from device_sdk.decoding.recognizer import Recognizer

__all__ = ["RecognitionSession"]

Float = NDArray[np.float32]

_WIDEST = 8


class RecognitionSession:
    """Owns the state of one utterance at a time. Sessions of one recogniser may run in parallel threads; one session is
    for one thread at a time."""

    def __init__(self, recognizer: Recognizer, sample_rate: int = 16_000) -> None:
        """sample_rate: of the audio that will be fed, Hz; another than the features' is resampled."""
        self._recognizer = recognizer
        self._resampler = Resampler(sample_rate, recognizer.features.sample_rate)
        self.reset()

    def reset(self) -> None:
        """Forget the utterance, finished or not, and begin another."""
        self.utterance_id = secrets.token_hex(16)
        self._stream = streams.begin(self._recognizer.transducer, self._recognizer.features)
        self._resampler = Resampler(self._resampler.source, self._resampler.target)
        self._shown: tuple[Beam | None, str, str] = (None, "", "")
        self._consumed = 0
        self._finished = False

    @property
    def seconds(self) -> float:
        """Audio fed so far."""
        return self._consumed / self._resampler.source

    @property
    def features(self) -> Float:
        """Log-mel frames so far, [F, M] float32 (all of them after :meth:`finish`). They stay in memory only."""
        chunks = self._stream.features
        return np.concatenate(chunks) if chunks else np.zeros((0, self._recognizer.features.mel_bins), np.float32)

    def feed(self, samples: NDArray[np.generic]) -> Partial:
        """Hear the next samples, as many or few as there are.

        samples: [S] float32 in [-1, 1] or int16, mono, at the session's rate.
        Raises :class:`AudioError`, and leaves the utterance as it was, for samples that are no waveform (see
        :func:`~device_sdk.audio.check_waveform`), beyond the longest utterance, or after :meth:`finish`.
        """
        self._check_open()
        waveform = check_waveform(samples)
        limit = self._recognizer.settings.max_seconds
        seconds = (self._consumed + waveform.size) / self._resampler.source
        if seconds > limit:
            raise AudioError(
                f"audio: found an utterance of {seconds:.2f} s, expected at most {limit:g} s (decoding.max_seconds); "
                "call finish() before feeding more"
            )
        if waveform.size:
            self._consumed += waveform.size
            recognizer = self._recognizer
            self._stream = streams.push(
                self._stream,
                self._resampler.feed(waveform),
                recognizer.transducer,
                recognizer.features,
                recognizer.settings,
            )
        return self.partial()

    def partial(self) -> Partial:
        """What is known so far, by the first pass."""
        beam, decode = self._stream.beam, self._recognizer.tokenizer.decode
        if beam is not self._shown[0]:
            text = decode(beam.prefixes[0].tokens())
            shared = _shared_prefix(beam, self._recognizer.settings.threshold)
            self._shown = beam, text, text if shared is beam.prefixes[0] else decode(shared.tokens())
        _, text, stable = self._shown
        return Partial(text, stable, self.seconds)

    def finish(self) -> Result:
        """The end of the utterance. Audio too short for one frame gives the empty text; there is always a hypothesis.

        Raises :class:`AudioError` where it was finished before.
        """
        self._check_open()
        recognizer, seconds = self._recognizer, self.seconds
        stream = self._stream
        if self._consumed:
            rest = self._resampler.finish()
            stream = streams.push(stream, rest, recognizer.transducer, recognizer.features, recognizer.settings)
            stream = streams.end(stream, recognizer.transducer, recognizer.features, recognizer.settings)
        hypotheses = self._distinct(stream, seconds)
        if recognizer.rescore is not None:
            hypotheses = tuple(recognizer.rescore(hypotheses))
        self._stream, self._finished = stream, True
        return Result(self.utterance_id, hypotheses[: recognizer.settings.nbest], seconds)

    def _distinct(self, stream: Stream, seconds: float) -> tuple[Hypothesis, ...]:
        """The hypotheses of an ended stream: as many texts as were asked for, where that many exist.

        Several token sequences may spell one text; where that leaves too few texts, a wider beam is searched.
        """
        recognizer = self._recognizer
        settings, tokenizer = recognizer.settings, recognizer.tokenizer
        beam = stream.beam
        hypotheses = distinct(paths(beam), tokenizer, recognizer.frame_seconds, seconds)
        while len(hypotheses) < settings.nbest and settings.beam < _WIDEST * recognizer.settings.beam:
            if len(beam.prefixes) < settings.beam:
                break  # there are no more
            settings = replace(settings, beam=2 * settings.beam)
            beam = streams.searched_again(stream, recognizer.transducer, settings)
            hypotheses = distinct(paths(beam), tokenizer, recognizer.frame_seconds, seconds)
        return hypotheses

    def _check_open(self) -> None:
        if self._finished:
            raise AudioError("audio: this utterance is finished; call reset() to begin another")


def _shared_prefix(beam: Beam, threshold: float) -> Prefix:
    """The longest prefix of all hypotheses that may still be extended."""
    shared = beam.prefixes[0]
    least = beam.alignments[0].score - threshold
    for prefix, alignments in zip(beam.prefixes[1:], beam.alignments[1:], strict=True):
        if alignments.score < least:
            break
        other = prefix
        while other is not shared:
            if other.depth >= shared.depth and other.parent is not None:
                other = other.parent
            elif shared.parent is not None:
                shared = shared.parent
    return shared
