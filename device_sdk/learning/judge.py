"""Listening for the guard: what the published and the local model hear in the utterances they are compared on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings
from device_sdk.feedback.signals import Accepted, Alternate, Corrected, CostFunction, Semantics, check_costs, parts
from device_sdk.feedback.signals import costs as costs_of
from device_sdk.learning import guard
from device_sdk.learning.candidates import Heard
from device_sdk.learning.divergence import Reading, divergence
from device_sdk.learning.guard import Comparison, GuardSettings, Watch
from device_sdk.learning.learner import Student, Teacher, heard_of
from device_sdk.learning.memory import Example
from device_sdk.learning.step import Arrays, Momentum
from device_sdk.runtimes.protocol import Transducer

__all__ = ["Judge"]

_STANDARDS = (Accepted, Alternate, Corrected, Semantics)
"""Signals that say what was right. The others say that what was served was wrong: other guesses would gain by it."""


class Judge:
    """Owns the sessions that compare a base with what is learned on it, and remembers the last student found sound.

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
        self._settings = settings
        self._withheld = withheld
        self._cost_function = cost_function
        self._weights: Arrays = {name: base.weights[name] for name in base.architecture.parameter_shapes()}
        self._published = Teacher(base, decoding, open_transducer)
        self._local = Teacher(base, decoding, open_transducer)
        self._sound: Student | None = None
        self._learned_from = 0
        self._readings: deque[Reading] = deque(maxlen=settings.divergence.window)

    def worse(self, student: Student, example: Example | None) -> tuple[Student, str] | None:
        """What to fall back on and why, or None: see :func:`device_sdk.learning.loop.learn`.

        An example is one that the student has served and is about to learn from; with None, the withheld are due for a
        check where enough was learned.
        """
        if not self._settings.watch:
            return None
        if self._sound is None:
            self._sound = student
        if example is None:
            return self._checked(student)
        self._learned_from += 1
        if student.steps == 0 and student.start is None:
            return None  # it is the published model still
        base, score = self._published.hear(self._weights, example)
        local = heard_of(example.nbest)
        seen = guard.compared(example, local, base, base, self._costs)
        self.watch = guard.watched(self.watch, seen, self._settings)
        said, published = local.tokens[int(np.argmax(local.scores))], base.tokens[0]
        likelier, own = score([said, published]).tolist()
        self._readings.append(Reading(len(said), len(published), likelier - own))
        why = guard.harm(self.watch, self._settings) or divergence(tuple(self._readings), self._settings.divergence)
        if why is None:
            return None
        return self._fall_back(student, replace(student, weights=self._weights, utterances=0, start=None), why)

    def _checked(self, student: Student) -> tuple[Student, str] | None:
        """Every so many utterances: the student against the last that was found sound, on what neither learned from."""
        sound, withheld = self._sound, self._withheld()
        if self._learned_from < self._settings.interval or sound is None or not withheld:
            return None
        self._learned_from = 0
        before = [self._listen(sound.weights, example) for example in withheld]
        after = [self._listen(student.weights, example) for example in withheld]
        seen: list[Comparison] = [
            guard.compared(example, new, old, self._hear(self._weights, example), self._costs)
            for example, new, old in zip(withheld, after, before, strict=True)
        ]
        why = guard.harm_withheld(seen, self._settings)
        if why is not None:
            return self._fall_back(student, sound, why)
        self._sound = student
        return None

    def _fall_back(self, student: Student, sound: Student, why: str) -> tuple[Student, str]:
        """The weights of the sound student, its teacher beside them unless that is the server's; steps go on being
        counted, since a counter of a device never goes back."""
        self.watch = Watch(rollbacks=self.watch.rollbacks + 1, why=why)
        self._sound, self._learned_from = None, 0
        self._readings.clear()
        return replace(
            student,
            weights=sound.weights,
            teacher=sound.weights if student.teacher_version is None else student.teacher,
            momentum=Momentum(),
            utterances=sound.utterances,
            start=sound.start,
            factors={},
        ), why

    def _hear(self, weights: Arrays, example: Example) -> Heard:
        return self._published.hear(weights, example)[0]

    def _listen(self, weights: Arrays, example: Example) -> Heard:
        return self._local.hear(weights, example)[0]

    def _costs(self, example: Example, texts: Sequence[str]) -> Sequence[float] | None:
        if example.signal is None or not any(isinstance(part, _STANDARDS) for part in parts(example.signal)):
            return None
        served = example.nbest[0].text
        if self._cost_function is None:
            found: Sequence[float] = costs_of(example.signal, texts, served).tolist()
            return found
        priced: Sequence[float] = check_costs(self._cost_function(example.signal, texts, served), len(texts)).tolist()
        return priced
