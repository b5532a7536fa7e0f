"""How to search, validated once."""

from dataclasses import dataclass
from typing import Literal, get_args

from device_sdk.checks import WHOLE, check_intervals, check_type
from device_sdk.errors import ConfigurationError

Search = Literal["sum", "modified"]


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
    max_seconds: the longest utterance one session accepts; bounds the memory of features kept for learning.
    search: ``sum`` adds up all alignments of a text, which makes fewer errors; ``modified`` is the modified beam search
        of sherpa-onnx, with its texts: the likeliest alignment counts, or, where a token stands in the place of a
        blank, the best by log-probability per token."""

    beam: int = 8
    nbest: int = 8
    symbols_per_frame: int = 2
    threshold: float = 5.0
    pause_seconds: float = 0.48
    block_seconds: float = 0.3
    max_seconds: float = 120.0
    search: Search = "sum"

    def __post_init__(self) -> None:
        for name in ("beam", "nbest", "symbols_per_frame"):
            check_type(f"decoding.{name}", getattr(self, name), WHOLE, "a whole number")
            check_intervals("decoding", self, "[0, inf)" if name == "symbols_per_frame" else "[1, inf)", name)
        if self.nbest > self.beam:
            raise ConfigurationError(f"decoding.nbest: found {self.nbest}, expected at most the beam, {self.beam}")
        if self.search not in get_args(Search):
            raise ConfigurationError(
                f"decoding.search: found {self.search!r}, expected {' or '.join(get_args(Search))}"
            )
        for name in ("threshold", "pause_seconds"):
            if not getattr(self, name) > 0.0:
                raise ConfigurationError(f"decoding.{name}: found {getattr(self, name)!r}, expected a positive number")
        check_intervals("decoding", self, "[0.03, 10]", "block_seconds")
        check_intervals("decoding", self, "(0, inf)", "max_seconds")
