"""Two evaluations of the same corpus, compared utterance by utterance."""

from __future__ import annotations

from typing import Literal

from device_sdk.errors import ConfigurationError
from server.lab.evaluation.scores import Evaluation
from server.lab.statistics import Difference, paired_bootstrap

__all__ = ["FEW_SPEAKERS", "differences"]

FEW_SPEAKERS = 5
"""With fewer speakers than this, utterances are resampled: the interval then speaks of these speakers only."""


def differences(
    first: Evaluation, second: Evaluation, what: Literal["words", "slots"] = "words", seed: int = 0
) -> Difference | None:
    """The paired bootstrap of ``second`` against ``first``, which list the same utterances in the same order.

    Speakers are resampled, or utterances where there are fewer than ``FEW_SPEAKERS``. None where nothing is labelled or
    ``first`` makes no error. Raises ConfigurationError for evaluations of different utterances.
    """
    if [row.id for row in first.scores] != [row.id for row in second.scores]:
        raise ConfigurationError("comparison: the two evaluations list other utterances; evaluate the same corpus")
    pairs = [
        (a.word_errors, b.word_errors, a.words, a) if what == "words" else (a.slot_errors, b.slot_errors, a.slots, a)
        for a, b in zip(first.scores, second.scores, strict=True)
    ]
    counted = [(a, b, size, row) for a, b, size, row in pairs if a is not None and b is not None and size is not None]
    if not sum(a for a, _, _, _ in counted) or not sum(size for _, _, size, _ in counted):
        return None
    few = len({row.speaker for _, _, _, row in counted}) < FEW_SPEAKERS
    return paired_bootstrap(
        [a for a, _, _, _ in counted],
        [b for _, b, _, _ in counted],
        [size for _, _, size, _ in counted],
        [row.id if few else row.speaker for _, _, _, row in counted],
        seed,
    )
