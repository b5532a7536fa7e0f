"""Decoding: the speeds of :mod:`export.benchmarks.decode`, and what pruning and int8 cost in word error.

Word errors are of real coffee orders by speakers that the packaged weights were not trained on; they need the folder
that ``IDIOLECT_DATA`` names, and are left out without it."""

import os
from functools import partial
from math import inf
from pathlib import Path

from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.commands.workers import FILE_BLOCK
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.runtimes.onnxruntime import PRECISIONS, Precision
from export.benchmarks import decode
from server.lab.corpora import Corpus, open_corpus
from server.lab.corpora.roles import UNHEARD, card_voices, scoring
from server.lab.evaluation.scores import evaluate

PRUNED, INT8 = 0.1, 0.3  # points of word error that they may cost


def benchmark(bundle: Path | None = None) -> list[Figure]:
    """Speeds, then word errors where there is speech with transcripts. bundle: by default the packaged one, whose word
    errors alone are counted."""
    figures = decode.benchmark(bundle)
    if bundle is not None:
        return figures
    packaged = Bundle.open()
    corpus = unseen_speech(packaged)
    return figures if corpus is None else [*figures, *word_errors(packaged, corpus)]


def unseen_speech(bundle: Bundle) -> Corpus | None:
    """``barista`` by the speakers that the bundle's training left out; None without ``IDIOLECT_DATA``."""
    data = os.environ.get("IDIOLECT_DATA")
    folder = Path(data) / "barista" if data else None
    if folder is None or not folder.is_dir():
        return None
    return open_corpus(f"barista:{folder}", UNHEARD, role=scoring(card_voices(bundle)))


def word_errors(bundle: Bundle, corpus: Corpus) -> list[Figure]:
    """Word errors in % at beam 8, and what pruning and int8 add to them, in points."""
    second_pass = Rescorer(bundle).rescore

    def percent(precision: Precision, rescored: bool = False, beam: int = 8, **more: float) -> float:
        settings = DecodingSettings(beam=beam, nbest=beam, **more)  # type: ignore[arg-type]
        recognizer = Recognizer(bundle, settings, second_pass if rescored else None, precision=precision)
        return 100.0 * (evaluate(partial(recognizer.recognize, sample_rate=16_000), corpus).wer or 0.0)

    what, unit = f"{len(corpus)} utterances of {corpus.name}", "% of words"
    beam, unpruned, quick = percent("float32"), percent("float32", threshold=inf), percent("int8")
    rescored, quick_rescored = percent("float32", rescored=True), percent("int8", rescored=True)
    greedy, quick_greedy = percent("float32", beam=1), percent("int8", beam=1)
    files, quick_files = (percent(precision, block_seconds=FILE_BLOCK) for precision in PRECISIONS)

    def added(how: str, points: float, target: float) -> Figure:
        return Figure(f"word error that {how}", "points", points, target=target, lower_is_better=True)

    return [
        Figure(f"word error at beam 8, float32, {what}", unit, beam, "unpruned", unpruned),
        added("pruning adds", beam - unpruned, PRUNED),
        Figure("word error at beam 8, int8", unit, quick, "float32", beam),
        added("int8 adds at beam 8", quick - beam, INT8),
        Figure("word error at beam 8, rescored, int8", unit, quick_rescored, "float32", rescored),
        added("int8 adds at beam 8, rescored", quick_rescored - rescored, INT8),
        Figure("word error of greedy search, int8", unit, quick_greedy, "float32", greedy),
        added("int8 adds to greedy search", quick_greedy - greedy, INT8),
        Figure("word error at beam 8, files, float32", unit, files, "in blocks of 300 ms", beam),
        Figure("word error at beam 8, files, int8", unit, quick_files, "in blocks of 300 ms", quick),
    ]
