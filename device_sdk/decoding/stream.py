"""From samples to beam, block by block: a pure function of (samples, what was there before)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding import beam as search
from device_sdk.decoding.beam import Beam
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.features import FeatureSettings, Remainder, flush, frames
from device_sdk.runtimes.protocol import RecurrentState, Transducer

__all__ = ["Stream", "begin", "end", "push", "searched_again"]

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stream:
    """One utterance so far.

    samples: [S] float32 at the features' rate, shorter than a block, not yet looked at.
    remainder: of the features. features: chunks [F, M] of all frames so far; ``waiting`` [F, M], fewer than the encoder
    stacks into one, are the last of them.
    """

    beam: Beam
    samples: Float
    remainder: Remainder
    features: tuple[Float, ...]
    waiting: Float
    encoder: RecurrentState | None = None


def begin(transducer: Transducer, settings: FeatureSettings) -> Stream:
    """Nothing heard yet."""
    none = np.zeros((0, settings.mel_bins), np.float32)
    return Stream(search.start(transducer), np.zeros(0, np.float32), Remainder(np.zeros(0, np.float32)), (), none)


def push(
    stream: Stream, samples: Float, transducer: Transducer, features: FeatureSettings, decoding: DecodingSettings
) -> Stream:
    """Decode the blocks that ``samples`` [S] complete. Blocks, not chunks, are what every stage sees, so that sums are
    taken in the same order and any chunking gives the same bits."""
    block = round(decoding.block_seconds * features.sample_rate)
    samples = np.concatenate([stream.samples, samples]) if stream.samples.size else samples
    at = 0
    while samples.size - at >= block:
        found, remainder = frames(samples[at : at + block], stream.remainder, features)
        stream = _decode(replace(stream, remainder=remainder), found, transducer, decoding)
        at += block
    return replace(stream, samples=samples[at:].copy())


def end(stream: Stream, transducer: Transducer, features: FeatureSettings, decoding: DecodingSettings) -> Stream:
    """Decode what is left; frames too few for the encoder to stack are dropped, as in training."""
    found, remainder = frames(stream.samples, stream.remainder, features)
    rest = np.concatenate([found, flush(remainder, features)])
    ended = replace(stream, samples=stream.samples[:0], remainder=Remainder(stream.samples[:0]))
    return _decode(ended, rest, transducer, decoding)


def _decode(stream: Stream, found: Float, transducer: Transducer, decoding: DecodingSettings) -> Stream:
    if len(found) == 0:
        return stream
    ready = np.concatenate([stream.waiting, found]) if len(stream.waiting) else found
    usable = len(ready) - len(ready) % transducer.architecture.subsampling_factor
    beam, encoder = stream.beam, stream.encoder
    if usable:
        encoded, encoder = transducer.encode(ready[:usable], encoder)
        step = search.greedy if decoding.beam == 1 else search.advance
        beam = step(beam, encoded, transducer, decoding)
    return replace(stream, beam=beam, encoder=encoder, features=(*stream.features, found), waiting=ready[usable:])


def searched_again(stream: Stream, transducer: Transducer, decoding: DecodingSettings) -> Beam:
    """The beam of an ended stream under other settings, from the features it kept."""
    features = np.concatenate(stream.features)
    usable = len(features) - len(features) % transducer.architecture.subsampling_factor
    encoded, _ = transducer.encode(features[:usable])
    return search.advance(search.start(transducer), encoded, transducer, decoding)
