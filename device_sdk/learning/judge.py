"""Listening for the guard: what the published, the proven and the local model hear in what they are compared on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings
from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Corrected,
    CostFunction,
    Rating,
    Semantics,
    Single,
    check_costs,
    parts,
)
from device_sdk.feedback.signals import costs as costs_of
from device_sdk.learning import guard
from device_sdk.learning.candidates import Heard
from device_sdk.learning.divergence import Reading, divergence
from device_sdk.learning.guard import Comparison, GuardSettings, Watch
from device_sdk.learning.learner import Hearing, Student, Teacher, heard_of
from device_sdk.learning.memory import Example
from device_sdk.learning.step import Arrays, Momentum
from device_sdk.runtimes.protocol import Transducer

__all__ = ["Judge"]

_STANDARDS = (Accepted, Alternate, Corrected, Semantics)
"""Signals that say what was right, as a good rating does. The others say that what was served was wrong: other guesses
would gain by it."""

_PUBLISHED = "the published model"
_PROVEN = "the model that feedback has proven"


class Judge:
    """Owns the sessions that compare a base with what is learned on it, and knows which student is proven.

    One for each base: a new one starts with no evidence.
    """

    def __init__(
        self,
        base: Bundle,
        decoding: DecodingSettings,
        open_transducer: Callable[[Bundle], Transducer],
        settings: GuardSettings,
        withheld: Callable[[], tuple[Example, ...]],
        watch: Watch,
        cost_function: CostFunction | None = None,
    ) -> None:
        """withheld: utterances in memory that no step is taken on. watch: as it was stored."""
        self.watch = watch
        self.proven: Student | None = None
        self._settings = settings
        self._withheld = withheld
        self._cost_function = cost_function
        self._weights: Arrays = {name: base.weights[name] for name in base.architecture.parameter_shapes()}
        self._published, self._trusted, self._local = (Teacher(base, decoding, open_transducer) for _ in range(3))
        self._serving: Student | None = None
        self._checked_last: Student | None = None
        self._learned_from = 0
        self._readings: deque[Reading] = deque(maxlen=settings.divergence.window)

    def begin(self, serving: Student, proven: Student | None) -> None:
        """Before a run of learning. serving: the student that served what it will learn from. proven: as it was stored,
        None where none is yet."""
        self._serving, self.proven = serving, proven
        if self._checked_last is not None and self._checked_last.start is not serving.start:
            self._checked_last = None  # deltas start anew since, and going back before that would tell of it

    def worse(self, student: Student, example: Example | None) -> tuple[Student, str] | None:
        """What to fall back on and why, or None: see :func:`device_sdk.learning.loop.learn`.

        An example is one that the student has served and is about to learn from; with None, the withheld are due for a
        check where enough was learned.
        """
        if not self._settings.watch:
            return None
        if self._checked_last is None:
            self._checked_last = student
        if example is None:
            return self._checked(student)
        self._learned_from += 1
        if _is_published(student):
            return None
        local = heard_of(example.nbest)
        if self._costs(example, local.texts) is None:
            return self._unconfirmed(student, example, local)
        published = self._published.hear(self._weights, example)[0]
        seen = guard.compared(example, local, published, published, self._costs)
        self.watch = guard.watched(self.watch, seen, self._settings)
        if (why := guard.harm(self.watch, self._settings)) is not None:
            proven, self.proven = self.proven, None  # it has not proven good enough
            return self._fall_back(student, proven, why)
        if self.watch.confirmed >= self._settings.interval:
            self.watch = replace(self.watch, confirmed=0)
            self.proven = None if self._serving is None or _is_published(self._serving) else self._serving
        return None

    def _unconfirmed(self, student: Student, example: Example, local: Heard) -> tuple[Student, str] | None:
        """What no feedback confirmed is no evidence against the proven model, but may be against what came of it."""
        heard, score = self._standard(example)
        seen = guard.compared(example, local, heard, heard, self._costs)
        self.watch = guard.watched(self.watch, seen, self._settings)
        said, own = local.tokens[int(np.argmax(local.scores))], heard.tokens[0]
        likelier, usual = score([said, own]).tolist()
        self._readings.append(Reading(len(said), len(own), likelier - usual))
        why = guard.harm(self.watch, self._settings) or divergence(tuple(self._readings), self._settings.divergence)
        return None if why is None else self._fall_back(student, self.proven, why)

    def _checked(self, student: Student) -> tuple[Student, str] | None:
        """Every so many utterances: the student against the last that passed this, on what neither learned from."""
        last, withheld = self._checked_last, self._withheld()
        if self._learned_from < self._settings.interval or last is None or not withheld:
            return None
        self._learned_from = 0
        before = [self._local.hear(last.weights, example)[0] for example in withheld]
        after = [self._local.hear(student.weights, example)[0] for example in withheld]
        seen: list[Comparison] = [
            guard.compared(example, new, old, self._standard(example)[0], self._costs)
            for example, new, old in zip(withheld, after, before, strict=True)
        ]
        why = guard.harm_withheld(seen, self._settings)
        if why is not None:
            return self._fall_back(student, last, why, "the model of the last check")
        self._checked_last = student
        return None

    def _fall_back(
        self, student: Student, target: Student | None, why: str, name: str = _PROVEN
    ) -> tuple[Student, str]:
        """The weights of the target, the published ones where there is none or the student has them already; its
        teacher beside them unless that is the server's. Steps go on being counted, since a counter of a device never
        goes back."""
        if target is None or target.weights is student.weights or _is_published(target):
            target, name = replace(student, weights=self._weights, utterances=0, start=None), _PUBLISHED
            self.proven = None
        why = f"back to {name}: {why}"
        self.watch = Watch(rollbacks=self.watch.rollbacks + 1, why=why)
        self._checked_last, self._learned_from = None, 0
        self._readings.clear()
        return replace(
            student,
            weights=target.weights,
            teacher=target.weights if student.teacher_version is None else student.teacher,
            momentum=Momentum(),
            utterances=target.utterances,
            start=target.start,
            factors={},
        ), why

    def _standard(self, example: Example) -> Hearing:
        """What the proven model hears, the published one where there is none; and a scorer of other hypotheses."""
        if self.proven is None:
            return self._published.hear(self._weights, example)
        return self._trusted.hear(self.proven.weights, example)

    def _costs(self, example: Example, texts: Sequence[str]) -> Sequence[float] | None:
        if example.signal is None or not any(map(_says_what_was_right, parts(example.signal))):
            return None
        served = example.nbest[0].text
        if self._cost_function is None:
            found: Sequence[float] = costs_of(example.signal, texts, served).tolist()
            return found
        priced: Sequence[float] = check_costs(self._cost_function(example.signal, texts, served), len(texts)).tolist()
        return priced


def _says_what_was_right(signal: Single) -> bool:
    return isinstance(signal, _STANDARDS) or (isinstance(signal, Rating) and signal.value > 0.5)


def _is_published(student: Student) -> bool:
    return student.steps == 0 and student.start is None
