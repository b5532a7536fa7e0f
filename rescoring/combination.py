"""How the parts of a hypothesis' score become one number, and the scores of an n-best list by language models and
marginal adaptation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Value: TypeAlias = float | Array

CURVES = ("word", "text", "greedy_word", "greedy_text")
LEAST = 1e-4
"""Posteriors are kept this far from 0 and 1: a short list cannot tell more."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A logistic map (Platt scaling) of a posterior p and of the coverage c, the log of what of all probability a list
    holds, 0 or less:

        log-odds of being right = slope * logit(p) + offset + coverage * c + coverage_per_word * c / words"""

    slope: float = 1.0
    offset: float = 0.0
    coverage: float = 0.0
    coverage_per_word: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not is_number(value):
                raise ValueError(f"confidence.{item.name}: found {value!r}, expected a finite number")
        if self.slope < 0:
            raise ValueError(f"confidence.slope: found {self.slope!r}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted on development data by ``idiolect tune confidence``; the defaults are the plain posteriors. scale: what
    scores (nats) are multiplied with before the softmax over the list. word: for words of a hypothesis; text: for the
    whole of it. greedy_word, greedy_text: the same for a hypothesis alone in its list. Raises ValueError, naming the
    field, for a value outside its domain."""

    scale: float = 1.0
    word: Curve = field(default_factory=Curve)
    text: Curve = field(default_factory=Curve)
    greedy_word: Curve = field(default_factory=Curve)
    greedy_text: Curve = field(default_factory=Curve)

    def __post_init__(self) -> None:
        if not is_number(self.scale) or self.scale <= 0:
            raise ValueError(f"confidence.scale: found {self.scale!r}, expected a positive number")

    @classmethod
    def from_mapping(cls, values: Any) -> Calibration:
        """Read the object ``confidence`` of a ``rescoring.json``; absent fields keep their defaults."""
        given = dict(_object(values, cls, "confidence"))
        for name in CURVES:
            if name in given:
                given[name] = Curve(**_object(given[name], Curve, f"confidence.{name}"))
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """What :meth:`from_mapping` reads."""
        return asdict(self)


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a number that a float holds."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # JSON has integers of any size
        return False


def confidence(curve: Curve, posterior: Array, coverage: float, words: Array | float) -> Array:
    """Calibrated probabilities of being right, of the shape of ``posterior`` (any; in [0, 1]). coverage: log of the
    list's summed probability. words: of the hypothesis that each posterior belongs to."""
    held = np.minimum(np.maximum(posterior, LEAST), 1 - LEAST)
    odds = curve.slope * np.log(held / (1 - held)) + curve.offset
    odds = odds + min(coverage, 0.0) * (curve.coverage + curve.coverage_per_word / np.maximum(words, 1))
    return np.asarray(1 / (1 + np.exp(np.minimum(np.maximum(-odds, -700), 700))), np.float64)


def _object(values: Any, of: type, name: str) -> Mapping[str, Any]:
    known = {item.name for item in fields(of)}
    if not isinstance(values, Mapping):
        raise ValueError(f"{name}: found {values!r}, expected an object with {', '.join(sorted(known))}")
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{name}.{unknown[0]}: unknown field, expected one of {', '.join(sorted(known))}")
    return values


@dataclass(frozen=True, slots=True)
class CombinationWeights:
    """What a bundle's ``rescoring.json`` holds; chosen on development data by ``idiolect tune rescoring``.

    language_model: scale of the language models' log-probability against the acoustic one.
    ngram_share: share of the n-gram in the linear combination of n-gram and neural log-probabilities (Liu & Peng 2020,
        section 3.2: 0.5).
    word_bonus: nats added for each word.
    unlisted_bonus: nats added for each word outside the public list, whose spelling no language model scores.
    marginal: lambda of Liu & Peng 2020, eq. 1.
    alpha, beta: weights of the global and of the personal unigram in eq. 2; alpha + beta <= 1.
    sigma: bandwidth of the n-best kernel, eq. 3, in ranks.
    smoothing: pseudo-words of the background added to the personal counts in eq. 4.
    confidence: from scores to probabilities of being right; chosen by ``idiolect tune confidence``.
    confirmed: nats that a word earns in the first pass which the user confirmed, and says 20 times as often as others;
        more where it is more often.
    search_ngram, search_bonus: weight of the n-gram over pieces in the first pass, and nats for each piece there; both
        stay in the total.
    ctc: weight of the CTC head's log-probability beside the transducer's.
    Raises ValueError, naming the field, for a value outside its domain."""

    language_model: float = 0.3
    ngram_share: float = 0.5
    word_bonus: float = 0.0
    unlisted_bonus: float = 0.0
    marginal: float = 0.5
    alpha: float = 0.5
    beta: float = 0.25
    sigma: float = 1.0
    smoothing: float = 20.0
    confirmed: float = 1.5
    confidence: Calibration = field(default_factory=Calibration)
    search_ngram: float = 0.0
    search_bonus: float = 0.0
    ctc: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name == "confidence":
                continue
            value = getattr(self, item.name)
            if not is_number(value):
                raise ValueError(f"combination.{item.name}: found {value!r}, expected a finite number")
            if value < 0 and not item.name.endswith("_bonus"):
                raise ValueError(f"combination.{item.name}: found {value!r}, expected 0 or more")
        if self.ngram_share > 1:
            raise ValueError(f"combination.ngram_share: found {self.ngram_share!r}, expected at most 1")
        if self.alpha + self.beta > 1:
            raise ValueError(f"combination.alpha + beta: found {self.alpha + self.beta!r}, expected at most 1")
        if self.sigma == 0:
            raise ValueError("combination.sigma: found 0, expected more than 0")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> CombinationWeights:
        """Read the object of a ``rescoring.json``; absent fields keep their defaults, unknown ones are refused."""
        given = dict(_object(values, cls, "combination"))
        if "confidence" in given:
            given["confidence"] = Calibration.from_mapping(given["confidence"])
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """What :meth:`from_mapping` reads."""
        return asdict(self)


