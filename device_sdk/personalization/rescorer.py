"""Second pass: an n-best list in order of acoustic, language-model and personal scores together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from device_sdk.hypothesis import Hypothesis
from device_sdk.runtimes.language_model import NeuralLanguageModel, load_ngram
from rescoring.combination import CombinationWeights, LanguageModel, order, score_nbest
from rescoring.marginals import PersonalMarginal

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle


class Rescorer:
    """Rescores n-best lists with a bundle's language models; owns their sessions. A bundle without one of the models,
    or an install without kenlm, is rescored with what is there. The models are loaded when they are first used, at the
    end of an utterance: hearing starts without them. One that is damaged is then refused by name (BundleError)."""

    def __init__(self, bundle: Bundle, weights: CombinationWeights | None = None, threads: int = 1) -> None:
        """weights: instead of the bundle's own combination."""
        self.words = bundle.words
        self.weights = bundle.combination if weights is None else weights
        self._bundle, self._threads = bundle, threads

    @cached_property
    def neural(self) -> LanguageModel | None:
        """The neural language model, loaded for the first list; None where the bundle holds none."""
        has_neural = self._bundle.has("language_model.onnx")
        return NeuralLanguageModel(self._bundle, self._threads) if has_neural else None

    @cached_property
    def ngram(self) -> LanguageModel | None:
        """The n-gram, loaded for the first list; None where its share is 0, the bundle holds none, or without kenlm.
        Where the bundle holds no neural model the n-gram takes its place, whatever its share."""
        counts = self.weights.ngram_share or not self._bundle.has("language_model.onnx")
        return load_ngram(self._bundle) if counts else None

    def rescore(
        self, hypotheses: Sequence[Hypothesis], marginal: PersonalMarginal | None = None
    ) -> tuple[Hypothesis, ...]:
        """The same hypotheses, best first, with every part of ``scores`` filled and ``score`` combined. marginal: what
        is adapted to (``device_sdk.personalization.cache.personal_marginal``), or None for no adaptation. Each language
        model is asked once, for the whole list. Hypotheses of equal score keep their order."""
        if not hypotheses:
            return ()
        sentences = [self.words.ids(hypothesis.text) for hypothesis in hypotheses]
        scores = score_nbest(
            sentences,
            [hypothesis.scores.acoustic for hypothesis in hypotheses],
            self.weights,
            neural=self.neural,
            ngram=self.ngram,
            hotword=[each.scores.hotword + each.scores.pieces for each in hypotheses],
            ctc=[each.scores.ctc for each in hypotheses],
            personal=None if marginal is None else marginal.scores(sentences),
        )
        zeros = np.zeros(len(hypotheses))
        neural = zeros if scores.neural is None else scores.neural
        ngram = zeros if scores.ngram is None else scores.ngram
        return tuple(
            replace(
                hypotheses[index],
                score=float(scores.total[index]),
                scores=replace(
                    hypotheses[index].scores,
                    ngram=float(ngram[index]),
                    neural=float(neural[index]),
                    personal=float(scores.personal[index]),
                ),
            )
            for index in order(scores.total)
        )
