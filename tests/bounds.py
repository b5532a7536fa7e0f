"""Bounds of devices in tests that are about something else: a server may ask whatever the protocol has."""

from __future__ import annotations

import math

from device_sdk import OfferBounds

__all__ = ["ANYTHING"]

ANYTHING = OfferBounds(
    paper=True,
    max_words=1000,
    max_weight=math.inf,
    clip_norm=math.inf,
    least_noise=0.0,
    measures=True,
    marginals_epsilon=math.inf,
    deltas_epsilon=math.inf,
    words_epsilon=math.inf,
)
