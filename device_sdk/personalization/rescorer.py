"""Second pass: an n-best list in order of acoustic, language-model and personal scores together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from device_sdk.hypothesis import Hypothesis
from device_sdk.personalization.cache import MarginalCache, strength
from device_sdk.runtimes.language_model import NeuralLanguageModel
from device_sdk.runtimes.ngram import load_ngram
from rescoring.combination import CombinationWeights
from rescoring.confirmation import confirmation
from rescoring.marginals import refreshed_adaptation
from rescoring.nbest import LanguageModel, order, score_nbest
from rescoring.ngrams import context_scores
from rescoring.spelling import LetterModel, letter_model, own_word_gain

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

__all__ = ["OwnParts", "Rescorer"]


class OwnParts(TypedDict, total=False):
    """Arguments of ``rescoring.nbest.score_nbest`` that are of one user, as it declares them."""

    factors: NDArray[np.float64]
    context: NDArray[np.float64]
    spelling: NDArray[np.float64]
    own_words: NDArray[np.float64]


class Rescorer:
    """Rescores n-best lists with a bundle's language models; owns their sessions.

    A bundle without one of the models, or an install without kenlm, is rescored with what is there. The models are
    loaded when they are first used, at the end of an utterance: hearing starts without them. One that is damaged is
    then refused by name (BundleError).
    """

    def __init__(self, bundle: Bundle, weights: CombinationWeights | None = None, threads: int = 1) -> None:
        """weights: instead of the bundle's own combination."""
        self.words = bundle.words
        self.background = bundle.background
        self.weights = bundle.combination if weights is None else weights
        self._bundle, self._threads = bundle, threads
        self._factors: tuple[NDArray[np.float64], MarginalCache | None, NDArray[np.float64]] | None = None

    @cached_property
    def neural(self) -> LanguageModel | None:
        """The neural language model, loaded for the first list; None where the bundle holds none."""
        has_neural = self._bundle.has("language_model.onnx")
        return NeuralLanguageModel(self._bundle, self._threads) if has_neural else None

    @cached_property
    def ngram(self) -> LanguageModel | None:
        """The n-gram, loaded for the first list; None where its share is 0, the bundle holds none, or without kenlm.

        Where the bundle holds no neural model the n-gram takes its place, whatever its share.
        """
        counts = self.weights.ngram_share or not self._bundle.has("language_model.onnx")
        return load_ngram(self._bundle) if counts else None

    @cached_property
    def letters(self) -> LetterModel:
        """How words are spelled, after the public list; estimated for the first unlisted word that is scored."""
        return letter_model(self.words.words[1:])

    def rescore(
        self,
        hypotheses: Sequence[Hypothesis],
        marginal: NDArray[np.float64] | None = None,
        cache: MarginalCache | None = None,
    ) -> tuple[Hypothesis, ...]:
        """The same hypotheses, best first, with every part of ``scores`` filled and ``score`` combined.

        marginal: g of Liu & Peng 2020, eq. 2 [n] (``device_sdk.personalization.cache.marginal``), or None for no
        adaptation. cache: the user's, for what the combination uses of it beyond g: lambda, n-grams, own unlisted
        words. Each language model is asked once, for the whole list. Hypotheses of equal score keep their order.
        """
        if not hypotheses:
            return ()
        weights = self.weights
        texts = [hypothesis.text for hypothesis in hypotheses]
        sentences = [self.words.ids(text) for text in texts]
        scores = score_nbest(
            sentences,
            [hypothesis.scores.acoustic for hypothesis in hypotheses],
            weights,
            neural=self.neural,
            ngram=self.ngram,
            hotword=[hypothesis.scores.hotword for hypothesis in hypotheses],
            **self.own_parts(texts, sentences, marginal, cache),
        )
        zeros = np.zeros(len(hypotheses))
        neural = zeros if scores.neural is None else scores.neural
        ngram = [each.scores.ngram for each in hypotheses] if scores.ngram is None else scores.ngram
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

    def own_parts(
        self,
        texts: Sequence[str],
        sentences: Sequence[Sequence[int]],
        marginal: NDArray[np.float64] | None,
        cache: MarginalCache | None,
    ) -> OwnParts:
        """What ``score_nbest`` takes of what is known of the user, and of letters; arguments as in :meth:`rescore`.

        texts, and sentences, the same as word ids: of each hypothesis.
        """
        weights, parts = self.weights, OwnParts()
        if marginal is not None:
            parts["factors"] = self._adapted(marginal, cache)
            if cache is not None and weights.context:
                smoothing, order = weights.context_smoothing, weights.context_order
                parts["context"] = context_scores(sentences, cache.ngrams, marginal, smoothing, order)
        if weights.spelling:
            parts["spelling"], parts["own_words"] = self._spelled(texts, sentences, cache)
        return parts

    def _adapted(self, marginal: NDArray[np.float64], cache: MarginalCache | None) -> NDArray[np.float64]:
        """Eq. 1's factors and what feedback told, worked out again only for another marginal or cache."""
        known, weights = self._factors, self.weights
        if known is None or known[0] is not marginal or known[1] is not cache:
            chosen = weights.marginal if cache is None else strength(cache, weights)
            factors = refreshed_adaptation(marginal, self.background, chosen)
            if cache is not None and cache.told is not None and cache.guessed is not None and weights.confirmed:
                factors += confirmation(cache.told, cache.guessed, weights.confirmed, weights.confirmed_smoothing)
            self._factors = known = marginal, cache, factors
        return known[2]

    def _spelled(
        self, texts: Sequence[str], sentences: Sequence[Sequence[int]], cache: MarginalCache | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(log-probability of the letters of unlisted words, what the user's own of them add) of each text."""
        own: Mapping[str, float] = {} if cache is None else cache.unlisted
        said, share = sum(own.values()), self.weights.own_words
        letters: dict[str, float] = {}
        spelling, added = np.zeros(len(texts)), np.zeros(len(texts))
        for place, (text, ids) in enumerate(zip(texts, sentences, strict=True)):
            for word, word_id in zip(text.split(), ids, strict=True):
                if word_id == 0:
                    if word not in letters:
                        letters[word] = self.letters.score(word)
                    spelling[place] += letters[word]
                    added[place] += own_word_gain(letters[word], own.get(word, 0.0), said, share)
        return spelling, added
