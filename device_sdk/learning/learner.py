"""What one utterance does: label it, take steps, let the teacher follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import Architecture, Subset, frozen_part, trainable
from device_sdk.bundle.streaming import AnyArchitecture, chosen
from device_sdk.errors import AudioError, LearningError
from device_sdk.feedback.signals import CostFunction, Semantics, correction, parts
from device_sdk.learning import step as steps
from device_sdk.learning.candidates import gather, objective
from device_sdk.learning.delta import GradientSum, Measures, add, difference, measure
from device_sdk.learning.memory import Example
from device_sdk.learning.objectives import Objective, label
from device_sdk.learning.rehearsal import Transcribed, lesson
from device_sdk.learning.settings import LearningSettings
from device_sdk.learning.step import Arrays, Course, Float
from device_sdk.learning.teacher import Teacher, follow, heard_of
from device_sdk.runtimes.protocol import Training
from device_sdk.runtimes.windows import KEPT

_PASSES, _CORRECTED_PASSES, _MOST_PASSES = 2, 4, 16
_HEARD_NATS = 0.1
"""Loss of a correction, for each of its pieces, at which it is heard with room to spare: the second pass knows nothing
of it. Of 31 commands, one word of each corrected three times to a spelling that no model knows, 82 of 93 were heard so
when said again (11.1 steps); with 0.15 and at most ten steps 67 (8.8). What else their speakers said stayed as it was,
and with 0.07 began to suffer."""
# Values that a step keeps of a unit of an LSTM layer: four gates, two states, and their gradients in turn.
_STATES = 8
_LATTICE_BYTES = 64  # of a node: eight float64 values
_ALIGNED_BYTES = 72  # of a place of phones at a frame: nine such values
_PLACES = 6  # for each piece: three phones with blanks
_JOINT_FRAMES = 8  # that the joint runs over at a time
_JOINT_BYTES = 12  # of a hidden or output unit of the joint: its float32 value, its gradient, and one to work with
_COPIES = 4  # as large as what is trained: gradients, those divided by their size, new weights, teacher
_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Student:
    """Everything that steps change. weights, teacher: trainable parameters; steps, utterances: since the base came.
    start: the weights then, which a delta is measured from; None for the base's own. baseline: what serving has cost of
    late, for REINFORCE; None until there was feedback. factors: of adapters, in memory only. gradients: at the base's
    own weights, summed up instead of taking steps, where the server collects gradients. teacher_version: of the
    server's teacher, None where the teacher is the student's. measures: how well it went."""

    weights: Arrays
    teacher: Arrays
    course: Course = field(default_factory=Course)
    steps: int = 0
    utterances: int = 0
    start: Arrays | None = None
    baseline: float | None = None
    factors: Arrays = field(default_factory=dict)
    gradients: GradientSum | None = None
    teacher_version: str | None = None
    measures: Measures = field(default_factory=Measures)


@dataclass(frozen=True, slots=True)
class Trainer:
    """What steps are taken with. session: gives the gradients; bundle: the base; generator: of masks and factors."""

    session: Training
    bundle: Bundle
    settings: LearningSettings
    generator: np.random.Generator


Stepped = tuple[Student, tuple[float, ...], tuple[float, ...]]
"""(student, losses, gradient norms), one of each for every step."""


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
    """A student on a new base: ``new`` plus the share ``keep`` of what its own steps had changed besides. What the new
    base has taken up of it, as far as both point the same way, is not added again: with o the student's distance from
    ``old`` and d that of ``new``, keep * (o - max(0, <o, d> / <d, d>) d) is. Its teacher starts from the same weights.
    With ``keep`` 0, or where ``new`` is what the student had become, it is the new base."""
    if keep == 0.0:
        return Student(new, new)
    moved, shift = difference(student.weights, old), difference(new, old)
    length = sum(float(np.vdot(array, array)) for array in shift.values())
    alike = sum(float(np.vdot(moved[name], array)) for name, array in shift.items())
    taken = max(0.0, alike / length) if length else 0.0
    steps = {name: (moved[name] - taken * shift[name]).astype(np.float32) for name in new}
    start = {name: array + np.float32(keep) * steps[name] for name, array in new.items()}
    return Student(start, start, start=start)


def step_bytes(architecture: AnyArchitecture, subset: Subset | None, frames: int, lengths: Sequence[int]) -> int:
    """Bytes that a step takes beyond the open session and the weights, as an upper estimate. frames: of features,
    before subsampling. lengths: [N] tokens of each hypothesis, N at least 1."""
    subset = chosen(architecture, subset)
    shapes, beneath = architecture.parameter_shapes(), frozen_part(architecture, subset)
    heard, said, hypotheses = frames // architecture.subsampling_factor, max(lengths) + 1, len(lengths)
    encoder = 4 * _STATES * heard * architecture.joiner_size
    if isinstance(architecture, Architecture):
        layers = architecture.encoder_layers - beneath.encoder_layers
        encoder = 4 * _STATES * heard * architecture.encoder_size * layers
    elif subset != "output":  # states, and the weights as a run takes them
        windows = frames // architecture.shift // KEPT + 1 + KEPT
        kept = windows * sum(math.prod(state.shape) for state in architecture.states)
        encoder += 4 * (kept + architecture.parameter_count())
    predictor = 4 * _STATES * hypotheses * said * architecture.predictor_size * max(1, architecture.predictor_layers)
    joint = hypotheses * said * _JOINT_BYTES * _JOINT_FRAMES * (architecture.joiner_size + architecture.pieces)
    lattice = hypotheses * said * heard * _LATTICE_BYTES
    aligned = hypotheses * said * _PLACES * heard * _ALIGNED_BYTES if isinstance(architecture, Architecture) else 0
    arrays = 4 * _COPIES * sum(math.prod(shapes[name]) for name in trainable(architecture, subset))
    return int(_MARGIN * (encoder + (0 if beneath.predictor else predictor) + joint + lattice + aligned + arrays))


def affordable(
    losses: Callable[[LearningSettings], Objective | str],
    architecture: AnyArchitecture,
    settings: LearningSettings,
    frames: int,
    budget_bytes: int | None,
) -> tuple[Objective | str, bool]:
    """(The loss over as many hypotheses as fit into ``budget_bytes``, whether some were left out for it). losses: the
    utterance's loss under these settings, or why there is none. None fits: why, instead of the loss."""
    for hypotheses in range(settings.hypotheses, 0, -1):
        loss = losses(replace(settings, hypotheses=hypotheses))
        if isinstance(loss, str) or budget_bytes is None:
            return loss, False
        lengths = [len(tokens) for tokens in loss.hypotheses]
        if step_bytes(architecture, settings.subset, frames, lengths) <= budget_bytes:
            return loss, hypotheses < settings.hypotheses
    return "its step does not fit into the memory allowed", False


