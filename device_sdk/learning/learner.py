"""What one utterance does: label it, take steps, let the teacher follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from device_sdk.bundle import Bundle
from device_sdk.bundle.subsets import trainable
from device_sdk.decoding import DecodingSettings, beam
from device_sdk.decoding.nbest import distinct
from device_sdk.decoding.stream import decoded, frame_seconds
from device_sdk.errors import AudioError, LearningError
from device_sdk.feedback.signals import Corrected, CostFunction, Signal, parts
from device_sdk.hypothesis import Hypothesis
from device_sdk.learning import adapters
from device_sdk.learning import teacher as teachers
from device_sdk.learning.candidates import Heard, gather, objective
from device_sdk.learning.delta import difference
from device_sdk.learning.gradients import GradientSum, add
from device_sdk.learning.measures import Measures, measured
from device_sdk.learning.memory import Example
from device_sdk.learning.memory_budget import affordable
from device_sdk.learning.objectives import Objective, Tokens, running_mean
from device_sdk.learning.preconditioner import preconditioned, scales
from device_sdk.learning.rehearsal import Transcribed, lesson
from device_sdk.learning.scoring import log_likelihoods
from device_sdk.learning.settings import LearningSettings
from device_sdk.learning.specaugment import masked
from device_sdk.learning.step import Arrays, Momentum, global_norm, sgd
from device_sdk.runtimes.protocol import Training, Transducer

__all__ = ["Hearing", "Outcome", "Student", "Teacher", "heard_of", "learn_one", "rebased", "rehearse_one"]

_PASSES, _CORRECTED_PASSES = 2, 4
Hearing = tuple[Heard, Callable[[Sequence[Tokens]], npt.NDArray[np.float64]]]
"""(n-best of an utterance, scorer of other hypotheses of it, nats [N])."""


@dataclass(frozen=True, slots=True)
class Student:
    """Everything that steps change. weights, teacher: trainable parameters; steps, utterances: since the base came.

    start: the weights then, which a delta is measured from; None for the base's own. baseline: what serving has cost of
    late, for REINFORCE; None until there was feedback. factors: of adapters, in memory only, see
    :mod:`device_sdk.learning.adapters`. gradients: at the base's own weights, summed up instead of taking steps, where
    the server collects gradients. teacher_version: of the server's teacher, None where the teacher is the student's.
    measures: how well it went.
    """

    weights: Arrays
    teacher: Arrays
    momentum: Momentum = field(default_factory=Momentum)
    steps: int = 0
    utterances: int = 0
    start: Arrays | None = None
    baseline: float | None = None
    factors: Arrays = field(default_factory=dict)
    gradients: GradientSum | None = None
    teacher_version: str | None = None
    measures: Measures = field(default_factory=Measures)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One utterance's turn. losses, norms: one for each step taken. cost: of what was served, None without feedback.
    skipped: why there was no step. shortened: whether hypotheses were left out, to fit into memory."""

    student: Student
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    cost: float | None = None
    skipped: str | None = None
    shortened: bool = False


def rebased(student: Student, old: Arrays, new: Arrays, keep: float) -> Student:
    """A student on a new base: ``new`` plus the share ``keep`` of what its own steps had changed besides.

    What the new base has taken up of it, as far as both point the same way, is not added again: with o the
    student's distance from ``old`` and d that of ``new``, keep * (o - max(0, <o, d> / <d, d>) d) is. Its teacher starts
    from the same weights. With ``keep`` 0, or where ``new`` is what the student had become, it is the new base.
    """
    if keep == 0.0:
        return Student(new, new)
    moved, shift = difference(student.weights, old), difference(new, old)
    length = sum(float(np.vdot(array, array)) for array in shift.values())
    alike = sum(float(np.vdot(moved[name], array)) for name, array in shift.items())
    taken = max(0.0, alike / length) if length else 0.0
    start: dict[str, npt.NDArray[np.float32]] = {}
    for name, array in new.items():
        own = (moved[name] - taken * shift[name]).astype(np.float32)
        start[name] = array + np.float32(keep) * own
    return Student(start, start, start=start)


