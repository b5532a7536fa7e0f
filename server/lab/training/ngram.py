"""Interpolated modified Kneser-Ney n-grams (Chen and Goodman, 1998) in ARPA format, which kenlm reads."""

import gzip
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from device_sdk.bundle.piece_ngram import PieceNgram
from device_sdk.errors import ConfigurationError, DataError
from rescoring.words import WordList

Gram = tuple[int, ...]
START = -1
"""``<s>`` as an id; it is only ever context. ``</s>`` has the word list's boundary id n."""
FALLBACK = (0.0, 0.5, 1.0, 1.5)
"""Discounts where the counts of counts give none (tiny or very regular text)."""


@dataclass(frozen=True, slots=True)
class Ngram:
    """A back-off model. probabilities[k - 1]: k-gram of word ids -> p(last word | words before it). backoffs[k - 1]:
    k-gram as context -> weight of the shorter context; 1 where absent."""

    words: WordList
    probabilities: tuple[Mapping[Gram, float], ...]
    backoffs: tuple[Mapping[Gram, float], ...]

    @property
    def order(self) -> int:
        return len(self.probabilities)


def estimate(
    sentences: Iterable[Sequence[int]], words: WordList, order: int = 5, cutoffs: Sequence[int] = (1,)
) -> Ngram:
    """Estimate p(w | h) over the word list (with ``<unk>``) and the end of the sentence; sums to 1 for every h.

        p(w | h) = (c(h w) - D(c(h w))) / c(h) + gamma(h) p(w | h without its first word)

    Lower orders count distinct words to the left instead of occurrences, except behind ``<s>``; below unigrams stands
    the uniform distribution, so listed words that the text lacks have a probability too.

    sentences: word ids, 0 for unlisted words. cutoffs: the least count a k-gram needs to be kept, for k = 1, 2, ...;
    the last one holds for all higher orders, and the mass of what is dropped goes to the shorter context (unigrams are
    always kept). Raises DataError where there is no sentence, ConfigurationError for an impossible order or cut-off."""
    if order < 2:
        raise ConfigurationError(f"n-gram order: found {order}, expected 2 or more")
    if not cutoffs or min(cutoffs) < 1:
        raise ConfigurationError(f"n-gram cutoffs: found {list(cutoffs)}, expected counts of 1 or more")
    counts = _adjusted_counts(sentences, words.boundary, order)
    if not counts[0]:
        raise DataError("n-gram: the text holds no sentence, expected at least one")
    kept = _kept(counts, [cutoffs[min(index, len(cutoffs) - 1)] for index in range(order)])
    vocabulary = len(words) + 1
    probabilities: list[dict[Gram, float]] = []
    backoffs: list[dict[Gram, float]] = [{} for _ in range(order)]
    for index in range(order):
        discounts = _discounts(counts[index])
        shares = {gram: count - discounts[min(count, 3)] for gram, count in counts[index].items()}
        totals: Counter[Gram] = Counter()
        held: defaultdict[Gram, float] = defaultdict(float)
        for gram, count in counts[index].items():
            totals[gram[:-1]] += count
            if gram in kept[index]:
                held[gram[:-1]] += shares[gram]
        gammas = {context: max(0.0, 1.0 - held[context] / total) for context, total in totals.items()}
        if index == 0:
            base = gammas[()] / vocabulary
            table: dict[Gram, float] = {(word,): base for word in range(vocabulary)}
            for gram, share in shares.items():
                table[gram] += share / totals[()]
        else:
            lower = probabilities[index - 1]
            table = {
                gram: shares[gram] / totals[gram[:-1]] + gammas[gram[:-1]] * lower[gram[1:]] for gram in kept[index]
            }
            backoffs[index - 1] = {gram[:-1]: gammas[gram[:-1]] for gram in table}
        probabilities.append(table)
    return Ngram(words, tuple(probabilities), tuple(backoffs))


def log_probabilities(model: Ngram, sentence: Sequence[int]) -> list[float]:
    """log p of each word of a sentence and of its end, nats: [len(sentence) + 1]. Word ids, 0 for unlisted words."""
    history: Gram = (START,)
    values = []
    for word in (*sentence, model.words.boundary):
        context, weight = history[-(model.order - 1) :], 0.0
        while context and (*context, word) not in model.probabilities[len(context)]:
            weight += math.log(model.backoffs[len(context) - 1].get(context, 1.0))
            context = context[1:]
        values.append(weight + math.log(model.probabilities[len(context)][(*context, word)]))
        history = (*history, word)
    return values


def perplexity(model: Ngram, sentences: Iterable[Sequence[int]]) -> float:
    """Perplexity per word, ends of sentences included."""
    values = [value for sentence in sentences for value in log_probabilities(model, sentence)]
    return math.exp(-sum(values) / len(values)) if values else math.nan


