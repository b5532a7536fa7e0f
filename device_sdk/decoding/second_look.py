"""A second look for phrases that the search did not find: somebody's name, after words that a name may follow.

A search keeps few prefixes, and a name that no training text had is some twenty nats less likely than what it sounds
like; what would bring it in for every utterance breaks the others. Where an ended utterance says *call*, every phrase
is put in place of the next words, and where it is short, *call* and a phrase in place of any words, since who is named
is what makes *please phone* be heard as *please turn*. Texts are weighed by all their alignments, and then by the
language models as every text is:

    gain = log p(words with the phrase | audio) - log p(words | audio)
           + SPELLING * s(phrase) - HEARD * max(0, s(words in its place) - s(words before it that were put there too))
           + boost + TRUST - CROWD * log N - (KNOWN, where language models know the phrase)
    s = - sum over pieces of log p(piece | pieces before it, the mean of the audio, no blank)

s is what the network expects of spelling alone (the internal language model of Meng et al. 2021): most of it is given
back, less to words that were heard, and so least is put in the place of another name. Among N phrases the best is wrong
more often than each by itself. A text that gains goes before the one that it came from.

What the user said before is looked for in the best text of an utterance that is unsure, wherever the CTC head heard
something like it (:mod:`device_sdk.decoding.spotting`). How often the user says it is known:

    gain = ... + log q(phrase) - DOUBT, instead of boost + TRUST - CROWD * log N - KNOWN

T: encoder frames; J: joiner size; V: pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.decoding.forward import BLANK, Double, Float, Tokens, entrance, forward
from device_sdk.decoding.spotting import Spot
from device_sdk.hypothesis import Hypothesis, in_time
from device_sdk.runtimes.protocol import States, Transducer

SPELLING, HEARD = 0.85, 0.4
TRUST = 11.0
"""Nats that any phrase earns where words are said that it comes after: what was heard instead is likely by rote, and
language models know few names."""
UNWEIGHED = 5.0
"""Nats less of that where there are no language models: what they have against names, about."""
CROWD, UNSAID = 2.0, 0.5
"""Nats that it costs for each unit of log N to be one of N phrases, and more where the words before were missed too."""
KNOWN, KNOWN_UNSAID = 2.0, 4.0
"""Nats less for a phrase all of whose words language models know, and more of that where the words before were missed:
a contact called *May* is said less often than what sounds like *did may*."""
DOUBT = 1.0
"""Nats that it costs to be a phrase that was said before, beside how seldom it is."""
LIKE, SPANS = 0.2, 3
"""Share of the time of some words and of such a phrase that is of both, from which on it may stand in their place; and
such places, the likest first, at most."""
LONGEST = 3
"""Words that are heard in place of a phrase, at most."""
CARRIED = 5
"""And in place of a phrase and the words that it comes after."""
SHORT, FEW = 10, 100
"""Words of an utterance in which both may have been missed, at most: a command. And phrases, at most: with more it
takes longer to look for them in every command than to hear it."""
BEFORE, AFTER = 2, 2
"""Words around these that are weighed with them, however long an utterance is."""
PREFIXES = 64
"""Prefixes of phrases that are followed at a time."""
ENDS = 8
"""Phrases whose texts are weighed to their ends, for each place, at most."""
HOPELESS = -2.0
"""And those that gain less than this (nats) at every frame are not: language models may yet be for them."""
BEHIND = 6.0
"""Nats by which a prefix that is followed may be behind the words that were heard, at every frame."""
WEIGHED, TEXTS = 8, 3
"""Texts that language models weigh, and that join a list, at most."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """text: as it is written; tokens: as it is spelled here; boost: nats. known: language models know its words."""

    text: str
    tokens: Tokens
    boost: float
    known: bool = False

    def earns(self, carried: bool) -> float:
        """Nats that are its own. carried: whether the words before it were put there too."""
        return self.boost - (KNOWN + KNOWN_UNSAID * carried if self.known else 0.0)


@dataclass(slots=True, eq=False)
class Node:
    """Of a tree of phrases by their tokens, or of the words before them. ends: phrases that end here. then: the tree of
    the phrases that may begin here."""

    children: dict[int, Node] = field(default_factory=dict)
    ends: list[Phrase] = field(default_factory=list)
    then: Node | None = None

    def at(self, tokens: Tokens) -> Node:
        """The node that some tokens lead to."""
        node = self
        for token in tokens:
            node = node.children.setdefault(token, Node())
        return node


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """Phrases that are looked for after any of these words, in the pieces of one tokenizer. phrases: a tree of these
    alone; carriers: of the words, each followed by it. crowd: log N."""

    after: frozenset[Words]
    phrases: Node
    carriers: Node
    crowd: float


def sought(phrases: Sequence[Phrase], after: Iterable[str], tokenizer: Tokenizer) -> Sought:
    """after: texts."""
    tree, carriers = Node(), Node()
    for phrase in phrases:
        tree.at(phrase.tokens).ends.append(phrase)
    for text in after:
        carriers.at(tuple(tokenizer.encode(text))).then = tree
    crowd = math.log(len({phrase.text for phrase in phrases}))
    return Sought(frozenset(tuple(text.split()) for text in after), Node(then=tree), carriers, crowd)


@dataclass(frozen=True, slots=True)
class _Part:
    """Of an utterance: frames from ``begin`` to before ``end`` (None: to the last one), and the tokens before them."""

    known: Tokens
    begin: int
    end: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a phrase may stand in a hypothesis: instead of its words from ``first`` to before ``last``. Its tokens are
    those known before the part that is weighed anew, ``left``, ``replaced`` and ``right`` in it, and the rest. tree:
    what may stand there, and earns so many nats for it."""

    hypothesis: Hypothesis
    first: int
    last: int
    tree: Node
    earned: float
    part: _Part
    left: Tokens
    replaced: Tokens
    right: Tokens
    rest: Tokens

    @property
    def heard(self) -> Tokens:
        """Of the part, as the hypothesis has them."""
        return (*self.left, *self.replaced, *self.right)


