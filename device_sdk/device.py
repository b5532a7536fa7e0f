"""The device: one user's recognizer that hears, remembers briefly, learns, and checks in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.files import Audio, given_audio
from device_sdk.bundle import Bundle
from device_sdk.checks import NUMBER, NoneType, check_type
from device_sdk.consent import Consent, Stream
from device_sdk.decoding import Endpointing, Hotword, Hotwords, Recognizer
from device_sdk.decoding.hotwords import hotwords_of
from device_sdk.decoding.spellings import Spellings
from device_sdk.errors import (
    CheckInError,
    ConfigurationError,
    FeedbackError,
    IdiolectError,
    LearningError,
    Postponed,
    SessionError,
    StateError,
)
from device_sdk.features import channel as channels
from device_sdk.feedback.repetition import carried_back, is_repetition, silence
from device_sdk.feedback.signals import CostFunction, Repeated, Signal, check_signal, combined
from device_sdk.host import Host, check_host
from device_sdk.hypothesis import Hypothesis, Result
from device_sdk.learned_summary import LearnedSummary
from device_sdk.learning import kept
from device_sdk.learning.guard import Judge
from device_sdk.learning.learner import Outcome, Student, Trainer, learn_one, rehearse_one, step_bytes
from device_sdk.learning.loop import LearningReport, learn, not_started
from device_sdk.learning.memory import Example, Recent, Remembered, utterances
from device_sdk.learning.objectives import serve
from device_sdk.learning.rehearsal import Transcribed, is_due, rotation
from device_sdk.learning.teacher import Teacher
from device_sdk.lock import Lock
from device_sdk.model_state import ModelState
from device_sdk.permit import Permit
from device_sdk.personalization import cache as caches
from device_sdk.personalization.cache import UtteranceCounts
from device_sdk.personalization.confirmed import confirmed_texts
from device_sdk.personalization.given import given_words, regiven
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.policy import CarefulPolicy, Conditions, Policy
from device_sdk.runtimes.protocol import Training, Transducer
from device_sdk.runtimes.trial import try_transducer
from device_sdk.session import DeviceSession
from device_sdk.settings import DeviceSettings
from device_sdk.state import Store, records

if TYPE_CHECKING:  # what check-ins need is loaded by the first one: recognition starts without it
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.exchange import CheckInReport

__all__ = ["Device"]

log = logging.getLogger(__name__)


class Device:
    """Owns one user's state folder and everything that runs on it. Threads may share it; close it when done."""

    def __init__(
        self,
        store: Store,
        bundle: Bundle,
        settings: DeviceSettings,
        cost_function: CostFunction | None = None,
        policy: Policy = CarefulPolicy(),
        conditions: Callable[[], Conditions] = Conditions,
        rehearsal: Sequence[Transcribed] = (),
        *,
        rescorer: Rescorer | None = None,
        trusted_root: bytes | None = None,
    ) -> None:
        self.settings = settings
        if trusted_root is not None:
            from device_sdk.checkin.updates.trust import check_trusted_root

            check_trusted_root(trusted_root)
        self._trusted_root = trusted_root
        self._store = store
        self._cost_function = cost_function
        self._policy, self._conditions = policy, conditions
        self._rehearsal = tuple(rehearsal)
        self._guard = store.guard  # short: state and what memory mirrors of it, under one lock
        self._working = Lock()  # long, and never over a network: one learn, forget or change by a check-in at a time
        self._visiting = threading.Lock()  # over a network: one check-in at a time, for which nothing else waits
        self._permit: Permit | None = None  # of the check-in under way; under the guard
        self._generator = np.random.default_rng()
        self._turns = rotation(len(self._rehearsal), self._generator)
        self._recent = Recent(settings.memory_utterances, settings.memory_seconds)
        self._rescorer = Rescorer(bundle, threads=settings.threads) if rescorer is None else rescorer
        self._model_state = ModelState(
            store, bundle, lambda new: _try(new, self._rescorer, settings), keep_ngrams=settings.keep_ngrams
        )
        if settings.learning.teacher.schedule == "local":
            self._model_state.adopt_teacher(None)
        if settings.learning.subset == "adapters" and self._model_state.student.gradients is not None:
            self._model_state.collect(None)  # those of factors are none of the published weights
        # What is made of the model_state is kept beside what it was made of, and made again when that is another.
        self._held_recognizer: tuple[Student, Recognizer] | None = None
        self._marginal: tuple[caches.MarginalCache, NDArray[np.float64] | None, NDArray[np.float64]] | None = None
        self._teacher: tuple[Bundle, Teacher] | None = None
        self._judge: tuple[Bundle, Judge] | None = None
        self._training: Training | None = None
        self._heard_from = self._lost = 0
        self._restore()

    @classmethod
    def open(
        cls,
        state_folder: str | Path,
        key: bytes,
        bundle: Bundle | str | Path | None = None,
        settings: DeviceSettings | None = None,
        **host: Unpack[Host],
    ) -> Self:
        """A device over a state folder (made if absent), with the app's key.

        bundle: the app's, or its path; None is the one packaged with idiolect. A published model that a check-in
        brought is used instead, until the app ships another bundle. host: ``cost_function``, ``policy``,
        ``conditions``, ``rehearsal`` and ``trusted_root``, see :class:`~device_sdk.host.Host`.
        Raises StateError (folder in use, wrong key, damage) and BundleError.
        """
        begun = time.monotonic()
        settings = DeviceSettings() if settings is None else settings
        check_type("settings", settings, DeviceSettings, "DeviceSettings")
        check_host(host)
        bundle = Bundle.open() if bundle is None else Bundle.given(bundle)
        store = Store(state_folder, key)
        try:
            device = cls(store, bundle, settings, **host)
            model_state = device._model_state
            log.debug(
                "opened: model %s, %d steps, %d utterances counted, %d kept, in %d ms",
                model_state.base.version,
                model_state.student.steps,
                model_state.cache.utterances,
                len(device._recent.kept()),
                _milliseconds(begun),
            )
            return device
        except BaseException:
            store.close()
            raise

    @property
    def model_version(self) -> str:
        """Version of the published model that the device works from."""
        return self._model_state.base.version

    @property
    def base(self) -> Bundle:
        """The published model, without what was learned here."""
        return self._model_state.base

    @property
    def student(self) -> Student:
        """The local weights, their teacher and how many steps made them."""
        return self._model_state.student

    def session(
        self,
        sample_rate: int,
        *,
        mix_down: bool = False,
        endpointing: Endpointing | None = Endpointing(),
        hotwords: Hotwords | Iterable[str | Hotword] | None = None,
    ) -> DeviceSession:
        """A session for audio of this rate (Hz).

        mix_down: take the mean of several channels instead of refusing them. endpointing: when an utterance is over.
        hotwords: phrases to expect, such as names of contacts and devices; see :class:`~device_sdk.decoding.Hotwords`.
        """
        self._check_open()
        return DeviceSession(
            self._check_open,
            self._recognizer,
            self._heard,
            lambda result: serve(result, self.settings.learning.serving, self._generator),
            sample_rate,
            mix_down=mix_down,
            endpointing=endpointing,
            hotwords=hotwords_of(hotwords),
        )

    def recognize(
        self,
        audio: Audio,
        sample_rate: int | None = None,
        *,
        mix_down: bool = False,
        hotwords: Hotwords | Iterable[str | Hotword] | None = None,
    ) -> Result:
        """The n-best list of a whole utterance.

        audio: [S] float32 or float64 in [-1, 1], or int16, with its sample_rate (Hz); or a file, by its path or as its
        bytes, which knows its own. mix_down: take the mean of several channels instead of refusing them.
        hotwords: phrases to expect, as of :meth:`session`.
        """
        samples, rate = given_audio(audio, sample_rate)
        session = self.session(rate, mix_down=mix_down, hotwords=hotwords)
        session.feed(samples)
        return session.finish()

    def feedback(self, utterance: Result | str, signal: Signal) -> None:
        """What the app saw its user do with a result, which it names by itself or by its ``utterance_id``.

        Late feedback is fine while the utterance is in memory; FeedbackError after. What it confirms (``Corrected``,
        ``Accepted``) is on the disk when this returns, where settings and user let it be kept. Several signals add up,
        see :mod:`device_sdk.feedback.signals`. What was counted of the utterance is replaced by what they say of its
        words (:func:`device_sdk.personalization.confirmed.confirmed_texts`). Where the utterance said another one
        again, they speak for that one too.
        """
        self._check_open()
        if not isinstance(utterance, Result | str):
            raise FeedbackError(f"utterance: found {type(utterance).__name__}, expected a Result or its utterance_id")
        with self._guard:
            check_signal(signal, self._model_state.base.tokenizer.letters)
            self._note(utterance.utterance_id if isinstance(utterance, Result) else utterance, signal)
        log.debug("feedback %s", type(signal).__name__)

    def learn(
        self,
        budget_seconds: float | None = None,
        stop: threading.Event | Callable[[], bool] | None = None,
        *,
        budget_bytes: int | None = None,
    ) -> LearningReport:
        """Takes local steps on what is in memory; each utterance is used in one pass and is gone, from the disk too
        where it was kept.

        Ends when nothing is left, after ``budget_seconds``, when ``stop`` is set or true, or when the policy says that
        it is no good time any more: between utterances only. budget_bytes: what a step may take of memory beyond the
        open sessions; an utterance that would take more is learned from with fewer hypotheses, or not at all. A step
        that diverges is undone, and what the guard finds to do harm is rolled back. The report says all of it. Raises
        LearningError where the settings do not allow learning. What it asks (``stop``, policy, conditions, costs) may
        call :meth:`withdraw`; another learn, a check-in, :meth:`agree` or :meth:`forget` would wait for this one, and
        is refused there with LearningError.
        """
        self._check_open()
        check_type("budget_seconds", budget_seconds, (NUMBER, NoneType), "a number, or None")
        if not (stop is None or isinstance(stop, threading.Event) or callable(stop)):
            raise ConfigurationError(f"stop: found {type(stop).__name__}, expected an event or a function")
        if not self.settings.learn:
            raise LearningError("device.learn: found False, expected True in the device's settings to learn")
        asked = stop.is_set if isinstance(stop, threading.Event) else stop or _never

        def halt() -> str | None:
            if asked():
                return "asked to stop"
            if not self.consent.learning:
                return "the user has not agreed to learning"
            why = self._policy("learn", self._conditions())
            return None if why is None else f"not now: {why}"

        with self._working:
            why = halt() or self._too_large(budget_bytes)
            self._tidy()
            if why is not None:
                return self._counted(not_started(why))
            teacher, judge, settings = self._labeller(), self._guardian(), self.settings.learning
            trainer = Trainer(self._training_session(), self._model_state.base, settings, self._generator)
            judge.begin(self._model_state.student, self._model_state.proven)
            taken: list[str] = []  # and on the disk still

            def take() -> Example | None:
                example = self._next()
                if example is not None and example.kept is not None:
                    taken.append(example.utterance_id)
                return example

            def step(student: Student, example: Example) -> Outcome:
                return learn_one(student, example, trainer, teacher, self._cost_function, budget_bytes)

            def commit(student: Student) -> None:
                self._model_state.commit_judged(student, judge.watch, judge.proven, taken)
                log.debug("committed: %d steps", student.steps)
                if taken:
                    self._store.settle()
                taken.clear()

            def rehearse(student: Student) -> Outcome | None:
                if not self._rehearsal or not is_due(student.utterances, settings.rehearsal):
                    return None
                spoken = self._rehearsal[next(self._turns)]
                return rehearse_one(student, spoken, trainer)

            report = learn(
                self._model_state.student,
                take,
                step,
                commit,
                budget_seconds,
                halt,
                rehearse=rehearse,
                worse=judge.worse,
            )[1]
            self._drop_kept(taken)  # nothing was learned from these
            log.debug(
                "learned from %s: %d steps in %d ms, %s",
                utterances(report.utterances),
                report.steps,
                1000 * report.seconds,
                report.stopped,
            )
            return self._counted(report)

    def remembered(self) -> tuple[Remembered, ...]:
        """Which utterances are in memory, and of these on the disk, and for how long; not what was said in them."""
        self._check_open()
        with self._guard:
            self._tidy()
            return self._recent.contents()

    def check_in(self, url: str | Client, token: str | None = None, *, when_due: bool = False) -> CheckInReport:
        """Sends what waits and what is due, and fetches what is newer.

        token: shown once, to enrol; kept, encrypted, to enrol again where the server was lost. when_due: only if the
        server wants this device by now; an app that calls this on a timer of its own sets it, and the fleet keeps the
        pace that its server stands.

        Nothing else that the app calls waits for it, but another check-in; :meth:`forget` and :meth:`close` end it.
        CheckInError: that, or the server cannot be reached, refuses, or is too slow
        (``DeviceSettings.check_in_seconds``); everything is kept and the next check-in goes on where this one ended.
        Postponed, a kind of it: the policy says that it is no good time, or the server wants the device later.
        """
        from device_sdk.checkin import retry_window as window
        from device_sdk.checkin.client import Client
        from device_sdk.checkin.session import run_session

        self._check_open()
        if when_due and (seconds := self.due_in_seconds(url)):
            raise Postponed(f"check-in: not now: the server wants this device in {seconds:.0f} s")
        why = self._policy("check in", self._conditions())
        if why is not None:
            raise Postponed(f"check-in: not now: {why}; everything is kept for the next one")
        self._working.check()
        begun = time.monotonic()
        client = url if isinstance(url, Client) else Client(url, plain_http=self.settings.plain_http)
        try:
            with self._visiting, self._permitted() as permit:
                try:
                    report = run_session(
                        client,
                        token,
                        self._model_state,
                        self._recent,
                        self.settings,
                        self._trusted_root,
                        turn=self._working,
                    )
                    permit.check()
                    window.answered(self._store, client.url, report.due_in_seconds, time.time())
                    log.debug(
                        "check-in with %s: %d reports, %d bytes up, %d down, model new %s, in %d ms",
                        client.url,
                        len(report.sent),
                        report.bytes_up,
                        report.bytes_down,
                        report.new_model,
                        _milliseconds(begun),
                    )
                except CheckInError as error:
                    log.debug(
                        "check-in with %s failed after %d ms: %s",
                        client.url,
                        _milliseconds(begun),
                        type(error).__name__,
                    )
                    permit.check()
                    window.unanswered(self._store, client.url, time.time())
                    raise
                except IdiolectError:
                    permit.check()  # whatever else goes wrong after the state was taken away comes of that
                    raise
                return report
        finally:
            if client is not url:
                client.close()

    @contextmanager
    def _permitted(self) -> Iterator[Permit]:
        permit = Permit(self.settings.check_in_seconds)
        with self._guard:
            self._permit = permit
        try:
            with permit.held():
                yield permit
        finally:
            with self._guard:
                self._permit = None

    def _end_check_in(self, why: str) -> None:
        """A check-in under way writes nothing from here on, and returns as soon as it notices."""
        with self._guard:
            if self._permit is not None:
                self._permit.end(why)

    def due_in_seconds(self, url: str | Client) -> float:
        """When the server at ``url`` wants this device, by its last answer or after as many failures; 0 is now."""
        from device_sdk.checkin import retry_window as window

        self._check_open()
        return window.remaining(self._store, (url if isinstance(url, str) else url.url).rstrip("/"), time.time())

    @property
    def consent(self) -> Consent:
        """What the user has agreed to."""
        return self._model_state.consent

    def agree(self, *streams: Stream) -> None:
        """The user agrees to these streams: "counting", "learning", "keeping", "marginals", "deltas", "words";
        remembered from run to run.

        What is sent starts here: no word counted and nothing learned before the user agreed is ever part of a report.
        What the settings leave out is not done whatever the user agrees to. Waits for learning under way.
        ConfigurationError: no such stream.
        """
        self._check_open()
        with self._working, self._guard:
            self._judge = None  # what it would fall back on was learned before
            if "marginals" in streams and not self.consent.marginals:
                self._recent.reported()
            self._model_state.agree(*streams)
        log.debug("agreed to %s", ", ".join(streams))

    def withdraw(self, *streams: Stream) -> None:
        """The user agrees no longer. The streams stop at once, also in a check-in or in learning under way, their
        reports that wait are deleted, and what was kept is erased from the disk. What was sent is beyond reach; what
        was learned stays until :meth:`forget`.

        ConfigurationError: no such stream.
        """
        self._check_open()
        with self._guard:
            self._model_state.withdraw(*streams)
            if not self.consent.marginals:
                self._recent.reported()
            if not self.consent.words:
                self._recent.named(all_of_them=True)
            if not (self.consent.keeping and self.consent.learning):
                self._recent.release(self._recent.kept())
                self._store.settle()
            if not self.consent.learning:
                self._recent.drop_features()
        log.debug("withdrew %s", ", ".join(streams))

    def learned(self) -> LearnedSummary:
        """What the device has learned of its user."""
        self._check_open()
        with self._guard:
            model_state = self._model_state
            cache, words = model_state.cache, model_state.base.words
            counts = cache.counts
            top = [word for word in np.argsort(-counts, kind="stable")[:11].tolist() if word and counts[word] > 0][:10]
            return LearnedSummary(
                utterances=cache.utterances,
                words=tuple((words[word], float(counts[word])) for word in top),
                unlisted=len(cache.unlisted),
                steps=model_state.student.steps,
                model_version=model_state.base.version,
                marginals_version=model_state.marginals_version,
                marginal_reports=int(records.read_number(self._store, "marginals_sent")),
                delta_reports=int(records.read_number(self._store, "deltas_sent")),
                rollbacks=model_state.watch.rollbacks,
                remembered=sum(1 for each in self._recent.contents() if each.sound),
                waiting=len(self._store.names("outbox")),
                consent=model_state.consent,
                sequences=len(cache.ngrams.ngrams),
                sequences_kept=model_state.keep_ngrams,
                word_reports=int(records.read_number(self._store, "words_sent")),
                channel_seconds=model_state.channel.seconds,
                kept=len(self._recent.kept()),
            )

    def spent(self) -> dict[str, float]:
        """What the reports of each stream have cost this user so far, as epsilon at ``DeviceSettings.bounds.delta``,
        over the device's life: "marginals", "deltas" and "words"."""
        from device_sdk.checkin import budget
        from device_sdk.privacy.spending import epsilon_of

        self._check_open()
        bounds = self.settings.bounds
        return {stream: epsilon_of(each, bounds.delta) for stream, each in budget.read(self._store).items()}

    def forget(self) -> None:
        """Erases everything the device learned, in memory and on the disk: counts, local weights, published models and
        marginals, reports not yet sent, and its identity at the server. It is then as if new, but for three sums: what
        reports have cost of the user's privacy (:meth:`spent`), since whoever has them still has them. A check-in under
        way is ended, not waited for."""
        from device_sdk.checkin import budget

        self._check_open()
        begun = time.monotonic()
        self._working.check()
        self._end_check_in("the device was told to forget")
        with self._working, self._guard:
            self._end_check_in("the device was told to forget")  # one that began meanwhile
            self._recent.clear()
            self._judge = None
            try:
                self._store.erase(keep=budget.kept(self._store))
            finally:  # erased or not, memory holds what the disk holds, and cannot write back what is gone
                self._model_state.load()
        log.debug("forgot everything in %d ms", _milliseconds(begun))

    def close(self, learn_seconds: float | None = None) -> None:
        """Gives the state folder back. A check-in under way is ended, not waited for. Closing twice is harmless.

        learn_seconds: learns first, for so long at most. What was confirmed, and neither learned from nor kept
        (``DeviceSettings.keep_corrected``), is lost, which the log says.
        """
        self._working.check()
        if learn_seconds is not None and self.settings.learn and not self._store.closed:
            try:
                self.learn(learn_seconds)
            finally:
                self.close()
            return
        self._end_check_in("the device was closed")
        with self._working, self._guard:
            self._end_check_in("the device was closed")
            self._tidy()
            if count := self._recent.unlearned():
                log.warning(
                    "closing: lost %s with feedback, not learned from; call learn() before, or "
                    "close(learn_seconds=...), or keep what was confirmed: DeviceSettings(keep_corrected=True) and, "
                    'where the user agrees, agree("keeping")',
                    utterances(count),
                )
            self._recent.clear()
            self._store.close()
        log.debug("closed")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What follows is for this file only.

    def _check_open(self) -> None:
        if self._store.closed:
            raise SessionError("device: found it closed, expected open; call Device.open for another one")

    def _recognizer(self) -> Recognizer:
        """The recognizer of the local weights, built again only after they changed, with the marginal of now."""
        with self._guard:
            base, student = self._model_state.base, self._model_state.student
            if self._held_recognizer is None or self._held_recognizer[0] is not student:
                if student.steps or student.start is not None:
                    base = base.with_weights(student.weights, f"{base.version}+{student.steps}")
                recognizer = Recognizer(
                    base,
                    self.settings.decoding,
                    self._rescore,
                    transducer=self.settings.engine().transducer(base),
                )
                self._held_recognizer = student, recognizer
            offset = self._offset()
            return self._held_recognizer[1] if offset is None else self._held_recognizer[1].with_offset(offset)

    def _offset(self) -> NDArray[np.float32] | None:
        """What is taken from every frame of the next utterance."""
        model_state, settings = self._model_state, self.settings.channel
        if settings is None:
            return None
        return channels.offset(model_state.channel, model_state.base.weights["features.mean"], settings)

    def _rescore(self, hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        if not self.settings.use_marginals:
            return self._rescorer.rescore(hypotheses)
        return self._rescorer.rescore(hypotheses, self._adapted(), self._model_state.cache)

    def _adapted(self) -> NDArray[np.float64]:
        """The marginal of what the user and everybody says, worked out again only after one of them changed."""
        with self._guard:
            cache, shared = self._model_state.cache, self._model_state.marginals
            if self._marginal is None or self._marginal[0] is not cache or self._marginal[1] is not shared:
                marginal = caches.marginal(cache, self._model_state.base.background, shared, self._rescorer.weights)
                self._marginal = cache, shared, marginal
            return self._marginal[2]

    def _training_session(self) -> Training:
        if self._training is None:
            self._training = self.settings.engine().training(self._model_state.packaged, self.settings.learning.subset)
        return self._training

    def _next(self) -> Example | None:
        """The next utterance to learn from; one of so many is withheld instead, to check learning with."""
        guard = self.settings.guard
        with self._guard:
            while (example := self._recent.take(self.settings.learning.wait_seconds)) is not None:
                self._heard_from += 1
                if not (guard.watch and guard.withhold and self._heard_from % guard.withhold == 0):
                    return example
                if example.kept is not None:
                    self._drop_kept([example.utterance_id])
                self._recent.withhold(example, guard.capacity)
            return None

    def _too_large(self, budget_bytes: int | None) -> str | None:
        """Why not even the shortest utterance can be learned from within ``budget_bytes``."""
        architecture = self._model_state.base.architecture
        least = step_bytes(architecture, self.settings.learning.subset, architecture.subsampling_factor, [0])
        if budget_bytes is None or least <= budget_bytes:
            return None
        return f"a step takes {least / 1e6:.0f} MB at least, and {budget_bytes / 1e6:.0f} MB are allowed"

    def _guardian(self) -> Judge:
        base = self._model_state.base
        if self._judge is None or self._judge[0] is not base:
            settings = self.settings
            judge = Judge(
                base,
                settings.decoding,
                self._open_exact,
                settings.guard,
                self._recent.withheld,
                self._model_state.watch,
                self._cost_function,
            )
            self._judge = base, judge
        return self._judge[1]

    def _open_exact(self, bundle: Bundle) -> Transducer:
        """What labels and judges hear in float32, whatever the app does."""
        return self.settings.engine().transducer(bundle, "float32")

    def _labeller(self) -> Teacher:
        base = self._model_state.base
        if self._teacher is None or self._teacher[0] is not base:
            self._teacher = base, Teacher(base, self.settings.decoding, self._open_exact)
        return self._teacher[1]

    @property
    def _counting(self) -> bool:
        return self.consent.counting and (self.settings.use_marginals or self.settings.share_marginals)

    @property
    def _learning(self) -> bool:
        return self.settings.learn and self.consent.learning

    @property
    def _keeping(self) -> bool:
        return self.settings.keep_corrected and self.consent.keeping and self._learning

    @property
    def _naming(self) -> bool:
        return self.settings.share_words and self.consent.words

    def _heard(
        self,
        result: Result,
        features: NDArray[np.float32],
        offset: NDArray[np.float32] | None = None,
        spellings: Spellings | None = None,
    ) -> None:
        with self._guard:
            self._tidy()
            if self.settings.channel is not None and self._learning and result.text:
                self._listen_to(features if offset is None else features + offset, self.settings.channel)
            model_state, texts = self._model_state, [hypothesis.text for hypothesis in result.nbest]
            counts, due = None, self.consent.marginals
            if self._counting:
                weights, cache = self._rescorer.weights, model_state.cache
                counts = self._counts_of(result.nbest)
                adapted = (self._adapted(), model_state.base.background) if weights.automatic else None
                cache = caches.update(cache, counts, due, half_life=weights.half_life, adapted=adapted)
                try:
                    model_state.keep_cache(cache)
                except StateError as error:  # the user still gets what was heard; the next write holds these counts too
                    log.warning("an utterance is counted in memory only: %s", error)
                    model_state.cache = cache
            before = self._recent.latest()
            again = before is not None and before.signal is None and self._says_again(before, result)
            repeats = before.utterance_id if before is not None and again else None
            if self._learning and len(features) >= model_state.base.architecture.subsampling_factor:
                kept = features
            elif (self._counting or self._naming) and not self._learning:
                kept = features[:0]  # feedback mends the counts and gives words; that needs no features
            else:
                return
            self._recent.add(
                result.utterance_id,
                kept,
                result.nbest,
                counts,
                reported=not due,
                probability=result.probability,
                repeats=repeats,
                nameable=self._naming,
                spellings=spellings,
            )
            if self.settings.keep_heard:
                try:
                    self._keep(result.utterance_id)
                except StateError as error:
                    log.warning("an utterance waits for feedback in memory only: %s", error)
            log.debug("heard: %s in memory", utterances(len(self._recent)))
            if repeats is not None:
                try:
                    self._note(repeats, Repeated(tuple(texts)))
                except StateError as error:
                    log.warning("a repeated utterance stays counted: %s", error)

    def _counts_of(self, nbest: Sequence[Hypothesis]) -> UtteranceCounts:
        """What an utterance that was heard just now adds to the counts."""
        model_state, scores = self._model_state, [hypothesis.score for hypothesis in nbest]
        texts = [hypothesis.text for hypothesis in nbest]
        return caches.heard(texts, model_state.base.words, self._rescorer.weights, scores, model_state.cache.clock)

    def _listen_to(self, features: NDArray[np.float32], settings: channels.ChannelSettings) -> None:
        """What these frames, [F, M] as the microphone gave them, tell of the channel."""
        form, model_state = self._model_state.base.features, self._model_state
        channel = channels.heard(model_state.channel, features, len(features) * form.shift / form.sample_rate, settings)
        try:
            model_state.keep_channel(channel)
        except StateError as error:
            log.warning("the channel is remembered in memory only: %s", error)
            model_state.channel = channel

    def _says_again(self, before: Example, result: Result) -> bool:
        """Whether the user has just repeated what was heard before."""
        words = result.nbest[0].words
        delay = silence(self._recent.seconds_since(before), result.seconds, words[0].start if words else 0.0)
        first, second = ([hypothesis.text for hypothesis in each.nbest] for each in (before, result))
        return is_repetition(first, second, delay, self.settings.repetition)

    def _note(self, utterance_id: str, signal: Signal) -> None:
        """Feedback, under the guard: to an utterance, its counts and words, and the one that it repeats."""
        example = self._recent.mark(utterance_id, signal)
        model_state, texts = self._model_state, [hypothesis.text for hypothesis in example.nbest]
        known = combined(example.signal, signal)
        if example.given is not None and self._naming:
            given = given_words(known, model_state.base.words)
            if given != example.given:
                model_state.keep_given(regiven(model_state.given, example.given, given))
                self._recent.regive(utterance_id, given)
        if example.counts is not None and self._counting:
            confirmed = confirmed_texts(texts, known)
            weights, said = self._rescorer.weights, texts if confirmed is None else confirmed
            by_text = {hypothesis.text: hypothesis.score for hypothesis in reversed(example.nbest)}
            scores = [by_text[text] for text in said] if by_text.keys() >= set(said) else None
            counts = caches.heard(said, model_state.base.words, weights, scores, example.counts.at)
            if weights.confirmed and confirmed:
                counts = caches.taught(counts, by_text, confirmed, model_state.base.words, weights.confidence.scale)
            if counts != example.counts:
                due = not example.reported  # what was reported once is not reported again
                cache = caches.withdraw(model_state.cache, example.counts, due, half_life=weights.half_life)
                model_state.keep_cache(caches.update(cache, counts, due, half_life=weights.half_life))
                self._recent.recount(utterance_id, counts)
        self._keep(utterance_id)
        told = carried_back(signal, texts[0])
        if example.repeats is not None and told is not None and self._recent.get(example.repeats) is not None:
            self._note(example.repeats, told)

    def _keep(self, utterance_id: str) -> None:
        """An utterance just heard, or whose feedback has just come, is on the disk from here on, or no more."""
        example = self._recent.get(utterance_id)
        if example is None:
            return
        wanted = self.settings.keep_heard or kept.confirmed(example.signal)
        if self._keeping and wanted and len(example.features):
            try:
                self._store.put(
                    "kept", utterance_id, kept.to_bytes(self._recent.keep(utterance_id), self._model_state.handed_on())
                )
            except StateError:
                if example.kept is None:
                    self._recent.release([utterance_id])
                raise
            log.debug("kept 1 utterance for learning")
            self._tidy()
        elif example.kept is not None:
            self._recent.release([utterance_id])
            self._drop_kept([utterance_id])

    def _restore(self) -> None:
        """What was kept is in memory again; it is erased where app or user do not let it be kept any more."""
        names = self._store.names("kept")
        left = names if not self._keeping else []
        count = self._counts_of if self._counting else None
        for name in names if self._keeping else ():
            try:
                content, base = self._store.get("kept", name) or b"", self._model_state.base
                found = kept.from_bytes(content, name, base, count, self._model_state.handed_on())
                if self.settings.keep_heard or kept.confirmed(found.signal):
                    self._recent.restore(found)
                else:
                    left.append(name)
            except StateError as error:
                log.warning("a kept utterance is left out: %s", error)
                left.append(name)
        if names and not self._keeping:
            log.warning("erased %s with feedback, kept before: no longer allowed", utterances(len(names)))
        try:
            self._drop_kept(left)
        except StateError as error:
            log.warning("what was kept is not erased yet: %s", error)
        self._tidy()

    def _tidy(self) -> None:
        """What went from memory goes from the disk too, and is counted."""
        with self._guard:
            if count := self._recent.lost():
                self._lost += count
                log.warning(
                    "lost %s with feedback, not learned from: too old, or too many; learn() sooner, see memory_seconds "
                    "and memory_utterances of DeviceSettings, or set learn=False there",
                    utterances(count),
                )
            try:
                self._drop_kept(self._recent.gone())
            except StateError as error:
                log.warning("what was kept is not erased yet: %s", error)

    def _drop_kept(self, names: Sequence[str]) -> None:
        if names:
            records.drop_kept(self._store, names)
            self._store.settle()

    def _counted(self, report: LearningReport) -> LearningReport:
        """The report with what was lost since the last one."""
        with self._guard:
            self._tidy()
            lost, self._lost = self._lost, 0
            return replace(report, lost=lost)


def _milliseconds(begun: float) -> float:
    return 1000 * (time.monotonic() - begun)


def _never() -> bool:
    return False


def _try(bundle: Bundle, rescorer: Rescorer, settings: DeviceSettings) -> None:
    """Recognizes a second of noise. Raises BundleError for a bundle that cannot."""
    transducer = settings.engine().transducer(bundle)
    try_transducer(transducer, str(bundle.path))
    recognizer = Recognizer(bundle, settings.decoding, rescorer.rescore, transducer=transducer)
    noise = 0.1 * np.random.default_rng(0).standard_normal(bundle.features.sample_rate, np.float32)
    recognizer.recognize(noise, bundle.features.sample_rate)
