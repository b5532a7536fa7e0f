"""Runs that make what the second pass needs: the neural language model, the n-gram and the background unigram.

They learn from the command grammar's base split and from sentences that the user gives."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from device_sdk.bundle import piece_ngram as piece_ngrams
from device_sdk.bundle.bundle import Tokenizer
from device_sdk.errors import DataError, MissingExtraError
from export.graphs.language_model import language_model_graph
from export.networks.language_model_shape import LanguageModelShape
from rescoring.words import UNKNOWN, WordList
from server.lab.corpora import grammar
from server.lab.corpora.roles import Role
from server.lab.training import ngram
from server.lab.training.language_model import LanguageModelSettings, perplexity, train_language_model
from server.lab.training.pieces import read_sentences
from server.lab.training.trainer import write_atomically

HELD_OUT = 1000
"""Sentences of the grammar's held-out split that a run is measured on."""


@dataclass(frozen=True, slots=True)
class TextSources:
    """words: the word list's file. texts: files of sentences. sentences: how many of the grammar's base split.
    held_out: files of sentences to report perplexity on, never trained on."""

    words: Path
    texts: tuple[Path, ...] = ()
    sentences: int = 20_000
    held_out: tuple[Path, ...] = ()
    seed: int = 0


def run_language_model(
    sources: TextSources,
    out: Path,
    sizes: dict[str, Any],
    settings: LanguageModelSettings,
    command: str,
    report: Callable[[float, float], None] | None = None,
) -> dict[str, Any]:
    """Train, write OUT/language_model.onnx and language_model.json, and return what the latter holds."""
    words = read_word_list(sources.words)
    shape, unfinished = LanguageModelShape(len(words), **sizes), out / "language_model.run"
    text = background_text(sources.texts, sources.sentences, sources.seed)
    shares = None if shape.rows == len(words) else _shares(background_unigram(text, words), shape.rows)
    model = train_language_model([words.ids(one) for one in text], shape, settings, report, unfinished, shares)
    parameters = {name: value.numpy() for name, value in model.state_dict().items()}
    graph = language_model_graph(parameters, shape, words.digest)
    out.mkdir(parents=True, exist_ok=True)
    (out / "language_model.onnx").write_bytes(graph)
    figures = {
        "shape": asdict(shape),
        "training": asdict(settings),
        "parameters": sum(value.numel() for value in model.parameters()),
        "bytes": len(graph),
    }
    described, measure = out / "language_model.json", partial(perplexity, model)
    summary = _described(sources, words, command, figures, "perplexity", measure, described)
    shutil.rmtree(unfinished)  # other text may come into this folder
    return summary


def run_words(sources: TextSources, size: int, command: str) -> dict[str, Any]:
    """Write the word list that ``sources.words`` names, most frequent words first, and words.json beside it; return
    what the latter holds. Listed are the grammar's words and the most frequent English ones, of which every source
    counts the same, however long: each text, the grammar, and how frequent words are in English at large. So fragments
    of words, and names that only one text has, are left out. Raises MissingExtraError without wordfreq."""
    try:
        from wordfreq import get_frequency_dict
    except ImportError as error:
        raise MissingExtraError(f"{error}; run: pip install 'idiolect-server[train]'") from error
    english = {word: share for word, share in get_frequency_dict("en").items() if re.fullmatch("[a-z][a-z']*", word)}
    scores = Counter[str](english)
    for text in (*map(read_sentences, sources.texts), grammar_text(sources.sentences, sources.seed)):
        counts = Counter(word for sentence in text for word in sentence.split())
        scores.update({word: count / counts.total() for word, count in counts.items()})
    ranked = sorted(scores, key=lambda word: (-scores[word], word))
    said = set(grammar.vocabulary())
    chosen = said | set(
        [word for word in ranked if word in english and word not in said][: max(0, size - 1 - len(said))]
    )
    words = WordList((UNKNOWN, *(word for word in ranked if word in chosen), *sorted(said - scores.keys())))
    write_atomically(sources.words, words.text().encode())

    def coverage(sentences: list[list[int]]) -> float:
        return 100 * float(np.mean([word != 0 for sentence in sentences for word in sentence]))

    figures = {"bytes": sources.words.stat().st_size}
    return _described(sources, words, command, figures, "coverage", coverage, sources.words.with_suffix(".json"))


PIECE_ORDER, PIECE_CUTOFFS = 6, (1, 2, 4, 6)
"""Of the n-gram over pieces."""