@dataclass(frozen=True, slots=True)
class _Path:
    """A prefix of texts. entering: [T], see :func:`~device_sdk.decoding.forward.forward`. predicted: [J], and the
    state, after it. spelling: s of its tokens, or of a phrase's as far as ``node`` of a tree. carrier: the tokens that
    the phrase comes after, where the tree has them; carried: s of these; begun: whether they are over."""

    node: Node
    entering: Double
    predicted: Float
    state: States
    spelling: float = 0.0
    carrier: Tokens = ()
    carried: float = 0.0
    begun: bool = False

    def children(self, alone: Double) -> Iterator[tuple[int, _Path]]:
        """The tokens that a tree goes on with, each with a path that has yet to enter its column. alone: log p of every
        piece but blank by spelling alone [V - 1]."""
        if not self.begun:
            for token, node in self.node.children.items():
                carried = self.carried - float(alone[token - 1])
                yield token, replace(self, node=node, carrier=(*self.carrier, token), carried=carried)
        phrases = self.node if self.begun else self.node.then
        for token, node in phrases.children.items() if phrases is not None else ():
            yield token, replace(self, node=node, spelling=self.spelling - float(alone[token - 1]), begun=True)


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    """A phrase at the end of a path. alpha: [T]; scores: [T, V], what the joiner says next."""

    phrase: Phrase
    path: _Path
    alpha: Double
    scores: Double


@dataclass(frozen=True, slots=True, eq=False)
class EncodedUtterance:
    """encoded: [T, J], T at least 1. frame_seconds: of an encoder frame; seconds: of the audio."""

    encoded: Float
    frame_seconds: float
    seconds: float


_Step = tuple[_Path, Double, Double]
"""A prefix of texts, its alpha [T], and what the joiner says next [T, V]."""