def learn_one(
    student: Student,
    example: Example,
    trainer: Trainer,
    teacher: Teacher,
    cost_function: CostFunction | None = None,
    budget_bytes: int | None = None,
) -> Outcome:
    """The student after one utterance. budget_bytes: memory of a step, at most. LearningError: a step diverged."""
    session, bundle, settings = trainer.session, trainer.bundle, trainer.settings
    meant = [value for part in parts(example.signal) if isinstance(part, Semantics) for value in part.slots.values()]
    taught, score = teacher.hear(student.teacher, example, meant)
    served, encode = heard_of(example.nbest), bundle.tokenizer.encode
    candidates = gather(served, taught, example.signal, encode, settings, cost_function)
    cost = None if example.signal is None else float(candidates.costs[0])
    unknown = np.flatnonzero(np.isnan(candidates.nlls))
    if unknown.size:
        candidates.nlls[unknown] = -score([candidates.tokens[index] for index in unknown])
    losses_of = partial(objective, candidates, taught, example.signal, baseline=student.baseline)
    loss, shortened = affordable(losses_of, bundle.architecture, settings, len(example.features), budget_bytes)
    if cost is not None:
        # Only now, since a baseline that depends on the utterance's own cost would bias its gradient.
        usual, stays = settings.baseline if student.baseline is None else student.baseline, settings.baseline_decay
        student = replace(student, baseline=stays * usual + (1.0 - stays) * cost)
    if isinstance(loss, str):
        return Outcome(student, cost=cost, skipped=loss)
    if (reason := session.too_large(example.features, loss.hypotheses)) is not None:
        return Outcome(student, cost=cost, skipped=reason)
    if student.gradients is not None:
        student, losses, norms = _collect(student, example.features, loss, trainer)
    else:
        share = settings.confirmation if cost == 0.0 else 1.0
        corrected = correction(example.signal) is not None
        passes, most, enough = settings.passes or _PASSES, 0, 0.0
        if cost and corrected and settings.passes is None:
            pieces = len(encode(correction(example.signal) or ""))
            passes, most, enough = _CORRECTED_PASSES, _MOST_PASSES, settings.supervision_weight * pieces * _HEARD_NATS
        student, losses, norms = _descend(student, example.features, loss, trainer, passes, share, most, enough)
        student = replace(student, utterances=student.utterances + 1)
    measures = measure(student.measures, losses, example.nbest[0].text, example.signal)
    return Outcome(replace(student, measures=measures), losses, norms, cost, shortened=shortened)


