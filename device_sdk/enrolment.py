"""Reading aloud: a few dozen short phrases from which a device learns a voice, an accent or a microphone at once.

Two phrases in three are learned from; the third is kept aside, in memory, and heard again now and then with what was
learned. That says before and after, ends the reading when nothing more is gained, and takes back what did not help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError
from device_sdk.feedback.distance import edit_distance
from device_sdk.feedback.signals import Corrected
from device_sdk.hypothesis import Result
from device_sdk.transcripts import in_letters, transcript

LEAST, MOST = 6, 30
"""Phrases that are read at least, and at most unless an app says otherwise."""
_ASIDE = 3  # one in so many
_PATIENCE = 15  # phrases without a gain on those kept aside
_DRAWS = 2_000

Waveform = NDArray[np.generic]

PHRASES = tuple(
    """
    turn off the light in the hallway
    what is the weather like tomorrow
    set a timer for fifteen minutes
    play some quiet music in the bathroom
    add six eggs and butter to the shopping list
    how far is the station
    wake me up at half past seven
    close the blinds in the living room
    remind me to call my mother on thursday
    what time does the pharmacy open
    make it a little warmer in here
    lock the front door please
    is there any news about the strike
    skip to the next chapter
    put the kettle on for tea
    how do you spell necessary
    turn the volume down by three
    when does the last bus leave
    show me the way to the old bridge
    cancel my appointment with the dentist
    who sings this beautiful song
    start the washing machine at nine
    did you water the plants yesterday
    tell george that we are running late
    how many cups are in a quart
    the children should be asleep by eight
    switch on the garage lamp
    buy fresh bread cheese and olives
    what is thirty eight divided by two
    measure the length of the table
    open the window just a bit
    please vacuum under the sofa
    my favourite colour is blue
    read the message from yesterday again
    choose a joyful song for the journey
    is the oven still hot
    the zipper on my jacket is frozen
    move the meeting to wednesday afternoon
    check whether the charger is plugged in
    good night and sleep well
    where did i leave my glasses
    have you ever been to the north
    thank you that was very helpful
    """.strip().split("\n    ")
)
"""English as people say it at home; together they hold every common sound in several places. A line each."""


@dataclass(frozen=True, slots=True)
class Step:
    """One phrase as it was read. errors: of its words, before anything was learned from it. aside: whether it was kept
    to measure with."""

    phrase: str
    heard: str
    errors: int
    aside: bool


@dataclass(frozen=True, slots=True)
class EnrolmentReport:
    """phrases: read; aside: kept to measure with. before, after: their word error, in [0, 1], with what the device knew
    before and with what it has learned. low, high: 95 % interval of the difference, by drawing phrases anew. kept:
    whether what was learned stays; stopped: why the reading ended."""

    phrases: int
    aside: int
    before: float
    after: float
    low: float
    high: float
    kept: bool
    stopped: str

    def __str__(self) -> str:
        change = f"{100 * self.before:.0f} % of words wrong before, {100 * self.after:.0f} % after"
        interval = f"{100 * self.low:+.0f} to {100 * self.high:+.0f} points"
        what = "kept" if self.kept else "taken back"
        return f"{self.phrases} phrases, {self.aside} to measure with: {change} ({interval}); {what}. {self.stopped}."


class Enrolment:
    """One reading. Made by :meth:`Device.enrolment <device_sdk.device.Device.enrolment>`; waveforms of what is kept
    aside are in memory until it ends."""

    def __init__(self, device: Enrolling, phrases: Iterable[str], most: int) -> None:
        self._device, self._most = device, most
        told = (transcript(each, "enrolment: phrase", ConfigurationError) for each in phrases)
        self._phrases = [in_letters(each, device.letters, "enrolment: phrase", ConfigurationError) for each in told]
        if len(self._phrases) < LEAST or most < LEAST:
            found = min(len(self._phrases), most)
            raise ConfigurationError(f"enrolment: found {found} phrases, expected at least {LEAST}")
        self._aside: list[tuple[str, Waveform, int, int]] = []  # phrase, waveform, rate, errors before
        self._now: NDArray[np.int64] | None = None  # errors in these; None once that may have changed
        self._read, self._best, self._gained = 0, 1 << 30, 0
        self._stopped = ""

    @property
    def count(self) -> int:
        """Phrases that were read."""
        return self._read

    @property
    def most(self) -> int:
        """Phrases that are read at most."""
        return min(self._most, len(self._phrases))

    @property
    def stopped(self) -> str:
        """Why the reading is over; empty while it goes on."""
        return self._stopped

    @property
    def phrase(self) -> str | None:
        """What is to be read next; None once the reading is over."""
        if self._stopped or self._read >= self.most:
            return None
        return self._phrases[self._read]

    def read(self, audio: Waveform, sample_rate: int) -> Step:
        """The next phrase, read aloud: samples as of ``Device.recognize``. One that is passed over is read as silence.
        Raises ConfigurationError once the reading is over."""
        phrase = self.phrase
        if phrase is None:
            raise ConfigurationError("enrolment: the reading is over; call finish()")
        aside = self._read % _ASIDE == _ASIDE - 1
        if aside:
            heard = self._device.hear(audio, sample_rate)
        else:
            result = self._device.recognize(audio, sample_rate)
            heard = result.text
        errors = edit_distance(phrase.split(), heard.split())
        self._read += 1
        if aside:
            self._aside.append((phrase, audio, sample_rate, self._errors_at_first(phrase, audio, sample_rate)))
            self._now = None
        elif heard or errors < len(phrase.split()):
            self._device.learn(result, Corrected(phrase))
            self._now = None
        if self._read % _ASIDE == 0:
            self._look()
        return Step(phrase, heard, errors, aside)

    def finish(self) -> EnrolmentReport:
        """Ends the reading. What did not lower the errors of what was kept aside is taken back."""
        before = np.array([errors for *_, errors in self._aside])
        after = self._errors()
        words = np.array([len(phrase.split()) for phrase, *_ in self._aside], np.int64)
        if not self._stopped:
            self._stopped = "all phrases were read" if self.phrase is None else "ended by its reader"
        kept = bool(after.sum() < before.sum())
        if not kept:
            self._device.restore()
        low, high = _interval(after - before, words)
        total = max(1, int(words.sum()))
        read, aside = self._read, len(self._aside)
        self._aside = []
        return EnrolmentReport(
            read, aside, float(before.sum() / total), float(after.sum() / total), low, high, kept, self._stopped
        )

    def _errors_at_first(self, phrase: str, audio: Waveform, sample_rate: int) -> int:
        """With what the device knew before the reading."""
        heard = self._device.hear(audio, sample_rate, now=False)
        return edit_distance(phrase.split(), heard.split())

    def _errors(self) -> NDArray[np.int64]:
        """Now, in each phrase that was kept aside."""
        if self._now is None:
            heard = [(phrase, self._device.hear(audio, rate)) for phrase, audio, rate, _ in self._aside]
            self._now = np.array([edit_distance(phrase.split(), text.split()) for phrase, text in heard], np.int64)
        return self._now

    def _look(self) -> None:
        """Whether there is anything left to gain."""
        now = int(self._errors().sum()) - sum(errors for *_, errors in self._aside)
        if now < self._best:
            self._best, self._gained = now, self._read
        if self._read >= LEAST and self._read - self._gained >= _PATIENCE:
            self._stopped = "nothing more was gained"


def _interval(differences: NDArray[np.int64], words: NDArray[np.int64]) -> tuple[float, float]:
    if not len(words):
        return 0.0, 0.0
    rows = np.random.default_rng(0).integers(0, len(words), (_DRAWS, len(words)))
    low, high = np.percentile(differences[rows].sum(1) / words[rows].sum(1), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Enrolling:
    """What a reading does with a device. recognize: as anything that is heard. hear: leaves no trace; with what is
    known now, or was when the reading began. learn: from a result and what it should have been. restore: takes back all
    that was learned since the reading began. letters: what the model can spell."""

    recognize: Callable[[Waveform, int], Result]
    hear: Callable[..., str]
    learn: Callable[[Result, Corrected], object]
    restore: Callable[[], None]
    letters: Set[str]


def chosen(phrases: Sequence[str], names: Sequence[str], most: int) -> list[str]:
    """Of the phrases those that together hold the most different triples of letters, the richest first; names of the
    user's vocabulary come in sentences of their own between them."""
    left, known, order = list(phrases), set[str](), list[str]()
    while left and len(order) < most:
        best = max(left, key=lambda phrase: len(_triples(phrase) - known) / len(phrase))
        left.remove(best)
        known |= _triples(best)
        order.append(best)
    named = [f"call {name}" if at % 2 else f"is {name} at home" for at, name in enumerate(names[: most // 3])]
    for at, sentence in enumerate(named):
        order.insert(min(len(order), 2 + 3 * at), sentence)
    return order[:most]


def _triples(phrase: str) -> set[str]:
    padded = f" {phrase} "
    return {padded[at : at + 3] for at in range(len(padded) - 2)}
