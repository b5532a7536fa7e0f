"""How well learning went, for rounds that weigh devices by their loss or word error (Gao et al. 2022, eq. 9 and 10).

Counted since the base came, over the utterances that were learned from. Numbers only: nothing of what was said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from device_sdk.errors import StateError
from device_sdk.feedback.distance import edit_distance
from device_sdk.feedback.signals import Corrected, Signal, parts

__all__ = ["Measures", "from_bytes", "measured", "to_bytes"]


@dataclass(frozen=True, slots=True)
class Measures:
    """loss: sum of the training losses of ``utterances``, nats. word_errors: of what was served, against the ``words``
    of those whose user gave the words."""

    loss: float = 0.0
    utterances: int = 0
    word_errors: int = 0
    words: int = 0

    @property
    def mean_loss(self) -> float | None:
        """L_k of Gao et al. 2022, eq. 9. None without an utterance, and where REINFORCE made it negative: such a loss
        is a reward, on no common scale."""
        mean = self.loss / self.utterances if self.utterances else math.nan
        return mean if mean >= 0 else None

    @property
    def word_error(self) -> float | None:
        """wer_k of Gao et al. 2022, eq. 10, on words that the model had not learned from when it served them. None
        where the user gave no words."""
        return self.word_errors / self.words if self.words else None


def measured(measures: Measures, losses: Sequence[float], served: str, signal: Signal | None) -> Measures:
    """With one more utterance. losses: of its passes, at least one; served: the text that the app acted on."""
    errors = words = 0
    for each in () if signal is None else parts(signal):
        if isinstance(each, Corrected):
            reference = each.text.split()
            errors, words = edit_distance(reference, served.split()), len(reference)
    return Measures(
        measures.loss + math.fsum(losses) / len(losses),
        measures.utterances + 1,
        measures.word_errors + errors,
        measures.words + words,
    )


def to_bytes(measures: Measures, base: str) -> bytes:
    """As the state keeps them. base: version of the model that they are counted since."""
    return json.dumps({"base": base, **asdict(measures)}).encode()


def from_bytes(content: bytes | None, base: str) -> Measures:
    """What the state holds, nothing where it is of another base. StateError: unreadable."""
    if content is None:
        return Measures()
    try:
        held = json.loads(content)
        if held["base"] != base:
            return Measures()
        found = Measures(float(held["loss"]), *(int(held[name]) for name in ("utterances", "word_errors", "words")))
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(
            f"settings/measures: cannot be read ({type(error).__name__}); delete the state folder to start afresh"
        ) from None
    if not math.isfinite(found.loss) or min(found.utterances, found.word_errors, found.words) < 0:
        raise StateError(
            f"settings/measures: found {found}, expected a finite loss and counts of at least 0; delete the state "
            "folder to start afresh"
        )
    return found
