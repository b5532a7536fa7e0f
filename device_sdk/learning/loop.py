"""The loop of local learning: take an utterance, see whether what was learned serves, take steps, make them durable."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from device_sdk.errors import LearningError
from device_sdk.learning.learner import Outcome, Student
from device_sdk.learning.memory import Example
from device_sdk.peak_memory import peak_bytes

_COMMIT_EVERY = 8


@dataclass(frozen=True, slots=True)
class LearningReport:
    """What ``learn`` did. utterances: taken from memory; steps: taken; skipped: reason -> utterances not learned from,
    transcribed ones that cannot be rehearsed too.

    loss: mean loss before each step, NaN without one. gradient_norm: mean, before clipping. cost: mean cost of what was
    served, over utterances with feedback, NaN without. stopped: why it ended, or did not begin. seconds: wall clock.
    peak_bytes: the process' largest resident memory so far, 0 where the system does not tell. rehearsed: transcribed
    utterances, and corrections from before, that steps were taken on besides. shortened: utterances learned from with
    fewer hypotheses, to fit into memory. rolled_back: why what was learned was taken back, None where it was not. lost:
    utterances with feedback that were gone from memory, too old or too many, before anything was learned from them,
    since the last report."""

    utterances: int
    steps: int
    skipped: Mapping[str, int]
    loss: float
    gradient_norm: float
    cost: float
    stopped: str
    seconds: float
    peak_bytes: int
    rehearsed: int = 0
    shortened: int = 0
    rolled_back: str | None = None
    lost: int = 0


def learn(
    student: Student,
    take: Callable[[], Example | None],
    step: Callable[[Student, Example], Outcome],
    commit: Callable[[Student], None],
    halt: Callable[[], str | None],
    rehearse: Callable[[Student], Iterable[Outcome]],
    worse: Callable[[Student, Example | None], tuple[Student, str] | None],
    budget_seconds: float | None = None,
) -> LearningReport:
    """Steps until nothing is left, time is up or ``halt`` says why to stop; between utterances only. take: the next
    example, or None. commit: makes a student durable; called every so many utterances and at the end. rehearse: after
    an utterance that taught something, takes steps on others, one after the other. worse: asked
    before the steps on every example, and with None before every commit: what to fall back on and why, or None where
    learning did no harm. A step that diverges is undone: the student goes back to the last commit. Either ends
    learning, and the report says so."""
    begin = time.monotonic()
    first, committed, behind, reason = student.steps, student, 0, "nothing left to learn from"
    losses, norms, served, skipped = list[float](), list[float](), list[float](), Counter[str]()
    utterances = rehearsed = shortened = 0
    fallen: tuple[Student, str] | None = None
    while fallen is None:
        why = halt()
        if why is None and budget_seconds is not None and time.monotonic() - begin >= budget_seconds:
            why = "time is up"
        if why is None and student.gradients is not None and student.gradients.full:
            why = "the round has the gradient that it asked for"
        if why is not None:
            reason = why
            break
        if (example := take()) is None:
            break
        utterances += 1
        if (fallen := worse(student, example)) is not None:
            break
        try:
            outcome = step(student, example)
            # What devices send of gradients is of their own utterances; the server rehearses.
            stepped = outcome.skipped is None and student.gradients is None
            others = list(rehearse(outcome.student)) if stepped else []
        except LearningError as error:
            student, behind, reason = committed, 0, f"undone: {error}"
            skipped["the step diverged"] += 1
            break
        student = outcome.student
        losses.extend(outcome.losses)
        norms.extend(outcome.norms)
        if outcome.cost is not None:
            served.append(outcome.cost)
        if outcome.skipped is not None:
            skipped[outcome.skipped] += 1
            continue
        for other in others:
            if other.skipped is None:
                student = other.student
                rehearsed += 1
            else:
                skipped[other.skipped] += 1
        shortened += outcome.shortened
        behind += 1
        if behind >= _COMMIT_EVERY and (fallen := worse(student, None)) is None:
            commit(student)
            committed, behind = student, 0
    if behind and fallen is None:
        fallen = worse(student, None)
    taken = student.steps - first
    if fallen is not None:
        student, reason = fallen[0], f"rolled back: {fallen[1]}"
    if behind or fallen is not None:
        commit(student)
    loss, norm, cost = (math.fsum(values) / len(values) if values else math.nan for values in (losses, norms, served))
    seconds, why = time.monotonic() - begin, None if fallen is None else fallen[1]
    counts = utterances, taken, dict(skipped)
    return LearningReport(*counts, loss, norm, cost, reason, seconds, peak_bytes(), rehearsed, shortened, why)


def not_started(why: str) -> LearningReport:
    """The report where nothing was done."""
    return LearningReport(0, 0, {}, math.nan, math.nan, math.nan, why, 0.0, peak_bytes())
