"""FedSGD rounds of a cohort: labels and feedback, one mean gradient, a step of the server's optimizer, the teacher.

Rao et al. 2023, algorithm 1: every round a few devices take a batch of what was said to them since, their teacher
labels the clean features, the student sees masked ones, and the server adds the mean gradient by Adam. Every clip is
used in one pass. Pseudo-devices on the server rehearse transcribed clips of the old domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.tokenizer import Tokenizer
from device_sdk.errors import ConfigurationError, LearningError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.objectives import Objective, label, supervision, total
from device_sdk.learning.step import mask
from device_sdk.learning.teacher import follow
from examples.rao_2023.feedback import weak_losses
from examples.rao_2023.gradients import gradient
from examples.rao_2023.labels import TextModel, teacher_labels
from examples.rao_2023.lists import NBest, nbest
from examples.rao_2023.methods import CohortSettings, Method
from examples.rao_2023.speech import Clip
from export.networks.rnnt import RNNT
from server.aggregation import optimizers

__all__ = ["Learned", "learn", "transcribe"]

Arrays = Mapping[str, NDArray[np.float32]]

_BLANK = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """weights: the student's after the last round. losses: of every round, nats. curve: (round, what ``watch`` gave).
    diverged: the round in which the gradient stopped being a number, if any; weights are then the last that had one."""

    weights: Arrays
    losses: tuple[float, ...]
    curve: tuple[tuple[int, float], ...]
    diverged: int | None = None


def learn(
    architecture: Architecture,
    base: Arrays,
    tokenizer: Tokenizer,
    method: Method,
    settings: CohortSettings,
    said: Sequence[Clip],
    remembered: Sequence[Clip],
    words: Sequence[str],
    lexicon: SlotLexicon,
    text: TextModel,
    seed: int,
    watch: Callable[[int, RNNT], float | None] = lambda *_: None,
) -> Learned:
    """All rounds of one method.

    base: parameters and constants to begin with. said: the devices' clips in the order of time, used once each.
    remembered: transcribed clips of the old domain, used once each by rehearsal. words: what an
    alternate recognizer mistakes words for. lexicon: the slots' values. text: the second pass over a teacher's n-best.
    watch: called after every ``evaluate_every`` rounds with the round and the student; what it returns makes the curve.
    ConfigurationError: fewer clips than the rounds need.
    """
    each, extra = settings.devices * settings.batch, method.rehearsal * settings.batch
    for name, clips, needed in (("said", said, each), ("remembered", remembered, extra)):
        if len(clips) < needed * settings.rounds:
            raise ConfigurationError(f"{name}: found {len(clips)} clips, expected {needed * settings.rounds}, all new")
    generator = np.random.default_rng([seed, 0x70])
    student, teacher = RNNT(architecture).eval(), RNNT(architecture).eval()
    weights, trusted, taught = dict(base), base, {name: base[name] for name in architecture.parameter_shapes()}
    student.from_parameters(weights)
    teacher.from_parameters(weights)
    state = optimizers.init(settings.optimizer, architecture.parameter_shapes())
    losses: list[float] = []
    curve: list[tuple[int, float]] = []
    for number in range(settings.rounds):
        clips = said[number * each : (number + 1) * each]
        features = [clip.features.astype(np.float32) for clip in clips]
        lists = _lists(student, features, method, settings)
        labels = _labels(teacher, features, clips, tokenizer, method, settings, text)
        objectives: list[Objective] = []
        seen: list[NDArray[np.float32]] = []
        for clip, clean, hypotheses, chosen in zip(clips, features, lists, labels, strict=True):
            parts = [] if chosen is None else [label(chosen)]
            if hypotheses:
                given = (method, settings, tokenizer.decode, words, lexicon, generator)
                parts += weak_losses(hypotheses, chosen, clip.sentence, *given)
            if parts:
                objectives.append(total(parts))
                seen.append(mask(clean, base["features.mean"], settings.masks, generator))
        for clip in remembered[number * extra : (number + 1) * extra]:
            transcript = tuple(tokenizer.encode(clip.sentence.text))
            objectives.append(supervision(transcript))
            seen.append(mask(clip.features.astype(np.float32), base["features.mean"], settings.masks, generator))
        loss = 0.0
        if objectives:
            try:
                loss, step = gradient(student, seen, objectives, bfloat16=settings.bfloat16, pruning=settings.pruning)
            except LearningError:
                return Learned(trusted, tuple(losses), tuple(curve), number + 1)
            trusted = weights
            delta = {name: -value for name, value in step.items() if name.startswith(settings.trained)}
            weights, state = optimizers.apply(settings.optimizer_at(number), state, weights, delta)
            student.from_parameters(weights)
        losses.append(loss)
        if method.label == "teacher":
            before, taught = taught, dict(follow(taught, weights, number + 1, method.teacher))
            if any(taught[name] is not before[name] for name in taught):
                teacher.from_parameters({**weights, **taught})
        if (number + 1) % settings.evaluate_every == 0 and (value := watch(number + 1, student)) is not None:
            curve.append((number + 1, value))
    return Learned(weights, tuple(losses), tuple(curve))


def transcribe(
    network: RNNT, tokenizer: Tokenizer, clips: Sequence[Clip], beam: int = 4, at_once: int = 48
) -> list[str]:
    """The first hypothesis of each clip, by the devices' search, in batches of like length."""
    order = sorted(range(len(clips)), key=lambda index: clips[index].features.shape[0])
    texts = [""] * len(clips)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        for index, entries in zip(chosen, nbest(network, [clips[i].features for i in chosen], beam), strict=True):
            texts[index] = tokenizer.decode(entries[0][0])
    return texts


def _lists(
    student: RNNT, features: Sequence[NDArray[np.float32]], method: Method, settings: CohortSettings
) -> list[NBest]:
    if not method.weak:
        return [()] * len(features)
    return nbest(student, features, settings.beam)


def _labels(
    teacher: RNNT,
    features: Sequence[NDArray[np.float32]],
    clips: Sequence[Clip],
    tokenizer: Tokenizer,
    method: Method,
    settings: CohortSettings,
    text: TextModel,
) -> list[tuple[int, ...] | None]:
    """The tokens to teach, None for none: the teacher is not sure, heard nothing, or pieces cannot write it."""
    if method.label == "none":
        return [None] * len(clips)
    found: Sequence[tuple[int, ...] | None]
    if method.label == "transcript":
        found = [tuple(tokenizer.encode(clip.sentence.text)) for clip in clips]
    else:
        found = teacher_labels(teacher, features, tokenizer.decode, text, settings.labels)
    return [tokens if tokens and _BLANK not in tokens else None for tokens in found]
