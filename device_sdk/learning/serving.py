"""Which hypothesis the app gets: the best one, or one drawn from the n-best list.

REINFORCE (Rao et al. 2023, section 2.3.2) learns from what one served hypothesis cost its user. Its gradient is that of
the expected cost only where the hypothesis was sampled from the normalized n-best, since always the best one never
shows what another would have cost. Users pay for that with the hypotheses that they are served.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from device_sdk.hypothesis import Result
from device_sdk.learning.objectives import posterior
from device_sdk.learning.settings import Serving

__all__ = ["served"]


def served(result: Result, serving: Serving, generator: np.random.Generator) -> Result:
    """The result as the app gets it: ``best`` leaves it alone; ``sampled`` puts first a hypothesis drawn from p, the
    normalized probabilities that the transducer alone gives the list (Rao et al. 2023, below eq. 1), since these are
    what learning moves. The others keep their order; ``probability`` is that of the one drawn."""
    if serving == "best":
        return result
    p = posterior([hypothesis.scores.acoustic for hypothesis in result.nbest])
    drawn = int(generator.choice(len(p), p=p))
    rest = result.nbest[:drawn] + result.nbest[drawn + 1 :]
    return replace(result, nbest=(result.nbest[drawn], *rest), probability=float(p[drawn]))