def rehearse_one(student: Student, spoken: Transcribed, trainer: Trainer) -> Outcome:
    """The student after one transcribed utterance, which does not count as its user's. One that cannot be learned from
    is skipped. LearningError: a step diverged; the student given is as it was."""
    try:
        features, loss = lesson(spoken, trainer.bundle, trainer.settings.rehearsal.weight)
    except (AudioError, LearningError) as error:
        return Outcome(student, skipped=str(error))
    if (reason := trainer.session.too_large(features, loss.hypotheses)) is not None:
        return Outcome(student, skipped=f"rehearsal: {reason}")
    return _aside(student, features, loss, trainer, trainer.settings.passes or _PASSES)


def replay_one(student: Student, example: Example, trainer: Trainer) -> Outcome:
    """The student after one more step on an utterance that it learned a correction from, which does not count again.
    LearningError: a step diverged; the student given is as it was."""
    text = correction(example.signal)
    assert text is not None
    loss = label(trainer.bundle.tokenizer.encode(text), trainer.settings.supervision_weight)
    return _aside(student, example.features, loss, trainer, 1)


def _aside(student: Student, features: Float, loss: Objective, trainer: Trainer, passes: int) -> Outcome:
    """After steps on something else than the user's newest utterance, whose loss is of another size: what is usual for
    those stays."""
    usual = student.course.loss
    student = replace(student, course=replace(student.course, loss=math.nan))
    student, losses, norms = _descend(student, features, loss, trainer, passes)
    return Outcome(replace(student, course=replace(student.course, loss=usual)), losses, norms)


def _collect(student: Student, features: Float, loss: Objective, trainer: Trainer) -> Stepped:
    """After the gradient at the base's weights was added; nothing moves. LearningError: as of a step that diverges."""
    assert student.gradients is not None
    value, gradients = _evaluate(trainer, trainer.bundle.weights, features, loss)
    norm, largest = steps.global_norm(gradients), trainer.settings.step.largest_norm
    if not (math.isfinite(value) and norm <= largest):
        raise LearningError(
            f"gradient: found a loss of {value:.3g} and a norm of {norm:.3g}, expected a finite loss and at most "
            f"{largest:.3g}; refused"
        )
    return replace(student, gradients=add(student.gradients, gradients)), (value,), (norm,)


def _evaluate(trainer: Trainer, parameters: Arrays, features: Float, loss: Objective) -> tuple[float, Arrays]:
    """(the loss, its gradients) on features [F, M], masked anew."""
    masked = steps.mask(features, trainer.bundle.feature_mean, trainer.settings.masks, trainer.generator)
    step = trainer.session.run(parameters, masked, loss.hypotheses, loss.weights, loss.costs, loss.cost_scale)
    value = float(loss.weights @ step.negative_log_likelihoods) + loss.cost_scale * step.expected_cost
    return value, step.gradients


def _descend(
    student: Student,
    features: Float,
    loss: Objective,
    trainer: Trainer,
    passes: int,
    share: float = 1.0,
    most: int = 0,
    enough: float = 0.0,
) -> Stepped:
    """After ``passes`` steps on one utterance's features [F, M], and up to ``most`` until two losses in a row are at
    most ``enough``. share: of the gradients, before they are clipped."""
    bundle, settings = trainer.bundle, trainer.settings
    constants = {name: bundle.weights[name] for name in bundle.architecture.constant_shapes()}
    second_moments = bundle.second_moments if settings.step.precondition else None
    scales = None if second_moments is None else steps.scales(second_moments, settings.step.damping)
    matrices: tuple[str, ...] = ()
    if settings.subset == "adapters":
        matrices, start = trainable(bundle.architecture, "adapters"), student.start or bundle.weights
        if not student.factors:
            factors = steps.factorize(student.weights, start, matrices, settings.rank, trainer.generator)
            student = replace(student, factors=factors)
        scales = None if scales is None else steps.factor_scales(scales, matrices)
    # The same as gradients times the share, but that they are measured as they are.
    rate, bound = settings.step.learning_rate * share, settings.step.clip_norm / share
    step = replace(settings.step, learning_rate=rate, clip_norm=bound)
    losses, norms = list[float](), list[float]()
    while len(losses) < passes or (len(losses) < most and max(losses[-2:]) > enough):  # one mask may flatter
        value, gradients = _evaluate(trainer, {**constants, **student.weights, **student.factors}, features, loss)
        if scales is not None:
            gradients = steps.precondition(gradients, scales)
        moving = student.factors if matrices else student.weights
        moved, course, norm = steps.sgd(moving, gradients, value, student.course, step)
        weights = steps.merge(student.weights, student.factors, moved, matrices) if matrices else moved
        taken, teacher, factors = student.steps + 1, student.teacher, moved if matrices else {}
        if student.teacher_version is None:
            teacher = follow(teacher, weights, taken, settings.teacher)
        student = replace(student, weights=weights, teacher=teacher, course=course, steps=taken, factors=factors)
        losses.append(value)
        norms.append(norm)
    return student, tuple(losses), tuple(norms)
