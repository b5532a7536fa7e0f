"""Rules of spelling, learned from words with their phones."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from device_sdk.runtimes.ctc import WINDOWS, Context, Pronunciation, context, rule
from server.lab.corpora.phones import Pronunciations

Chunk = tuple[int, ...]
"""The phones of one letter."""

_LONGEST = 3
_PASSES = 4
_UNSEEN = math.log(1e-6)


def spelling_rules(pronunciations: Pronunciations) -> Pronunciation:
    """Rules that give every word its phones, but for words that are spelled alike further than rules look.

    Letters and phones are aligned first: hard EM of what each letter stands for, none to three phones. Then the
    majority of a context is a rule wherever fewer letters around give something else."""
    words = {word: phones for word, phones in pronunciations.words.items() if word and phones}
    scores: Mapping[tuple[str, Chunk], float] = {}
    for _ in range(_PASSES):
        aligned = {word: align(word, phones, scores) for word, phones in words.items()}
        scores = _scores(aligned)
    rules: dict[Context, Chunk] = {}
    for level, window in enumerate(WINDOWS):
        counted: dict[Context, Counter[Chunk]] = defaultdict(Counter)
        example: dict[Context, tuple[str, int]] = {}
        for word, chunks in aligned.items():
            for place, chunk in enumerate(chunks):
                around = context(word, place, window)
                counted[around][chunk] += 1
                example[around] = word, place
        likeliest = {around: min(of, key=lambda one: (-of[one], one)) for around, of in counted.items()}
        fewer = WINDOWS[:level]
        rules |= {around: one for around, one in likeliest.items() if rule(rules, *example[around], fewer) != one}
    return Pronunciation(pronunciations.symbols[1:], rules)


def align(word: str, phones: Sequence[int], scores: Mapping[tuple[str, Chunk], float]) -> tuple[Chunk, ...]:
    """The phones of each letter, in order: the likeliest split. scores: log p(chunk | letter); without any, the most
    even one."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for place, letter in enumerate(word):
        reached: dict[int, tuple[float, int]] = {}
        left = len(word) - place - 1
        for begin, (score, _) in best[-1].items():
            for size in range(_LONGEST + 1):
                end = begin + size
                if end > len(phones) or len(phones) - end > _LONGEST * left:
                    continue
                even = -abs(end / len(phones) - (place + 1) / len(word)) - 0.5 * abs(size - 1)
                gained = score + (scores.get((letter, tuple(phones[begin:end])), _UNSEEN) if scores else even)
                if end not in reached or gained > reached[end][0]:
                    reached[end] = gained, begin
        best.append(reached)
    if len(phones) not in best[-1]:  # more phones than its letters can stand for: the last one takes the rest
        return (*((),) * (len(word) - 1), tuple(phones))
    chunks, end = list[Chunk](), len(phones)
    for place in range(len(word), 0, -1):
        begin = best[place][end][1]
        chunks.append(tuple(phones[begin:end]))
        end = begin
    return tuple(reversed(chunks))


def _scores(aligned: Mapping[str, Iterable[Chunk]]) -> dict[tuple[str, Chunk], float]:
    counts = Counter(pair for word, chunks in aligned.items() for pair in zip(word, chunks, strict=True))
    totals: Counter[str] = Counter()
    for (letter, _), count in counts.items():
        totals[letter] += count
    return {(letter, chunk): math.log(count / totals[letter]) for (letter, chunk), count in counts.items()}