def run_ngram(
    sources: TextSources,
    out: Path,
    order: int,
    cutoffs: Sequence[int],
    command: str,
    tokenizer: Path | None = None,
) -> dict[str, Any]:
    """Estimate, write OUT/ngram.arpa.gz, background.safetensors and ngram.json, and return what the latter holds.
    tokenizer: over whose pieces there is to be another one, for the first pass."""
    words = read_word_list(sources.words)
    if tokenizer is not None and not tokenizer.is_file():
        raise DataError(f"{tokenizer}: no such tokenizer; expected the tokenizer.model of a run or of a bundle")
    sentences = background_text(sources.texts, sources.sentences, sources.seed)
    model = ngram.estimate([words.ids(sentence) for sentence in sentences], words, order, cutoffs)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "ngram.arpa.gz"
    ngram.write_arpa(model, path)
    save_file({"unigram": background_unigram(sentences, words)}, out / "background.safetensors")
    if tokenizer is not None:
        pieces = Tokenizer(tokenizer.read_bytes(), str(tokenizer))
        symbols = WordList((UNKNOWN, *map(str, range(1, pieces.size))))
        estimated = ngram.estimate(map(pieces.encode, sentences), symbols, PIECE_ORDER, PIECE_CUTOFFS)
        content = piece_ngrams.serialize(ngram.over_pieces(estimated))
        write_atomically(out / piece_ngrams.PIECE_NGRAM_FILE, content)
    sizes = [len(table) for table in model.probabilities]
    figures = {"order": order, "cutoffs": list(cutoffs), "ngrams": sizes, "bytes": path.stat().st_size}
    measure = partial(ngram.perplexity, model)
    return _described(sources, words, command, figures, "perplexity", measure, out / "ngram.json")


def _described(
    sources: TextSources,
    words: WordList,
    command: str,
    figures: dict[str, Any],
    name: str,
    measure: Callable[[list[list[int]]], float],
    path: Path,
) -> dict[str, Any]:
    """Write what a model was made from, its figures, and the named measure of it on the texts held out from it."""
    held_out = {"grammar": grammar_text(min(HELD_OUT, sources.sentences), sources.seed, "heldout")}
    held_out |= {_title(file): read_sentences(file) for file in sources.held_out}
    summary = {
        "command": command,
        "seed": sources.seed,
        "words": len(words),
        "words_digest": words.digest,
        "grammar_sentences": sources.sentences,
        "texts": [_title(file) for file in sources.texts],
        **figures,
        name: {title: measure([words.ids(one) for one in text]) for title, text in held_out.items() if text},
    }
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _title(source: Path) -> str:
    """Tables of several corpora have one name, so that their folder's is needed, too."""
    return "/".join(source.parts[-2:]) if ".jsonl" in source.name else source.name


def _shares(unigram: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """log of the share that each word, and the boundary [n + 1], has of the words with its row of the embedding."""
    shares = np.zeros(len(unigram) + 1)
    together = np.r_[0, rows : len(unigram)]
    shares[together] = np.log(unigram[together] / unigram[together].sum())
    return shares


def grammar_text(count: int, seed: int, split: Role = "base") -> list[str]:
    """``count`` sentences drawn from one split of the command grammar; common ones repeat."""
    generator = np.random.default_rng(seed)
    return [grammar.sample(generator, split).text for _ in range(count)]


def background_text(texts: Sequence[Path], sentences: int, seed: int) -> list[str]:
    """Sentences of the grammar's base split and of text files (one sentence a line, each distinct one once), shuffled.
    Raises DataError for a file that is missing or empty, and where there is no sentence at all."""
    text = grammar_text(sentences, seed) + [line for path in texts for line in read_sentences(path)]
    if not text:
        raise DataError("background text: found no sentence; raise --sentences or give --text")
    return [text[index] for index in np.random.default_rng(seed).permutation(len(text))]


def background_unigram(sentences: Iterable[str], words: WordList) -> NDArray[np.float64]:
    """u of Liu & Peng 2020: the text's word distribution over the list -> float64 [n], positive, sums to 1. Every count
    has 0.5 added, so that a listed word the text lacks has a probability too (eq. 1 divides by it)."""
    counts = Counter(word for sentence in sentences for word in words.ids(sentence))
    values = np.array([counts[word] + 0.5 for word in range(len(words))])
    return values / values.sum()


def read_word_list(path: Path) -> WordList:
    """Read ``words.txt``. Raises DataError naming the file and line."""
    if not path.is_file():
        raise DataError(f"{path}: no such word list; expected one word a line, <unk> first")
    try:
        return WordList.parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
