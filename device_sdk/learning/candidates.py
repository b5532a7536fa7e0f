"""From one utterance and its feedback to the hypotheses, costs and label that its loss is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.feedback.repair import repair
from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Cancelled,
    Corrected,
    CostFunction,
    Rating,
    Repeated,
    Semantics,
    Signal,
    correction,
    parts,
    prices,
)
from device_sdk.learning.objectives import Objective, Tokens, expected_cost, label, posterior, reinforce, total
from device_sdk.learning.settings import LearningSettings

_REPAIRS = 12
_LEAST_CHANCE = 0.05
_BLANK = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """One list of hypotheses, best first. texts: [N]; tokens: [N]; scores: [N] log p(tokens | audio), nats; totals: [N]
    with what else it is ordered by, the same where there is nothing; confidences: [N] that a whole text is right, where
    they are known."""

    texts: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    scores: tuple[float, ...]
    totals: tuple[float, ...] = ()
    confidences: tuple[float, ...] = ()

    def confidence(self) -> float:
        """Normalized probability of the first hypothesis among the list (Rao et al. 2023, below eq. 1)."""
        return float(posterior(self.totals or self.scores)[0])


@dataclass(frozen=True, slots=True)
class Candidates:
    """texts, tokens, costs: [N], no text twice; the first was served. tokens: as they were decoded, which for a
    hotword's phrase may be another spelling; what no beam found is spelled as its text. nlls: [N] float64,
    -log p(tokens | audio) as far as a beam found it; NaN for candidates that none did. chance: that one of them is
    right, where all that feedback says is that the served one is not; else 1."""

    texts: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    costs: npt.NDArray[np.float32]
    nlls: npt.NDArray[np.float64]
    chance: float = 1.0


def gather(
    served: Heard,
    teacher: Heard | None,
    signal: Signal | None,
    encode: Callable[[str], Sequence[int]],
    settings: LearningSettings,
    cost_function: CostFunction | None = None,
) -> Candidates:
    """What the utterance may have been: as served, the teacher's, the feedback's. Without a signal all costs are 0."""
    found: dict[str, tuple[Tokens, float]] = {}
    for heard in (served, teacher):
        if heard is not None:
            for text, tokens, score in zip(heard.texts, heard.tokens, heard.scores, strict=True):
                found.setdefault(text, (tokens, -score))
    extra: list[str] = []
    for part in parts(signal):
        if isinstance(part, Corrected | Alternate):
            extra.append(part.text)
        elif isinstance(part, Semantics) and settings.repair:
            extra.extend(repair(tuple(found), part.slots, part.lexicon, limit=_REPAIRS))
    for text in extra:
        pieces = tuple(encode(text))
        if _BLANK not in pieces:  # the unknown piece shares the blank's id: such a text cannot be learned
            found.setdefault(text, (pieces, math.nan))
    texts = tuple(found)
    free = np.zeros(len(texts), np.float32)
    values = free if signal is None else prices(signal, texts, served.texts[0], cost_function)
    tokens_found, nlls = zip(*found.values(), strict=True)
    chance = 1.0 if cost_function is not None else _chance(served.confidences, signal)
    return Candidates(texts, tokens_found, values, np.array(nlls, np.float64), chance)


def _chance(confidences: Sequence[float], signal: Signal | None) -> float:
    """That another text is right where the served one is not: P(one of the others) / P(not the first)."""
    said = parts(signal)
    if not (confidences and said and all(isinstance(part, Cancelled) or part == Repeated() for part in said)):
        return 1.0
    others, wrong = sum(confidences[1:]), 1.0 - confidences[0]
    return others / wrong if others < wrong else 1.0


def objective(
    candidates: Candidates,
    teacher: Heard | None,
    signal: Signal | None,
    settings: LearningSettings,
    baseline: float | None = None,
) -> Objective | str:
    """The utterance's loss, the sum of what the settings weigh, or why there is nothing to learn from it. All of the
    candidates' NLLs must be known; costs that are all the same say nothing. baseline: of REINFORCE; by default the
    settings'. The label is the correction where there is one. With ``labels`` "teacher" it is else the teacher's, as
    far as the teacher is sure, whatever else the feedback says (the sum of losses of Rao et al. 2023). With "feedback"
    it is the teacher's only where the feedback does not contradict it; where it does, or the teacher is not sure, it is
    the served text where none costs less, else the likeliest of the cheapest candidates, weighed by 1 - cost, unless it
    is unlikely all the same; what only judges the served text gives that text or none. A correction that rewrites what
    was said gives nothing."""
    chosen, strength = _label(candidates, teacher, signal, settings)
    given = correction(signal)
    transcript = candidates.texts.index(given) if given in candidates.texts else None  # where the pieces can write it
    order = np.argsort(candidates.nlls, kind="stable")
    if transcript is not None and _rewritten(candidates, transcript, int(order[0]), settings.rewrite_nats):
        return "the correction is not what was said"
    wanted = (_cheapest(candidates), chosen, transcript, 0 if settings.reinforce_weight else None)
    likely = order[: settings.hypotheses].tolist()
    kept = list(dict.fromkeys(index for index in (*likely, *wanted) if index is not None))
    losses: list[Objective] = []
    # What is wrong of a long text is hardly mended by another of its list; steps there would only be noise.
    weight = settings.cost_weight * candidates.chance * (candidates.chance >= _LEAST_CHANCE)
    if signal is not None and weight and np.ptp(candidates.costs[kept]) > 0:
        losses.append(expected_cost([candidates.tokens[i] for i in kept], candidates.costs[kept], weight))
    if chosen is not None and settings.label_weight * strength > 0:
        losses.append(label(candidates.tokens[chosen], settings.label_weight * strength))
    if transcript is not None and settings.supervision_weight:
        losses.append(label(candidates.tokens[transcript], settings.supervision_weight))
    if signal is not None and settings.reinforce_weight:
        cost, level = float(candidates.costs[0]), settings.baseline if baseline is None else baseline
        if cost != level:
            losses.append(reinforce(candidates.tokens[0], cost, level, settings.reinforce_weight))
    return total(losses) if losses else ("the teacher is not sure" if signal is None else "the feedback says nothing")


_NOBODY = 0.1
"""Nats, at most, of no word at all where nobody speaks: silence has 0.0002, noise 0.002."""


def _rewritten(candidates: Candidates, transcript: int, likeliest: int, most: float) -> bool:
    """Whether the audio has another text, as far as the model can tell: nine in ten unrelated ones are found, and true
    ones hardly ever are. Whom it does not understand at all it cannot tell anything of; that nobody spoke it can, where
    it is as good as sure of it, and does not just miss what was said."""
    nlls, (heard, given) = candidates.nlls, (len(candidates.tokens[each]) for each in (likeliest, transcript))
    understood = nlls[likeliest] <= (most * heard or _NOBODY)
    return bool(understood and nlls[transcript] - nlls[likeliest] > most * max(heard, given))


def _cheapest(candidates: Candidates) -> int:
    """Of the candidates with the lowest cost the one that was served, which more than acoustics chose, else the
    likeliest."""
    lowest = np.flatnonzero(candidates.costs <= candidates.costs.min() + 1e-6)
    return int(lowest[np.argmin(candidates.nlls[lowest])]) if lowest[0] else 0


def _label(
    candidates: Candidates, teacher: Heard | None, signal: Signal | None, settings: LearningSettings
) -> tuple[int | None, float]:
    """(index of the label, its strength); (None, 0) where there is none."""
    said = parts(signal)
    if correction(signal) is not None:
        return None, 0.0  # supervision takes its place
    taught = None
    if teacher is not None and teacher.confidence() >= settings.teacher.confidence:
        taught = candidates.texts.index(teacher.texts[0])
    if signal is None or settings.labels == "teacher":
        return (None, 0.0) if taught is None else (taught, 1.0)
    if not any(isinstance(part, Alternate | Semantics) for part in said):
        (judgement,) = said
        if isinstance(judgement, Accepted):
            return 0, 1.0
        if isinstance(judgement, Rating) and judgement.value > 0.5:
            return 0, 2.0 * judgement.value - 1.0
        return None, 0.0
    cheapest = _cheapest(candidates)
    if taught is None or cheapest == 0 or candidates.costs[taught] > candidates.costs.min() + 1e-6:
        taught = cheapest
    nats = float(candidates.nlls[taught]) / max(1, len(candidates.tokens[taught]))
    return taught, (1.0 - float(candidates.costs[taught])) * (taught == 0 or nats <= settings.most_nats)
