"""Since when nobody speaks, by level and tokens, and when an utterance is over: pure functions of the frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from types import NoneType

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import NUMBER, check_intervals, check_type
from device_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class EndpointRule:
    """One reason to end an utterance. All of its conditions must hold, as for a rule of Kaldi or sherpa-onnx.

    must_contain_text: only where something was recognized.
    min_trailing_silence: seconds in which nobody spoke (:func:`trailing_silence`); since the start, where nothing was
        recognized.
    min_utterance_length: seconds of audio."""

    must_contain_text: bool = False
    min_trailing_silence: float = 0.0
    min_utterance_length: float = 0.0

    def __post_init__(self) -> None:
        check_type("endpointing.must_contain_text", self.must_contain_text, bool, "True or False")
        for name in ("min_trailing_silence", "min_utterance_length"):
            check_type(f"endpointing.{name}", getattr(self, name), NUMBER, "seconds")
            check_intervals("endpointing", self, "[0, inf)", name)
        if not max(self.min_trailing_silence, self.min_utterance_length) > 0.0:
            raise ConfigurationError(
                "endpointing: found a rule without a silence or a length, expected one of them above zero; "
                "to switch a rule off, set it to None"
            )


@dataclass(frozen=True, slots=True)
class Endpointing:
    """The rules of a session; the first that holds ends the utterance. None switches a rule off. after_speech: the
    speaker has stopped. silence: nobody speaks. length: the utterance is long, and a shorter pause is enough."""

    after_speech: EndpointRule | None = EndpointRule(must_contain_text=True, min_trailing_silence=0.8)
    silence: EndpointRule | None = EndpointRule(min_trailing_silence=2.4)
    length: EndpointRule | None = EndpointRule(min_trailing_silence=0.48, min_utterance_length=6.0)

    def __post_init__(self) -> None:
        for name, rule in self.rules():
            check_type(f"endpointing.{name}", rule, (EndpointRule, NoneType), "an EndpointRule or None")

    def rules(self) -> tuple[tuple[str, EndpointRule | None], ...]:
        """Every rule with its name, in the order in which they are tried."""
        return (("after_speech", self.after_speech), ("silence", self.silence), ("length", self.length))


def trailing_silence(since_token: float, quiet: float) -> float:
    """How long nobody has spoken, seconds. since_token: since the last token of the best hypothesis; quiet: since the
    last sound of a speaker. A sound without tokens counts half: a long word ends no utterance, noise keeps none open.
    """
    return max(min(since_token, quiet), since_token / 2)


def endpoint(has_text: bool, silence: float, seconds: float, settings: Endpointing) -> tuple[str, EndpointRule] | None:
    """The first rule that holds, by its name; None where none does. has_text: whether something was recognized;
    silence: see :func:`trailing_silence`, all of the utterance where nothing was; seconds: of audio so far."""
    for name, rule in settings.rules():
        if (
            rule is not None
            and (has_text or not rule.must_contain_text)
            and silence >= rule.min_trailing_silence - _ROUNDING
            and seconds >= rule.min_utterance_length - _ROUNDING
        ):
            return name, rule
    return None


_ROUNDING = 1e-6  # s; 40 frames of 0.03 s are 1.2 s

_LEAST_CONTRAST = 2.5  # nats between room and speaker; until they differ by as much, nobody has spoken
_MOST_CONTRAST = 8.0  # nats; beside digital silence, every room would be loud
_QUIET = 0.6  # of the contrast, below the speaker
_RISE, _FALL = 0.3, 0.5  # nats a second


@dataclass(frozen=True, slots=True)
class Loudness:
    """What was heard so far. room: the quietest level of late, which rises slowly; speaker: the loudest, which falls
    slowly; both in nats, see :func:`levels`. quiet: seconds since the last sound near the speaker's level, 0 before."""

    room: float = inf
    speaker: float = -inf
    quiet: float = 0.0


NOTHING = Loudness()


def levels(frames: NDArray[np.float32], step: int) -> list[float]:
    """The level of every ``step`` frames, nats: the log of their energy in the lower half of the mel bins, where voices
    are loud and most noise is not. frames: [F, M] log-mel, F a multiple of ``step``."""
    energies = np.exp(frames[:, : max(1, frames.shape[1] // 2)])
    steps = energies.reshape(len(frames) // step, step * energies.shape[1])
    found: list[float] = np.log(np.add.reduce(steps, axis=1)).tolist()
    return found


def heard(before: Loudness, found: Sequence[float], seconds: float) -> tuple[Loudness, list[float]]:
    """After steps of ``seconds`` of these levels, nats; and how long it was quiet after each of them."""
    room, speaker, quiet, quiets = before.room, before.speaker, before.quiet, []
    rise, fall = _RISE * seconds, _FALL * seconds
    for level in found:  # comparisons, since calls of min and max would take as long as all else
        spoke = speaker - room >= _LEAST_CONTRAST
        room = level if level < room + rise else room + rise
        speaker = level if level > speaker - fall else speaker - fall
        if spoke and speaker < room + _LEAST_CONTRAST:
            speaker = room + _LEAST_CONTRAST
        contrast = speaker - room
        depth = _QUIET * (contrast if contrast < _MOST_CONTRAST else _MOST_CONTRAST)
        quiet = quiet + seconds if (spoke or contrast >= _LEAST_CONTRAST) and level < speaker - depth else 0.0
        quiets.append(quiet)
    return Loudness(room, speaker, quiet), quiets
