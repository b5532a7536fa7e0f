"""Bounds of devices in tests that are about something else: a server may ask whatever the protocol has."""

import math

from device_sdk import OfferBounds

_WITHOUT = dict.fromkeys(("max_weight", "clip_norm", "marginals_epsilon", "deltas_epsilon", "words_epsilon"), math.inf)
ANYTHING = OfferBounds(paper=True, max_words=1000, least_noise=0.0, measures=True, **_WITHOUT)
