"""The second pass' language model as one ONNX graph with its weights inside, for plain onnxruntime."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import BundleError
from export.graphs.builder import BOOL, INT64, GraphBuilder, Value
from export.networks.language_model_shape import LanguageModelShape


def language_model_graph(
    parameters: Mapping[str, NDArray[np.floating]], shape: LanguageModelShape, words_digest: str
) -> bytes:
    """The graph of a language model from its parameters (names and shapes of ``shape.parameter_shapes()``).

    K: words of one or more texts, free. Beginnings that texts share are there once: the words are a tree. words,
    targets: int64 [K]. depths: int64 [K], how many words are before each, below ``positions``. seen: bool [K, K], true
    where the word of the row comes after the column's in a text, and for itself. log_probs: float32 [K], nats, log
    p(targets[k] | the words that k has seen). Matrices lie in it as int8. Metadata: ``positions`` and ``words_digest``,
    the word list whose ids the graph speaks. Raises BundleError for a parameter that is missing, unknown, of another
    shape or not finite."""
    expected, found = shape.parameter_shapes(), {name: value.shape for name, value in parameters.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise BundleError(f"language model {name}: found {found.get(name)}, expected {expected.get(name)}")
        if not np.isfinite(parameters[name]).all():
            raise BundleError(f"language model {name}: found values that are not finite; train it again")
    g = GraphBuilder(None, weights=parameters)
    words, depths, targets = (g.input(name, ["K"], INT64) for name in ("words", "depths", "targets"))
    mask = g.op("Where", g.input("seen", ["K", "K"], BOOL), g.single(0.0), g.single(-np.inf))
    embedding = g.rounded("embedding")
    embedded = g.multiply(g.op("Gather", embedding, _rows(g, words, shape)), g.single(shape.size**0.5))
    values = g.add(embedded, g.op("Gather", g.weight("positions"), depths))
    for index in range(shape.blocks):
        name = f"blocks.{index}"
        values = g.add(values, _attention(g, name, values, mask, shape.size, shape.heads))
        inner = _linear(g, f"{name}.inner", _norm(g, f"{name}.feed_forward_norm", values))
        values = g.add(values, _linear(g, f"{name}.outer", _gelu(g, inner)))
    logits = g.add(g.matmul(_norm(g, "norm", values), g.transpose(embedding)), g.weight("bias"))
    # The whole table is normalized, of which one value a word is needed: onnxruntime has one quick kernel for it, and
    # takes twice as long for the normalizers alone (ReduceLogSumExp).
    table = g.op("LogSoftmax", logits, axis=-1)
    log_probs = g.squeeze(g.op("GatherElements", table, g.unsqueeze(_rows(g, targets, shape), 1), axis=1), 1)
    if shape.rows < shape.words:
        log_probs = g.add(log_probs, g.op("Gather", g.weight("shares"), targets))
    g.output("log_probs", log_probs, ["K"])
    return g.finish("language_model", {"positions": shape.positions, "words_digest": words_digest})


def _rows(g: GraphBuilder, words: Value, shape: LanguageModelShape) -> Value:
    """Ids of words to rows of the embedding: the last for the boundary, the first for all words without their own."""
    if shape.rows == shape.words:
        return words
    rows, last = g.integer(shape.rows), g.op("Equal", words, g.integer(shape.words))
    return g.op("Where", g.op("Less", words, rows), words, g.op("Where", last, rows, g.integer(0)))


def _attention(g: GraphBuilder, name: str, values: Value, mask: Value, size: int, heads: int) -> Value:
    """Self-attention over [K, size], by each word to those that it has seen."""
    projected = _linear(g, f"{name}.projections", _norm(g, f"{name}.attention_norm", values))
    stacked = g.transpose(g.op("Reshape", projected, g.integers(0, 3, heads, size // heads)), 1, 2, 0, 3)
    query, key, value = (g.op("Gather", stacked, g.integer(part), axis=0) for part in range(3))
    products = g.multiply(g.matmul(query, g.transpose(key, 0, 2, 1)), g.single((size // heads) ** -0.5))
    attended = g.matmul(g.op("Softmax", g.add(products, mask), axis=-1), value)
    joined = g.op("Reshape", g.transpose(attended, 1, 0, 2), g.integers(0, size))
    return _linear(g, f"{name}.attention_output", joined)


def _gelu(g: GraphBuilder, values: Value) -> Value:
    error = g.op("Erf", g.multiply(values, g.single(2**-0.5)))
    return g.multiply(g.multiply(values, g.single(0.5)), g.add(error, g.single(1.0)))


def _linear(g: GraphBuilder, name: str, values: Value) -> Value:
    return g.add(g.matmul(values, g.transpose(g.rounded(f"{name}.weight"))), g.weight(f"{name}.bias"))


def _norm(g: GraphBuilder, name: str, values: Value) -> Value:
    scale, bias = g.weight(f"{name}.weight"), g.weight(f"{name}.bias")
    return g.op("LayerNormalization", values, scale, bias, axis=-1, epsilon=1e-5)
