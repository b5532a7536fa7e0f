"""What a device knows: the published model, what it learned of its user, and what it counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from device_sdk import consent as consents
from device_sdk.bundle import Bundle
from device_sdk.bundle import weights as weight_files
from device_sdk.consent import Consent, Stream
from device_sdk.errors import BundleError, SessionError, StateError
from device_sdk.learning import guard
from device_sdk.learning.delta import GradientSum, Measures, empty, measures_from_bytes, measures_to_bytes
from device_sdk.learning.guard import Watch
from device_sdk.learning.learner import Student, rebased
from device_sdk.learning.memory import utterances
from device_sdk.learning.step import Arrays, Course
from device_sdk.personalization import cache as caches
from device_sdk.personalization import given, vocabulary
from device_sdk.personalization.vocabulary import Phrases
from device_sdk.state import Store, outbox, records

log = logging.getLogger(__name__)


class ModelState:
    """Owns the mirror in memory of what the store holds. Every change is written first, under the store's guard. base:
    the published model, or the packaged one. student: local weights, kept beside the base. cache: word counts.
    marginals_version, marginals: the published distribution [n] float64; None where there is none. watch: what the
    guard remembers of the student. proven: the last student that feedback has proven, with the same start; None for the
    base. given: in how many utterances the user gave each word that may be named, since the last report."""

    base: Bundle
    student: Student
    cache: caches.MarginalCache
    marginals_version: int
    marginals: NDArray[np.float64] | None
    watch: Watch
    proven: Student | None
    consent: Consent
    given: Mapping[str, int]
    phrases: Phrases

    def __init__(self, store: Store, packaged: Bundle, attempt: Callable[[Bundle], None]) -> None:
        """packaged: the app's bundle. attempt: raises BundleError for a bundle that cannot recognize; called before
        a new one of the app takes the place of what was learned. Raises StateError: damaged state."""
        self.store, self.packaged, self._guard, self._attempt = store, packaged, store.guard, attempt
        self._digests: dict[str, str | None] = {}
        self.load()

    def load(self) -> None:
        """Everything from the store; a new bundle of the app takes the place of an older base."""
        store, bundle = self.store, self.packaged
        shipped = f"{bundle.manifest.name} {bundle.version}"
        made, identity = records.read_text(store, "bundle"), f"{shipped} {_digest(bundle)}"
        replaced = made not in (identity, shipped)  # older states have no digest
        published = None if replaced else records.read_published(store)
        base = bundle if published is None else with_published(bundle, published)
        parameters = {name: base.weights[name] for name in bundle.architecture.parameter_shapes()}
        local, proven = None if replaced else records.read_local(store, parameters), None
        if local is None or local.base != base.version:
            student = Student(parameters, parameters)
        else:
            _check(base, local=local.weights, teacher=local.teacher, start=local.start)
            teacher = local.weights if local.teacher is None else local.teacher
            student = Student(local.weights, teacher, Course(), local.steps, local.utterances, local.start)
            proven = _proven(store, parameters, student, base)
        if not replaced:
            student = _with_teacher(student, records.read_published(store, "published_teacher"), bundle)
            student = _with_gradients(student, store, base)
            student = replace(student, measures=measures_from_bytes(store.get("settings", "measures"), base.version))
        content = store.get("counts", "cache")
        cache = caches.empty(bundle.words) if content is None else caches.from_bytes(content, bundle.words)
        version, marginals = records.read_marginals(store, bundle.words.digest, len(bundle.words))
        self.base, self.student, self.cache, self.proven = base, student, cache, proven
        self._digests.clear()
        self.marginals_version, self.marginals = version, marginals
        self.watch = guard.from_bytes(store.get("settings", "guard"))
        self.consent = consents.from_bytes(store.get("settings", "consent"))
        self.given = given.from_bytes(store.get("counts", "given"), bundle.words)
        self.phrases = vocabulary.from_bytes(store.get("counts", "vocabulary"))
        if replaced:
            learned = [name for name in ("local", "published") if store.get("settings", name) is not None]
            if made is not None:  # a bundle that cannot be used must not cost anything
                self._attempt(bundle)
            with store.transaction():
                for name in ("published", "published_teacher", "gradients"):
                    records.drop(store, name)
                records.drop_local(store)
                store.delete("settings", "unfit")
                kept = store.names("kept")  # pieces and features of another bundle
                store.delete("kept", *kept)
                records.write_text(store, "bundle", identity)
            if kept:
                log.warning("erased %s with feedback, kept before: the app has another bundle", utterances(len(kept)))
            if learned:
                log.warning("the app's bundle is %s now: weights learned on another are dropped; counts stay", shipped)

    def check_open(self) -> None:
        """SessionError: the device was closed."""
        if self.store.closed:
            raise SessionError("device: found it closed, expected open; call Device.open for another one")

    def keep_cache(self, cache: caches.MarginalCache) -> None:
        """Makes these counts the device's."""
        with self._guard:
            with self.store.transaction():
                self.store.put("counts", "cache", caches.to_bytes(cache, self.base.words))
                if self.cache.pending_utterances and not cache.pending_utterances:
                    records.write_number(self.store, "handed_on", self.handed_on() + 1)
            self.cache = cache

    def handed_on(self) -> float:
        """How often the counts that were due have been handed to a report, or were due no more."""
        return records.read_number(self.store, "handed_on")

    def keep_given(self, counts: Mapping[str, int]) -> None:
        """Makes these the words that may be named."""
        with self._guard:
            if counts:
                self.store.put("counts", "given", given.to_bytes(counts))
            elif self.given:
                self.store.delete("counts", "given")
            self.given = counts

    def keep_phrases(self, known: Phrases) -> None:
        """Makes this the user's vocabulary."""
        with self._guard:
            if known is not self.phrases:
                self.store.put("counts", "vocabulary", vocabulary.to_bytes(known))
                self.phrases = known

    def differs_in_marginals(self, version: int | str, digest: str) -> bool:
        """Whether these are not the marginals that are here. digest: SHA-256 of their values as little-endian float64.
        A device that has none has the bundle's background, which is version 0."""
        found = b"" if self.marginals is None else self.marginals.astype("<f8").tobytes()
        differs = self.marginals is not None and sha256(found).hexdigest() != digest
        return str(version) != str(self.marginals_version) or differs

    def differs_in_model(self, version: str, digest: str) -> bool:
        """Whether this is not the model that is here. digest: of its file; a bundle's own weights have none."""
        return version != self.base.version or self._digest("published") not in (None, digest)

    def differs_in_teacher(self, version: str, digest: str) -> bool:
        """Whether this is not the server's teacher that is here."""
        return version != self.student.teacher_version or self._digest("published_teacher") != digest

    def _digest(self, name: records.PublishedName) -> str | None:
        """Of a published file, read once; None where there is none."""
        if name not in self._digests:
            published = records.read_published(self.store, name)
            self._digests[name] = None if published is None else sha256(published.content).hexdigest()
        return self._digests[name]

    def keep_marginals(self, version: int, words_digest: str, values: NDArray[np.float64]) -> None:
        """Makes this the published distribution. values: [n] float64."""
        with self._guard:
            records.write_marginals(self.store, version, words_digest, values)
            self.marginals_version, self.marginals = version, values

    def commit(self, student: Student) -> None:
        """Makes these the local weights; what the guard knows stays."""
        self.commit_judged(student, self.watch, self.proven)

    def commit_judged(self, student: Student, watch: Watch, proven: Student | None, *learned_from: str) -> None:
        """Makes these the local weights, and the guard's memory and way back. learned_from: what is kept no more."""
        with self._guard:
            if not self.consent.deltas:  # withdrawn while the student learned
                student = replace(student, gradients=None)
            with self.store.transaction():
                if student.start is None and self.student.start is not None:
                    records.drop_local(self.store)
                records.write_local(self.store, _local(student, self.base), self.base.weights)
                self.store.put("settings", "measures", measures_to_bytes(student.measures, self.base.version))
                if student.gradients is not None:
                    self._write_gradients(student.gradients, self.base)
                self.store.put("settings", "guard", guard.to_bytes(watch))
                if proven is not self.proven:
                    content = None if proven is None else (proven.weights, proven.utterances)
                    records.write_proven(self.store, content, self.base.weights)
                self.store.delete("kept", *learned_from)
            self.student, self.watch, self.proven = student, watch, proven

    def collect(self, limit: int | None) -> None:
        """From here on gradients at the base's weights are summed, of at most ``limit`` utterances; None: no more."""
        with self._guard, self.store.transaction():
            gradients = None
            if limit is None:
                records.drop(self.store, "gradients")
            else:
                gradients = empty(self.base.architecture.parameter_shapes(), limit)
                self._write_gradients(gradients, self.base)
            self.store.delete("settings", "measures")
            self.student = replace(self.student, gradients=gradients, measures=Measures())

    def adopt_teacher(self, published: records.Published | None) -> None:
        """The server's teacher labels from here on; None: the teacher is the local one, which starts as the student.
        BundleError: unfit, and the old one stays."""
        if published is None and self.student.teacher_version is None:
            return
        own = replace(self.student, teacher=self.student.weights, teacher_version=None)
        student = _with_teacher(own, published, self.packaged)
        with self._guard, self.store.transaction():
            records.write_published(self.store, published, "published_teacher")
            if published is None and (student.steps or student.start is not None):
                self.commit(student)
            self.student = student
            self._digests.pop("published_teacher", None)

    def adopt(self, published: records.Published, keep: float) -> None:
        """A new base; the share ``keep`` of what was learned here stays. BundleError: unfit, and the old one stays."""
        base = with_published(self.packaged, published)
        old, new = ({name: each.weights[name] for name in self.student.weights} for each in (self.base, base))
        with self._guard:
            moved = self.student.steps or self.student.start is not None
            student, before = rebased(self.student, old, new, keep) if moved else Student(new, new), self.student
            if before.teacher_version is not None:
                student = replace(student, teacher=before.teacher, teacher_version=before.teacher_version)
            if before.gradients is not None:  # those of the old base are of no use to the new one
                shapes = base.architecture.parameter_shapes()
                student = replace(student, gradients=empty(shapes, before.gradients.limit))
            with self.store.transaction():
                records.write_published(self.store, published)
                records.drop_local(self.store)
                proven = None if self.proven is None or student.start is None else student
                if student.start is not None:
                    records.write_start(self.store, student.start, base.weights)
                    records.write_local(self.store, _local(student, base), base.weights)
                if proven is not None:
                    records.write_proven(self.store, (proven.weights, 0), base.weights)
                if student.gradients is not None:
                    self._write_gradients(student.gradients, base)
                watch = replace(self.watch, served=1.0, drift=1.0, confirmed=0)
                self.store.put("settings", "guard", guard.to_bytes(watch))
            self.base, self.student, self.watch, self.proven = base, student, watch, proven
            self._digests.pop("published", None)

    def agree(self, *streams: Stream) -> None:
        """The user agrees to these streams. What is sent starts here: nothing counted or learned before.
        ConfigurationError."""
        consent = self.consent.agreed(*streams)
        with self.together():
            if consent.marginals and not self.consent.marginals:
                self._nothing_due()
            if consent.deltas and not self.consent.deltas and self.student.steps:
                self._start_here()
            self._keep_consent(consent)

    def withdraw(self, *streams: Stream) -> None:
        """The user agrees no longer: what waits in these streams is deleted. ConfigurationError: no such stream."""
        consent = self.consent.withdrawn(*streams)
        with self.together():
            if not consent.marginals:
                outbox.discard(self.store, "marginals")
                self._nothing_due()
            if not consent.deltas:
                outbox.discard(self.store, "deltas")
                if self.student.gradients is not None:
                    self.collect(None)
            if not consent.words:
                outbox.discard(self.store, "words")
                self.keep_given({})
            if not (consent.keeping and consent.learning):
                self.store.delete("kept", *self.store.names("kept"))
            self._keep_consent(consent)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A transaction; where it fails, what memory mirrors goes back with what the disk holds."""
        with self._guard:
            before = self.cache, self.student, self.watch, self.proven, self.consent, self.given, self.phrases
            try:
                with self.store.transaction():
                    yield
            except BaseException:
                self.cache, self.student, self.watch, self.proven, self.consent, self.given, self.phrases = before
                raise

    def _nothing_due(self) -> None:
        self.store.delete("counts", "reported")
        if self.cache.pending_utterances or self.cache.pending.any():
            self.keep_cache(caches.reported(self.cache))

    def _start_here(self) -> None:
        """Deltas are measured from the weights of now, and nothing falls back further: that would tell of it."""
        student = replace(self.student, start=self.student.weights, utterances=0, measures=Measures())
        records.write_start(self.store, student.weights, self.base.weights)
        self.commit_judged(student, self.watch, None if self.proven is None else student)

    def _write_gradients(self, gradients: GradientSum, base: Bundle) -> None:
        assert gradients.limit is not None
        total, utterances, limit = gradients.sum, gradients.utterances, gradients.limit
        records.write_gradients(self.store, records.Collected(base.version, total, utterances, limit))

    def _keep_consent(self, consent: Consent) -> None:
        if consent != self.consent:
            self.store.put("settings", "consent", consents.to_bytes(consent))
            self.consent = consent


def _digest(bundle: Bundle) -> str:
    """Of what was learned on: weights, pieces and words. Bundles that apps make of their own may have one name."""
    files = bundle.manifest.files
    parts = (files[name].sha256 for name in ("weights.safetensors", "tokenizer.model", "words.txt"))
    return sha256("".join(parts).encode()).hexdigest()[:16]


def with_published(bundle: Bundle, published: records.Published) -> Bundle:
    """The bundle with a published model's weights. BundleError: they do not fit."""
    return bundle.with_weights(weight_files.read(published.content, f"model {published.version}"), published.version)


