"""Learning on the device: the loop of local steps with the sessions, the teacher and the guard that it needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.feedback.signals import correction
from device_sdk.learning.guard import Judge
from device_sdk.learning.kept import Kept
from device_sdk.learning.learner import Outcome, Student, Trainer, learn_one, rehearse_one, replay_one, step_bytes
from device_sdk.learning.loop import LearningReport, learn
from device_sdk.learning.memory import Example, Recent, utterances
from device_sdk.learning.rehearsal import is_due, rotation
from device_sdk.learning.teacher import Teacher
from device_sdk.model_state import ModelState
from device_sdk.runtimes.protocol import Training, Transducer
from device_sdk.settings import DeviceSettings, Host

log = logging.getLogger(__name__)

REPLAYED = 16
"""Corrections that may be replayed, at most: 30 MB of features where each takes a minute."""


class LocalLearning:
    """Owns the sessions that local learning runs with, opened when first needed and again for another base."""

    def __init__(
        self,
        model_state: ModelState,
        recent: Recent,
        kept: Kept,
        settings: DeviceSettings,
        generator: np.random.Generator,
        host: Host,
    ) -> None:
        self._model_state, self._recent, self._kept = model_state, recent, kept
        self._settings, self._generator = settings, generator
        self._cost_function, self._rehearsal = host.get("cost_function"), tuple(host.get("rehearsal", ()))
        self._turns = rotation(len(self._rehearsal), generator)
        self._training: Training | None = None
        self._teacher: tuple[Bundle, Teacher] | None = None
        self._judge: tuple[Bundle, Judge] | None = None
        self._count = 0

    def too_large(self, budget_bytes: int | None) -> str | None:
        """Why not even the shortest utterance can be learned from within ``budget_bytes``."""
        architecture = self._model_state.base.architecture
        least = step_bytes(architecture, self._settings.learning.subset, architecture.subsampling_factor, [0])
        if budget_bytes is None or least <= budget_bytes:
            return None
        return f"a step takes {least / 1e6:.0f} MB at least, and {budget_bytes / 1e6:.0f} MB are allowed"

    def release(self) -> None:
        """Closes the sessions."""
        self._training = self._teacher = self._judge = None

    def forget_evidence(self) -> None:
        """The guard begins with none: what it would fall back on is gone, or not to be told of."""
        self._judge = None

    def run(self, seconds: float | None, budget_bytes: int | None, halt: Callable[[], str | None]) -> LearningReport:
        """Local steps on what is in memory (:func:`device_sdk.learning.loop.learn`); a commit drops it."""
        model_state, settings = self._model_state, self._settings.learning
        base = model_state.base
        if self._training is None:
            self._training = self._settings.engine().training(model_state.packaged, settings.subset)
        if self._teacher is None or self._teacher[0] is not base:
            self._teacher = base, Teacher(base, self._settings.decoding, self._open)
        if self._judge is None or self._judge[0] is not base:
            withheld, watch = self._recent.withheld, model_state.watch
            guard, decoding = self._settings.guard, self._settings.decoding
            self._judge = base, Judge(base, decoding, self._open, guard, withheld, watch, self._cost_function)
        trainer = Trainer(self._training, base, settings, self._generator)
        teacher, judge = self._teacher[1], self._judge[1]
        judge.begin(model_state.student, model_state.proven)
        on_disk: list[str] = []
        earlier: list[Example] = []

        def take() -> Example | None:
            if (example := self._next()) is not None and example.kept is not None:
                on_disk.append(example.utterance_id)
            return example

        def step(student: Student, example: Example) -> Outcome:
            earlier.clear()
            outcome = learn_one(student, example, trainer, teacher, self._cost_function, budget_bytes)
            if outcome.skipped is None and self._keep_learned(example, settings.replays):
                earlier.extend(each for each in self._recent.learned() if each.utterance_id != example.utterance_id)
            return outcome

        def commit(student: Student) -> None:
            model_state.commit_judged(student, judge.watch, judge.proven, *on_disk)
            log.debug("committed: %d steps", student.steps)
            if on_disk:
                model_state.store.settle()
            on_disk.clear()

        def rehearse(student: Student) -> Iterator[Outcome]:
            for place in self._generator.permutation(len(earlier))[: settings.replays]:
                yield (outcome := replay_one(student, earlier[place], trainer))
                student = outcome.student
            if self._rehearsal and is_due(student.utterances, settings.rehearsal):
                yield rehearse_one(student, self._rehearsal[next(self._turns)], trainer)

        report = learn(model_state.student, take, step, commit, halt, rehearse, judge.worse, seconds)
        self._kept.drop(on_disk)  # nothing was learned from these
        count, milliseconds = utterances(report.utterances), 1000 * report.seconds
        log.debug("learned from %s: %d steps in %d ms, %s", count, report.steps, milliseconds, report.stopped)
        return report

    def _keep_learned(self, example: Example, replays: int) -> bool:
        """Whether it was a correction, which then stays to be replayed, while the user agrees to learning."""
        corrected = correction(example.signal) is not None
        with self._model_state.store.guard:
            if corrected and replays and self._model_state.consent.learning:
                self._recent.keep_learned(example, REPLAYED)
        return corrected

    def _open(self, bundle: Bundle) -> Transducer:
        """Labels and judgements are made in float32, whatever the app uses."""
        return self._settings.engine().transducer(bundle, "float32")

    def _next(self) -> Example | None:
        """The next utterance to learn from; one of so many is withheld instead, to check learning with."""
        guard = self._settings.guard
        with self._model_state.store.guard:
            while (example := self._recent.take(self._settings.learning.wait_seconds)) is not None:
                self._count += 1
                if not (guard.watch and guard.withhold and self._count % guard.withhold == 0):
                    return example
                if example.kept is not None:
                    self._kept.drop([example.utterance_id])
                self._recent.withhold(example, guard.capacity)
            return None
