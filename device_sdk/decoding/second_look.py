"""A second look for phrases that the search did not find: somebody's name, after words that a name may follow.

A search keeps few prefixes, and a name that no training text had is some twenty nats less likely than what it sounds
like; what would bring it in for every utterance breaks the others. Where an ended utterance says *call*, every phrase
is put in place of the next words, and texts are weighed there by all their alignments:

    gain = log p(words with the phrase | audio) - log p(words | audio) + SPELLING * s + boost + TRUST - log N
    s = - sum over the phrase's pieces of log p(piece | pieces before it, the mean of the audio, no blank)

s is what the network expects of spelling alone (the internal language model of Meng et al. 2021): most of it is given
back, and each of the N phrases is as likely as another. A text with a gain above 0 goes before the one that it came
from. T: encoder frames; J: joiner size; V: pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.decoding.forward import BLANK, Double, Float, Tokens, entrance, forward
from device_sdk.hypothesis import Hypothesis, in_time
from device_sdk.runtimes.protocol import States, Transducer

SPELLING = 0.8
TRUST = 1.0
"""Nats that any phrase earns where words are said that it comes after: what was heard instead is likely by rote."""
LONGEST = 3
"""Words that are heard in place of a phrase, at most."""
BEFORE, AFTER = 2, 2
"""Words around these that are weighed with them, however long an utterance is."""
PREFIXES = 64
"""Prefixes of phrases that are followed at a time."""
ENDS = 8
"""Phrases whose texts are weighed to their ends, for each place, at most."""
HOPELESS = 0.0
"""And those that gain less than this (nats) at every frame are not."""
TEXTS = 3
"""Texts that join a list, at most."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """text: as it is written; tokens: as it is spelled here; boost: nats."""

    text: str
    tokens: Tokens
    boost: float


@dataclass(slots=True)
class Node:
    """Of a tree of phrases by their tokens. ends: those that end here."""

    children: dict[int, Node] = field(default_factory=dict)
    ends: list[Phrase] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """Phrases that are looked for after any of these words, in the pieces of one tokenizer. prior: log N - TRUST."""

    after: frozenset[Words]
    tree: Node
    prior: float


def sought(phrases: Sequence[Phrase], after: frozenset[Words]) -> Sought:
    tree = Node()
    for phrase in phrases:
        node = tree
        for token in phrase.tokens:
            node = node.children.setdefault(token, Node())
        node.ends.append(phrase)
    return Sought(after, tree, math.log(len({phrase.text for phrase in phrases})) - TRUST)


@dataclass(frozen=True, slots=True)
class _Part:
    """Of an utterance: frames from ``begin`` to before ``end`` (None: to the last one), and the tokens before them."""

    known: Tokens
    begin: int
    end: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a phrase may stand in a hypothesis: instead of its words from ``first`` to before ``last``. Its tokens are
    those known before the part that is weighed anew, ``left``, ``replaced`` and ``right`` in it, and the rest."""

    hypothesis: Hypothesis
    first: int
    last: int
    part: _Part
    left: Tokens
    replaced: Tokens
    right: Tokens
    rest: Tokens


@dataclass(frozen=True, slots=True)
class _Path:
    """A prefix of texts. entering: [T], see :func:`~device_sdk.decoding.forward.forward`. predicted: [J], and the
    state, after it. node: how far a phrase is spelled in it, and spelling: s of that."""

    node: Node
    entering: Double
    predicted: Float
    state: States
    spelling: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    """A phrase after the words before it. alpha: [T]; scores: [T, V], what the joiner says next; spelling: s."""

    phrase: Phrase
    alpha: Double
    scores: Double
    state: States
    spelling: float


