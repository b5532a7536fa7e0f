"""One recording with its labels, and a set of them. Audio is loaded only when asked for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.feedback.slots import SlotLexicon

_ACCENTS = re.compile("[\u0300-\u036f]")
_NOT_ENGLISH = re.compile(r"[^a-z' ]+")
_NOT_LETTERS = re.compile(r"[^\w' ]+|[\d_]+")

SAMPLE_RATE = 16_000
"""Samples a second of every waveform that a corpus gives."""

Waveform = npt.NDArray[np.float32]
"""Mono audio [S] at 16 kHz in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording.

    id: unique in its corpus. speaker: who spoke, as far as the corpus knows; speakers are what is held out and what
    becomes a device. text: what was said, lower-case words; None where the corpus does not say. slots: slot type ->
    value; None where the corpus has no slot labels ({} says: labelled, and there are none). score_words: whether
    ``text`` is sure enough to count word errors against. audio: makes the waveform, float32 [S] at 16 kHz; may raise
    DataError."""

    id: str
    speaker: str
    text: str | None
    slots: Mapping[str, str] | None
    score_words: bool
    audio: Callable[[], Waveform] = field(repr=False, compare=False)

    @property
    def sure_text(self) -> str | None:
        """``text`` where it is sure."""
        return self.text if self.score_words else None

    def load(self) -> Waveform:
        """The waveform, float32 [S] at 16 kHz. Read or made anew at every call, the same each time."""
        return self.audio()


@dataclass(frozen=True, slots=True)
class Corpus:
    """Utterances in a fixed order. name: KIND:PATH as it was opened. lexicon: the slot values to read hypotheses with;
    None where the corpus has no slot labels."""

    name: str
    utterances: tuple[Utterance, ...]
    lexicon: SlotLexicon | None = None

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def speakers(self) -> tuple[str, ...]:
        """Distinct speakers, sorted."""
        return tuple(sorted({utterance.speaker for utterance in self.utterances}))

    def only(self, keep: Callable[[Utterance], bool]) -> Corpus:
        """The same corpus with the utterances that ``keep`` accepts; the lexicon stays whole."""
        return replace(self, utterances=tuple(filter(keep, self.utterances)))

    def first(self, count: int | None) -> Corpus:
        """At most ``count`` of its utterances; all where that is None."""
        return replace(self, utterances=self.utterances[:count])

    def of_speakers(self, *speakers: str) -> Corpus:
        """The utterances of the named speakers."""
        return self.only(lambda utterance: utterance.speaker in speakers)

    def summary(self) -> dict[str, Any]:
        """Plain figures for a card or a report."""
        return {"name": self.name, "utterances": len(self), "speakers": list(self.speakers)}


def clean(sentence: str, english: bool = True) -> str:
    """Lower-case words of a-z and apostrophe without accents, one space apart; of any letters where the language is
    another one."""
    text = sentence.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text)) if english else unicodedata.normalize("NFC", text)
    text = (_NOT_ENGLISH if english else _NOT_LETTERS).sub(" ", text)
    return " ".join(word for word in text.split() if word.strip("'"))