def _with_teacher(student: Student, published: records.Published | None, bundle: Bundle) -> Student:
    """The student with the server's teacher, as far as there is one. BundleError: it does not fit."""
    if published is None:
        return student
    found = with_published(bundle, published).weights
    return replace(student, teacher={name: found[name] for name in student.weights}, teacher_version=published.version)


def _with_gradients(student: Student, store: Store, base: Bundle) -> Student:
    found, shapes = records.read_gradients(store), base.architecture.parameter_shapes()
    if found is None:
        return student
    if found.base != base.version or not found.utterances:
        return replace(student, gradients=empty(shapes, found.limit))
    for name, shape in shapes.items():
        array = found.sum.get(name)
        if array is None or array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            kind = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise StateError(
                f"weights/gradients: {name}: found {kind}, expected finite float32 {list(shape)}; delete the state "
                "folder to start afresh"
            )
    return replace(student, gradients=GradientSum(found.sum, found.utterances, found.limit))


def _local(student: Student, base: Bundle) -> records.Local:
    teacher = student.teacher if student.teacher_version is None else None  # the server's is stored as published
    return records.Local(base.version, student.weights, teacher, student.steps, student.utterances, student.start)


def _proven(store: Store, parameters: Arrays, student: Student, base: Bundle) -> Student | None:
    if (found := records.read_proven(store, parameters)) is None:
        return None
    _check(base, proven=found[0])
    return replace(student, weights=found[0], utterances=found[1])


def _check(base: Bundle, **stored: Arrays | None) -> None:
    """Of weights, by the name of their record. StateError: unusable."""
    constants = {name: base.weights[name] for name in base.architecture.constant_shapes()}
    for name, weights in stored.items():
        if weights is None:
            continue
        try:
            weight_files.check(base.architecture, {**constants, **weights}, "found unusable weights")
        except BundleError as error:
            raise StateError(f"weights/{name}: {error}; or delete the state folder to start afresh") from error