class _Ear:
    """Weighs texts in a part of an utterance, each once. encoded: [T, J] of the part; mean: [1, J] of the utterance."""

    def __init__(self, encoded: Float, mean: Float, known: Tokens, transducer: Transducer) -> None:
        self._encoded, self._mean, self._transducer = encoded, mean, transducer
        self._start = transducer.predict(np.zeros(1, np.int64))
        for token in known:
            self._start = transducer.predict(np.array([token], np.int64), self._start[1])
        self._known: dict[tuple[object, ...], Any] = {}

    def weighed(self, tokens: Tokens) -> tuple[float, Double]:
        """(log p(tokens | audio), the best of alpha(t, u) over its prefixes for each frame [T])."""
        found: tuple[float, Double] = self._once((tokens,), self._weighed)
        return found

    def ends(self, left: Tokens, wanted: Sought, heard: Tokens) -> list[_End]:
        """The likeliest phrases after ``left``. What falls furthest behind the text that was heard is given up on the
        way."""
        found: list[_End] = self._once((left, wanted, heard), self._ends)
        return found

    def followed(self, end: _End, right: Tokens) -> float:
        """log p of the whole text that goes on with ``right`` and ends there."""
        found: float = self._once((end, right), self._followed)
        return found

    def _once(self, asked: tuple[Any, ...], work: Callable[..., Any]) -> Any:
        if asked not in self._known:
            self._known[asked] = work(*asked)
        return self._known[asked]

    def _weighed(self, tokens: Tokens) -> tuple[float, Double]:
        best, path = np.full(len(self._encoded), -np.inf), self._begin(Node())
        for token in tokens:
            alpha, scores = self._heard(path)
            best, path = np.maximum(best, alpha), self._next(alpha, scores, token, path.state)
        alpha, scores = self._heard(path)
        return float(alpha[-1] + scores[-1, BLANK]), np.maximum(best, alpha)

    def _ends(self, left: Tokens, wanted: Sought, heard: Tokens) -> list[_End]:
        tree, (_, best) = wanted.tree, self.weighed(heard)
        path = self._begin(tree)
        for token in left:
            path = replace(self._next(*self._heard(path), token, path.state), node=tree)
        level, ended = [path], list[tuple[float, _End]]()
        while level:
            ranked: list[tuple[float, int, int, _Path]] = []
            for row, each in enumerate(level):
                alpha, scores = self._heard(each)
                ahead = float((alpha - best).max()) + SPELLING * each.spelling
                for phrase in each.node.ends:
                    rank = ahead + phrase.boost - wanted.prior
                    if rank > HOPELESS:
                        ended.append((rank, _End(phrase, alpha, scores, each.state, each.spelling)))
                alone = self._scores(self._mean, each.predicted)[0, BLANK + 1 :]
                alone -= np.logaddexp.reduce(alone)
                for token, child in each.node.children.items():
                    entering, spelling = alpha + scores[:, token], each.spelling - float(alone[token - 1])
                    rank = float((entering - best).max()) + SPELLING * spelling
                    ranked.append((rank, row, token, replace(each, node=child, entering=entering, spelling=spelling)))
            ranked = sorted(ranked, key=lambda one: -one[0])[:PREFIXES]
            level = self._predicted([(token, path) for _, _, token, path in ranked])
        return [each for _, each in sorted(ended, key=lambda one: -one[0])[:ENDS]]

    def _followed(self, end: _End, right: Tokens) -> float:
        alpha, scores, state = end.alpha, end.scores, end.state
        for token in right:
            path = self._next(alpha, scores, token, state)
            (alpha, scores), state = self._heard(path), path.state
        return float(alpha[-1] + scores[-1, BLANK])

    def _begin(self, tree: Node) -> _Path:
        predicted, state = self._start
        return _Path(tree, entrance(len(self._encoded)), predicted[0], state)

    def _heard(self, path: _Path) -> tuple[Double, Double]:
        scores = self._scores(self._encoded, path.predicted)
        return forward(path.entering, scores), scores

    def _next(self, alpha: Double, scores: Double, token: int, state: States) -> _Path:
        predicted, state = self._transducer.predict(np.array([token], np.int64), state)
        return _Path(Node(), alpha + scores[:, token], predicted[0], state)

    def _predicted(self, extended: Sequence[tuple[int, _Path]]) -> list[_Path]:
        """The paths after one more token each, whose columns they have entered."""
        if not extended:
            return []
        states = tuple(np.concatenate(each, 1) for each in zip(*(path.state for _, path in extended), strict=True))
        predicted, states = self._transducer.predict(np.array([token for token, _ in extended], np.int64), states)
        return [
            replace(path, predicted=predicted[row], state=tuple(each[:, row : row + 1] for each in states))
            for row, (_, path) in enumerate(extended)
        ]

    def _scores(self, encoded: Float, predicted: Float) -> Double:
        return self._transducer.join(encoded, predicted[None]).astype(np.float64)


