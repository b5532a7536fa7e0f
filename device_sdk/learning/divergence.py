"""Divergence of self-learning: labels that a model makes for itself grow shorter and stranger, and are learned.

Rao et al. 2023 (table 5) sees it where the teacher follows the student at once. Loss and gradient only fall then, so a
check of single steps finds nothing. What shows it is the published model, which does not move: it hears the same
utterances, and comes to find the labels less likely than what it hears itself, while they lose words (or gain them, in
loops). Neither alone means harm: a model that learns its user well says what the published one did not expect, at its
length.

On 240 made utterances of six voices, learned from without feedback by a teacher that follows at every step, both had
happened after 108, where the last 24 had 58 % word error against 49 % of the published model, and went on to the end.
Learned from with their true words, 166 of them never showed it: a student with 30 % against 46 % said between 0.85 and
1.19 times as many pieces, half a nat a piece less likely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from device_sdk.errors import ConfigurationError

__all__ = ["DivergenceSettings", "Reading", "divergence"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One utterance as the local and as the published model read it.

    tokens, published_tokens: pieces in the best hypothesis of each. likelier: log-probability that the published model
    gives the local model's hypothesis, less that of its own (nats).
    """

    tokens: int
    published_tokens: int
    likelier: float


@dataclass(frozen=True, slots=True)
class DivergenceSettings:
    """window: utterances that are looked at together. length: as long as the published model's, or as short, hypotheses
    may be in all, as a ratio. likelihood: how much less likely the published model may find them, nats a piece of its
    own. Both must be left."""

    window: int = 24
    length: float = 0.8
    likelihood: float = 0.1

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigurationError(f"divergence.window: found {self.window}, expected 1 or more utterances")
        if not 0.0 < self.length < 1.0:
            raise ConfigurationError(f"divergence.length: found {self.length}, expected a ratio in (0, 1)")
        if not (math.isfinite(self.likelihood) and self.likelihood >= 0.0):
            raise ConfigurationError(f"divergence.likelihood: found {self.likelihood}, expected nats >= 0")


def divergence(readings: Sequence[Reading], settings: DivergenceSettings = DivergenceSettings()) -> str | None:
    """Why the last ``window`` readings look like divergence, or None; None too while there are fewer.

    A likelihood that is not finite counts as one that was left.
    """
    recent = readings[-settings.window :]
    published = sum(reading.published_tokens for reading in recent)
    if len(recent) < settings.window or not published:
        return None
    ratio = sum(reading.tokens for reading in recent) / published
    likelier = sum(reading.likelier for reading in recent) / published
    if settings.length <= ratio <= 1.0 / settings.length or likelier >= -settings.likelihood:
        return None
    return (
        f"labels drift: over {len(recent)} utterances that no feedback confirmed, {ratio:.2f} times as many pieces as "
        f"that model hears, which finds them {-likelier:.2f} nats a piece less likely"
    )
