"""A bundle of the ``tiny`` preset with seeded random weights: small, quick, and it emits tokens."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.runtimes.ctc import FILE as CTC_FILE
from device_sdk.runtimes.ctc import Pronunciation
from device_sdk.runtimes.onnxruntime import exact_products
from export.bundles import mean, rewrite, write_bundle
from export.graphs.ctc import ctc_graph
from export.graphs.language_model import language_model_graph
from export.networks.language_model_shape import LanguageModelShape
from rescoring.combination import CombinationWeights
from rescoring.words import UNKNOWN, WordList
from server.lab.training.ngram import arpa_lines, estimate

EXACT_INT8 = pytest.mark.skipif(
    not exact_products(Bundle.open()), reason="this processor clamps sums of bytes: int8 is no exact arithmetic there"
)
SENTENCES = (
    "turn on the light in the kitchen",
    "turn off the light in the bedroom",
    "play some jazz in the living room",
    "set a timer for ten minutes",
    "set an alarm for seven in the morning",
    "call my sister on her phone",
    "what is the weather like today",
    "make the music a little louder",
    "stop the radio please",
    "open the door of the garage",
    "close the window upstairs",
    "i would like a large coffee with milk",
    "a small tea without sugar please",
    "two croissants and one espresso",
    "add bread and butter to my list",
    "remind me to water the plants",
    "how long does it take to walk home",
    "read me the news of this week",
    "dim the lamp next to the sofa",
    "don't wake me before eight o'clock",
)


def tiny_weights(architecture: Architecture, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights, large enough that audio moves the scores; blank is favoured as in a trained model."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in architecture.parameter_shapes().items():
        weights[name] = rng.normal(0.0, 1.5 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.1, shape).astype(np.float32)
    for name, gain in (("joiner.output.weight", 4.0), ("predictor.embedding", 2.0), ("joiner.predictor.weight", 2.0)):
        weights[name] *= np.float32(gain)
    weights["joiner.output.bias"][0] += 5.0
    weights["features.mean"] = np.full(architecture.mel_bins, -6.0, np.float32)
    weights["features.scale"] = np.full(architecture.mel_bins, 0.25, np.float32)
    return weights


def tiny_tokenizer(pieces: int) -> bytes:
    """A SentencePiece model trained in process on :data:`SENTENCES`."""
    import sentencepiece

    model = io.BytesIO()
    options = {"vocab_size": pieces, "model_type": "unigram", "character_coverage": 1.0, "num_threads": 1}
    ids = {"unk_id": 0, "bos_id": -1, "eos_id": -1, "pad_id": -1}
    written = {"normalization_rule_name": "identity", "model_writer": model, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), **options, **ids, **written)
    return model.getvalue()


def tiny_words() -> WordList:
    return WordList((UNKNOWN, *sorted({word for sentence in SENTENCES for word in sentence.split()})))


def tiny_background(words: WordList) -> NDArray[np.float64]:
    counts = np.ones(len(words))
    np.add.at(counts, words.ids(" ".join(SENTENCES)), 1.0)
    return np.asarray(counts / counts.sum(), np.float64)


def tiny_language_model(words: WordList, seed: int = 0) -> bytes:
    """A Transformer with random weights, two blocks and eight positions, so that sentences need windows."""
    shape = LanguageModelShape(len(words), size=8, feed_forward=16, blocks=2, heads=2, positions=8)
    rng = np.random.default_rng(seed)
    parameters = {name: rng.normal(0.0, 0.3, size) for name, size in shape.parameter_shapes().items()}
    return language_model_graph(parameters, shape, words.digest)


def tiny_ctc_head(bundle: Bundle, seed: int = 0) -> bytes:
    """A head with random weights, of seven cells, that listens to a bundle."""
    architecture, spelled, cells = bundle.lstm, tiny_pronunciation(bundle), 7
    phones, width = 1 + len(spelled.symbols), architecture.joiner_size
    shapes = {"plain.weight": (phones, width), "output.weight": (phones, 2 * cells), "output.bias": (phones,)}
    for name in ("forward", "backward"):
        lstm = {"W": (4 * cells, width), "R": (4 * cells, cells), "B": (4 * cells,)}
        shapes |= {f"{name}.{part}": shape for part, shape in lstm.items()}
    rng = np.random.default_rng(seed)
    return ctc_graph({name: rng.normal(0.0, 0.5, shape) for name, shape in shapes.items()}, architecture, spelled)


def with_ctc_head(bundle: Bundle, folder: Path, weight: float = 0.5) -> Bundle:
    """The bundle with such a head, and its weight. folder: where it is written."""
    (folder / CTC_FILE).write_bytes(tiny_ctc_head(bundle))
    made = mean(bundle, {}, folder / "bundle", version="2", models=[folder / CTC_FILE])
    return Bundle.open(rewrite(Bundle.open(made), made, combination=replace(bundle.combination, ctc=weight)))


def tiny_pronunciation(bundle: Bundle) -> Pronunciation:
    """Every letter is a phone."""
    letters = tuple(sorted(bundle.tokenizer.letters))
    return Pronunciation(letters, {(letter, "", ""): (number,) for number, letter in enumerate(letters, 1)})


def tiny_parts(seed: int = 0, architecture: Architecture = PRESETS["tiny"]) -> dict[str, Any]:
    """What every bundle needs, as :func:`write_bundle` takes it."""
    words, card = tiny_words(), {"description": "random weights for tests", "seed": seed}
    named = {"name": "tiny", "version": f"tiny-{seed}", "card": card, "licence": "Apache-2.0\n"}
    heard = {"architecture": architecture, "weights": tiny_weights(architecture, seed)}
    read = {"words": words, "background": tiny_background(words), "combination": CombinationWeights()}
    return named | heard | read | {"tokenizer_model": tiny_tokenizer(architecture.pieces)}


def write_tiny_bundle(out: Path, seed: int = 0, architecture: Architecture = PRESETS["tiny"]) -> Path:
    words = tiny_words()
    trigram = b"".join(arpa_lines(estimate([words.ids(sentence) for sentence in SENTENCES], words, order=3)))
    return write_bundle(
        out,
        **tiny_parts(seed, architecture),
        models={"language_model.onnx": tiny_language_model(words, seed), "ngram.arpa": trigram},
        training={"seed": seed},
        created="2026-01-01T00:00:00+00:00",
    )
