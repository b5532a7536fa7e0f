"""From samples to beam, block by block: a pure function of (samples, what was there before)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding import beam as search
from device_sdk.decoding.beam import Beam
from device_sdk.decoding.guides import Guide
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.features import FeatureSettings, Remainder, flush, frames
from device_sdk.runtimes.protocol import RecurrentState, Transducer

__all__ = ["Chunks", "Stream", "begin", "collected", "end", "push", "searched_again"]

Float = NDArray[np.float32]

_PIECE = 60  # encoder frames, a multiple of the search's own blocks
Chunks = tuple["Chunks", Float] | None
"""Arrays, last first, as a linked list: adding one costs the same however many there are."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One utterance so far.

    remainder: of the features. features: [F, M] of all frames so far, see :func:`collected`; ``waiting`` [F, M], fewer
    than the encoder stacks into one, are the last of them. offset: taken from every frame, [M]; None for nothing.
    """

    beam: Beam
    remainder: Remainder
    waiting: Float
    features: Chunks = None
    encoder: RecurrentState | None = None
    offset: Float | None = None


def begin(
    transducer: Transducer, settings: FeatureSettings, guide: Guide | None = None, offset: Float | None = None
) -> Stream:
    """Nothing heard yet."""
    none = np.zeros((0, settings.mel_bins), np.float32)
    return Stream(search.start(transducer, guide), Remainder(np.zeros(0, np.float32)), none, offset=offset)


def push(
    stream: Stream, block: Float, transducer: Transducer, features: FeatureSettings, decoding: DecodingSettings
) -> Stream:
    """Decode the next samples, [S] float32 at the features' rate.

    Sums are taken in the order of the blocks: whoever wants the same bits for any chunking passes the same blocks.
    """
    found, remainder = frames(block, stream.remainder, features)
    return _decode(stream, remainder, found, transducer, decoding)


def end(
    stream: Stream, rest: Float, transducer: Transducer, features: FeatureSettings, decoding: DecodingSettings
) -> Stream:
    """Decode the last samples; frames too few for the encoder to stack are dropped, as in training."""
    found, remainder = frames(rest, stream.remainder, features)
    found = np.concatenate([found, flush(remainder, features)])
    return _decode(stream, Remainder(rest[:0]), found, transducer, decoding)


def collected(stream: Stream, mel_bins: int) -> Float:
    """The features of a stream so far, [F, M] float32."""
    found: list[Float] = []
    chunks = stream.features
    while chunks is not None:
        chunks, chunk = chunks
        found.append(chunk)
    return np.concatenate(found[::-1]) if found else np.zeros((0, mel_bins), np.float32)


def _decode(
    stream: Stream, remainder: Remainder, found: Float, transducer: Transducer, decoding: DecodingSettings
) -> Stream:
    if len(found) == 0:
        return replace(stream, remainder=remainder)
    if stream.offset is not None:
        found = found - stream.offset
    ready = np.concatenate([stream.waiting, found]) if len(stream.waiting) else found
    usable = len(ready) - len(ready) % transducer.architecture.subsampling_factor
    beam, encoder = stream.beam, stream.encoder
    if usable:
        encoded, encoder = transducer.encode(ready[:usable], encoder)
        step = search.greedy if decoding.beam == 1 and beam.tree.guide is None else search.advance
        beam = step(beam, encoded, transducer, decoding)
    return Stream(beam, remainder, ready[usable:], (stream.features, found), encoder, stream.offset)


def searched_again(stream: Stream, transducer: Transducer, decoding: DecodingSettings) -> Beam:
    """The beam of an ended stream under other settings, from the features it kept."""
    features = collected(stream, transducer.architecture.mel_bins)
    factor = transducer.architecture.subsampling_factor
    usable = len(features) - len(features) % factor
    beam, state = search.start(transducer, stream.beam.tree.guide), None
    for start in range(0, usable, _PIECE * factor):  # a long utterance at once would need memory that is not given back
        encoded, state = transducer.encode(features[start : min(start + _PIECE * factor, usable)], state)
        beam = search.advance(beam, encoded, transducer, decoding)
    return beam
