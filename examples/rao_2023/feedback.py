"""What a simulated user and an alternate recognizer say, as losses over hypotheses (Rao et al. 2023, section 2.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from device_sdk.feedback.noise import noisy_cost
from device_sdk.feedback.signals import Alternate, Semantics, costs
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.objectives import Objective, Tokens, expected_cost, posterior
from examples.rao_2023.domains import Sentence
from examples.rao_2023.lists import NBest
from examples.rao_2023.methods import CohortSettings, Method

__all__ = ["alternate", "policy_gradient", "weak_losses"]


def alternate(text: str, words: Sequence[str], rate: float, generator: np.random.Generator) -> str:
    """The text as another recognizer may hear it: each word with probability ``rate`` is another one or left out."""
    heard = []
    for word in text.split():
        if generator.random() >= rate:
            heard.append(word)
        elif generator.random() < 0.7:
            heard.append(words[int(generator.integers(len(words)))])
    return " ".join(heard) or text


def policy_gradient(
    hypotheses: Sequence[Tokens], chances: NDArray[np.float64], served: int, weight: float
) -> Objective:
    """REINFORCE under the policy that the served hypothesis was drawn from, the normalized n-best p (section 2.3.2).

    weight: b - M, baseline minus cost. grad log p_s = -(grad NLL_s - sum_j p_j grad NLL_j), so the weights on the NLLs
    are (b - M)(1 - p_s) for the served one and -(b - M) p_j for the others. They add up to zero: what is made less
    likely gives its probability to the list, where log p(y) alone would be pushed down without an end.
    chances: p, float64 [N].
    """
    weights = -weight * chances
    weights[served] += weight
    return Objective(tuple(hypotheses), weights.astype(np.float32), np.zeros(len(weights), np.float32))


def weak_losses(
    hypotheses: NBest,
    taught: Tokens | None,
    sentence: Sentence,
    method: Method,
    settings: CohortSettings,
    decode: Callable[[Sequence[int]], str],
    words: Sequence[str],
    lexicon: SlotLexicon,
    generator: np.random.Generator,
) -> list[Objective]:
    """The losses of one utterance by what feedback says of its n-best; none where it says the same of every entry.

    taught: the label beside them, if any, whose cost is then part of the expectation, as the devices have it (a sum of
    losses is over one set of hypotheses). words: what the alternate recognizer mistakes words for. lexicon: the slots'
    values.
    """
    tokens = [entry for entry, _ in hypotheses]
    texts = [decode(entry) for entry in tokens]
    if "score" in method.weak:
        chances = posterior([score for _, score in hypotheses])
        served = int(generator.choice(len(tokens), p=chances))
        cost = noisy_cost(float(texts[served] != sentence.text), method.sigma, generator)
        return [policy_gradient(tokens, chances, served, settings.weight * (settings.baseline - cost))]
    if taught is not None and taught not in tokens:
        tokens, texts = [*tokens, taught], [*texts, decode(taught)]
    losses = []
    for kind in method.weak:
        if kind == "transcript":
            heard = alternate(sentence.text, words, settings.alternate_errors, generator)
            values = costs(Alternate(heard), texts, texts[0])
        else:
            values = costs(Semantics(sentence.slots, lexicon, "paper"), texts, texts[0])
        if np.ptp(values) > 0:
            losses.append(expected_cost(tokens, values, settings.weight))
    return losses
