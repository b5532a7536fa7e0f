"""What a device learns from one utterance, as one weighted sum over hypotheses (Rao et al. 2023, section 2).

Every loss is  L = sum_i w_i NLL_i + c E[M],  E[M] = sum_i p_i M_i,  p = softmax(-NLL)  over the hypotheses given, so
losses add by adding weights, and one training graph takes any sum of them. N: hypotheses.

Signs. A weight of +1 on a hypothesis makes it likelier with every step down the gradient; minimizing E[M] makes
hypotheses cheaper than the mean likelier, since dE[M]/dNLL_i = p_i (E[M] - M_i)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from device_sdk.errors import LearningError
from device_sdk.hypothesis import Result
from device_sdk.learning.settings import Serving
from rescoring.marginals import posteriors

Tokens = tuple[int, ...]
"""A hypothesis' sentence pieces, without blank."""


@dataclass(frozen=True, slots=True)
class Objective:
    """sum_i weights_i NLL_i + cost_scale * E[M] for one utterance. hypotheses: N token sequences, none twice. weights:
    float32 [N]. costs: float32 [N]; all 0 where cost_scale is 0."""

    hypotheses: tuple[Tokens, ...]
    weights: npt.NDArray[np.float32]
    costs: npt.NDArray[np.float32]
    cost_scale: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.hypotheses)
        if len(set(self.hypotheses)) != count:
            raise LearningError("objective.hypotheses: a hypothesis twice, expected distinct token sequences")
        for name in ("weights", "costs"):
            values = getattr(self, name)
            if values.shape != (count,) or not np.all(np.isfinite(values)):
                raise LearningError(f"objective.{name}: found {values!r}, expected {count} finite values")

    def __add__(self, other: Objective) -> Objective:
        """Sum of two losses over the union of their hypotheses. The expectation of a cost is over a fixed set: a
        hypothesis that the other loss alone names must not slip into it. LearningError: the set of an expected cost
        would grow. Two expected costs keep sum_k c_k E[M_k] exactly: the cost scales add, and average the costs."""
        hypotheses = tuple(dict.fromkeys(self.hypotheses + other.hypotheses))
        weights, costs = np.zeros((2, len(hypotheses)), np.float32)
        scale = self.cost_scale + other.cost_scale
        place = {hypothesis: index for index, hypothesis in enumerate(hypotheses)}
        for part in (self, other):
            if part.cost_scale and len(part.hypotheses) != len(hypotheses):
                raise LearningError(
                    f"expected cost over {len(part.hypotheses)} hypotheses added to a loss that names "
                    f"{len(hypotheses)}; expected the costs of all of them"
                )
            rows = [place[hypothesis] for hypothesis in part.hypotheses]
            weights[rows] += part.weights
            if part.cost_scale:
                costs[rows] += np.float32(part.cost_scale / scale) * part.costs
        return Objective(hypotheses, weights, costs, scale)


def label(hypothesis: Sequence[int], weight: float = 1.0) -> Objective:
    """w = ``weight`` on a teacher's label (self-learning: Rao et al. 2023, section 2.2), or on a corrected or true
    transcript (supervision: the oracle of table 2)."""
    return Objective((tuple(hypothesis),), np.array([weight], np.float32), np.zeros(1, np.float32))


def expected_cost(
    hypotheses: Sequence[Sequence[int]], costs: Sequence[float] | npt.NDArray[np.float32], scale: float = 1.0
) -> Objective:
    """scale * E[M] over the n-best (Rao et al. 2023, eq. 1). costs: [N] in [0, 1]. scale: not negative. Token sequences
    that occur twice (the same words cut into the same pieces) are kept once, at their first cost."""
    if scale < 0:
        raise LearningError(f"expected cost: scale: found {scale}, expected >= 0")
    unique: dict[Tokens, float] = {}
    for hypothesis, cost in zip(hypotheses, costs, strict=True):
        unique.setdefault(tuple(hypothesis), float(cost))
    weights, values = np.zeros(len(unique), np.float32), np.array(list(unique.values()), np.float32)
    return Objective(tuple(unique), weights, values, float(scale))


def reinforce(served: Sequence[int], cost: float, baseline: float = 0.0, scale: float = 1.0) -> Objective:
    """REINFORCE on the served hypothesis, sampled from the n-best (Rao et al. 2023, section 2.3.2). The gradient of the
    expected cost is E[M grad log p]; one sample y gives (M(y) - b) grad log p(y). With NLL = -log p the weight on NLL
    is b - M: a hypothesis costlier than the baseline b becomes less likely. b = 0 is the paper's."""
    return label(served, scale * (baseline - cost))


def total(objectives: Sequence[Objective]) -> Objective:
    """The sum of one or more losses. LearningError: an expected cost whose set would grow."""
    return reduce(operator.add, objectives)


def posterior(scores: Sequence[float] | npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Normalized probabilities of an n-best from its log-probabilities [N] (Rao et al. 2023, below eq. 1), [N]."""
    return posteriors(np.asarray(scores, np.float64), 1.0)


def serve(result: Result, serving: Serving, generator: np.random.Generator) -> Result:
    """The result as the app gets it: ``best`` leaves it alone; ``sampled`` puts first a hypothesis drawn from p, the
    normalized probabilities that the transducer alone gives the list (Rao et al. 2023, below eq. 1), since these are
    what learning moves. The others keep their order; ``probability`` is that of the one drawn."""
    if serving == "best":
        return result
    p = posterior([hypothesis.scores.acoustic for hypothesis in result.nbest])
    drawn = int(generator.choice(len(p), p=p))
    rest = result.nbest[:drawn] + result.nbest[drawn + 1 :]
    return replace(result, nbest=(result.nbest[drawn], *rest), probability=float(p[drawn]))
