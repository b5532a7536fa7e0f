"""Transducers whose encoder is whatever graph their bundle brings, on onnxruntime.

F: feature frames; M: mel bins; T: encoder frames; B: hypotheses; J: joiner size; V: pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.quantized import quantize
from device_sdk.bundle.streaming import StatelessPredictor, StreamingArchitecture
from device_sdk.checks import check_choice
from device_sdk.errors import BundleError
from device_sdk.runtimes.native_kernels import NativeKernels, levels
from device_sdk.runtimes.onnxruntime import PRECISION_CHOICES, Graph, OnnxTransducer, Precision, join
from device_sdk.runtimes.protocol import States, Transducer, Windows, check_features, zero_state

__all__ = ["StreamingTransducer", "open_transducer"]

Float = NDArray[np.float32]
TAIL = 30
"""Feature frames by which a network may tell what it heard."""
_CACHED = 4096  # contexts whose prediction is kept


def open_transducer(bundle: Bundle, threads: int = 1, precision: Precision = "float32") -> Transducer:
    """What runs a bundle's networks on onnxruntime's CPU provider. Raises BundleError for a damaged graph, and where
    int8 is asked for and the bundle has no such graphs; ConfigurationError for another precision."""
    if isinstance(bundle.architecture, StreamingArchitecture):
        return StreamingTransducer(bundle, threads, precision)
    return OnnxTransducer(bundle, threads, precision)


class StreamingTransducer:
    """The :class:`~device_sdk.runtimes.protocol.Transducer` of a bundle with a :class:`StreamingArchitecture`."""

    def __init__(self, bundle: Bundle, threads: int = 1, precision: Precision = "float32") -> None:
        """Raises BundleError for a damaged graph, and where int8 is asked for and the bundle has no such graph."""
        architecture = bundle.architecture
        assert isinstance(architecture, StreamingArchitecture)
        check_choice("precision", precision, PRECISION_CHOICES)
        if precision == "auto":
            precision = "int8" if bundle.has("encoder.int8.onnx") else "float32"
        if precision == "int8" and not bundle.has("encoder.int8.onnx"):
            raise BundleError(f"{bundle.path}: holds no encoder.int8.onnx; use precision float32")
        self.architecture, self.precision = architecture, precision
        self.windows = Windows(architecture.window, architecture.shift, TAIL)
        suffix, quantized = "", None
        if precision == "int8":
            suffix = ".int8"
            quantized = quantize(architecture, bundle.weights, levels(), architecture.encoder_matrices)
        self._encoder = Graph.open(bundle, f"encoder{suffix}.onnx", 1 + len(architecture.states), threads, quantized)
        self._joiner = Graph.open(bundle, "joiner.onnx", 1, threads)
        self._predictor = Graph.open(bundle, "predictor.onnx", 3 if architecture.predictor_layers else 1, threads)
        self._start = start_states(architecture)
        self._names = [state.name for state in architecture.states]
        self._kernels = NativeKernels.begin(architecture, bundle.weights)
        self._said: dict[bytes, bytes] = {}

    def encode(self, features: Float, state: States | None = None) -> tuple[Float, States]:
        check_features(self.architecture.mel_bins, self.windows, features)
        window, shift, encoded = self.windows.size, self.windows.shift, list[Float]()
        state = self._start if state is None else state
        for at in range(0, len(features) - window + 1, shift):
            feeds = dict(zip(self._names, state, strict=True))
            rows, *following = self._encoder.run({**feeds, "features": features[None, at : at + window]})
            encoded.append(rows[0])
            state = tuple(following)
        return np.concatenate(encoded), state

    def predict(self, tokens: NDArray[np.int64], state: States | None = None) -> tuple[Float, States]:
        predictor, count = self.architecture.predictor, len(tokens)
        if isinstance(predictor, StatelessPredictor):
            contexts = next_contexts(tokens, state, predictor.context)
            return self._predicted(contexts), (contexts[None],)
        if state is None:
            state = zero_state(predictor.layers, count, predictor.size)
        if self._kernels is not None:
            return self._kernels.predict(tokens, state)
        predicted, h, c = self._predictor.run({"tokens": tokens, "h": state[0], "c": state[1]})
        return predicted, (h, c)

    def _predicted(self, contexts: NDArray[np.int64]) -> Float:
        """Of contexts [B, context]; the same few come again and again."""
        said = self._said  # another thread may begin a new one
        keys: list[bytes] = contexts.view(f"V{contexts[:1].nbytes}")[:, 0].tolist()
        new = [at for at, key in enumerate(keys) if key not in said]
        if new:
            if len(said) + len(new) > _CACHED:
                said, new = {}, list(range(len(keys)))
            rows = self._predictor.run({"contexts": contexts[new]})[0]
            said |= {keys[at]: row.tobytes() for at, row in zip(new, rows, strict=True)}
            self._said = said
        return np.frombuffer(b"".join([said[key] for key in keys]), np.float32).reshape(len(keys), -1)

    def join(self, encoded: Float, predicted: Float) -> Float:
        return join(self._joiner, self._kernels, encoded, predicted)


def start_states(architecture: StreamingArchitecture) -> States:
    """Of the encoder, before the first window."""
    return tuple(np.zeros(state.shape, state.kind) for state in architecture.states)


def next_contexts(tokens: NDArray[np.int64], state: States | None, size: int) -> NDArray[np.int64]:
    """The last ``size`` tokens of each hypothesis, [B, size], -1 before the first. tokens: [B]; state: as
    :meth:`StreamingTransducer.predict` gives it."""
    before = np.full((1, len(tokens), size), -1, np.int64) if state is None else state[0]
    return np.concatenate([before[0, :, 1:], tokens[:, None]], axis=1)
