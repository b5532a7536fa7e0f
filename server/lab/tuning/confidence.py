"""Fits the map from posteriors to confidences on development data, by maximum likelihood of what was right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from device_sdk.decoding.nbest import coverage, with_confidence, word_posteriors
from device_sdk.errors import DataError
from device_sdk.hypothesis import Hypothesis
from rescoring.combination import LEAST, Calibration, Curve
from rescoring.marginals import posteriors
from server.lab.corpora.utterance import Utterance, Waveform
from server.lab.evaluation.reliability import Reliability
from server.lab.evaluation.scores import right_words, word_errors

Array = NDArray[np.float64]

SCALES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
FIGURES = ("words", "texts", "greedy words", "greedy texts")
FOLDS = 5
_RIDGE = 1e-3
_PRIOR = np.array([1.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance: all its hypotheses with final scores, best first, and what was right of the best one. source,
    voice: where it is from and who spoke, whatever the speed it was played at. right: of each word."""

    source: str
    voice: str
    hypotheses: tuple[Hypothesis, ...]
    right: tuple[bool, ...]
    all_right: bool


@dataclass(frozen=True, slots=True)
class Fitted:
    """calibration: fitted on everything. before, after: on the data it was fitted on, as they were and as they are.
    other_voices: each voice by a calibration fitted without it (five parts)."""

    calibration: Calibration
    before: dict[str, Reliability]
    after: dict[str, Reliability]
    other_voices: dict[str, Reliability]


def hear(
    source: str, utterances: Iterable[Utterance], recognize: Callable[[Waveform], Sequence[Hypothesis]]
) -> list[Heard]:
    """Recognize utterances; those without sure words are left out. recognize: waveform -> all hypotheses with final
    scores."""
    found = []
    for utterance in utterances:
        if utterance.sure_text is not None:
            hypotheses = tuple(recognize(utterance.load()))
            best = " ".join(word.text for word in hypotheses[0].words)
            right = tuple(right_words(utterance.sure_text, best))
            voice = re.sub(r"-x[\d.]+$", "", utterance.speaker)  # whatever the speed it was played at
            found.append(Heard(source, voice, hypotheses, right, word_errors(utterance.sure_text, best) == 0))
    return found


def fit_and_check(heard: Sequence[Heard], scales: Sequence[float] = SCALES) -> Fitted:
    """The calibration under which what was right is most probable; every source counts the same. With its figures
    before, after, and for voices that it was not fitted on: ``words`` and ``texts``, and ``greedy words`` and ``greedy
    texts`` of lists of one. Its scale is the best of ``scales`` for words; the curves are logistic regressions with a
    slight pull to the plain posterior. Lists of one hypothesis have curves of their own. Raises DataError where no word
    was recognized."""
    if not any(each.right for each in heard):
        raise DataError("development data: no word was recognized where words are known for sure; give other --data")
    designs = {scale: _Design.of(heard, scale) for scale in scales}
    calibration = _fit(designs, np.ones(len(heard), bool))
    voices = sorted({(each.source, each.voice) for each in heard})
    fold = {voice: place % FOLDS for place, voice in enumerate(voices)}
    places = np.array([fold[each.source, each.voice] for each in heard])
    others = [Calibration()] * FOLDS
    for part in range(min(FOLDS, len(voices))):
        rest = places != part
        if any(each.right for each, kept in zip(heard, rest, strict=True) if kept):
            others[part] = _fit(designs, rest)
    return Fitted(
        calibration,
        _figures(heard, [Calibration()] * len(heard)),
        _figures(heard, [calibration] * len(heard)),
        _figures(heard, [others[part] for part in places]),
    )


@dataclass(frozen=True, slots=True)
class _Design:
    """Regressors [N, 4] of words and of texts, what was right [N], which utterance each word is of [N]; and of each
    utterance its source and whether its list holds one hypothesis."""

    words: Array
    right: Array
    of_word: NDArray[np.int64]
    texts: Array
    all_right: Array
    sources: NDArray[np.int64]
    alone: NDArray[np.bool_]

    @classmethod
    def of(cls, heard: Sequence[Heard], scale: float) -> _Design:
        names = {name: place for place, name in enumerate(sorted({each.source for each in heard}))}
        words, texts = [], []
        for each in heard:
            shares = posteriors(np.array([one.score for one in each.hypotheses]), scale).tolist()
            covered, count = coverage(each.hypotheses), max(len(each.right), 1)
            words += [(share, covered, covered / count) for share in word_posteriors(each.hypotheses, shares)[0]]
            texts.append((shares[0], covered, covered / count))
        return cls(
            _regressors(words),
            np.array([hit for each in heard for hit in each.right], np.float64),
            np.repeat(np.arange(len(heard)), [len(each.right) for each in heard]),
            _regressors(texts),
            np.array([each.all_right for each in heard], np.float64),
            np.array([names[each.source] for each in heard]),
            np.array([len(each.hypotheses) == 1 for each in heard]),
        )


