"""The device: one user's recogniser that hears, remembers briefly, learns, and checks in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle import weights as weight_files
from device_sdk.decoding import Endpointing, Hotword, Hotwords, Recognizer
from device_sdk.decoding.hotwords import hotwords_of
from device_sdk.errors import BundleError, CheckInError, FeedbackError, LearningError, StateError
from device_sdk.feedback.signals import Accepted, Cancelled, Corrected, CostFunction, Semantics, Signal
from device_sdk.hypothesis import Hypothesis, Result
from device_sdk.learned import Learned
from device_sdk.learning.learner import LearningReport, Outcome, Student, Teacher, learn, learn_one, rebased
from device_sdk.learning.memory import Example, Recent
from device_sdk.learning.step import Momentum
from device_sdk.personalization import cache as caches
from device_sdk.personalization.confirmed import confirmed_texts
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.training import TrainingSession
from device_sdk.runtimes.trial import try_transducer
from device_sdk.session import DeviceSession
from device_sdk.settings import DeviceSettings
from device_sdk.state import Store, records

if TYPE_CHECKING:  # what check-ins need is loaded by the first one: recognition starts without it
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.exchange import CheckInReport
    from device_sdk.checkin.identity import Identity
    from device_sdk.checkin.outbox import Outgoing
    from device_sdk.wire.messages import CheckedIn

__all__ = ["Device"]

log = logging.getLogger("idiolect.device")


class Device:
    """Owns one user's state folder and everything that runs on it. Threads may share it; close it when done."""

    def __init__(
        self,
        store: Store,
        bundle: Bundle,
        settings: DeviceSettings,
        cost_function: CostFunction | None = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._cost_function = cost_function
        self._guard = store.guard  # short: state and what memory mirrors of it, under one lock
        self._working = threading.Lock()  # long: one learn, check-in or forget at a time
        self._generator = np.random.default_rng()
        self._recent = Recent(settings.memory_utterances, settings.memory_seconds)
        self._packaged = bundle
        self._rescorer = Rescorer(bundle, threads=settings.threads)
        self._training: TrainingSession | None = None
        self._teacher: Teacher | None
        self._student: Student
        self._cache: caches.MarginalCache
        self._recognizer: Recognizer | None
        self._marginal: NDArray[np.float64] | None
        self._global: NDArray[np.float64] | None
        self._load()

    @classmethod
    def open(
        cls,
        state_folder: str | Path,
        key: bytes,
        bundle: Bundle | None = None,
        settings: DeviceSettings | None = None,
        *,
        cost_function: CostFunction | None = None,
    ) -> Self:
        """A device over a state folder (made if absent), with the app's key.

        bundle: the app's; None is the one packaged with idiolect. A published model that a check-in brought is used
        instead, until the app ships another bundle. cost_function: the app's own costs of hypotheses.
        Raises StateError (folder in use, wrong key, damage) and BundleError.
        """
        bundle = Bundle.open() if bundle is None else bundle
        store = Store(state_folder, key)
        try:
            return cls(store, bundle, settings or DeviceSettings(), cost_function)
        except BaseException:
            store.close()
            raise

    @property
    def model_version(self) -> str:
        """Version of the published model that the device works from."""
        return self._base.version

    @property
    def base(self) -> Bundle:
        """The published model, without what was learned here."""
        return self._base

    @property
    def student(self) -> Student:
        """The local weights, their teacher and how many steps made them."""
        return self._student

    def session(
        self,
        sample_rate: int = 16_000,
        *,
        mix_down: bool = False,
        endpointing: Endpointing | None = Endpointing(),
        hotwords: Hotwords | Iterable[str | Hotword] | None = None,
    ) -> DeviceSession:
        """A session for audio of this rate (Hz).

        mix_down: take the mean of several channels instead of refusing them. endpointing: when an utterance is over.
        hotwords: phrases to expect, such as names of contacts and devices; see :class:`~device_sdk.decoding.Hotwords`.
        """
        return DeviceSession(
            self._recogniser,
            self._heard,
            sample_rate,
            mix_down=mix_down,
            endpointing=endpointing,
            hotwords=hotwords_of(hotwords),
        )

    def recognise(self, waveform: NDArray[np.generic], sample_rate: int = 16_000) -> Result:
        """The n-best list of a whole utterance. waveform: [S] float32 in [-1, 1] or int16, mono."""
        session = self.session(sample_rate)
        session.feed(waveform)
        return session.finish()

    def feedback(self, utterance_id: str, signal: Signal) -> None:
        """What the app saw its user do. Late feedback is fine while the utterance is in memory; FeedbackError after.

        What was counted of the utterance is replaced by what the feedback says of its words: see
        :func:`device_sdk.personalization.confirmed.confirmed_texts`.
        """
        if not isinstance(signal, Accepted | Cancelled | Corrected | Semantics):
            raise FeedbackError(
                f"signal: found {type(signal).__name__}, expected Accepted, Cancelled, Corrected or Semantics"
            )
        with self._guard:
            example = self._recent.mark(utterance_id, signal)
            words, weights = self._base.words, self._base.combination
            texts = confirmed_texts([hypothesis.text for hypothesis in example.nbest], signal)
            if texts is not None and self._counting:
                counts = caches.count(texts, words, weights.sigma)
                due = not example.reported  # what was reported once is not reported again
                cache = caches.withdraw(self._cache, example.counts, due)
                self._keep_cache(caches.update(cache, counts, due))
                self._recent.recount(utterance_id, counts)

    def learn(
        self, budget_seconds: float | None = None, stop: threading.Event | Callable[[], bool] | None = None
    ) -> LearningReport:
        """Takes local steps on what is in memory; each utterance is used in one pass and is gone.

        Ends when nothing is left, after ``budget_seconds``, or when ``stop`` is set or true: between steps only. A step
        that diverges is undone and named in the report. Raises LearningError where the settings do not allow learning.
        """
        if not self.settings.learn:
            raise LearningError("device.learn: found False, expected True in the device's settings to learn")
        with self._working:
            if self._training is None:
                self._training = TrainingSession(self._packaged, self.settings.threads)
            if self._teacher is None:
                self._teacher = Teacher(self._base, self.settings.decoding, self.settings.threads)
            session, base, teacher = self._training, self._base, self._teacher

            def step(student: Student, example: Example) -> Outcome:
                return learn_one(
                    student,
                    example,
                    session,
                    teacher,
                    base,
                    self.settings.learning,
                    self._generator,
                    self._cost_function,
                )

            def take() -> Example | None:
                with self._guard:
                    return self._recent.take(self.settings.learning.wait_seconds)

            asked = stop.is_set if isinstance(stop, threading.Event) else stop or _never
            return learn(self._student, take, step, self._commit, budget_seconds, asked)[1]

    def check_in(self, url: str | Client, token: str | None = None) -> CheckInReport:
        """Sends what waits and what is due, and fetches what is newer.

        token: shown once, to enrol. CheckInError: the server cannot be reached or refuses; everything is kept and the
        next check-in goes on where this one ended.
        """
        from device_sdk.checkin.client import Client

        client = url if isinstance(url, Client) else Client(url)
        try:
            with self._working:
                return self._check_in(client, token)
        finally:
            if client is not url:
                client.close()

    def learned(self) -> Learned:
        """What the device has learned of its user."""
        with self._guard:
            counts = self._cache.counts
            top = [word for word in np.argsort(-counts, kind="stable")[:11].tolist() if word and counts[word] > 0][:10]
            return Learned(
                utterances=self._cache.utterances,
                words=tuple((self._base.words[word], float(counts[word])) for word in top),
                unlisted=len(self._cache.unlisted),
                steps=self._student.steps,
                model_version=self._base.version,
                marginals_version=self._marginals_version,
                marginal_reports=int(records.read_number(self._store, "marginals_sent")),
                delta_reports=int(records.read_number(self._store, "deltas_sent")),
            )

    def forget(self) -> None:
        """Erases everything the device learned, in memory and on the disk: counts, local weights, published models and
        marginals, reports not yet sent, and its identity at the server. It is then as if new."""
        with self._working, self._guard:
            self._recent.clear()
            try:
                self._store.erase()
            finally:  # erased or not, memory holds what the disk holds, and cannot write back what is gone
                self._load()

    def close(self) -> None:
        with self._working, self._guard:
            self._recent.clear()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What follows is for this file only: reading and writing the state, always under the guard.

    def _load(self) -> None:
        """Everything the device is, from the store; a new bundle of the app takes the place of an older base."""
        store, bundle = self._store, self._packaged
        shipped = f"{bundle.manifest.name} {bundle.version}"
        replaced = records.read_text(store, "bundle") != shipped
        published = None if replaced else records.read_published(store)
        self._base = bundle if published is None else _with_published(bundle, published)
        parameters = {name: self._base.weights[name] for name in bundle.architecture.parameter_shapes()}
        local = None if replaced else records.read_local(store)
        if local is None or local.base != self._base.version:
            self._student = Student(parameters, parameters)
        else:
            _check_local(local, self._base)
            self._student = Student(
                local.weights, local.teacher, Momentum(), local.steps, local.utterances, local.start
            )
        content = store.get("counts", "cache")
        self._cache = caches.empty(bundle.words) if content is None else caches.from_bytes(content, bundle.words)
        self._marginals_version, self._global = 0, None
        found = records.read_marginals(store)
        if found is not None and found[1] == bundle.words.digest:
            if len(found[2]) != len(bundle.words):
                raise StateError(
                    f"marginals/global: found {len(found[2])} probabilities, expected one for each word, "
                    f"{len(bundle.words)}; delete the state folder to start afresh"
                )
            self._marginals_version, self._global = found[0], found[2]
        self._recognizer, self._teacher, self._marginal = None, None, None
        if replaced:
            if records.has_learned(store):  # a bundle that cannot be used must not cost what was learned
                _try(bundle, self._rescorer, self.settings)
            with store.transaction():
                records.write_published(store, None)
                records.drop_local(store)
                records.write_text(store, "bundle", shipped)

    def _recogniser(self) -> Recognizer:
        """The recogniser of the local weights, built again only after they changed, with the marginal of now."""
        with self._guard:
            if self._recognizer is None:
                bundle = self._base
                if self._student.steps or self._student.start is not None:
                    bundle = bundle.with_weights(self._student.weights, f"{bundle.version}+{self._student.steps}")
                self._recognizer = Recognizer(
                    bundle,
                    self.settings.decoding,
                    self._rescore,
                    threads=self.settings.threads,
                    precision=self.settings.precision,
                )
            return self._recognizer

    def _rescore(self, hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        with self._guard:
            if self.settings.use_marginals and self._marginal is None:
                self._marginal = caches.marginal(
                    self._cache, self._base.background, self._global, self._rescorer.weights
                )
            marginal = self._marginal
        return self._rescorer.rescore(hypotheses, marginal)

    @property
    def _counting(self) -> bool:
        return self.settings.use_marginals or self.settings.share_marginals

    def _heard(self, result: Result, features: NDArray[np.float32]) -> None:
        with self._guard:
            texts = [hypothesis.text for hypothesis in result.nbest]
            counts = caches.count(texts, self._base.words, self._rescorer.weights.sigma)
            if self._counting:
                cache = caches.update(self._cache, counts)
                try:
                    self._keep_cache(cache)
                except StateError as error:  # the user still gets what was heard; the next write holds these counts too
                    log.warning("an utterance is counted in memory only: %s", error)
                    self._cache, self._marginal = cache, None
            if self.settings.learn and len(features) >= self._base.architecture.subsampling_factor:
                self._recent.add(result.utterance_id, features, result.nbest, counts)
            elif self._counting and not self.settings.learn:  # feedback mends the counts; that needs no features
                self._recent.add(result.utterance_id, features[:0], result.nbest, counts)

    def _keep_cache(self, cache: caches.MarginalCache) -> None:
        self._store.put("counts", "cache", caches.to_bytes(cache, self._base.words))
        self._cache = cache
        self._marginal = None

    def _commit(self, student: Student) -> None:
        local = records.Local(self._base.version, student.weights, student.teacher, student.steps, student.utterances)
        with self._guard:
            records.write_local(self._store, local)
            self._student, self._recognizer = student, None

    def _check_in(self, client: Client, token: str | None) -> CheckInReport:
        from device_sdk.checkin import exchange
        from device_sdk.wire.messages import CheckIn

        who = self._enrolled(client, token)
        sent = exchange.flush(client, self._store, who, self._take_back)
        answer = client.check_in(
            who,
            CheckIn(
                device_id=who.device_id or "",
                bundle_format=self._packaged.manifest.format_version,
                model_version=self._base.version,
                marginals_version=self._marginals_version,
                words_digest=self._base.words.digest,
            ),
        )
        self._enqueue(who, answer)
        sent += exchange.flush(client, self._store, who, self._take_back)
        new_model = answer.model_version != self._base.version
        if new_model:
            self._adopt(
                records.Published(answer.model_version, client.model(answer.model_version, answer.model_sha256))
            )
        new_marginals = answer.marginals_version != self._marginals_version
        if new_marginals:
            message = client.marginals(answer.marginals_version)
            digest = self._base.words.digest
            values = exchange.decode_marginals(message, digest, len(self._base.words))
            with self._guard:
                records.write_marginals(self._store, message.marginals_version, digest, values)
                self._marginals_version, self._global, self._marginal = message.marginals_version, values, None
        return exchange.CheckInReport(
            round_id=answer.round.round_id if answer.round else None,
            model_version=self._base.version,
            new_model=new_model,
            marginals_version=self._marginals_version,
            new_marginals=new_marginals,
            sent=sent,
            bytes_up=client.bytes_up,
            bytes_down=client.bytes_down,
            due_in_seconds=answer.retry_after_seconds,
        )

    def _enrolled(self, client: Client, token: str | None) -> Identity:
        from device_sdk.checkin import identity

        who = identity.load(self._store, client.url)
        if who is None or who.device_id is None:
            if token is None:
                raise CheckInError(f"{client.url}: this device is not enrolled there, expected an enrolment token")
            if who is None:
                who = identity.new(self._store, client.url)
            who = identity.enrolled(self._store, who, client.enrol(token, who))
        return who

    def _enqueue(self, who: Identity, answer: CheckedIn) -> None:
        """Puts this round's reports into the outbox, each stream once a round, as far as the user shares them."""
        from device_sdk.checkin import exchange

        offer = answer.round
        if offer is None:
            return
        with self._together():
            plan = offer.marginals
            wanted = plan is not None and self.settings.share_marginals
            if plan is not None and wanted and not exchange.has_reported(self._store, who, offer.round_id, "marginals"):
                self._keep_cache(exchange.enqueue_marginals(self._store, who, offer, plan, self._cache))
                self._recent.reported()
            deltas, student = offer.deltas, self._student
            if (
                deltas is not None
                and self.settings.share_deltas
                and offer.model_version == self._base.version
                and student.utterances >= deltas.minimum_utterances
                and not exchange.has_reported(self._store, who, offer.round_id, "deltas")
            ):
                start = student.start or {name: self._base.weights[name] for name in student.weights}
                exchange.enqueue_delta(self._store, who, offer, deltas, student.weights, start, student.utterances)

    def _take_back(self, outgoing: Outgoing) -> None:
        """A report that a round ended without: its counts are due again in the next one."""
        from device_sdk.checkin import exchange, outbox

        with self._together():
            outbox.release(self._store, outgoing.report_id)
            if outgoing.kind == "marginals":
                self._keep_cache(exchange.restored(self._cache, outgoing))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """A transaction; where it fails, the counts in memory go back with those on the disk."""
        with self._guard:
            before = self._cache
            try:
                with self._store.transaction():
                    yield
            except BaseException:
                self._cache, self._marginal = before, None
                raise

    def _adopt(self, published: records.Published) -> None:
        """A new base: of what was learned here the share that the settings keep stays. BundleError: it is unfit; the
        old one stays."""
        base = _with_published(self._packaged, published)
        old, new = ({name: each.weights[name] for name in self._student.weights} for each in (self._base, base))
        with self._guard:
            moved = self._student.steps or self._student.start is not None
            student = rebased(self._student, old, new, self.settings.learning.keep) if moved else Student(new, new)
            with self._store.transaction():
                records.write_published(self._store, published)
                records.drop_local(self._store)
                if student.start is not None:
                    records.write_start(self._store, student.start)
                    records.write_local(
                        self._store, records.Local(base.version, student.weights, student.teacher, 0, 0)
                    )
            self._base, self._student = base, student
            self._recognizer, self._teacher = None, None


def _never() -> bool:
    return False


def _try(bundle: Bundle, rescorer: Rescorer, settings: DeviceSettings) -> None:
    """Recognises a second of noise. Raises BundleError for a bundle that cannot."""
    transducer = OnnxTransducer(bundle, settings.threads, settings.precision)
    try_transducer(transducer, str(bundle.path))
    recognizer = Recognizer(bundle, settings.decoding, rescorer.rescore, transducer=transducer)
    noise = 0.1 * np.random.default_rng(0).standard_normal(bundle.features.sample_rate, np.float32)
    recognizer.recognise(noise, bundle.features.sample_rate)


def _check_local(local: records.Local, base: Bundle) -> None:
    constants = {name: base.weights[name] for name in base.architecture.constant_shapes()}
    for name, weights in (("local", local.weights), ("teacher", local.teacher), ("start", local.start)):
        if weights is None:
            continue
        try:
            weight_files.check(base.architecture, {**constants, **weights}, "found unusable weights")
        except BundleError as error:
            raise StateError(f"weights/{name}: {error}; or delete the state folder to start afresh") from error


def _with_published(bundle: Bundle, published: records.Published) -> Bundle:
    source = f"model {published.version}"
    return bundle.with_weights(weight_files.read(published.content, source), published.version)
