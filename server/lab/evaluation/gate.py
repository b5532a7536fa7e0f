"""A model is published only if it hears held-out speech about as well as the one it grew out of."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import DataError
from device_sdk.personalization.rescorer import Rescorer
from server.lab.corpora import Corpus, open_corpus
from server.lab.corpora.roles import ROLES, card_voices, scoring
from server.lab.evaluation.scores import evaluate
from server.rounds.evaluation import Evaluation

Weights = Mapping[str, NDArray[np.float32]]


class WordErrorGate:
    """Owns held-out speech and what was measured on it last. One thread at a time. Both models decode the same
    utterances in the way that devices do: beam, n-best list, the bundle's second pass."""

    def __init__(self, bundle: Bundle, corpora: Sequence[Corpus], tolerance: float = 0.02) -> None:
        """tolerance: how much higher a model's word error may be than its base's, as a share of that. Raises DataError
        where no utterance has words to compare with."""
        sure = tuple(each for corpus in corpora for each in corpus.utterances if each.sure_text is not None)
        if not sure:
            raise DataError("held-out speech: no utterance has a sure transcript; give others")
        self._bundle, self._corpus, self._tolerance = bundle, Corpus("held-out", sure), tolerance
        self._measured: dict[str, float] = {}

    def __call__(self, candidate: Weights, base: Weights) -> Evaluation:
        """The verdict on ``candidate``: ``word_error`` and ``base_word_error`` as fractions, and whether it passes."""
        found, before = self._word_error(candidate), self._word_error(base)
        limit = before * (1 + self._tolerance)
        note = f"word error {100 * before:.1f} -> {100 * found:.1f} % on {len(self._corpus)} held-out utterances"
        note += "" if found <= limit else f": above {100 * limit:.1f} %"
        return Evaluation(found <= limit, {"word_error": found, "base_word_error": before}, note)

    def _word_error(self, weights: Weights) -> float:
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(np.ascontiguousarray(weights[name]).data)
        key = digest.hexdigest()
        if key not in self._measured:
            bundle = self._bundle.with_weights(dict(weights), "held-out")
            recognizer = Recognizer(bundle, DecodingSettings(), Rescorer(bundle).rescore)
            wer = evaluate(partial(recognizer.recognize, sample_rate=16_000), self._corpus).wer
            assert wer is not None  # every utterance has words
            self._measured = {**dict(list(self._measured.items())[-1:]), key: wer}  # the next base is this candidate
        return self._measured[key]


def word_error_gate(bundle: Path | None, sources: Sequence[str], tolerance: float) -> WordErrorGate:
    """On the corpora that ``idiolect serve --held-out`` names, but for voices that the bundle was trained on; bundle:
    None is the default one."""
    opened = Bundle.open(bundle)
    role = scoring(card_voices(opened))
    return WordErrorGate(opened, [open_corpus(source, ROLES[1:], role=role) for source in sources], tolerance)