def combine(
    weights: CombinationWeights,
    *,
    acoustic: Value,
    words: Value,
    unlisted: Value = 0.0,
    neural: Value | None = None,
    ngram: Value | None = None,
    personal: Value = 0.0,
    hotword: Value = 0.0,
    ctc: Value = 0.0,
) -> Value:
    """Total score of a hypothesis, or of N at once (every part a float or an array [N], in nats).

        total = acoustic + ctc_weight * ctc + language_model * ((1 - s) * (neural + personal) + s * ngram)
                + word_bonus * words + unlisted_bonus * unlisted + hotword

    words, unlisted: how many words, and how many of them are not on the public list. s is ``ngram_share``. Without an
    n-gram (None) s is 0; without a neural model the n-gram takes its place, and the marginal adaptation ``personal``
    then applies to it (s = 1, eq. 1 of Liu & Peng 2020 over the n-gram)."""
    if neural is None:
        language: Value = personal if ngram is None else ngram + personal
    elif ngram is None:
        language = neural + personal
    else:
        language = (1 - weights.ngram_share) * (neural + personal) + weights.ngram_share * ngram
    bonus = weights.word_bonus * words + weights.unlisted_bonus * unlisted
    return acoustic + weights.ctc * ctc + weights.language_model * language + bonus + hotword


LanguageModel: TypeAlias = Callable[[Sequence[Sequence[int]]], Sequence[NDArray[np.floating]]]
"""Anything that gives log p(word | words before it) of sentences over a word list.

Takes N sentences as word ids (0 for unlisted words, no boundary ids). Returns N arrays, float [len(sentence) + 1],
nats: one value a word, the last one for the end of the sentence."""


@dataclass(frozen=True, slots=True)
class NBestScores:
    """Parts of the scores of N hypotheses, float64 [N], nats; None where there is no such model."""

    neural: Array | None
    ngram: Array | None
    personal: Array
    total: Array


def score_nbest(
    sentences: Sequence[Sequence[int]],
    acoustic: Sequence[float],
    weights: CombinationWeights,
    *,
    neural: LanguageModel | None = None,
    ngram: LanguageModel | None = None,
    personal: NDArray[np.float64] | None = None,
    hotword: Sequence[float] | None = None,
    ctc: Sequence[float] | None = None,
) -> NBestScores:
    """Score N hypotheses of one utterance with one call to each language model. sentences: N lists of word ids, 0 for
    unlisted words. acoustic, hotword, ctc: N scores, nats. personal: what marginal adaptation adds [N], nats
    (``rescoring.marginals.PersonalMarginal.scores``), or None for no adaptation."""

    def total_of(model: LanguageModel | None) -> NDArray[np.float64] | None:
        return None if model is None else np.array([float(values.sum()) for values in model(sentences)])

    neural_scores, ngram_scores = total_of(neural), total_of(ngram)
    personal = np.zeros(len(sentences)) if personal is None else personal
    total = combine(
        weights,
        acoustic=np.asarray(acoustic, np.float64),
        words=np.array([len(words) for words in sentences], np.float64),
        unlisted=np.array([words.count(0) for words in sentences], np.float64),
        neural=neural_scores,
        ngram=ngram_scores,
        personal=personal,
        hotword=0.0 if hotword is None else np.asarray(hotword, np.float64),
        ctc=0.0 if ctc is None else np.asarray(ctc, np.float64),
    )
    return NBestScores(neural_scores, ngram_scores, personal, np.asarray(total, np.float64))


def order(total: NDArray[np.float64]) -> list[int]:
    """Indices from the best score to the worst; equal scores keep their order."""
    return [int(index) for index in np.argsort(-total, kind="stable")]
