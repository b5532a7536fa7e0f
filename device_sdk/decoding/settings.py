"""How to search, validated once."""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.checks import WHOLE, check_intervals, check_type
from device_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DecodingSettings:
    """Settings of a recognizer.

    beam: hypotheses kept after each frame; 1 is greedy decoding.
    nbest: entries of a result, at most ``beam``.
    symbols_per_frame: tokens that one encoder frame may emit before its blank; 0 for one in the place of the blank, as
        imported models are decoded whatever is set here.
    threshold: nats; a hypothesis further than this below the best one is not extended. Larger is slower and surer.
    pause_seconds: after so long a silence between words the networks begin anew, as for another utterance, and hear
        nothing until somebody speaks again; infinity never does that.
    block_seconds: audio is decoded in blocks of this length, whatever the sizes it arrives in. That makes a result
        independent of the chunking, to the last bit, and is how often a partial changes.
    max_seconds: the longest utterance one session accepts; bounds the memory of features kept for learning."""

    beam: int = 8
    nbest: int = 8
    symbols_per_frame: int = 2
    threshold: float = 5.0
    pause_seconds: float = 0.48
    block_seconds: float = 0.3
    max_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in ("beam", "nbest", "symbols_per_frame"):
            check_type(f"decoding.{name}", getattr(self, name), WHOLE, "a whole number")
            check_intervals("decoding", self, "[0, inf)" if name == "symbols_per_frame" else "[1, inf)", name)
        if self.nbest > self.beam:
            raise ConfigurationError(f"decoding.nbest: found {self.nbest}, expected at most the beam, {self.beam}")
        for name in ("threshold", "pause_seconds"):
            if not getattr(self, name) > 0.0:
                raise ConfigurationError(f"decoding.{name}: found {getattr(self, name)!r}, expected a positive number")
        check_intervals("decoding", self, "[0.03, 10]", "block_seconds")
        check_intervals("decoding", self, "(0, inf)", "max_seconds")
