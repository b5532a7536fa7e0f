"""What each accepted delta weighs in its round, by what was stored with it: a resume weighs it the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from server.aggregation.weighting import by_loss, by_word_error
from server.plans.round import BufferPlan, RoundSettings

__all__ = ["staleness_weight", "weights_of"]


def weights_of(settings: RoundSettings, contributions: Sequence[Row[Any]]) -> list[float]:
    """A weight for each report, in units of one device: of mean 1 where they are shares (Gao et al. 2022, eq. 9 and
    10)."""
    match settings.weighting:
        case "utterances":  # eq. 8, whose denominator is the sum of the weights
            weights = [float(min(report.utterances, settings.weight_limit)) for report in contributions]
        case "loss":
            shares = by_loss([report.loss for report in contributions])
            weights = (shares * len(contributions)).tolist()
        case "word_errors":
            shares = by_word_error([report.word_error for report in contributions])
            weights = (shares * len(contributions)).tolist()
        case "uniform":
            weights = [1.0] * len(contributions)
    if settings.buffered is None:
        return weights
    stale = [staleness_weight(settings.buffered, report.staleness) for report in contributions]
    return [weight * factor for weight, factor in zip(weights, stale, strict=True)]


def staleness_weight(plan: BufferPlan, staleness: int) -> float:
    """What a delta counts that was made ``staleness`` models ago: 1 / sqrt(1 + s), or 1."""
    return 1.0 / math.sqrt(1.0 + staleness) if plan.staleness_weight == "inverse_root" else 1.0