class Teacher:
    """Owns the session of the teacher's weights; opened again only when they changed."""

    def __init__(
        self, bundle: Bundle, decoding: DecodingSettings, open_transducer: Callable[[Bundle], Transducer]
    ) -> None:
        self._bundle = bundle
        self._decoding = decoding
        self._open = open_transducer
        self._weights: Arrays | None = None
        self._transducer: Transducer | None = None

    def hear(self, weights: Arrays, example: Example) -> Hearing:
        """What an utterance's clean features are heard as (Rao et al. 2023, section 2.2). Texts hold the app's phrases
        where the utterance's own do."""
        if self._transducer is None or weights is not self._weights:
            self._transducer = self._open(self._bundle.with_weights(weights, "teacher"))
            self._weights = weights
        transducer, settings, features = self._transducer, self._decoding, example.features
        factor, frame = self._bundle.architecture.subsampling_factor, frame_seconds(transducer, self._bundle.features)
        usable = len(features) // factor
        features = np.ascontiguousarray(features[: usable * factor])
        paths = beam.paths(decoded(features, transducer, frame, settings))
        seconds, spellings = frame * usable, example.spellings
        found = distinct(paths, self._bundle.tokenizer, frame, seconds, spellings=spellings)[: settings.nbest]

        def score(hypotheses: Sequence[Tokens]) -> npt.NDArray[np.float64]:
            return log_likelihoods(transducer, transducer.encode(features)[0], hypotheses)

        return heard_of(found), score


def heard_of(nbest: Sequence[Hypothesis]) -> Heard:
    """An n-best list by its acoustic scores alone."""
    return Heard(
        tuple(hypothesis.text for hypothesis in nbest),
        tuple(hypothesis.tokens for hypothesis in nbest),
        tuple(hypothesis.scores.acoustic for hypothesis in nbest),
    )


def learn_one(
    student: Student,
    example: Example,
    session: Training,
    teacher: Teacher,
    bundle: Bundle,
    settings: LearningSettings,
    generator: np.random.Generator,
    cost_function: CostFunction | None = None,
    budget_bytes: int | None = None,
) -> Outcome:
    """The student after one utterance. budget_bytes: what a step may take of memory, None for no bound.

    LearningError: a step diverged; the student given is as it was.
    """
    taught, score = teacher.hear(student.teacher, example)
    candidates = gather(
        heard_of(example.nbest), taught, example.signal, bundle.tokenizer.encode, settings, cost_function
    )
    cost = None if example.signal is None else float(candidates.costs[0])
    unknown = np.flatnonzero(np.isnan(candidates.nlls))
    if unknown.size:
        candidates.nlls[unknown] = -score([candidates.tokens[index] for index in unknown])
    loss, shortened = affordable(
        lambda settings: objective(candidates, taught, example.signal, settings, student.baseline),
        bundle.architecture,
        settings,
        len(example.features),
        budget_bytes,
    )
    if cost is not None:
        usual = settings.baseline if student.baseline is None else student.baseline
        student = replace(student, baseline=running_mean(usual, cost, settings.baseline_decay))
    if isinstance(loss, str):
        return Outcome(student, cost=cost, skipped=loss)
    if (reason := session.too_large(example.features, loss.hypotheses)) is not None:
        return Outcome(student, cost=cost, skipped=reason)
    if student.gradients is not None:
        student, value, norm = _collected(student, example.features, loss, session, bundle, settings, generator)
        return Outcome(_measured(student, (value,), example), (value,), (norm,), cost)
    share = settings.confirmation if cost == 0.0 else 1.0
    passes = settings.passes or (_CORRECTED_PASSES if cost and _corrected(example.signal) else _PASSES)
    student, losses, norms = _descended(
        student, example.features, loss, session, bundle, settings, generator, passes, share
    )
    student = _measured(replace(student, utterances=student.utterances + 1), losses, example)
    return Outcome(student, losses, norms, cost, shortened=shortened)


def rehearse_one(
    student: Student,
    spoken: Transcribed,
    session: Training,
    bundle: Bundle,
    settings: LearningSettings,
    generator: np.random.Generator,
) -> Outcome:
    """The student after one transcribed utterance, which does not count as its user's. One that cannot be learned from
    is skipped.

    LearningError: a step diverged; the student given is as it was.
    """
    try:
        features, loss = lesson(spoken, bundle, settings.rehearsal.weight)
    except (AudioError, LearningError) as error:
        return Outcome(student, skipped=str(error))
    if (reason := session.too_large(features, loss.hypotheses)) is not None:
        return Outcome(student, skipped=f"rehearsal: {reason}")
    usual = student.momentum.loss  # of the user's utterances: a rehearsed one's loss is of another size
    student = replace(student, momentum=replace(student.momentum, loss=math.nan))
    passes = settings.passes or _PASSES
    student, losses, norms = _descended(student, features, loss, session, bundle, settings, generator, passes)
    return Outcome(replace(student, momentum=replace(student.momentum, loss=usual)), losses, norms)


