"""How to search, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from device_sdk.errors import ConfigurationError

__all__ = ["DecodingSettings"]


@dataclass(frozen=True, slots=True)
class DecodingSettings:
    """Settings of a recognizer.

    beam: hypotheses kept after each frame; 1 is greedy decoding.
    nbest: entries of a result, at most ``beam``.
    symbols_per_frame: tokens that one 30 ms frame may emit.
    threshold: nats; a hypothesis further than this below the best one is not extended. Larger is slower and surer.
    pause_seconds: after so long a silence between words the networks begin anew, as for another utterance, and hear
        nothing until somebody speaks again; infinity never does that.
    block_seconds: audio is decoded in blocks of this length, whatever the sizes it arrives in. That makes a result
        independent of the chunking, to the last bit, and is how often a partial changes.
    max_seconds: the longest utterance one session accepts; bounds the memory of features kept for learning.
    """

    beam: int = 8
    nbest: int = 8
    symbols_per_frame: int = 2
    threshold: float = 5.0
    pause_seconds: float = 0.48
    block_seconds: float = 0.3
    max_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("nbest", 1), ("symbols_per_frame", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigurationError(f"decoding.{name}: found {value!r}, expected an integer of {least} or more")
        if self.nbest > self.beam:
            raise ConfigurationError(
                f"decoding.nbest: found {self.nbest}, expected at most the beam ({self.beam}); widen the beam"
            )
        for name in ("threshold", "pause_seconds", "block_seconds", "max_seconds"):
            value = getattr(self, name)
            if not value > 0.0 or (name in ("block_seconds", "max_seconds") and not isfinite(value)):
                raise ConfigurationError(f"decoding.{name}: found {value!r}, expected a positive number")
        if not 0.03 <= self.block_seconds <= 10.0:
            raise ConfigurationError(f"decoding.block_seconds: found {self.block_seconds}, expected 0.03 to 10")