def over_pieces(model: Ngram) -> PieceNgram:
    """The automaton of an n-gram whose words are pieces; the ends of sentences are left out of it."""
    end, contexts = model.words.boundary, [(), (START,)]
    for index in range(1, model.order):
        contexts += sorted({gram[:-1] for gram in model.probabilities[index]} - {(START,)})
    place = {context: number for number, context in enumerate(contexts)}

    def known(context: Gram) -> int:
        while context not in place:
            context = context[1:]
        return place[context]

    arcs: list[list[Gram]] = [[] for _ in contexts]
    for table in model.probabilities:
        for gram in sorted(table):
            if gram[-1] != end:
                arcs[place[gram[:-1]]].append(gram)
    grams = [gram for each in arcs for gram in each]
    return PieceNgram(
        first=np.cumsum([0, *map(len, arcs)], dtype=np.int32),
        pieces=np.array([gram[-1] for gram in grams], np.uint16),
        nats=np.array([math.log(model.probabilities[len(gram) - 1][gram]) for gram in grams], np.float32),
        following=np.array([known(gram[-(model.order - 1) :]) for gram in grams], np.int32),
        backoff=np.array([_backoff(model, context) for context in contexts], np.float32),
        shorter=np.array([known(context[1:]) for context in contexts], np.int32),
    )


def _backoff(model: Ngram, context: Gram) -> float:
    weight = model.backoffs[len(context) - 1].get(context, 1.0) if context else 1.0
    return math.log(max(weight, 1e-30))


def write_arpa(model: Ngram, path: Path) -> None:
    """Write the model line by line; gzipped (and the same bytes each time) where the name ends in ``.gz``."""
    with path.open("wb") as file:
        zipped = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.suffix == ".gz" else nullcontext(file)
        with zipped as out:
            out.writelines(arpa_lines(model))


def arpa_lines(model: Ngram) -> Iterator[bytes]:
    """The model's ARPA file."""
    names = {**dict(enumerate(model.words.words)), model.words.boundary: "</s>", START: "<s>"}
    sizes = [len(table) + (index == 0) for index, table in enumerate(model.probabilities)]
    yield "".join(["\\data\\\n", *(f"ngram {order}={size}\n" for order, size in enumerate(sizes, start=1))]).encode()
    for index, table in enumerate(model.probabilities):
        yield f"\n\\{index + 1}-grams:\n".encode()
        if index == 0:
            yield f"-99\t<s>\t{_log10(model.backoffs[0].get((START,), 1.0))}\n".encode()
        for gram in sorted(table):
            line = f"{_log10(table[gram])}\t{' '.join(names[word] for word in gram)}"
            backoff = model.backoffs[index].get(gram)
            yield f"{line}\n".encode() if backoff is None else f"{line}\t{_log10(backoff)}\n".encode()
    yield b"\n\\end\\\n"


def _log10(value: float) -> str:
    return f"{math.log10(value) if value > 0 else -99.0:.6g}"


def _adjusted_counts(sentences: Iterable[Sequence[int]], end: int, order: int) -> list[Counter[Gram]]:
    """[k - 1]: counts of k-grams; of occurrences at the highest order and behind <s>, of left neighbours elsewhere."""
    raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        symbols = (START, *sentence, end)
        for stop in range(2, len(symbols) + 1):
            # A history shorter than the order always starts with <s>.
            raw[min(order, stop) - 1][symbols[max(0, stop - order) : stop]] += 1
    for index in range(order - 1, 0, -1):
        for gram in raw[index]:
            raw[index - 1][gram[1:]] += 1
    return raw


def _kept(counts: Sequence[Mapping[Gram, int]], cutoffs: Sequence[int]) -> list[set[Gram]]:
    """What reaches the cut-off, with the context and the shorter form of everything kept: the model stays a trie."""
    kept = [{gram for gram, count in counts[index].items() if count >= cutoffs[index]} for index in range(len(counts))]
    kept[0] = set(counts[0])
    for index in range(len(counts) - 1, 1, -1):
        kept[index - 1] |= {gram[:-1] for gram in kept[index]} | {gram[1:] for gram in kept[index]}
    return kept


def _discounts(counts: Mapping[Gram, int]) -> tuple[float, float, float, float]:
    """D(0..3+) from the counts of counts; the fallback where they give a discount outside (0, count]."""
    found = Counter(count for count in counts.values() if count <= 4)
    ones, twos = found[1], found[2]
    if not (ones and twos and found[3]):
        return FALLBACK
    share = ones / (ones + 2 * twos)
    values = [count - (count + 1) * share * found[count + 1] / found[count] for count in (1, 2, 3)]
    if not all(0 < value <= count for count, value in enumerate(values, start=1)):
        return FALLBACK
    return (0.0, values[0], values[1], values[2])
