"""From a folder of sherpa-onnx's layout to what a bundle holds of a transducer: graphs, weights, pieces, features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.streaming import StatelessPredictor, StreamingArchitecture
from device_sdk.bundle.weights import pack
from device_sdk.errors import BundleError, ConfigurationError, IdiolectError
from device_sdk.features.logmel import FeatureSettings
from device_sdk.runtimes.onnxruntime import open_session, run
from export.autodiff import NotDifferentiable
from export.graphs.streaming import joiner as joiner_graph
from export.graphs.streaming import predictor as predictor_graph
from export.graphs.training import training
from export.imports.encoder import Encoder, adapt, family_of, packed_graph
from export.imports.folder import Graph, SherpaFolder, open_folder
from export.imports.heads import Joiner, Predictor, join, read_joiner, read_predictor
from export.imports.learning import learning_graphs
from export.imports.pieces import blank_of, piece_model

_CLOSE = 2e-3  # nats, of log-probabilities; graphs of bytes differ by their rounding
_ROWS = 16
_NEMO_SYMBOLS = 10  # a frame, as sherpa-onnx decodes them

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Imported:
    """graphs: by the names of a bundle's files. family: as :func:`export.imports.encoder.family_of` has it.
    metadata: of the encoder's graph, for who writes the folder again. not_differentiable: why its encoder cannot learn,
    where it cannot."""

    architecture: StreamingArchitecture
    graphs: Mapping[str, bytes]
    weights: Mapping[str, Float]
    tokenizer_model: bytes
    features: FeatureSettings
    family: str
    metadata: Mapping[str, str]
    not_differentiable: str = ""


def import_sherpa(path: str | Path) -> Imported:
    """Read, check and try a folder. Raises :class:`BundleError` that names the file, what was found, what was expected.
    Prediction network and joiner become weights of known networks (Ghodsi et al. 2020; Graves 2012), which gradients
    exist for; what these compute is compared with the folder's graphs. The encoder's graph stays as it is."""
    try:
        return _imported(open_folder(path))
    except IdiolectError:
        raise
    except Exception as error:  # of onnx, onnxruntime or numpy, over a file that lies
        raise BundleError(f"{path}: cannot be imported ({type(error).__name__}: {str(error)[:300]})") from error


def _imported(folder: SherpaFolder) -> Imported:
    pieces, family = len(folder.tokens), family_of(folder.encoder)
    source = str(folder.path / "tokens.txt")
    blank = blank_of(folder.tokens, source)
    joiner = read_joiner(folder.joiner, pieces)
    context = folder.decoder.number("context_size") if family == "zipformer2" else 0
    predictor = read_predictor(folder.decoder, pieces, joiner.predictor, context)
    encoder = adapt(folder.encoder, joiner.encoder, predictor.bias)
    architecture = _architecture(folder, encoder, joiner, predictor, pieces)
    weights = {name: encoder.weights[inside] for inside, name in encoder.names().items()} | dict(predictor.weights)
    weights |= {"joiner.output.weight": joiner.weight, "joiner.output.bias": joiner.bias}
    _compare(folder, architecture, weights, joiner, predictor, blank)
    # From here on blank comes first.
    order = np.roll(np.arange(pieces), 1) if blank else np.arange(pieces)
    tokens = [folder.tokens[index] for index in order]
    for name in ("predictor.embedding", "joiner.output.weight", "joiner.output.bias"):
        weights[name] = np.ascontiguousarray(weights[name][order])
    graphs = {
        "encoder.onnx": packed_graph(encoder, architecture),
        "encoder.int8.onnx": packed_graph(encoder, architecture, int8=True),
        "predictor.onnx": predictor_graph(architecture),
        "joiner.onnx": joiner_graph(architecture),
        "training.output.onnx": training(architecture, "output"),
    }
    refused = ""
    try:
        graphs |= learning_graphs(encoder, architecture, str(folder.encoder.path))
    except NotDifferentiable as error:
        refused = str(error)
    metadata, pieces_model = folder.encoder.metadata, piece_model(tokens, source)
    return Imported(architecture, graphs, weights, pieces_model, encoder.features, family, metadata, refused)


def _architecture(
    folder: SherpaFolder, encoder: Encoder, joiner: Joiner, predictor: Predictor, pieces: int
) -> StreamingArchitecture:
    names = encoder.names()
    shapes = {names[inside]: value.shape for inside, value in encoder.weights.items()}
    bias = shapes.pop("joiner.encoder.bias")
    if (encoder.joiner_size,) != bias or joiner.weight.shape[1] != encoder.joiner_size:
        raise BundleError(
            f"{folder.path}: encoder, decoder and joiner have sizes {encoder.joiner_size}, {bias[0]} and "
            f"{joiner.weight.shape[1]}; expected one joiner size"
        )
    try:
        return StreamingArchitecture(
            mel_bins=encoder.features.mel_bins,
            window=encoder.window,
            shift=encoder.shift,
            subsampling_factor=encoder.subsampling,
            joiner_size=encoder.joiner_size,
            pieces=pieces,
            states=encoder.states,
            encoder=tuple(shapes.items()),
            predictor=predictor.shape,
            activation=joiner.activation,
            symbols_per_frame=0 if isinstance(predictor.shape, StatelessPredictor) else _NEMO_SYMBOLS,
        )
    except ConfigurationError as error:
        raise BundleError(f"{folder.encoder.path}: {error}") from error


def _compare(
    folder: SherpaFolder,
    architecture: StreamingArchitecture,
    weights: Mapping[str, Float],
    joiner: Joiner,
    predictor: Predictor,
    blank: int,
) -> None:
    """Scores of the folder's decoder and joiner beside those of the networks read from them, over random rows."""
    generator, shape, pieces = np.random.default_rng(0), predictor.shape, architecture.pieces
    width = architecture.joiner_size if joiner.encoder is None else joiner.encoder.weight.shape[1]
    encoded = generator.normal(size=(_ROWS, width)).astype(np.float32)
    packed = pack(architecture, weights)
    own = open_session(predictor_graph(architecture), str(folder.decoder.path), packed, architecture)
    if isinstance(shape, StatelessPredictor):
        tokens = generator.integers(0, pieces, (_ROWS, shape.context))
        tokens[0] = [-1] * (shape.context - 1) + [blank]
        said = _run(folder.decoder, [tokens])
        expected = run(own, {"contexts": tokens}, str(folder.decoder.path))[0]
        sides = [encoded, said]
    else:
        tokens = generator.integers(0, pieces, (_ROWS, 1))
        h, c = generator.normal(size=(2, shape.layers, _ROWS, shape.size)).astype(np.float32)
        said = _run(folder.decoder, [tokens.astype(np.int32), np.ones(_ROWS, np.int32), h, c])
        expected = run(own, {"tokens": tokens[:, 0], "h": h, "c": c}, str(folder.decoder.path))[0]
        sides = [encoded[:, :, None], said]
    scores = _run(folder.joiner, sides).astype(np.float64).reshape(_ROWS, -1)
    if scores.shape[1] != pieces or not np.isfinite(scores).all():
        raise folder.joiner.fail(
            f"gives {scores.shape[1]} scores, or no numbers; expected one for each of {pieces} tokens"
        )
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    if joiner.encoder is not None:
        encoded = encoded @ joiner.encoder.weight.T + joiner.encoder.bias
    found = join(joiner, encoded, expected + predictor.bias)
    worst = float(np.abs(scores - found).max())
    if not worst < _CLOSE * max(1.0, float(np.abs(scores).max())):
        raise folder.joiner.fail(
            f"scores tokens up to {worst:.3g} nats away from W f(e + d) + b over the prediction network's weights; "
            "expected the additive joiner of a transducer"
        )


def _run(graph: Graph, values: Sequence[NDArray[np.generic]]) -> Float:
    """The first output of a graph of the folder, its inputs in their order."""
    session = open_session(graph.model.SerializeToString(), str(graph.path))
    names = [each.name for each in session.get_inputs()]
    if len(names) != len(values):
        raise graph.fail(f"takes {len(names)} inputs, expected {len(values)}")
    found: Float = run(session, dict(zip(names, values, strict=True)), str(graph.path))[0]
    return found
