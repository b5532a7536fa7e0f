"""The CTC head of the second pass as one ONNX graph with its weights inside, for plain onnxruntime."""

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.weights import architecture_digest
from device_sdk.errors import BundleError
from device_sdk.runtimes.ctc import PRONUNCIATION_KEY, Pronunciation
from device_sdk.runtimes.onnxruntime import ARCHITECTURE_KEY
from export.graphs.builder import GraphBuilder, Value


def ctc_graph(
    parameters: Mapping[str, NDArray[np.floating]], architecture: Architecture, pronunciation: Pronunciation
) -> bytes:
    """The graph of a head from its parameters (:meth:`export.networks.ctc.CtcHead.to_parameters`).

    T: frames of a whole utterance, free; J: joiner size; C: phones, and blank 0. encoded: float32 [T, J]. log_probs:
    float32 [T, C], nats. Matrices lie in it as int8. Metadata: the architecture that it listens to, and how texts are
    said in its phones. Raises BundleError for a parameter that is missing, of another shape or not finite."""
    sizes, symbols = _shapes(parameters), len(pronunciation.symbols) + 1
    cells, width = sizes["forward.R"][-1:], architecture.joiner_size
    lstm = {"W": (4 * cells[0], width), "R": (4 * cells[0], *cells), "B": (4 * cells[0],)}
    expected = {f"{name}.{part}": shape for name in DIRECTIONS for part, shape in lstm.items()}
    expected |= {"plain.weight": (symbols, width), "output.weight": (symbols, 2 * cells[0]), "output.bias": (symbols,)}
    for name, shape in expected.items():
        if sizes.get(name) != shape or not np.isfinite(parameters[name]).all():
            raise BundleError(f"ctc head {name}: found {sizes.get(name)}, expected {shape}, finite; train it again")
    g = GraphBuilder(None, weights=parameters)
    encoded = g.input("encoded", ["T", width])
    heard = g.squeeze(_both_ways(g, g.unsqueeze(encoded, 1), cells[0]), 2)
    both_ways = g.matmul(g.reshape(heard, -1, 2 * cells[0]), g.transpose(g.rounded("output.weight")))
    plain = g.matmul(g.op("Tanh", encoded), g.transpose(g.rounded("plain.weight")))
    logits = g.add(g.add(plain, both_ways), g.weight("output.bias"))
    g.output("log_probs", g.op("LogSoftmax", logits, axis=-1), ["T", symbols])
    digest = architecture_digest(architecture)
    return g.finish("ctc", {ARCHITECTURE_KEY: digest, PRONUNCIATION_KEY: pronunciation.write()})


def head_parameters(graph: bytes) -> dict[str, NDArray[np.floating]]:
    """The parameters of a head's graph, its matrices as they were rounded. Raises BundleError for another graph."""
    try:
        model = onnx.load_model_from_string(graph)
    except Exception as error:  # protobuf's own
        raise BundleError(f"ctc.onnx: cannot be read ({error}); train it again") from error
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    matrices = (f"{name}.{part}" for name in DIRECTIONS for part in "WR")
    try:
        rounded = {
            name: held[f"{name}.int8"] * held[f"{name}.scale"] for name in ("plain.weight", "output.weight", *matrices)
        }
        return rounded | {name: held[name] for name in ("output.bias", *(f"{name}.B" for name in DIRECTIONS))}
    except KeyError as error:
        raise BundleError(f"ctc.onnx: holds no {error}, so it is no CTC head; train it again") from error


DIRECTIONS = ("forward", "backward")


def _both_ways(g: GraphBuilder, x: Value, cells: int) -> Value:
    """One LSTM layer in both directions over [T, 1, J]: [T, 2, 1, S]."""

    def both(part: str) -> Value:
        read = g.weight if part == "B" else g.rounded
        return g.concat(*(g.unsqueeze(read(f"{name}.{part}"), 0) for name in DIRECTIONS), axis=0)

    # ONNX keeps input and recurrent biases apart; one merged bias and zeros are the same.
    bias = g.concat(both("B"), g.constant(np.zeros((2, 4 * cells)), "float32"), axis=1)
    return g.ops("LSTM", 3, x, both("W"), both("R"), bias, direction="bidirectional", hidden_size=cells)[0]


def _shapes(parameters: Mapping[str, NDArray[np.floating]]) -> dict[str, tuple[int, ...]]:
    if "forward.R" not in parameters:
        raise BundleError("ctc head forward.R: is missing; expected the weights of a CTC head")
    return {name: value.shape for name, value in parameters.items()}
