"""From paths of a beam to the n-best list an app sees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from device_sdk.bundle.tokenizer import Tokenizer
from device_sdk.decoding.beam import Path
from device_sdk.decoding.spellings import Spellings, written, written_words
from device_sdk.hypothesis import Hypothesis, Scores, Word

__all__ = ["distinct", "word_times"]


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
    """Words with the times of the frames that emitted their first and last pieces.

    frames: the emitting frame of each token; frame_seconds: length of one; seconds: of the audio, an upper bound.
    known: words of other hypotheses, which share most of theirs; new ones are added.
    """
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
    length_normalization: float = 0.0,
    spellings: Spellings | None = None,
) -> tuple[Hypothesis, ...]:
    """One hypothesis per text, best first: the best tokens for it, and the sum of the probabilities of all of them.

    length_normalization: scores are divided by the number of these tokens to this power. spellings: texts and words
    hold the phrases in place of these, and tokens what was heard.
    """
    chosen: dict[str, Path] = {}
    totals: dict[str, float] = {}
    for path in sorted(paths, key=lambda path: -path.rank):
        text = tokenizer.decode(path.tokens)
        if spellings is not None:
            text = written(text, spellings)
        if text in chosen:
            totals[text] = float(np.logaddexp(totals[text], path.score))
        else:
            chosen[text], totals[text] = path, path.score
    scores = {
        text: (totals[text] + path.bonus) / max(1, len(path.tokens)) ** length_normalization
        for text, path in chosen.items()
    }
    known: Known = {}
    found: list[Hypothesis] = []
    for text, path in sorted(chosen.items(), key=lambda item: -scores[item[0]]):
        words = word_times(path.tokens, path.frames, tokenizer, frame_seconds, seconds, known)
        if spellings is not None:
            words = written_words(words, spellings)
        parts = Scores(acoustic=totals[text], ngram=path.ngram, hotword=path.hotword)
        found.append(Hypothesis(path.tokens, text, words, parts, scores[text]))
    return tuple(found)
