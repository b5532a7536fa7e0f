"""From samples to beam, block by block: a pure function of (samples, what was there before)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding import beam as search
from device_sdk.decoding.beam import Beam
from device_sdk.decoding.contextual_biasing import Guide
from device_sdk.decoding.endpoint import NOTHING, Loudness, heard, levels
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.features import FeatureSettings, Remainder, flush, frames
from device_sdk.features.logmel import SILENCE
from device_sdk.runtimes.protocol import States, Transducer

Float = NDArray[np.float32]

LEAD = 0.45  # s; of the room before somebody speaks, as before most utterances that networks learn from
_ROUNDING = 1e-6  # s; 16 steps of 0.03 s are 0.48 s
_PIECE = 60  # encoder frames, a multiple of the search's own blocks
Chunks = tuple["Chunks", Float] | None
"""Arrays, last first, as a linked list: adding one costs the same however many there are."""


class Encoded(NamedTuple):
    """A part of what the encoder gave, and the parts ``before`` it. values: [K, J]; frame: of the utterance, its first
    one; anew: whether the networks began anew with it."""

    before: Encoded | None
    values: Float
    frame: int
    anew: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """One utterance so far. remainder: of the features. features: [F, M] of all so far (:func:`collect_features`);
    ``waiting`` [F, M], fewer than the encoder stacks into one, are the last of them, and ``lead`` [F, M] those before:
    what the networks hear of a pause, once somebody speaks again. step: seconds of an encoder frame. encoded: what the
    encoder gave so far (:func:`collect_encoded`)."""

    beam: Beam
    remainder: Remainder
    waiting: Float
    lead: Float
    step: float
    features: Chunks = None
    encoder: States | None = None
    loudness: Loudness = NOTHING
    encoded: Encoded | None = None


def frame_seconds(transducer: Transducer, settings: FeatureSettings) -> float:
    """Of one encoder frame."""
    return transducer.architecture.subsampling_factor * settings.shift / settings.sample_rate


def begin(transducer: Transducer, settings: FeatureSettings, guide: Guide | None = None) -> Stream:
    """Nothing heard yet."""
    none = np.zeros((0, settings.mel_bins), np.float32)
    step = frame_seconds(transducer, settings)
    return Stream(search.start(transducer, guide), Remainder(np.zeros(0, np.float32)), none, none, step)


def push(
    stream: Stream, block: Float, transducer: Transducer, features: FeatureSettings, decoding: DecodingSettings
) -> Stream:
    """Decode the next samples, [S] float32 at the features' rate. Sums are taken in the order of the blocks: whoever
    wants the same bits for any chunking passes the same blocks."""
    found, remainder = frames(block, stream.remainder, features)
    return _decode(stream, remainder, found, transducer, decoding)


def end(
    stream: Stream, rest: Float, transducer: Transducer, features: FeatureSettings, decoding: DecodingSettings
) -> Stream:
    """Decode the last samples, and what silence the encoder needs after them."""
    found, remainder = frames(rest, stream.remainder, features)
    found = np.concatenate([found, flush(remainder, features)])
    return _ended(_decode(stream, Remainder(rest[:0]), found, transducer, decoding), transducer, decoding)


def collect_features(stream: Stream, mel_bins: int) -> Float:
    """The features of a stream so far, [F, M] float32."""
    found: list[Float] = []
    chunks = stream.features
    while chunks is not None:
        chunks, chunk = chunks
        found.append(chunk)
    return np.concatenate(found[::-1]) if found else np.zeros((0, mel_bins), np.float32)


def collect_encoded(stream: Stream, joiner_size: int) -> Float:
    """What the encoder gave so far, [T, J] float32; of pauses only what the networks hear of them."""
    parts = [part.values for part in _in_order(stream)]
    return np.concatenate(parts) if parts else np.zeros((0, joiner_size), np.float32)


def in_time(stream: Stream) -> NDArray[np.int64]:
    """For each frame of the utterance the row of :func:`collect_encoded` that says what was heard there: in a pause, of
    which the networks hear little, the last one before it."""
    parts = [np.arange(part.frame, part.frame + len(part.values)) for part in _in_order(stream)]
    frames = np.concatenate([*parts, np.zeros(0, np.int64)])
    return np.maximum(np.searchsorted(frames, np.arange(frames.max(initial=-1) + 1), "right") - 1, 0)


def _in_order(stream: Stream) -> Iterator[Encoded]:
    found, part = list[Encoded](), stream.encoded
    while part is not None:
        found.append(part)
        part = part.before
    return reversed(found)


def _decode(
    stream: Stream, remainder: Remainder, found: Float, transducer: Transducer, decoding: DecodingSettings
) -> Stream:
    """Decode the next frames, [F, M]. In a pause the networks hear nothing; what follows it begins anew for them."""
    if len(found) == 0:
        return replace(stream, remainder=remainder)
    ready = np.concatenate([stream.waiting, found]) if len(stream.waiting) else found
    factor, windows = transducer.architecture.subsampling_factor, transducer.windows
    shift, ahead = windows.shift, windows.size - windows.shift
    usable = max(0, len(ready) - ahead) // shift * shift
    beam, encoder, kept = stream.beam, stream.encoder, stream.encoded
    advance = search.greedy if decoding.beam == 1 and beam.tree.guide is None else search.advance
    pause, most = decoding.pause_seconds - _ROUNDING, -(-round(LEAD / stream.step) * factor // shift) * shift
    pauses, first = stream.loudness.quiet >= pause, len(stream.lead)
    heard_to = 0 if pauses else first  # by the networks; they hear of a pause only its end, once it is over
    known = np.concatenate([stream.lead, ready[: usable + ahead]])
    end = first + usable
    loudness, quiets = heard(stream.loudness, levels(ready[:usable], factor), stream.step)
    for at, quiet in enumerate(quiets, 1):
        if at * factor % shift:
            continue
        paused, pauses = pauses, quiet >= pause
        if pauses:
            now = first + at * factor
            if not paused:
                encoded, _ = transducer.encode(known[heard_to : now + ahead], encoder)
                kept = Encoded(kept, encoded, beam.frame, encoder is None)
                beam, encoder = search.restart(advance(beam, encoded, transducer, decoding)), None
                heard_to = now
            skipped = max(now - most, 0) - heard_to
            heard_to, beam = heard_to + skipped, replace(beam, frame=beam.frame + skipped // factor)
    if usable and not pauses:
        encoded, following = transducer.encode(known[heard_to : end + ahead], encoder)
        kept, encoder = Encoded(kept, encoded, beam.frame, encoder is None), following
        beam = advance(beam, encoded, transducer, decoding)
    lead = known[max(0, end - most) : end]
    features = stream.features, found
    return Stream(beam, remainder, ready[usable:], lead, stream.step, features, encoder, loudness, kept)


def _ended(stream: Stream, transducer: Transducer, decoding: DecodingSettings) -> Stream:
    """With the silence that an encoder of windows needs to hear the last frames; it is not part of the features."""
    missing = 0 if stream.features is None else transducer.windows.silence(len(stream.waiting))
    if not missing:
        return stream
    silence = np.full((missing, stream.waiting.shape[1]), SILENCE, np.float32)
    return replace(_decode(stream, stream.remainder, silence, transducer, decoding), features=stream.features)


def decoded(
    features: Float, transducer: Transducer, step: float, decoding: DecodingSettings, guide: Guide | None = None
) -> Beam:
    """The beam of a whole utterance. features: [F, M] as the network hears them; step: seconds of an encoder frame."""
    empty = Remainder(np.zeros(0, np.float32))
    stream = Stream(search.start(transducer, guide), empty, features[:0], features[:0], step)
    piece = _PIECE * transducer.architecture.subsampling_factor
    for start in range(0, len(features), piece):  # a long one at once would need memory that is not given back
        stream = _decode(stream, empty, features[start : start + piece], transducer, decoding)
    return _ended(stream, transducer, decoding).beam


def search_again(stream: Stream, transducer: Transducer, decoding: DecodingSettings) -> Beam:
    """The beam of an ended stream under other settings, from what the encoder gave."""
    beam = search.start(transducer, stream.beam.tree.guide)
    for part in _in_order(stream):
        if part.anew and part.before is not None:
            beam = search.restart(beam)
        beam = search.advance(replace(beam, frame=part.frame), part.values, transducer, decoding)
    return beam
