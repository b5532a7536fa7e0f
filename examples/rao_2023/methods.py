"""How a cohort learns, as data: the rows of the paper's tables; and what a teacher teaches: the best of its n-best
after a second pass, where it is sure (Rao et al. 2023, sections 2.2 and 3).

The second pass knows general text only, nothing of what people say to their devices."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.learning.settings import MaskSettings, TeacherSettings
from examples.rao_2023.lists import nbest
from export.networks.rnnt import RNNT
from rescoring.words import WordList
from server.lab.training.ngram import Ngram, estimate, log_probabilities
from server.plans.round import OptimizerSettings

TextModel = Callable[[str], float]
"""log p(text), nats, its end included."""


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """beam, threshold: of the teacher's search, which has more time than a user who waits: see
    :func:`examples.rao_2023.lists.nbest`. text_weight: of the n-gram of general text beside the network.
    word_bonus: nats for every word, which network and n-gram alone would rather leave out. sure: nats a piece; a label
    to which the teacher's network gives less is not learned from (sections 1 and 2.2: low confidence is filtered), so
    that a better teacher teaches more."""

    beam: int = 8
    threshold: float = 6.0
    text_weight: float = 0.5
    word_bonus: float = 5.0
    sure: float = -0.25


Label = Literal["transcript", "teacher", "none"]
Weak = Literal["transcript", "slots", "score", "binary"]
STILL = TeacherSettings(decay=1.0, interval=1, confidence=0.0)
ADAM = OptimizerSettings(kind="adam", learning_rate=8e-4, epsilon=1e-6)


@dataclass(frozen=True, slots=True)
class Method:
    """label: what the student is taught: the true transcript (the oracle), the teacher's, or nothing.
    teacher: how it follows the student; decay 1 never updates it. weak: what feedback says of the student's n-best.
    Another system, which errs, heard the request too: ``transcript`` is word errors against what it heard, ``slots``
    the share of wrong slots against those it read from that (both by expected cost, section 2.3.1). Or feedback is of
    the served hypothesis alone (REINFORCE, section 2.3.2): ``score`` is that share of slots, ``binary`` whether it is
    not the true transcript. sigma: noise of ``binary``. weight: of the feedback beside the label. rehearsal:
    pseudo-devices with transcribed clips of the old domain, a round."""

    name: str
    label: Label = "teacher"
    teacher: TeacherSettings = STILL
    weak: tuple[Weak, ...] = ()
    sigma: float = 0.0
    weight: float = 1.0
    rehearsal: int = 0


@dataclass(frozen=True, slots=True)
class CohortSettings:
    """What all rows share.

    rounds: gradients that the server takes a step by. devices: of a round. batch: utterances of a device in a round.
    optimizer: the server's; its rate falls linearly to ``floor`` of what it is at first. beam: length of the n-best
    lists that feedback is about. baseline: of REINFORCE. masks: SpecAugment of what the student sees. labels: how a
    teacher finds them. alternate_errors: word errors of the other system. trained: prefixes of the parameters that
    learn, by default those through which the encoder hears: what easy utterances teach of how the new domain sounds
    then holds for hard ones too, while a whole network rather learns its wrong labels by heart. evaluate_every: rounds
    between points of the curve, on development speech."""

    rounds: int = 300
    devices: int = 32
    batch: int = 1
    optimizer: OptimizerSettings = ADAM
    floor: float = 0.3
    beam: int = 4
    baseline: float = 0.5
    masks: MaskSettings = field(default_factory=MaskSettings)
    labels: LabelSettings = LabelSettings()
    alternate_errors: float = 0.1
    trained: tuple[str, ...] = ("encoder.0.W", "encoder.0.B")
    evaluate_every: int = 50
    bfloat16: bool = True
    pruning: float = 1e-4

    def optimizer_at(self, number: int) -> OptimizerSettings:
        """The server's optimizer in round ``number``, counted from 0."""
        share = 1.0 - (1.0 - self.floor) * number / max(1, self.rounds - 1)
        return self.optimizer.model_copy(update={"learning_rate": self.optimizer.learning_rate * share})


def general_text(sentences: Sequence[str]) -> TextModel:
    """log p of a text by a Kneser-Ney 4-gram of ``sentences``, over their words."""
    ranked = [word for word, _ in Counter(word for text in sentences for word in text.split()).most_common()]
    words = WordList(("<unk>", *ranked))
    model: Ngram = estimate([words.ids(text) for text in sentences], words, 4, (1, 1, 2))

    @cache
    def score(text: str) -> float:
        return sum(log_probabilities(model, words.ids(text)))

    return score


def teacher_labels(
    teacher: RNNT,
    features: Sequence[NDArray[np.floating]],
    decode: Callable[[Sequence[int]], str],
    text: TextModel,
    settings: LabelSettings,
) -> list[tuple[int, ...] | None]:
    """The tokens to teach for each of B utterances [F, M] raw log-mel; None where the teacher is not sure or heard
    nothing. text: the second pass."""

    def total(entry: tuple[tuple[int, ...], float]) -> float:
        said = decode(entry[0])
        return entry[1] + settings.text_weight * (text(said) + settings.word_bonus * len(said.split()))

    found: list[tuple[int, ...] | None] = []
    for entries in nbest(teacher, features, settings.beam, settings.threshold):
        tokens, score = max(entries, key=total)
        found.append(tokens if tokens and score >= settings.sure * len(tokens) else None)
    return found