def look_again(
    hypotheses: Sequence[Hypothesis],
    wanted: Sequence[Sought],
    encode: Callable[[], Float],
    transducer: Transducer,
    tokenizer: Tokenizer,
    frame_seconds: float,
    seconds: float,
) -> tuple[Hypothesis, ...]:
    """The list with the texts that gain by a phrase, best first. hypotheses: with final scores, whose words come from
    their tokens but where a phrase stands for another spelling. encode: gives [T, J] of the utterance; called only
    where a phrase may stand somewhere. frame_seconds: of an encoder frame; seconds: of the audio."""
    places = [(each, place) for each in wanted for place in _places(hypotheses, each.after, tokenizer, frame_seconds)]
    if not places:
        return tuple(hypotheses)
    encoded, ears, found = encode(), dict[_Part, _Ear](), dict[str, Hypothesis]()
    for each, place in places:
        part = place.part
        if not len(encoded[part.begin : part.end]):
            continue
        if part not in ears:
            mean = encoded.mean(0, keepdims=True)
            ears[part] = _Ear(encoded[part.begin : part.end], mean, part.known, transducer)
        ear, heard = ears[part], (*place.left, *place.replaced, *place.right)
        likelihood, _ = ear.weighed(heard)
        for end in ear.ends(place.left, each, heard):
            bonus = SPELLING * end.spelling + end.phrase.boost - each.prior
            change = ear.followed(end, place.right) - likelihood
            if change + bonus > 0:
                text = _with_phrase(place, end.phrase, change, bonus, seconds)
                if text.text not in found or found[text.text].score < text.score:
                    found[text.text] = text
    there = {each.text: each.score for each in hypotheses}
    new = [each for each in found.values() if each.score > there.get(each.text, -np.inf)]
    new = sorted(new, key=lambda each: -each.score)[:TEXTS]
    taken = {each.text for each in new}
    return tuple(sorted([*new, *(each for each in hypotheses if each.text not in taken)], key=lambda each: -each.score))


def _places(
    hypotheses: Sequence[Hypothesis], after: frozenset[Words], tokenizer: Tokenizer, frame_seconds: float
) -> Iterator[_Place]:
    """In every text that goes before a phrase once, in the best hypothesis that begins with it."""
    lengths, seen = {len(words) for words in after}, set[Tokens]()
    for each in hypotheses:
        tokens, count = each.tokens, len(each.words)
        bounds = [*_word_starts(tokens, tokenizer), len(tokens)]
        words = tuple(word.text for word in each.words)
        if len(bounds) != count + 1:
            continue  # a phrase stands here for other words: one was found
        for first in range(1, count + 1):
            follows = any(length <= first and words[first - length : first] in after for length in lengths)
            if follows and tokens[: bounds[first]] not in seen:
                seen.add(tokens[: bounds[first]])
                start, stop = max(first - BEFORE, 0), min(first + LONGEST + AFTER, count)
                begin = round(each.words[start - 1].end / frame_seconds) if start else 0
                end = round(each.words[stop].start / frame_seconds) if stop < count else None
                for last in range(min(first + 1, count), min(first + LONGEST, count) + 1):
                    at = (0, bounds[start], bounds[first], bounds[last], bounds[stop], len(tokens))
                    known, *pieces = (tokens[i:j] for i, j in pairwise(at))
                    yield _Place(each, first, last, _Part(known, begin, end), *pieces)


def _word_starts(tokens: Tokens, tokenizer: Tokenizer) -> list[int]:
    """Of the words that the tokens spell; a piece that is a bare boundary belongs to the word that follows."""
    starts = [place for place, token in enumerate(tokens) if place == 0 or tokenizer.starts_word(token)]
    found: list[int] = []
    begin = 0
    for _, end in pairwise([*starts, len(tokens)]):
        if tokenizer.decode(tokens[begin:end]):
            found.append(begin)
            begin = end
    return found


def _with_phrase(place: _Place, phrase: Phrase, change: float, bonus: float, seconds: float) -> Hypothesis:
    """The hypothesis with a phrase in its place, whose words share the time there by letters."""
    old = place.hypothesis
    before, replaced, after = old.words[: place.first], old.words[place.first : place.last], old.words[place.last :]
    begin = replaced[0].start if replaced else before[-1].end
    end = replaced[-1].end if replaced else seconds
    words = (*before, *in_time(phrase.text.split(), begin, max(end, begin)), *after)
    scores = replace(old.scores, acoustic=old.scores.acoustic + change, hotword=old.scores.hotword + bonus)
    text = " ".join(word.text for word in words)
    tokens = (*place.part.known, *place.left, *phrase.tokens, *place.right, *place.rest)
    return Hypothesis(tokens, text, words, scores, old.score + change + bonus)
