"""Words by what feedback tells of them: eq. 1 of Liu & Peng 2020 with what was heard in the place of the background.

Eq. 1 scales a language model whose word distribution is u to one whose distribution is g. In what one user says, a
model that knows the domain is far from u; what it expects there shows in what was heard, the word counts of n-best
lists by their posteriors. Where feedback then told what was said, each word has

    factor(w) = mu * log((told(w) + k) / (heard(w) + k))

so a word that is heard more often than it is said loses, one that is missed gains, and others stay as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["confirmation"]


def confirmation(
    told: NDArray[np.float64], heard: NDArray[np.float64], strength: float, smoothing: float
) -> NDArray[np.float64]:
    """What each word's log-probability changes by -> [n], nats.

    told, heard: [n], summed over the same utterances. strength: mu, 0 or more; smoothing: k, above 0, words added to
    both. Raises ValueError, naming the argument, for values outside their domain.
    """
    if not strength >= 0:
        raise ValueError(f"strength (mu): found {strength!r}, expected 0 or more")
    if not smoothing > 0:
        raise ValueError(f"smoothing: found {smoothing!r}, expected more than 0")
    if told.shape != heard.shape or not (np.minimum(told, heard) >= 0).all():
        raise ValueError(f"told, heard: found shapes {told.shape}, {heard.shape}, expected counts of the same words")
    return np.asarray(strength * (np.log(told + smoothing) - np.log(heard + smoothing)), dtype=np.float64)
