"""The device: one user's recognizer that counts, remembers briefly, learns, and checks in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio.files import Audio
from device_sdk.bundle import Bundle
from device_sdk.checks import NUMBER, check_type
from device_sdk.consent import Consent, Stream
from device_sdk.decoding import Endpointing, Hotword, Hotwords, RecognitionSession, Recognizer
from device_sdk.decoding.hotwords import hotwords_of
from device_sdk.decoding.session import SessionHost, recognize_whole
from device_sdk.enrolment import MOST, PHRASES, Enrolling, Enrolment, chosen
from device_sdk.errors import (
    CheckInError,
    ConfigurationError,
    FeedbackError,
    IdiolectError,
    LearningError,
    Postponed,
)
from device_sdk.feedback.signals import Signal, written
from device_sdk.hypothesis import Hypothesis, Result
from device_sdk.learned_summary import LearnedSummary, summarize
from device_sdk.learning.learner import Student
from device_sdk.learning.loop import LearningReport, not_started
from device_sdk.learning.memory import Remembered, utterances
from device_sdk.learning.objectives import serve
from device_sdk.local_learning import LocalLearning
from device_sdk.model_state import ModelState
from device_sdk.permit import Lock, Visits
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.policy import CarefulPolicy, Conditions
from device_sdk.runtimes.protocol import try_transducer
from device_sdk.settings import DeviceSettings, Host, check_host
from device_sdk.state import Store
from device_sdk.transcripts import spelled
from device_sdk.utterances import Counting, Utterances
from device_sdk.vocabulary import Vocabulary

if TYPE_CHECKING:  # what check-ins need is loaded by the first one: recognition starts without it
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.session import CheckInReport

log = logging.getLogger(__name__)


class Device:
    """Owns one user's state folder and everything that runs on it. Threads may share it; close it when done."""

    def __init__(
        self,
        store: Store,
        bundle: Bundle,
        settings: DeviceSettings,
        *,
        rescorer: Rescorer | None = None,
        **host: Unpack[Host],
    ) -> None:
        """rescorer: shared with other devices of the bundle; None makes one. host: as of :meth:`open`."""
        if settings.learning.subset is None:
            settings = replace(settings, learning=replace(settings.learning, subset=bundle.subset))
        self.settings = settings
        self._trusted_root = host.get("trusted_root")
        if self._trusted_root is not None:
            from device_sdk.checkin.updates.metadata import check_trusted_root

            check_trusted_root(self._trusted_root)
        self._store = store
        self._policy, self._conditions = host.get("policy", CarefulPolicy()), host.get("conditions", Conditions)
        self._guard = store.guard  # short: state and what memory mirrors of it, under one lock
        self._working = Lock()  # long, and never over a network
        self._visits = Visits()  # over a network: one check-in at a time, for which nothing else waits
        self._generator = np.random.default_rng()
        self._rescorer = rescorer or Rescorer(bundle, threads=settings.threads)
        self._model_state = ModelState(store, bundle, partial(_try, self._rescorer, settings))
        if settings.learning.teacher.schedule == "local":
            self._model_state.adopt_teacher(None)
        if settings.learning.subset == "adapters" and self._model_state.student.gradients is not None:
            self._model_state.collect(None)  # those of factors are none of the published weights
        self._counting = Counting(self._model_state, self._rescorer, settings)
        self._utterances = Utterances(self._model_state, self._counting, settings)
        self._vocabulary = Vocabulary(self._model_state, self._utterances)
        self._recent, self._kept = self._utterances.recent, self._utterances.kept
        self._local = LocalLearning(self._model_state, self._recent, self._kept, settings, self._generator, host)
        self._loaded: tuple[Student, Recognizer] | None = None  # of a student, and built again for another one

    @classmethod
    def open(
        cls,
        state_folder: str | Path,
        key: bytes,
        bundle: Bundle | str | Path | None = None,
        settings: DeviceSettings | None = None,
        **host: Unpack[Host],
    ) -> Self:
        """A device over a state folder (made if absent), with the app's key. bundle: the app's, or its path; None is
        the one packaged with idiolect. A published model that a check-in brought is used instead, until the app ships
        another bundle. host: ``cost_function``, ``policy``, ``conditions``, ``rehearsal`` and ``trusted_root``, see
        :class:`~device_sdk.settings.Host`. Raises StateError (folder in use, wrong key, damage) and BundleError."""
        begun = time.monotonic()
        settings = DeviceSettings() if settings is None else settings
        check_type("settings", settings, DeviceSettings, "DeviceSettings")
        check_host(host)
        bundle = Bundle.open() if bundle is None else Bundle.given(bundle)
        store = Store(state_folder, key)
        try:
            device = cls(store, bundle, settings, **host)
        except BaseException:
            store.close()
            raise
        found, kept, took = device._model_state, len(device._recent.kept()), 1000 * (time.monotonic() - begun)
        log.debug(
            "opened: model %s, %d steps, %d utterances counted, %d kept, in %d ms",
            *(found.base.version, found.student.steps, found.cache.utterances, kept, took),
        )
        return device

    @property
    def model_version(self) -> str:
        """Version of the published model that the device works from."""
        return self._model_state.base.version

    @property
    def vocabulary(self) -> Vocabulary:
        """Names and words that the device listens for: what the app added, and what corrections brought."""
        return self._vocabulary

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
    ) -> RecognitionSession:
        """A session for audio of this rate (Hz); arguments as of ``Recognizer.session``."""
        phrases = hotwords_of(hotwords)
        return self._session(sample_rate, mix_down, endpointing, phrases, self._utterances.add)

    def _session(
        self,
        sample_rate: int,
        mix_down: bool,
        endpointing: Endpointing | None,
        phrases: Hotwords | None,
        heard: Callable[[Result, NDArray[np.float32], Hotwords | None], None],
    ) -> RecognitionSession:
        """heard: what becomes of every utterance."""
        self._check_open()
        serving, recognizer = self.settings.learning.serving, self._recognizer()
        host = SessionHost(
            check=self._check_open,
            newest=self._recognizer,
            expect=self._expect,
            serve=lambda result: result if serving == "best" else serve(result, serving, self._generator),
            heard=heard,
        )
        return RecognitionSession(
            recognizer, sample_rate, mix_down=mix_down, endpointing=endpointing, hotwords=phrases, host=host
        )

    def recognize(
        self,
        audio: Audio,
        sample_rate: int | None = None,
        *,
        mix_down: bool = False,
        hotwords: Hotwords | Iterable[str | Hotword] | None = None,
    ) -> Result:
        """The n-best list of a whole utterance; arguments as of ``Recognizer.recognize``."""
        return recognize_whole(partial(self.session, mix_down=mix_down, hotwords=hotwords), audio, sample_rate)

    def feedback(self, utterance: Result | str, signal: Signal) -> None:
        """What the app saw its user do with a result, which it names by itself or by its ``utterance_id``. Late
        feedback is fine while the utterance is in memory; FeedbackError after. What it confirms (``Corrected``,
        ``Accepted``) is on the disk when this returns, where settings and user let it be kept. Several signals add up,
        see :mod:`device_sdk.feedback.signals`, and count for the utterance that this one repeats, too; what they say of
        its words replaces what was counted (:func:`device_sdk.personalization.cache.confirmed_texts`)."""
        self._check_open()
        utterance_id = _id_of(utterance)
        with self._guard:
            self._utterances.note(utterance_id, written(signal, self._model_state.base.tokenizer.letters))
        log.debug("feedback %s", type(signal).__name__)

    def edit(self, utterance: Result | str, text: str) -> None:
        """What stands in place of a result just now, while its user writes over it: call it as often as it changes.
        Once it has not changed for three seconds, when the device next learns, hears or closes, it is a correction
        (``Corrected``), unless it is none: half-finished edits teach nothing. FeedbackError: as :meth:`feedback`."""
        self._check_open()
        check_type("text", text, str, "a text")
        with self._guard:
            self._utterances.settle()
            self._recent.edit(_id_of(utterance), text)

    def learn(
        self,
        budget_seconds: float | None = None,
        stop: threading.Event | Callable[[], bool] | None = None,
        *,
        budget_bytes: int | None = None,
    ) -> LearningReport:
        """Takes local steps on what is in memory. An utterance is gone afterwards, from the disk too where it was kept;
        a correction's features stay in memory to be replayed (``LearningSettings.replays``).

        Ends, between utterances only, when nothing is left, after ``budget_seconds``, when ``stop`` is set or true, or
        when the policy says so. budget_bytes: what a step may take of memory beyond the open sessions; an utterance
        that would take more is learned from with fewer hypotheses, or not at all. A step that diverges is undone, and
        what the guard finds to do harm is rolled back. LearningError: the settings do not allow learning; or ``stop``,
        policy, conditions or costs call learn, check_in, agree, forget or close (they may call :meth:`withdraw`)."""
        self._check_open()
        check_type("budget_seconds", budget_seconds, (NUMBER, NoneType), "a number, or None")
        if not (stop is None or isinstance(stop, threading.Event) or callable(stop)):
            raise ConfigurationError(f"stop: found {type(stop).__name__}, expected an event or a function")
        if not self.settings.learn:
            raise LearningError("device.learn: found False, expected True in the device's settings to learn")
        stopped = stop.is_set if isinstance(stop, threading.Event) else stop

        def halt() -> str | None:
            if stopped is not None and stopped():
                return "asked to stop"
            if not self.consent.learning:
                return "the user has not agreed to learning"
            why = self._policy("learn", self._conditions())
            return None if why is None else f"not now: {why}"

        with self._working:
            why = halt() or self._local.too_large(budget_bytes)
            with self._guard:
                self._kept.tidy()
                self._utterances.settle()
            report = not_started(why) if why is not None else self._local.run(budget_seconds, budget_bytes, halt)
            with self._guard:
                return replace(report, lost=self._kept.lost())

    def enrolment(self, phrases: Iterable[str] | None = None, most: int = MOST) -> Enrolment:
        """A reading aloud of at most so many phrases, which teaches a voice or a microphone at once: see
        :mod:`device_sdk.enrolment`. phrases: what is read; by default sentences of a home that hold all sounds, with
        the names of the vocabulary among them. LearningError: the settings or the user do not allow learning."""
        self._check_open()
        if not (self.settings.learn and self.consent.learning):
            raise LearningError('enrolment: needs learning: DeviceSettings(learn=True) and device.agree("learning")')
        told = self._enrolling()
        if phrases is None:
            names = spelled((each.phrase for each in self.vocabulary.list()), told.letters)
            phrases = chosen(spelled(PHRASES, told.letters), names, most)
        return Enrolment(told, phrases, most)

    def remembered(self) -> tuple[Remembered, ...]:
        """Which utterances are in memory, and of these on the disk, and for how long; not what was said in them."""
        self._check_open()
        with self._guard:
            self._kept.tidy()
            return self._recent.contents()

    def check_in(self, url: str | Client, token: str | None = None, *, when_due: bool = False) -> CheckInReport:
        """Sends what waits and what is due, and fetches what is newer.

        token: shown once, to enrol; kept, encrypted, to enrol again where the server was lost. when_due: only if the
        server wants this device by now; an app that calls this on a timer of its own sets it, and the fleet keeps the
        pace that its server can bear.

        Only another check-in waits for it; :meth:`forget` and :meth:`close` end it. CheckInError: that, or the server
        cannot be reached, refuses, or is too slow (``DeviceSettings.check_in_seconds``); everything is kept and the
        next check-in goes on from there. Postponed, a kind of it: the policy or the server wants it later."""
        from device_sdk.checkin import retry_window
        from device_sdk.checkin.at_hand import Session
        from device_sdk.checkin.client import Client
        from device_sdk.checkin.session import run_session

        self._check_open()
        if when_due and (seconds := self.due_in_seconds(url)):
            raise Postponed(f"check-in: not now: the server wants this device in {seconds:.0f} s")
        why = self._policy("check in", self._conditions())
        if why is not None:
            raise Postponed(f"check-in: not now: {why}; everything is kept for the next one")
        self._working.check()
        begun, settings = time.monotonic(), self.settings
        given = nullcontext(url) if isinstance(url, Client) else Client(url, plain_http=settings.plain_http)
        with given as client, self._visits.begin(settings.check_in_seconds) as permit:
            try:
                held = self._model_state, self._recent, settings, self._trusted_root, self._working
                report = run_session(Session(client, *held), token)
                permit.check()
                retry_window.note_answer(self._store, client.url, report.due_in_seconds, time.time())
            except IdiolectError as error:
                took, kind = 1000 * (time.monotonic() - begun), type(error).__name__
                log.debug("check-in with %s failed after %d ms: %s", client.url, took, kind)
                permit.check()  # whatever goes wrong after the state was taken away comes of that
                if isinstance(error, CheckInError):
                    retry_window.note_failure(self._store, client.url, time.time())
                raise
        sent, took = len(report.sent), 1000 * (time.monotonic() - begun)
        log.debug(
            "check-in with %s: %d reports, %d bytes up, %d down, model new %s, in %d ms",
            *(client.url, sent, report.bytes_up, report.bytes_down, report.new_model, took),
        )
        return report

    def due_in_seconds(self, url: str | Client) -> float:
        """When the server at ``url`` wants this device, by its last answer or after as many failures; 0 is now."""
        from device_sdk.checkin import retry_window

        self._check_open()
        return retry_window.remaining(self._store, (url if isinstance(url, str) else url.url).rstrip("/"), time.time())

    @property
    def consent(self) -> Consent:
        """What the user has agreed to."""
        return self._model_state.consent

    def agree(self, *streams: Stream) -> None:
        """The user agrees to these streams: "counting", "learning", "keeping", "marginals", "deltas", "words";
        remembered from run to run. What is sent starts here: no word counted and nothing learned before is ever part of
        a report. What the settings leave out is not done. Waits for learning. ConfigurationError: no such stream."""
        self._check_open()
        with self._working, self._guard:
            self._local.forget_evidence()  # what it would fall back on was learned before
            if "marginals" in streams and not self.consent.marginals:
                self._recent.reported()
            self._model_state.agree(*streams)
        log.debug("agreed to %s", ", ".join(streams))

    def withdraw(self, *streams: Stream) -> None:
        """The user agrees no longer. The streams stop at once, also in a check-in or in learning under way, their
        reports that wait are deleted, and what was kept is erased from the disk. What was sent is beyond reach; what
        was learned stays until :meth:`forget`. ConfigurationError: no such stream."""
        self._check_open()
        with self._guard:
            self._model_state.withdraw(*streams)
            if not self.consent.marginals:
                self._recent.reported()
            if not self.consent.words:
                self._recent.words_reported(all_of_them=True)
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
            return summarize(self._model_state, self._recent, len(self._counting.own_words()))

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
        marginals, reports not yet sent, and its identity at the server; only what reports have cost of the user's
        privacy (:meth:`spent`) stays, since whoever has them still has them. A check-in under way is ended."""
        from device_sdk.checkin import budget

        self._check_open()
        begun = time.monotonic()
        with self._alone("the device was told to forget"):
            self._recent.clear()
            self._local.forget_evidence()
            try:
                self._store.erase(keep=budget.records_kept(self._store))
            finally:  # erased or not, memory holds what the disk holds, and cannot write back what is gone
                self._model_state.load()
        log.debug("forgot everything in %d ms", 1000 * (time.monotonic() - begun))

    def close(self, learn_seconds: float | None = None) -> None:
        """Gives the state folder back. A check-in under way is ended, not waited for. Closing twice is harmless.
        learn_seconds: learns first, for so long at most. What was confirmed, and neither learned from nor kept
        (``DeviceSettings.keep_corrected``), is lost, which the log says."""
        self._working.check()
        if not self._store.closed:
            with self._guard:
                self._utterances.settle(0.0)
        if learn_seconds is not None and self.settings.learn and not self._store.closed:
            with self:
                self.learn(learn_seconds)
            return
        with self._alone("the device was closed"):
            self._kept.tidy()
            if count := self._recent.unlearned():
                log.warning(
                    "closing: lost %s with feedback, not learned from; call learn() before, or "
                    "close(learn_seconds=...), or keep what was confirmed: DeviceSettings(keep_corrected=True) and, "
                    'where the user agrees, agree("keeping")',
                    utterances(count),
                )
            self._recent.clear()
            self._store.close()
            # They hold each other: without this their memory would wait for the garbage collector.
            self._loaded = None
            self._local.release()
        log.debug("closed")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _check_open(self) -> None:
        self._model_state.check_open()

    @contextmanager
    def _alone(self, why: str) -> Iterator[None]:
        """Nothing else is under way; a check-in was ended, for this reason."""
        self._working.check()
        self._visits.end(why)
        with self._working, self._guard:
            self._visits.end(why)  # one that began meanwhile
            yield

    def _recognizer(self) -> Recognizer:
        """The recognizer of the local weights, built again only after they changed."""
        with self._guard:
            student = self._model_state.student
            if self._loaded is None or self._loaded[0] is not student:
                self._loaded = student, self._opened(student)
            return self._loaded[1]

    def _opened(self, student: Student) -> Recognizer:
        base = self._model_state.base
        if student.steps or student.start is not None:
            base = base.with_weights(student.weights, f"{base.version}+{student.steps}")
        transducer = self.settings.engine().transducer(base)
        return Recognizer(base, self.settings.decoding, self._rescore, transducer=transducer)

    def _enrolling(self) -> Enrolling:
        opened = lru_cache(1)(lambda: self._opened(begun))
        begun, watch, proven = self.student, self._model_state.watch, self._model_state.proven
        heard = partial(self._utterances.add, read=True)
        session = partial(self._session, mix_down=False, endpointing=Endpointing(), phrases=None, heard=heard)

        def hear(audio: Audio, rate: int, now: bool = True) -> str:
            recognizer = self._recognizer() if now else opened()
            return recognizer.recognize(audio, rate, hotwords=self._expect(None)).text

        def learn(result: Result, signal: Signal) -> None:
            self.feedback(result, signal)
            self.learn()

        def restore() -> None:
            with self._working, self._guard:
                self._model_state.commit_judged(begun, watch, proven, *self._recent.drop_read())
                self._local.forget_evidence()

        letters = self._model_state.base.tokenizer.letters
        return Enrolling(partial(recognize_whole, session), hear, learn, restore, letters)

    def _expect(self, given: Hotwords | None) -> Hotwords | None:
        with self._guard:
            self._utterances.settle()
            return self._counting.expected(given)

    def _rescore(self, hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        if not self.settings.use_marginals:
            return self._rescorer.rescore(hypotheses)
        with self._guard:
            marginal = self._counting.marginal()
        return self._rescorer.rescore(hypotheses, marginal)


def _id_of(utterance: Result | str) -> str:
    """FeedbackError: it is neither a result nor the id of one."""
    if not isinstance(utterance, Result | str):
        raise FeedbackError(f"utterance: found {type(utterance).__name__}, expected a Result or its utterance_id")
    return utterance.utterance_id if isinstance(utterance, Result) else utterance


def _try(rescorer: Rescorer, settings: DeviceSettings, bundle: Bundle) -> None:
    """Recognizes a second of noise. Raises BundleError for a bundle that cannot."""
    transducer = settings.engine().transducer(bundle)
    try_transducer(transducer, str(bundle.path))
    recognizer = Recognizer(bundle, settings.decoding, rescorer.rescore, transducer=transducer)
    noise = 0.1 * np.random.default_rng(0).standard_normal(bundle.features.sample_rate, np.float32)
    recognizer.recognize(noise, bundle.features.sample_rate)