def _regressors(rows: Sequence[tuple[float, float, float]]) -> Array:
    """(posterior, coverage, coverage a word) -> [N, 4], in the order of the fields of :class:`Curve`."""
    table = np.array(rows, np.float64).reshape(-1, 3)
    held = np.clip(table[:, 0], LEAST, 1 - LEAST)
    return np.column_stack([np.log(held / (1 - held)), np.ones(len(table)), table[:, 1:]])


def _fit(designs: dict[float, _Design], kept: NDArray[np.bool_]) -> Calibration:
    """On the utterances that are ``kept`` [U]."""
    any_design, found = next(iter(designs.values())), Calibration()
    lists, alone = kept & ~any_design.alone, kept & any_design.alone
    if lists[any_design.of_word].any():
        losses = {scale: _words(design, lists) for scale, design in designs.items()}
        scale = min(losses, key=lambda each: losses[each][1])
        found = Calibration(scale, losses[scale][0], _texts(designs[scale], lists))
    if alone[any_design.of_word].any():
        curve, _ = _words(any_design, alone)
        found = replace(found, greedy_word=curve, greedy_text=_texts(any_design, alone))
    return found


def _words(design: _Design, kept: NDArray[np.bool_]) -> tuple[Curve, float]:
    rows = kept[design.of_word]
    return _logistic(design.words[rows], design.right[rows], _weights(design.sources[design.of_word][rows]))


def _texts(design: _Design, kept: NDArray[np.bool_]) -> Curve:
    curve, _ = _logistic(design.texts[kept], design.all_right[kept], _weights(design.sources[kept]))
    return curve


def _weights(sources: NDArray[np.int64]) -> Array:
    """Weights [N] that sum to 1 and give every source the same share."""
    counts = np.bincount(sources)
    return 1 / (counts[sources] * np.count_nonzero(counts))


def _logistic(regressors: Array, right: Array, weights: Array) -> tuple[Curve, float]:
    """Ridge logistic regression of the fields of :class:`Curve`: the curve, and its mean negative log-likelihood."""
    place, loss = _fitted(regressors, right, weights, _PRIOR)
    same = bool((regressors[:, 0] == regressors[0, 0]).all())
    if place[0] < 0 or same:  # posteriors that say nothing, or the opposite of what is right, are not to be believed
        rest, loss = _fitted(regressors[:, 1:], right, weights, _PRIOR[1:])
        place = np.concatenate([[0.0], rest])
    return Curve(*(round(float(value), 4) for value in place)), loss


def _fitted(regressors: Array, right: Array, weights: Array, prior: Array) -> tuple[Array, float]:
    """The coefficients [D] of least loss and that loss (nats)."""

    def loss(place: Array) -> tuple[float, Array]:
        odds = regressors @ place
        misfit = float(weights @ (np.logaddexp(0, odds) - right * odds))
        slope = regressors.T @ (weights * (expit(odds) - right)) + 2 * _RIDGE * (place - prior)
        return misfit + _RIDGE * float(((place - prior) ** 2).sum()), slope

    found = minimize(loss, prior, jac=True, method="BFGS", options={"gtol": 1e-9})
    return np.asarray(found.x, np.float64), float(found.fun)


def _figures(heard: Sequence[Heard], calibrations: Sequence[Calibration]) -> dict[str, Reliability]:
    pairs: dict[str, list[tuple[float, bool]]] = {name: [] for name in FIGURES}
    for each, calibration in zip(heard, calibrations, strict=True):
        best = with_confidence(each.hypotheses, calibration)[0]
        words, texts = FIGURES[2:] if len(each.hypotheses) == 1 else FIGURES[:2]
        pairs[words] += [(word.confidence, hit) for word, hit in zip(best.words, each.right, strict=True)]
        pairs[texts].append((best.confidence, each.all_right))
    return {name: found for name, given in pairs.items() if (found := Reliability.of(given)) is not None}