class _Ear:
    """Weighs texts in a part of an utterance, each once. encoded: [T, J] of the part; mean: [1, J] of the utterance."""

    def __init__(self, encoded: Float, mean: Float, known: Tokens, transducer: Transducer) -> None:
        self._encoded, self._mean, self._transducer = encoded, mean, transducer
        self._start = transducer.predict(np.zeros(1, np.int64))
        for token in known:
            self._start = transducer.predict(np.array([token], np.int64), self._start[1])
        self._known: dict[tuple[object, ...], Any] = {}
        self._stepped: dict[Tokens, _Step] = {}

    def weighed(self, tokens: Tokens) -> tuple[float, Double]:
        """(log p(tokens | audio), the best of alpha(t, u) over its prefixes for each frame [T])."""
        found: tuple[float, Double] = self._once((tokens,), self._weighed)
        return found

    def ends(self, place: _Place) -> list[_End]:
        """The likeliest phrases at a place. What falls furthest behind the text that was heard is given up on the
        way."""
        found: list[_End] = self._once((place.left, place.tree, place.earned, place.heard), self._ends)
        return found

    def spelling(self, before: Tokens, tokens: Tokens) -> float:
        """s of some tokens."""
        steps = self._steps((*before, *tokens))
        return steps[-1][0].spelling - steps[len(before)][0].spelling

    def followed(self, end: _End, right: Tokens) -> float:
        """log p of the whole text that goes on with ``right`` and ends there."""
        found: float = self._once((end, right), self._followed)
        return found

    def _once(self, asked: tuple[Any, ...], work: Callable[..., Any]) -> Any:
        if asked not in self._known:
            self._known[asked] = work(*asked)
        return self._known[asked]

    def _weighed(self, tokens: Tokens) -> tuple[float, Double]:
        *_, (_, alpha, scores) = steps = self._steps(tokens)
        return float(alpha[-1] + scores[-1, BLANK]), np.maximum.reduce([alpha for _, alpha, _ in steps])

    def _steps(self, tokens: Tokens) -> list[_Step]:
        """Of every prefix of some tokens."""
        found: list[_Step] = []
        for length in range(len(tokens) + 1):
            known = tokens[:length]
            if known not in self._stepped:
                path = self._begin()
                if known:
                    (before, alpha, scores), token = found[-1], known[-1]
                    spelling = before.spelling - float(self._alone(before)[token - 1])
                    path = replace(self._next(alpha, scores, token, before.state), spelling=spelling)
                self._stepped[known] = path, *self._heard(path)
            found.append(self._stepped[known])
        return found

    def _ends(self, left: Tokens, tree: Node, earned: float, heard: Tokens) -> list[_End]:
        _, best = self.weighed(heard)
        path, *_ = self._steps(left)[-1]
        level, ended = [replace(path, node=tree, spelling=0.0)], list[tuple[float, _End]]()
        while level:
            ranked: list[tuple[float, int, int, _Path]] = []
            for row, each in enumerate(level):
                alpha, scores = self._heard(each)
                ahead = float((alpha - best).max()) + SPELLING * each.spelling
                for phrase in each.node.ends:
                    rank = ahead + phrase.earns(bool(each.carrier)) + earned
                    if rank > HOPELESS:
                        ended.append((rank, _End(phrase, each, alpha, scores)))
                for token, child in each.children(self._alone(each)):
                    entering = alpha + scores[:, token]
                    rank = float((entering - best).max()) + SPELLING * child.spelling
                    if rank > -BEHIND:
                        ranked.append((rank, row, token, replace(child, entering=entering)))
            ranked = sorted(ranked, key=lambda one: -one[0])[:PREFIXES]
            level = self._predicted([(token, path) for _, _, token, path in ranked])
        return [each for _, each in sorted(ended, key=lambda one: -one[0])[:ENDS]]

    def _followed(self, end: _End, right: Tokens) -> float:
        alpha, scores, state = end.alpha, end.scores, end.path.state
        for token in right:
            path = self._next(alpha, scores, token, state)
            (alpha, scores), state = self._heard(path), path.state
        return float(alpha[-1] + scores[-1, BLANK])

    def _begin(self) -> _Path:
        predicted, state = self._start
        return _Path(Node(), entrance(len(self._encoded)), predicted[0], state)

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

    def _alone(self, path: _Path) -> Double:
        """log p of every piece but blank next, by spelling alone [V - 1]."""
        alone = self._scores(self._mean, path.predicted)[0, BLANK + 1 :]
        return alone - np.logaddexp.reduce(alone)

    def _scores(self, encoded: Float, predicted: Float) -> Double:
        return self._transducer.join(encoded, predicted[None]).astype(np.float64)


