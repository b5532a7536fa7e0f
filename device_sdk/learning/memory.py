"""What a device remembers of recent utterances, in memory, until it has learned from them or they are too old."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.decoding.hotwords import Hotwords
from device_sdk.errors import FeedbackError
from device_sdk.feedback.signals import Signal, combined
from device_sdk.hypothesis import Hypothesis
from device_sdk.personalization.cache import UtteranceCounts

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Example:
    """One utterance. features: [F, M] raw log-mel, float32; F is 0 where nothing is learned. nbest: as served, best
    first; probability: with which its first was. counts: what it added to the unigram cache; reported: whether a report
    took them off the books, or none ever will, for want of consent. heard: time on the memory's clock (s). signal: the
    app's feedback. repeats: id of the utterance that this one says again. expected: phrases that it was heard
    with, the app's and the user's own. given: the words that its feedback gave for the next report of words; None where
    they are never to be named, for want of consent when it was heard, or since they were. kept: time of the day (s)
    when it was heard, where it is on the disk too. read: aloud, and its words are not the user's."""

    utterance_id: str
    features: npt.NDArray[np.float32]
    nbest: tuple[Hypothesis, ...]
    counts: UtteranceCounts | None
    heard: float = 0.0
    signal: Signal | None = None
    reported: bool = False
    probability: float = 1.0
    repeats: str | None = None
    given: frozenset[str] | None = None
    expected: Hotwords | None = None
    kept: float | None = None
    read: bool = False

    @property
    def teaches(self) -> bool:
        """Whether there is feedback to learn from."""
        return self.signal is not None and len(self.features) > 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what is on the disk too: how many utterances, and how many bytes of features."""

    utterances: int = 200
    size: int = 16_000_000


@dataclass(frozen=True, slots=True)
class Remembered:
    """That an utterance is in memory, and not what it was. seconds_left: until it is gone whatever happens; feedback:
    whether the app gave any; withheld: whether it is kept to check learning with, and never learned from; sound:
    whether its features are there, or only what feedback needs; kept: whether it is on the disk too, encrypted;
    learned: whether it was learned from, and is there to be replayed."""

    utterance_id: str
    seconds_left: float
    feedback: bool
    withheld: bool
    sound: bool
    kept: bool = False
    learned: bool = False


def utterances(count: int) -> str:
    """So many of them, in words."""
    return "1 utterance" if count == 1 else f"{count} utterances"


class Recent:
    """A bounded ring of examples, oldest first, and beside it those withheld from learning and those to be replayed.
    capacity: utterances; seconds: how long one may stay, in any of them. What is on the disk too has bounds of its own,
    and with feedback a day, by the clock of the day, which runs on while the process, or the machine, does not."""

    def __init__(
        self,
        capacity: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        day_clock: Callable[[], float] = time.time,
        bounds: Bounds = Bounds(),
    ) -> None:
        self._capacity, self._seconds, self._bounds = capacity, seconds, bounds
        self._clock, self._day_clock = clock, day_clock
        self._examples: dict[str, Example] = {}
        self._withheld: dict[str, Example] = {}
        self._learned: dict[str, Example] = {}
        self._gone: tuple[str, ...] = ()
        self._last, self._lost = "", 0
        self._edits: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        self._expire()
        return len(self._examples)

    def add(self, example: Example) -> None:
        """Remembers what is heard now; the oldest makes room."""
        self._expire()
        self._examples[example.utterance_id] = replace(example, heard=self._clock())
        self._last = example.utterance_id
        for key in [key for key, each in self._examples.items() if each.kept is None][: -self._capacity]:
            self._drop(key)

    def mark(self, utterance_id: str, signal: Signal) -> Example:
        """Adds feedback to what there was. Returns the example as it was. FeedbackError: it is not in memory."""
        example = self._known(utterance_id)
        self.change(utterance_id, signal=combined(example.signal, signal))
        return example

    def edit(self, utterance_id: str, text: str) -> None:
        """Notes what an utterance's text is just now, while its user writes. FeedbackError: it is not in memory."""
        self._edits[self._known(utterance_id).utterance_id] = text, self._clock()

    def edited(self, seconds: float) -> list[tuple[str, str]]:
        """Takes out the edits that have not changed for so long: (utterance id, text)."""
        now = self._clock()
        found = [(key, text) for key, (text, when) in self._edits.items() if now - when >= seconds]
        for key, _ in found:
            del self._edits[key]
        return [(key, text) for key, text in found if self.get(key) is not None]

    def _known(self, utterance_id: str) -> Example:
        """FeedbackError: it is not in memory."""
        if (example := self.get(utterance_id)) is None:
            raise FeedbackError(
                f"utterance {utterance_id!r}: not in memory; feedback must come before it was learned from, within "
                f"{self._seconds:.0f} s and {self._capacity} utterances"
            )
        return example

    def latest(self) -> Example | None:
        """What was heard last, if it is in memory still."""
        return self.get(self._last)

    def get(self, utterance_id: str) -> Example | None:
        """An utterance that is in memory still."""
        self._expire()
        return self._examples.get(utterance_id)

    def seconds_since(self, example: Example) -> float:
        """How long ago an utterance was heard."""
        return self._clock() - example.heard

    def change(self, utterance_id: str, **changes: Any) -> Example:
        """Notes what is otherwise now with an utterance in memory. Returns it."""
        self._examples[utterance_id] = example = replace(self._examples[utterance_id], **changes)
        return example

    def put_back(self, example: Example) -> None:
        """An utterance in memory is as it was before: what was to change it failed."""
        self._examples[example.utterance_id] = example

    def reported(self) -> None:
        """Notes that the counts of everything in memory were handed to a report."""
        for key in self._examples:
            self.change(key, reported=True)

    def words_reported(self, all_of_them: bool = False) -> None:
        """Notes that what utterances in memory gave was handed to a report; or that nothing is to be, of any."""
        for key, example in self._examples.items():
            if example.given or all_of_them:
                self.change(key, given=None)

    def take(self, wait_seconds: float) -> Example | None:
        """Takes out the oldest utterance with feedback, else the oldest that waited ``wait_seconds`` for it in vain,
        none that is being edited. None where there is neither. What is taken out is gone, but for what is put aside."""
        self._expire()
        usable = [each for key, each in self._examples.items() if len(each.features) and key not in self._edits]
        marked = (each for each in usable if each.signal is not None)
        waited = (each for each in usable if self.seconds_since(each) >= wait_seconds)
        found = next(marked, None) or next(waited, None)
        return None if found is None else self._examples.pop(found.utterance_id)

    def keep(self, utterance_id: str) -> Example:
        """Notes that an utterance is on the disk too; the oldest make room, first without feedback. Returns it."""
        example = self._examples[utterance_id]
        if example.kept is None:
            example = self.change(utterance_id, kept=self._day_clock() - self.seconds_since(example))
        kept = [each for each in self._examples.values() if each.kept is not None]
        size = sum(each.features.nbytes for each in kept)
        kept.sort(key=lambda each: each.signal is not None)
        while kept and (len(kept) > self._bounds.utterances or size > self._bounds.size):
            oldest = kept.pop(0)
            size -= oldest.features.nbytes
            self._drop(oldest.utterance_id)
        return example

    def restore(self, example: Example) -> None:
        """Remembers an utterance that was on the disk."""
        assert example.kept is not None
        heard = self._clock() - (self._day_clock() - example.kept)
        self._examples[example.utterance_id] = replace(example, heard=heard)

    def release(self, utterance_ids: Iterable[str]) -> None:
        """Notes that these are on the disk no more; they stay in memory as long as any other."""
        for key in self._examples.keys() & {*utterance_ids}:
            self.change(key, kept=None)

    def kept(self) -> tuple[str, ...]:
        """Ids of what is on the disk too."""
        return tuple(key for key, example in self._examples.items() if example.kept is not None)

    def gone(self) -> tuple[str, ...]:
        """Ids of what is here no longer since the last call, though it was not taken out, and is on the disk still."""
        self._expire()
        gone, self._gone = self._gone, ()
        return gone

    def lost(self) -> int:
        """How many utterances with feedback to learn from have gone since the last call, without being taken out."""
        self._expire()
        lost, self._lost = self._lost, 0
        return lost

    def unlearned(self) -> int:
        """How many utterances with feedback to learn from are in memory only."""
        self._expire()
        return sum(example.teaches and example.kept is None for example in self._examples.values())

    def withhold(self, example: Example, capacity: int) -> None:
        """Keeps an example that was taken out, never to be learned from; the oldest beyond ``capacity`` are gone."""
        _put(self._withheld, example, capacity)

    def withheld(self) -> tuple[Example, ...]:
        """What is withheld, oldest first."""
        self._expire()
        return tuple(self._withheld.values())

    def keep_learned(self, example: Example, capacity: int) -> None:
        """Keeps an example that was learned from, to be replayed; the oldest beyond ``capacity`` are gone."""
        _put(self._learned, example, capacity)

    def learned(self) -> tuple[Example, ...]:
        """What may be replayed, oldest first."""
        self._expire()
        return tuple(self._learned.values())

    def drop_read(self) -> tuple[str, ...]:
        """What was read aloud is in memory no more, learned from or not. Returns the ids."""
        asides = self._examples, self._withheld, self._learned
        read = tuple({key for aside in asides for key, example in aside.items() if example.read})
        for key in read:
            for aside in asides:
                aside.pop(key, None)
        return read

    def contents(self) -> tuple[Remembered, ...]:
        """What is in memory, without what was said, oldest first."""
        self._expire()
        return tuple(
            Remembered(
                *(key, self._seconds_left(each), each.signal is not None, examples is self._withheld),
                *(bool(each.features.size), each.kept is not None, examples is self._learned),
            )
            for examples in (self._withheld, self._learned, self._examples)
            for key, each in examples.items()
        )

    def drop_features(self) -> None:
        """Leaves what feedback needs to mend counts, and nothing to learn from."""
        for key, example in self._examples.items():
            self.change(key, features=example.features[:0].copy(), kept=None)
        self._withheld.clear()
        self._learned.clear()

    def clear(self) -> None:
        for held in (self._examples, self._withheld, self._learned, self._edits):
            held.clear()

    def _expire(self) -> None:
        for key in [key for key, example in self._examples.items() if self._seconds_left(example) < 0]:
            self._drop(key)
        for aside in (self._withheld, self._learned):
            for key in [key for key, each in aside.items() if self._seconds_left(each) < 0]:
                del aside[key]

    def _seconds_left(self, example: Example) -> float:
        if example.kept is None:
            return self._seconds - self.seconds_since(example)
        bound = self._seconds if example.signal is None else _DAY
        return bound - abs(self._day_clock() - example.kept)  # of a clock that was set back, too

    def _drop(self, utterance_id: str) -> None:
        example = self._examples.pop(utterance_id)
        self._lost += example.teaches
        if example.kept is not None:
            self._gone += (utterance_id,)


def _put(aside: dict[str, Example], example: Example, capacity: int) -> None:
    aside[example.utterance_id] = replace(example, kept=None)
    while len(aside) > capacity:
        del aside[next(iter(aside))]
