"""Second pass: an n-best list in order of acoustic, language-model and personal scores together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.hypothesis import Hypothesis
from device_sdk.runtimes.language_model import NeuralLanguageModel
from device_sdk.runtimes.ngram import load_ngram
from rescoring.combination import CombinationWeights
from rescoring.marginals import adaptation
from rescoring.nbest import LanguageModel, order, score_nbest

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

__all__ = ["Rescorer"]


class Rescorer:
    """Rescores n-best lists with a bundle's language models; owns their sessions.

    A bundle without one of the models, or an install without kenlm, is rescored with what is there.
    """

    def __init__(self, bundle: Bundle, weights: CombinationWeights | None = None, threads: int = 1) -> None:
        """weights: instead of the bundle's own combination."""
        self.words = bundle.words
        self.background = bundle.background
        self.weights = bundle.combination if weights is None else weights
        has_neural = bundle.has("language_model.onnx")
        self.neural: LanguageModel | None = NeuralLanguageModel(bundle, threads) if has_neural else None
        self.ngram: LanguageModel | None = load_ngram(bundle)

    def rescore(
        self, hypotheses: Sequence[Hypothesis], marginal: NDArray[np.float64] | None = None
    ) -> tuple[Hypothesis, ...]:
        """The same hypotheses, best first, with every part of ``scores`` filled and ``score`` combined.

        marginal: g of paper 002, eq. 2 [n] (``device_sdk.personalization.cache.marginal``), or None for no adaptation.
        Each language model is run once for the whole list. Hypotheses of equal score keep their order.
        """
        if not hypotheses:
            return ()
        weights = self.weights
        scores = score_nbest(
            [self.words.ids(hypothesis.text) for hypothesis in hypotheses],
            [hypothesis.scores.acoustic for hypothesis in hypotheses],
            weights,
            neural=self.neural,
            ngram=self.ngram,
            factors=None if marginal is None else adaptation(marginal, self.background, weights.marginal),
            hotword=[hypothesis.scores.hotword for hypothesis in hypotheses],
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