def _corrected(signal: Signal | None) -> bool:
    return signal is not None and any(isinstance(each, Corrected) for each in parts(signal))


def _measured(student: Student, losses: Sequence[float], example: Example) -> Student:
    return replace(student, measures=measured(student.measures, losses, example.nbest[0].text, example.signal))


def _collected(
    student: Student,
    heard: npt.NDArray[np.float32],
    loss: Objective,
    session: Training,
    bundle: Bundle,
    settings: LearningSettings,
    generator: np.random.Generator,
) -> tuple[Student, float, float]:
    """(student, loss, gradient norm) after the gradient at the base's weights was added to the sum; nothing moves.

    LearningError: the loss or the gradient is none that a step would be taken with.
    """
    assert student.gradients is not None
    features = masked(heard, bundle.weights["features.mean"], settings.masks, generator)
    value, gradients = _evaluated(session, bundle.weights, features, loss)
    norm = global_norm(gradients)
    if not (math.isfinite(value) and norm <= settings.step.largest_norm):
        raise LearningError(
            f"gradient: found a loss of {value:.3g} and a norm of {norm:.3g}, expected a finite loss and at most "
            f"{settings.step.largest_norm:.3g}; refused"
        )
    return replace(student, gradients=add(student.gradients, gradients)), value, norm


def _evaluated(
    session: Training, parameters: Arrays, features: npt.NDArray[np.float32], loss: Objective
) -> tuple[float, Arrays]:
    """(the loss, its gradients) on features [F, M]."""
    found = session.run(parameters, features, loss.hypotheses, loss.weights, loss.costs, loss.cost_scale)
    value = float(loss.weights @ found.negative_log_likelihoods) + loss.cost_scale * found.expected_cost
    return value, found.gradients


def _descended(
    student: Student,
    heard: npt.NDArray[np.float32],
    loss: Objective,
    session: Training,
    bundle: Bundle,
    settings: LearningSettings,
    generator: np.random.Generator,
    passes: int,
    share: float = 1.0,
) -> tuple[Student, tuple[float, ...], tuple[float, ...]]:
    """(student, losses, norms) after ``passes`` steps on one utterance's features [F, M], masked anew for each. share:
    of the gradients that is stepped by, before they are clipped."""
    constants = {name: bundle.weights[name] for name in bundle.architecture.constant_shapes()}
    curvature = bundle.curvature if settings.step.precondition else None
    sizes = None if curvature is None else scales(curvature, settings.step.damping)
    matrices: tuple[str, ...] = ()
    if settings.subset == "adapters":
        matrices, start = trainable(bundle.architecture, "adapters"), student.start or bundle.weights
        if not student.factors:
            found_again = adapters.factorized(student.weights, start, matrices, settings.rank, generator)
            student = replace(student, factors=found_again)
        sizes = None if sizes is None else adapters.factor_scales(sizes, matrices)
    # The same as gradients times the share, but that they are measured as they are.
    step = replace(
        settings.step,
        learning_rate=settings.step.learning_rate * share,
        clip_norm=settings.step.clip_norm / share,
    )
    losses: list[float] = []
    norms: list[float] = []
    for _ in range(passes):
        features = masked(heard, constants["features.mean"], settings.masks, generator)
        value, gradients = _evaluated(session, {**constants, **student.weights, **student.factors}, features, loss)
        if sizes is not None:
            gradients = preconditioned(gradients, sizes)
        moving = student.factors if matrices else student.weights
        moved, momentum, norm = sgd(moving, gradients, value, student.momentum, step)
        weights = adapters.merged(student.weights, student.factors, moved, matrices) if matrices else moved
        steps = student.steps + 1
        averaged = student.teacher
        if student.teacher_version is None:
            averaged = teachers.updated(averaged, weights, steps, settings.teacher)
        student = replace(student, weights=weights, teacher=averaged, momentum=momentum, steps=steps)
        student = replace(student, factors=moved if matrices else {})
        losses.append(value)
        norms.append(norm)
    return student, tuple(losses), tuple(norms)
