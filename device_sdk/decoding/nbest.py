"""From paths of a beam to the n-best list an app sees, with the confidence of its words.

A word's posterior is the summed probability of the hypotheses that have the same word at the same place; how probable
each hypothesis is follows from its score. What a bundle's calibration makes of posteriors agrees with how often words
were right on development data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.decoding.beam import Path
from device_sdk.decoding.hotwords import Spellings, write_phrases, write_words
from device_sdk.hypothesis import Hypothesis, Scores, Word
from rescoring.combination import Calibration, CombinationWeights, combine, confidence
from rescoring.marginals import posteriors

Known = dict[tuple[tuple[int, ...], int, int], Word | None]
"""Words by their tokens and the frames of the first and the last; None for tokens without text."""


def word_times(
    tokens: tuple[int, ...],
    frames: Sequence[int],
    tokenizer: Tokenizer,
    frame_seconds: float,
    seconds: float,
    known: Known | None = None,
) -> tuple[Word, ...]:
    """Words with the times of the frames that emitted their first and last pieces. frames: the emitting frame of each
    token; frame_seconds: length of one; seconds: of the audio, an upper bound. known: words of other hypotheses, which
    share most of theirs; new ones are added."""
    known = {} if known is None else known
    starts_word = tokenizer.starts_word
    starts = [i for i, token in enumerate(tokens) if i == 0 or starts_word(token)]
    words: list[Word] = []
    begin = 0  # a piece that is a bare word boundary has no text: it belongs to the word that follows
    for _, end in pairwise([*starts, len(tokens)]):
        key = (tokens[begin:end], frames[begin], frames[end - 1])
        if key in known:
            word = known[key]
        else:
            text = tokenizer.decode(key[0])
            first, last = min(key[1] * frame_seconds, seconds), min((key[2] + 1) * frame_seconds, seconds)
            word = known[key] = Word(text, first, last) if text else None
        if word is not None:
            words.append(word)
            begin = end
    return tuple(words)


def distinct(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    frame_seconds: float,
    seconds: float,
    spellings: Spellings | None = None,
) -> tuple[Hypothesis, ...]:
    """One hypothesis per text, best first: the best tokens for it, and the sum of the probabilities of all of them.
    spellings: texts and words hold the phrases in place of these, and tokens what was heard."""
    chosen: dict[str, Path] = {}
    totals: dict[str, float] = {}
    for path in sorted(paths, key=lambda path: -path.rank):
        text = tokenizer.decode(path.tokens)
        if spellings is not None:
            text = write_phrases(text, spellings)
        if text in chosen:
            totals[text] = float(np.logaddexp(totals[text], path.score))
        else:
            chosen[text], totals[text] = path, path.score
    scores = {text: totals[text] + path.hotword + path.pieces for text, path in chosen.items()}
    known: Known = {}
    found: list[Hypothesis] = []
    for text, path in sorted(chosen.items(), key=lambda item: -scores[item[0]] / item[1].length):
        words = word_times(path.tokens, path.frames, tokenizer, frame_seconds, seconds, known)
        if spellings is not None:
            words = write_words(words, spellings)
        parts = Scores(acoustic=totals[text], hotword=path.hotword, pieces=path.pieces)
        found.append(Hypothesis(path.tokens, text, words, parts, scores[text]))
    return tuple(found)


def likeliest(hypotheses: Sequence[Hypothesis], weights: CombinationWeights, most: int) -> Sequence[Hypothesis]:
    """The at most ``most`` hypotheses, in their order, that all scores but those of language models make the best."""
    if len(hypotheses) <= most:
        return hypotheses
    total = combine(
        weights,
        acoustic=np.array([each.scores.acoustic for each in hypotheses]),
        words=np.array([len(each.words) for each in hypotheses], np.float64),
        hotword=np.array([each.scores.hotword + each.scores.pieces for each in hypotheses]),
        ctc=np.array([each.scores.ctc for each in hypotheses]),
    )
    return [hypotheses[at] for at in sorted(np.argsort(-total, kind="stable")[:most].tolist())]


_SAME_SECONDS = 0.05
_BY_TIME = 1e-3  # what a second between two equal words costs, in edits: it only settles ties


def with_confidence(hypotheses: Sequence[Hypothesis], calibration: Calibration) -> tuple[Hypothesis, ...]:
    """The same hypotheses, each with its confidence and each word with its own, in [0, 1]. hypotheses: all that are
    known of one utterance (more than are shown make posteriors better), with final scores. The probability of an
    alternative is in no confidence of the others, so those of a list need not sum to 1."""
    if not hypotheses:
        return ()
    shares = posteriors(np.array([each.score for each in hypotheses]), calibration.scale)
    covered = coverage(hypotheses)
    of_text, of_word = calibration.text, calibration.word
    if len(hypotheses) == 1:
        of_text, of_word = calibration.greedy_text, calibration.greedy_word
    lengths = np.array([len(each.words) for each in hypotheses])
    texts = confidence(of_text, shares, covered, lengths).tolist()
    words = np.array([share for part in word_posteriors(hypotheses, shares.tolist()) for share in part])
    sure = iter(confidence(of_word, words, covered, np.repeat(lengths, lengths)).tolist())
    return tuple(
        [
            Hypothesis(
                each.tokens,
                each.text,
                tuple([Word(word.text, word.start, word.end, next(sure)) for word in each.words]),
                each.scores,
                each.score,
                text,
            )
            for each, text in zip(hypotheses, texts, strict=True)
        ]
    )


def coverage(hypotheses: Sequence[Hypothesis]) -> float:
    """log of the probability that the transducer gives to all these hypotheses together, at most 0."""
    return min(float(np.logaddexp.reduce([each.scores.acoustic for each in hypotheses])), 0.0)


def word_posteriors(hypotheses: Sequence[Hypothesis], shares: Sequence[float]) -> list[list[float]]:
    """For each hypothesis, the summed share [words] of those that agree with each of its words. shares: [N], sum 1."""
    found = [[share] * len(each.words) for each, share in zip(hypotheses, shares, strict=True)]
    for index, one in enumerate(hypotheses):
        mine, share = found[index], shares[index]
        for other in range(index):
            theirs, theirs_share = found[other], shares[other]
            words, others = one.words, hypotheses[other].words
            # Most words of two hypotheses are the same at the same place: before and after what differs.
            shorter = min(len(words), len(others))
            begin = end = 0
            while begin < shorter and words[begin] is others[begin]:
                begin += 1
            while end < shorter - begin and words[-1 - end] is others[-1 - end]:
                end += 1
            for at in range(begin):
                mine[at] += theirs_share
                theirs[at] += share
            if begin + end < shorter:
                first, last = words[begin : len(words) - end], others[begin : len(others) - end]
                for here, there in agreement(first, last):
                    mine[begin + here] += theirs_share
                    theirs[begin + there] += share
            for at in range(1, end + 1):
                mine[-at] += theirs_share
                theirs[-at] += share
    return found


def agreement(one: Sequence[Word], other: Sequence[Word]) -> list[tuple[int, int]]:
    """Places of the words that two hypotheses share, in order: equal words, each used once. Words equal in text and
    time are pairs at once. What lies between is aligned with the fewest edits, then the nearest in time."""
    pairs: list[tuple[int, int]] = []
    i = j = begun_i = begun_j = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        if a.text == b.text and abs(a.end - b.end) <= _SAME_SECONDS:
            if i > begun_i and j > begun_j:
                pairs += _aligned(one, other, begun_i, i, begun_j, j)
            pairs.append((i, j))
            i, j = i + 1, j + 1
            begun_i, begun_j = i, j
        elif a.end <= b.end:
            i += 1
        else:
            j += 1
    pairs += _aligned(one, other, begun_i, len(one), begun_j, len(other))
    return pairs


def _aligned(
    one: Sequence[Word], other: Sequence[Word], first: int, last: int, start: int, stop: int
) -> list[tuple[int, int]]:
    """Equal words in the alignment of ``one[first:last]`` and ``other[start:stop]`` with the fewest edits."""
    pairs: list[tuple[int, int]] = []
    if not {word.text for word in one[first:last]}.intersection([word.text for word in other[start:stop]]):
        return pairs
    rows: list[list[float]] = [[float(j) for j in range(stop - start + 1)]]
    for i in range(first, last):
        word, above = one[i], rows[-1]
        row = [above[0] + 1]
        for j in range(start, stop):
            row.append(min(above[j - start] + _cost(word, other[j]), above[j - start + 1] + 1, row[-1] + 1))
        rows.append(row)
    i, j = last, stop
    while i > first and j > start:
        here, cost = rows[i - first][j - start], _cost(one[i - 1], other[j - 1])
        if here == rows[i - first - 1][j - start - 1] + cost:
            i, j = i - 1, j - 1
            if cost < 1:
                pairs.append((i, j))
        elif here == rows[i - first - 1][j - start] + 1:
            i -= 1
        else:
            j -= 1
    pairs.reverse()
    return pairs


def _cost(a: Word, b: Word) -> float:
    if a.text != b.text:
        return 1.0
    return min(_BY_TIME * abs(a.end - b.end), 0.5)