def look_again(
    hypotheses: Sequence[Hypothesis],
    wanted: Sequence[Sought],
    utterance: EncodedUtterance,
    transducer: Transducer,
    tokenizer: Tokenizer,
    rescore: Callable[[Sequence[Hypothesis]], Sequence[Hypothesis]] | None,
    spotted: Sequence[tuple[Phrase, Spot]] = (),
) -> tuple[Hypothesis, ...]:
    """The list with the texts that gain by a phrase, best first. hypotheses: with final scores, whose words come from
    their tokens but where a phrase stands for another spelling. rescore: gives hypotheses their final scores, if
    language models do. spotted: what was said before, with log q for its boost, and where it may have been said now."""
    encoded, frame_seconds = utterance.encoded, utterance.frame_seconds
    trust, least = (TRUST, HOPELESS) if rescore is not None else (TRUST - UNWEIGHED, 0.0)
    places = [place for each in wanted for place in _places(hypotheses, each, tokenizer, frame_seconds, trust)]
    places += _spotted_places(hypotheses[0], spotted, tokenizer, frame_seconds)
    if not places:
        return tuple(hypotheses)
    ears, found = dict[_Part, _Ear](), dict[str, tuple[Hypothesis, Hypothesis]]()
    for place in places:
        part = place.part
        if not len(encoded[part.begin : part.end]):
            continue
        if part not in ears:
            mean = encoded.mean(0, keepdims=True)
            ears[part] = _Ear(encoded[part.begin : part.end], mean, part.known, transducer)
        ear = ears[part]
        likelihood, _ = ear.weighed(place.heard)
        expected = ear.spelling(place.left, place.replaced)
        for end in ear.ends(place):
            lost = HEARD * max(0.0, expected - end.path.carried)
            bonus = SPELLING * end.path.spelling + end.phrase.earns(bool(end.path.carrier)) + place.earned - lost
            change = ear.followed(end, place.right) - likelihood
            if change + bonus > least:
                new = _with_phrase(place, end, change, bonus, tokenizer, utterance.seconds)
                if new.text not in found or found[new.text][0].score < new.score:
                    found[new.text] = new, place.hypothesis
    best = sorted(found.values(), key=lambda pair: -pair[0].score)[:WEIGHED]
    if rescore is not None:
        weighed = {each.text: each for each in rescore([new for new, _ in best])}
        best = [(weighed[new.text], old) for new, old in best if weighed[new.text].score > old.score]
    there = {each.text: each.score for each in hypotheses}
    gained = [new for new, _ in best if new.score > there.get(new.text, -np.inf)]
    gained = sorted(gained, key=lambda each: -each.score)[:TEXTS]
    seen = {each.text for each in gained}
    kept = (each for each in hypotheses if each.text not in seen)
    return tuple(sorted([*gained, *kept], key=lambda each: -each.score))


def _places(
    hypotheses: Sequence[Hypothesis], wanted: Sought, tokenizer: Tokenizer, frame_seconds: float, trust: float
) -> Iterator[_Place]:
    """In every text that goes before a phrase once, in the best hypothesis that begins with it; and in the best one
    wherever a phrase and the words before it may have been missed, which where these begin they were not."""
    lengths, seen = {len(words) for words in wanted.after}, set[Tokens]()
    for number, each in enumerate(hypotheses):
        if (bounds := _word_bounds(each, tokenizer)) is None:
            continue  # one was found here
        tokens, count, words = each.tokens, len(each.words), tuple(word.text for word in each.words)
        spans = ((start, start + length) for start in range(count) for length in lengths if start + length <= count)
        said = [span for span in spans if words[slice(*span)] in wanted.after]
        spots: list[tuple[int, int, int, int, Node, float]] = []
        for first in sorted({after for _, after in said}):
            if tokens[: bounds[first]] not in seen:
                seen.add(tokens[: bounds[first]])
                start, stop = max(first - BEFORE, 0), min(first + LONGEST + AFTER, count)
                lasts = range(min(first + 1, count), min(first + LONGEST, count) + 1)
                spots += ((first, last, start, stop, wanted.phrases, CROWD) for last in lasts)
        if number == 0 and count <= SHORT and wanted.crowd <= math.log(FEW):
            # Where they were heard, to put them there once more would only push a phrase in between.
            for first in sorted({*range(count)} - {begun for begun, _ in said}):
                lasts = range(first + 1, min(first + CARRIED, count) + 1)
                spots += ((first, last, 0, count, wanted.carriers, CROWD + UNSAID) for last in lasts)
        for first, last, start, stop, tree, cost in spots:
            around, earned = (start, first, last, stop), trust - cost * wanted.crowd
            yield _place(each, bounds, around, tree, earned, frame_seconds)


