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
    Cancelled,
    Corrected,
    CostFunction,
    Semantics,
    Signal,
    check_costs,
    costs,
)
from device_sdk.learning.objectives import Objective, Tokens, expected_cost, label, posterior, reinforce, total
from device_sdk.learning.settings import LearningSettings

__all__ = ["Candidates", "Heard", "gather", "objective"]

_REPAIRS = 12
_BLANK = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """One list of hypotheses, best first. texts: [N]; tokens: [N]; scores: [N] log p(tokens | audio), nats."""

    texts: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    scores: tuple[float, ...]

    def confidence(self) -> float:
        """Normalised probability of the first hypothesis among the list (paper 001, below eq. 1)."""
        return float(posterior(self.scores)[0])


@dataclass(frozen=True, slots=True)
class Candidates:
    """texts, tokens, costs: [N], no text twice. The first entry is the one that was served.

    nlls: [N] float64, -log p(tokens | audio) as far as a beam found it; NaN for candidates that none did.
    """

    texts: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    costs: npt.NDArray[np.float32]
    nlls: npt.NDArray[np.float64]


def gather(
    served: Heard,
    teacher: Heard | None,
    signal: Signal | None,
    encode: Callable[[str], Sequence[int]],
    settings: LearningSettings,
    cost_function: CostFunction | None = None,
) -> Candidates:
    """Everything the utterance may have been: the n-best served, the teacher's, and what feedback adds to them.

    encode: text -> sentence pieces. Without a signal all costs are 0.
    """
    found: dict[str, tuple[Tokens, float]] = {}
    for heard in (served, teacher):
        if heard is not None:
            for text, tokens, score in zip(heard.texts, heard.tokens, heard.scores, strict=True):
                found.setdefault(text, (tokens, -score))
    extra: Sequence[str] = ()
    if isinstance(signal, Corrected):
        extra = (signal.text,)
    elif isinstance(signal, Semantics) and settings.repair:
        extra = repair(tuple(found), signal.slots, signal.lexicon, limit=_REPAIRS)
    for text in extra:
        pieces = tuple(encode(text))
        if _BLANK not in pieces:  # the unknown piece shares the blank's id: such a text cannot be learned
            found.setdefault(text, (pieces, math.nan))
    texts = tuple(found)
    if signal is None:
        values = np.zeros(len(texts), np.float32)
    elif cost_function is None:
        values = costs(signal, texts, served.texts[0])
    else:
        values = check_costs(cost_function(signal, texts, served.texts[0]), len(texts))
    tokens_found, nlls = zip(*found.values(), strict=True)
    return Candidates(texts, tokens_found, values, np.array(nlls, np.float64))


def objective(
    candidates: Candidates, teacher: Heard | None, signal: Signal | None, settings: LearningSettings
) -> Objective | str:
    """The utterance's loss, or why there is nothing to learn from it.

    All of the candidates' NLLs must be known by now. The label is the teacher's where feedback
    does not contradict it and the teacher is sure enough; else the likeliest of the cheapest candidates, weighed by
    1 - cost. Costs that are all the same say nothing and are left out.
    """
    chosen, weight = _label(candidates, teacher, signal, settings)
    order = np.argsort(candidates.nlls, kind="stable")
    kept = list(dict.fromkeys(int(index) for index in order[: settings.hypotheses]))
    for index in (_cheapest(candidates), chosen, 0 if settings.reinforce_weight else None):
        if index is not None and index not in kept:
            kept.append(index)
    losses: list[Objective] = []
    if signal is not None and settings.cost_weight and np.ptp(candidates.costs[kept]) > 0:
        losses.append(expected_cost([candidates.tokens[i] for i in kept], candidates.costs[kept], settings.cost_weight))
    if chosen is not None and settings.label_weight * weight > 0:
        losses.append(label(candidates.tokens[chosen], settings.label_weight * weight))
    if signal is not None and settings.reinforce_weight:
        losses.append(
            reinforce(candidates.tokens[0], float(candidates.costs[0]), settings.baseline, settings.reinforce_weight)
        )
    return total(losses) if losses else ("the teacher is not sure" if signal is None else "the feedback says nothing")


def _cheapest(candidates: Candidates) -> int:
    """The likeliest of the candidates with the lowest cost."""
    lowest = np.flatnonzero(candidates.costs <= candidates.costs.min() + 1e-6)
    return int(lowest[np.argmin(candidates.nlls[lowest])])


def _label(
    candidates: Candidates, teacher: Heard | None, signal: Signal | None, settings: LearningSettings
) -> tuple[int | None, float]:
    """(index of the label, its weight); (None, 0) where there is none."""
    if isinstance(signal, Accepted):
        return 0, 1.0
    if isinstance(signal, Corrected):
        return (candidates.texts.index(signal.text), 1.0) if signal.text in candidates.texts else (None, 0.0)
    if isinstance(signal, Cancelled):
        return None, 0.0
    sure = teacher is not None and teacher.confidence() >= settings.teacher.confidence
    if teacher is not None:
        taught = candidates.texts.index(teacher.texts[0])
        agrees = candidates.costs[taught] <= candidates.costs.min() + 1e-6
        if sure and agrees:
            return taught, 1.0 - float(candidates.costs[taught])
    if signal is None:
        return None, 0.0
    cheapest = _cheapest(candidates)
    return cheapest, 1.0 - float(candidates.costs[cheapest])
