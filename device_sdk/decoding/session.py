"""One speaker, one microphone: audio in as it comes, partials out, an n-best list at the end."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import NoneType

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.files import Audio, given_audio
from device_sdk.audio.waveform import Resampler, check_waveform
from device_sdk.bundle.bundle import WORD_START
from device_sdk.checks import check_type
from device_sdk.decoding import stream as streams
from device_sdk.decoding.beam import Beam, paths
from device_sdk.decoding.endpoint import Endpointing, endpoint, trailing_silence
from device_sdk.decoding.hotwords import Hotword, Hotwords, Spellings, hotwords_of, settled, write_phrases
from device_sdk.decoding.listening import Listening
from device_sdk.decoding.model import Model, Rescore
from device_sdk.decoding.nbest import distinct, likeliest, with_confidence
from device_sdk.decoding.prefixes import Prefix, descends, shared_prefix
from device_sdk.decoding.second_look import EncodedUtterance, Phrase, look_again
from device_sdk.decoding.spotting import Spot, likely
from device_sdk.decoding.stream import LEAD, Stream
from device_sdk.errors import AudioError, SessionError
from device_sdk.hypothesis import Hypothesis, Partial, Result

Float = NDArray[np.float32]

log = logging.getLogger(__name__)

_WIDEST, _FARTHEST = 8, 1.2
"""Times as many hypotheses, and nats behind the best one, as the settings say, where a beam is searched once more."""
_ASKED = 3
"""Times as many hypotheses as the settings say, that language models are asked for: more leave as many errors."""
_UNSURE = 0.5
"""Confidence in the best text below which that is done, and confirmed phrases are looked for: the rest ends soon."""
_SOON = 8.0
"""Seconds of such an utterance up to which there are so many: for a longer one fewer, so that nobody waits longer."""
_FINISHED = "this utterance is finished; call reset() to begin another"
_INTERRUPTED = "decoding this utterance was interrupted by an error; call reset() to begin another"
_KEPT_SECONDS = 0.5  # a word is emitted a little after it began: what is kept of a silence that is given up


@dataclass(frozen=True, slots=True)
class SessionHost:
    """What a device adds to recognition. check: raises SessionError where the device is closed. newest: the model that
    the next utterance begins with. expect: the phrases that it expects, from the app's. serve: puts the hypothesis
    first that the app is to get. heard: told of every result, the features [F, M] that it came from, and the phrases
    that were expected."""

    check: Callable[[], None]
    newest: Callable[[], Model]
    expect: Callable[[Hotwords | None], Hotwords | None]
    serve: Callable[[Result], Result]
    heard: Callable[[Result, Float, Hotwords | None], None]


class RecognitionSession(Listening):
    """Owns the state of one utterance at a time, and a clock that runs on from one to the next. Sessions of one
    recognizer may run in parallel threads. One session is for one thread at a time: a call while another is running
    raises :class:`SessionError` and changes nothing."""

    def __init__(
        self,
        recognizer: Model,
        sample_rate: int,
        *,
        mix_down: bool = False,
        endpointing: Endpointing | None = Endpointing(),
        hotwords: Hotwords | None = None,
        host: SessionHost | None = None,
    ) -> None:
        """sample_rate: of the audio that will be fed, Hz; another than the features' is resampled. mix_down: accept
        audio of several channels, [S, channels], and take their mean. endpointing: when an utterance is over; None
        never says so. hotwords: phrases to expect. host: the device whose session this is."""
        check_type("endpointing", endpointing, (Endpointing, NoneType), "Endpointing, or None")
        self._recognizer, self._host, self._hotwords = recognizer, host, hotwords
        self._mix_down, self._endpointing = mix_down, endpointing
        self._resampler = Resampler(sample_rate, recognizer.features.sample_rate)
        self._block = round(recognizer.settings.block_seconds * self._resampler.source)
        self._longest = int(recognizer.settings.max_seconds * self._resampler.source + 1e-6)
        self._running = threading.Lock()
        self._start = self._consumed = 0
        self._stream: Stream
        self._partial: Partial
        self._rule: str | None
        self._begin()

    def reset(self) -> None:
        """Forget the utterance, finished or not, and begin another. The clock of :attr:`offset` runs on."""
        with self._alone():
            self._begin()

    @property
    def sample_rate(self) -> int:
        """Of the audio that is fed, Hz."""
        return self._resampler.source

    @property
    def open(self) -> bool:
        """Whether this utterance takes more audio; :meth:`reset` begins one that does."""
        return not self._closed

    @property
    def seconds(self) -> float:
        """Audio fed so far, of this utterance."""
        return self._consumed / self._resampler.source

    @property
    def offset(self) -> float:
        """When this utterance began: seconds of audio that the session heard before it."""
        return self._start / self._resampler.source

    @property
    def features(self) -> Float:
        """Log-mel frames as the network hears them, [F, M] float32 (after :meth:`finish` all), in memory only."""
        return streams.collect_features(self._stream, self._recognizer.features.mel_bins)

    def feed(self, samples: NDArray[np.generic]) -> Partial:
        """Hear the next samples, as many or few as there are.

        samples: [S] float32 or float64 in [-1, 1], or int16, mono, at the session's rate; [S, channels] where it mixes
        down. An endpoint is only told, in the partial: what is fed after it still belongs to this utterance. An app
        that goes on calls :meth:`finish` and :meth:`reset` there, or uses :meth:`stream`, :meth:`listen` or
        :meth:`segments`, which do. Raises :class:`AudioError`, and leaves the utterance as it was, for samples that are
        no waveform (see :func:`~device_sdk.audio.check_waveform`), beyond the longest utterance, or after
        :meth:`finish`."""
        with self._alone():
            waveform = self._checked(samples)
            if self._consumed + waveform.size > self._longest:
                seconds = (self._consumed + waveform.size) / self._resampler.source
                raise AudioError(
                    f"audio: found an utterance of {seconds:.2f} s, expected at most "
                    f"{self._recognizer.settings.max_seconds:g} s (decoding.max_seconds); "
                    "listen with segments(), which ends utterances, or call finish() before feeding more"
                )
            self._consume(waveform, to_endpoint=False)
            return self._partial

    def hear(self, samples: NDArray[np.generic]) -> tuple[Partial, Float]:
        """As :meth:`feed`, but no further than to the endpoint; the longest utterance is one too. Returns the partial
        and the samples after the endpoint, [S] float32 mono: the next utterance begins with them. Where an utterance
        ends depends on the audio alone, not on the chunks that it came in. Raises :class:`AudioError` as :meth:`feed`
        does, and where the endpoint was reached before."""
        with self._alone():
            waveform = self._checked(samples)
            if self._partial.endpoint:
                raise AudioError("audio: this utterance has reached its endpoint; call finish() or reset() there")
            room = self._longest - self._consumed
            used = self._consume(waveform[:room], to_endpoint=True)
            if used == room < waveform.size and self._rule is None:
                self._rule = "length"
                self._show()
            return self._partial, waveform[used:]

    def check(self, samples: NDArray[np.generic]) -> Float:
        """What would be heard of these samples: [S] float32 mono. Raises :class:`AudioError` as :meth:`feed` does."""
        self._check_host()
        return check_waveform(samples, mix_down=self._mix_down)

    def partial(self) -> Partial:
        """What is known so far, by the first pass. Any thread may ask."""
        self._check_host()
        return self._partial

    def finish(self) -> Result:
        """The end of the utterance. Audio too short for one frame gives the empty text; there is always a hypothesis.
        The list is ordered by the second pass, which partials do not see: its first text need not start with what they
        called stable. Raises :class:`AudioError` where it was finished before."""
        with self._alone():
            result = self._result()
            self._tell(result)
            return result

    def end(self) -> Result | None:
        """:meth:`finish` and :meth:`reset` in one; None where nothing was said, which then leaves no trace. At an
        endpoint, the next utterance begins with the last moment of the silence, where a word may have begun. Raises
        :class:`AudioError` where it was finished before."""
        with self._alone():
            quiet = 0 if self._waiting else round(self._quiet * self._resampler.source)
            kept = np.concatenate(self._recent)[-quiet:] if quiet else self._held[:0]
            self._consumed -= kept.size
            result = self._result()
            if result.text:
                self._tell(result)
            self._begin()
            self._consume(kept, to_endpoint=False)
            return result if result.text else None

    def _begin(self) -> None:
        """A new utterance, which starts where the last one ended."""
        self._check_host()
        self._expected = self._hotwords
        if self._host is not None:  # an utterance keeps the model and the words of the moment in which it began
            self._recognizer, self._expected = self._host.newest(), self._host.expect(self._hotwords)
        recognizer = self._recognizer
        self.utterance_id = secrets.token_hex(16)
        self._start += self._consumed
        self._consumed = self._waiting = 0
        self._quiet = 0.0
        self._held = np.empty(self._block, np.float32)
        self._recent: tuple[Float, ...] = ()
        self._resampler = Resampler(self._resampler.source, recognizer.features.sample_rate)
        self._stream = streams.begin(recognizer.transducer, recognizer.features, recognizer.guide(self._expected))
        self._stable, self._stable_text = self._stream.beam.prefixes[0], ""
        self._best = self._stable
        self._text = ""
        self._rule = None
        self._closed = ""
        self._partial = Partial("", "", 0.0)

    def _result(self) -> Result:
        self._check_open()
        begun = time.monotonic()
        recognizer, seconds = self._recognizer, self.seconds
        self._closed = _INTERRUPTED
        stream = self._stream
        if self._consumed:
            rest = self._resampler.feed(self._held[: self._waiting], last=True)
            stream = streams.end(stream, rest, recognizer.transducer, recognizer.features, recognizer.settings)
        encoded = streams.collect_encoded(stream, recognizer.transducer.architecture.joiner_size)
        log_probs = None if recognizer.ctc is None else recognizer.ctc(encoded)
        hypotheses, rescore = self._distinct(stream, seconds), self._second_pass(log_probs)
        calibration = recognizer.bundle.combination.confidence
        if rescore is not None:
            if with_confidence(hypotheses, calibration)[0].confidence < _UNSURE:
                hypotheses = self._wider(hypotheses, stream, seconds)
            hypotheses = tuple(rescore(hypotheses))
        if (expected := self._expected) is not None and len(encoded):
            spotted = [] if log_probs is None else self._spotted(expected, hypotheses, log_probs, stream)
            if spotted or any(each.after for each in expected.phrases):
                heard = encoded[streams.in_time(stream)]
                hypotheses = self._looked_again(expected, hypotheses, heard, seconds, rescore, spotted)
        hypotheses = with_confidence(hypotheses, calibration)
        self._stream, self._closed = stream, _FINISHED
        result = Result(self.utterance_id, hypotheses[: recognizer.settings.nbest], seconds, self.offset)
        if self._host is not None:
            result = self._host.serve(result)
        took = 1000 * (time.monotonic() - begun)
        log.debug("recognized %.2f s: %d hypotheses, ended in %d ms", seconds, len(result.nbest), took)
        return result

    def _tell(self, result: Result) -> None:
        """The host, before anybody else may use the session."""
        if self._host is not None:
            self._host.heard(result, self.features, self._expected)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lets one call in at a time, and refuses others rather than keep them waiting."""
        if not self._running.acquire(blocking=False):
            raise SessionError("session: found two calls at once, expected one thread at a time; open another session")
        try:
            yield
        finally:
            self._running.release()

    def _check_host(self) -> None:
        if self._host is not None:
            self._host.check()

    def skip(self) -> None:
        """At an endpoint before which nothing was said: begin another utterance with the last moment of this one."""
        with self._alone():
            kept = np.concatenate(self._recent) if self._recent else self._held[:0]
            self._consumed -= kept.size
            self._begin()
            self._consume(kept, to_endpoint=False)
            if self._rule is not None:  # the rule is shorter than what is kept
                self._begin()

    def _checked(self, samples: NDArray[np.generic]) -> Float:
        self._check_open()
        return self.check(samples)

    def _check_open(self) -> None:
        self._check_host()
        if self._closed:
            raise AudioError(f"audio: {self._closed}")

    def _consume(self, waveform: Float, *, to_endpoint: bool) -> int:
        """Decodes the blocks that ``waveform`` completes, and keeps the rest. Returns how many samples were used. Every
        stage sees blocks of source samples, not chunks: sums keep their order, and any chunking gives the same bits."""
        at = 0
        while at < waveform.size:
            step = min(self._block - self._waiting, waveform.size - at)
            self._held[self._waiting : self._waiting + step] = waveform[at : at + step]
            at += step
            self._waiting += step
            self._consumed += step
            if self._waiting == self._block:
                self._decode()
                if to_endpoint and self._rule is not None:
                    break
        self._show()
        return at

    def _decode(self) -> None:
        """Decodes the block that is full."""
        recognizer, block, self._quiet = self._recognizer, self._held, 0.0
        self._closed = _INTERRUPTED  # until all of it is done
        self._held, self._waiting = np.empty(self._block, np.float32), 0
        self._stream = streams.push(
            self._stream, self._resampler.feed(block), recognizer.transducer, recognizer.features, recognizer.settings
        )
        self._recent = (*self._recent, block)[-max(1, round(_KEPT_SECONDS * self._resampler.source / self._block)) :]
        self._read()
        if self._endpointing is not None and self._rule is None:
            emissions = self._stream.beam.alignments[0].emissions
            last = emissions.frame if emissions is not None and self._text else None
            silence = self.seconds
            if last is not None:
                since_token = self.seconds - (last + 1) * recognizer.frame_seconds
                silence = trailing_silence(since_token, self._stream.loudness.quiet)
            rule = endpoint(last is not None, silence, self.seconds, self._endpointing)
            if rule is not None:
                self._rule, self._quiet = rule[0], min(rule[1].min_trailing_silence, LEAD)
        self._closed = ""

    def _read(self) -> None:
        """The text of the beam, and how much of it is stable. What was called stable once is kept: should the search
        take it back, the text stays with the best hypothesis that begins with it, and only the result tells."""
        beam = self._stream.beam
        best = next((prefix for prefix in beam.prefixes if descends(prefix, self._stable)), None)
        if best is None:
            return
        before = self._stable
        if best is beam.prefixes[0]:
            shared = shared_prefix(beam.prefixes, beam.alignments, self._recognizer.settings.threshold)
            if shared is not before and descends(shared, before):
                self._stable_text, self._stable = self._extended(shared), shared
        if best is not self._best or self._stable is not before:
            self._text, self._best = self._extended(best), best

    def _extended(self, prefix: Prefix) -> str:
        """The text of an extension of the stable prefix. Only the pieces after it are read: that bounds the work."""
        tokenizer = self._recognizer.tokenizer
        tokens: list[int] = []
        while prefix is not self._stable and prefix.parent is not None:
            tokens.append(prefix.token)
            prefix = prefix.parent
        tokens.reverse()
        tail = tokenizer.decode(tokens) if tokens else ""
        if not tail or not self._stable_text:
            return self._stable_text or tail
        apart = tokenizer.starts_word(tokens[0]) or tokenizer.piece(self._stable.token).endswith(WORD_START)
        return f"{self._stable_text} {tail}" if apart else self._stable_text + tail

    @property
    def _spellings(self) -> Spellings | None:
        return None if self._expected is None else self._expected.spellings

    def _show(self) -> None:
        text, stable = self._text, self._stable_text
        if (spellings := self._spellings) is not None:
            text, stable = write_phrases(text, spellings), settled(stable, spellings)
        self._partial = Partial(text, stable, self.seconds, self._rule is not None, self._rule)

    def _distinct(self, stream: Stream, seconds: float) -> tuple[Hypothesis, ...]:
        """The hypotheses of an ended stream: as many texts as were asked for, where that many exist. Several token
        sequences may spell one text; where that leaves too few texts, a wider beam is searched."""
        recognizer = self._recognizer
        settings, beam = recognizer.settings, stream.beam
        hypotheses = self._texts(beam, seconds)
        while len(hypotheses) < settings.nbest and settings.beam < _WIDEST * recognizer.settings.beam:
            if len(beam.prefixes) < settings.beam:
                break  # there are no more
            settings = replace(settings, beam=2 * settings.beam)
            beam = streams.search_again(stream, recognizer.transducer, settings)
            hypotheses = self._texts(beam, seconds)
        return hypotheses

    def _texts(self, beam: Beam, seconds: float) -> tuple[Hypothesis, ...]:
        recognizer = self._recognizer
        return distinct(paths(beam), recognizer.tokenizer, recognizer.frame_seconds, seconds, self._spellings)

    def _wider(self, hypotheses: tuple[Hypothesis, ...], stream: Stream, seconds: float) -> tuple[Hypothesis, ...]:
        """The list of a wider beam: what the second pass knows better, the first had no room for."""
        recognizer, given = self._recognizer, self._recognizer.settings
        width = int(_WIDEST * given.beam * _SOON / max(seconds, _SOON))
        if given.beam == 1 or len(stream.beam.prefixes) < given.beam or width <= given.beam:
            return hypotheses
        settings = replace(given, beam=width, threshold=_FARTHEST * given.threshold)
        return self._texts(streams.search_again(stream, recognizer.transducer, settings), seconds)

    def _second_pass(self, log_probs: Float | None) -> Rescore | None:
        """The recognizer's, over what the CTC head says, where there is one."""
        model = self._recognizer
        rescore, head = model.rescore, model.ctc
        if rescore is None or head is None or log_probs is None:
            return rescore

        def rescored(hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
            heard = [model.tokenizer.decode(each.tokens) for each in hypotheses]
            scores = head.scores(log_probs, heard).tolist()
            given = zip(hypotheses, scores, strict=True)
            scored = [replace(each, scores=replace(each.scores, ctc=score)) for each, score in given]
            return rescore(likeliest(scored, model.bundle.combination, _ASKED * model.settings.beam))

        return rescored

    def _spotted(
        self, expected: Hotwords, hypotheses: Sequence[Hypothesis], log_probs: Float, stream: Stream
    ) -> list[tuple[Phrase, Spot]]:
        """What the user said before and may have said now, and where, if it is unsure what that was. log_probs: [T, C],
        what the CTC head says of what was heard."""
        model = self._recognizer
        if not expected.said or model.ctc is None:
            return []
        best = with_confidence(hypotheses, model.bundle.combination.confidence)[0]
        if best.confidence >= _UNSURE:
            return []
        texts = [text for text in expected.said if f" {text} " not in f" {best.text} "]
        found = likely(log_probs[streams.in_time(stream)], [model.ctc.phones(text) for text in texts])
        encode, said = model.tokenizer.encode, expected.said
        spelled = ((texts[number], place) for number, place in found)
        return [(Phrase(text, tuple(encode(text)), said[text]), place) for text, place in spelled]

    def _looked_again(
        self,
        expected: Hotwords,
        hypotheses: tuple[Hypothesis, ...],
        encoded: Float,
        seconds: float,
        rescore: Rescore | None,
        spotted: Sequence[tuple[Phrase, Spot]],
    ) -> tuple[Hypothesis, ...]:
        """With what the expected phrases bring that the search did not find. encoded: [T, J], of each frame."""
        model = self._recognizer
        wanted, utterance = expected.sought(model.tokenizer), EncodedUtterance(encoded, model.frame_seconds, seconds)
        return look_again(hypotheses, wanted, utterance, model.transducer, model.tokenizer, rescore, spotted)


def recognize_whole(open_session: Callable[[int], RecognitionSession], audio: Audio, sample_rate: int | None) -> Result:
    """The n-best list of a whole utterance, by the session that is opened for its rate (Hz)."""
    samples, rate = given_audio(audio, sample_rate)
    session = open_session(rate)
    session.feed(samples)
    return session.finish()


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
        :class:`ConfigurationError` for one that this model cannot spell."""
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
        """The n-best list of a whole utterance. audio: [S] float32 or float64 in [-1, 1], or int16, with its
        sample_rate (Hz); or a file, by its path or as its bytes, which knows its own. mix_down: take the mean of
        several channels instead of refusing them. hotwords: phrases to expect, as of :meth:`session`. Raises
        :class:`AudioError` as :meth:`RecognitionSession.feed` does, and where the rate is not known."""
        return recognize_whole(lambda hz: self.session(hz, mix_down=mix_down, hotwords=hotwords), audio, sample_rate)