def _spotted_places(
    hypothesis: Hypothesis, spotted: Sequence[tuple[Phrase, Spot]], tokenizer: Tokenizer, frame_seconds: float
) -> Iterator[_Place]:
    """In place of words of about the same time, of which the pause between two words is half of either's."""
    if (bounds := _word_bounds(hypothesis, tokenizer)) is None:
        return
    words, count = hypothesis.words, len(hypothesis.words)
    edges = [0.0, *((one.end + other.start) / 2 for one, other in pairwise(words)), math.inf]
    for phrase, spot in spotted:
        begin, end = spot.begin * frame_seconds, spot.end * frame_seconds
        alike: list[tuple[float, int, int]] = []
        for first in range(count):
            for last in range(first + 1, min(first + LONGEST, count) + 1):
                until = min(edges[last], max(words[-1].end, end))
                both = min(until, end) - max(edges[first], begin)
                alike.append((both / (max(until, end) - min(edges[first], begin)), first, last))
        tree = Node()
        tree.at(phrase.tokens).ends.append(phrase)
        for share, first, last in sorted(alike, reverse=True)[:SPANS]:
            if share > LIKE:
                around = max(first - BEFORE, 0), first, last, min(first + LONGEST + AFTER, count)
                yield _place(hypothesis, bounds, around, Node(then=tree), -DOUBT, frame_seconds)


def _place(
    hypothesis: Hypothesis,
    bounds: Sequence[int],
    around: tuple[int, int, int, int],
    tree: Node,
    earned: float,
    frame_seconds: float,
) -> _Place:
    """bounds: :func:`_word_bounds`. around: the words with which the part that is weighed anew begins, and those in
    place of which something may stand in it, and before which it ends."""
    (start, first, last, stop), words, tokens = around, hypothesis.words, hypothesis.tokens
    begin = round(words[start - 1].end / frame_seconds) if start else 0
    end = round(words[stop].start / frame_seconds) if stop < len(words) else None
    known, *pieces = (tokens[i:j] for i, j in pairwise((0, *(bounds[word] for word in around), len(tokens))))
    return _Place(hypothesis, first, last, tree, earned, _Part(known, begin, end), *pieces)


def _word_bounds(hypothesis: Hypothesis, tokenizer: Tokenizer) -> list[int] | None:
    """Where each word begins among the tokens, and where the last one ends; a piece that is a bare boundary belongs to
    the word that follows. None where a phrase stands for another spelling."""
    tokens = hypothesis.tokens
    starts = [place for place, token in enumerate(tokens) if place == 0 or tokenizer.starts_word(token)]
    bounds: list[int] = []
    begin = 0
    for _, end in pairwise([*starts, len(tokens)]):
        if tokenizer.decode(tokens[begin:end]):
            bounds.append(begin)
            begin = end
    return [*bounds, len(tokens)] if len(bounds) == len(hypothesis.words) else None


def _with_phrase(
    place: _Place, found: _End, change: float, bonus: float, tokenizer: Tokenizer, seconds: float
) -> Hypothesis:
    """The hypothesis with a phrase in its place, whose words share the time there by letters."""
    old = place.hypothesis
    before, replaced, after = old.words[: place.first], old.words[place.first : place.last], old.words[place.last :]
    begin = replaced[0].start if replaced else before[-1].end
    end = replaced[-1].end if replaced else seconds
    said = [*tokenizer.decode(found.path.carrier).split(), *found.phrase.text.split()]
    words = (*before, *in_time(said, begin, max(end, begin)), *after)
    scores = replace(old.scores, acoustic=old.scores.acoustic + change, hotword=old.scores.hotword + bonus)
    text = " ".join(word.text for word in words)
    tokens = (*place.part.known, *place.left, *found.path.carrier, *found.phrase.tokens, *place.right, *place.rest)
    return Hypothesis(tokens, text, words, scores, old.score + change + bonus)
