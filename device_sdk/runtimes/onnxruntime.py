"""Sessions of plain onnxruntime: graphs are per architecture, weights are handed over from memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.quantized import COARSE_LEVELS, LEVELS, QUANTIZED_FILE, layout, quantize
from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.bundle.weights import PACKED_FILE, architecture_digest
from device_sdk.checks import check_choice
from device_sdk.errors import BundleError
from device_sdk.runtimes.native_kernels import NativeKernels
from device_sdk.runtimes.protocol import States, Windows, check_features, zero_state

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from device_sdk.bundle import Bundle

ARCHITECTURE_KEY = "idiolect.architecture"

Precision = Literal["float32", "int8", "auto"]
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
"""Those that graphs have; ``auto`` is one of them, as bundle and processor allow."""
PRECISION_CHOICES: tuple[Precision, ...] = (*PRECISIONS, "auto")

Float = NDArray[np.float32]


def quiet_onnxruntime() -> ModuleType:
    """onnxruntime, kept from telling its maker about models and machine, as official builds do unless told before."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # where the app had loaded it already, and on Windows
    return onnxruntime


def open_session(
    graph: bytes,
    source: str,
    packed: bytes | None = None,
    architecture: AnyArchitecture | None = None,
    threads: int = 1,
    quantized: bytes | None = None,
    arena: bool = False,
) -> InferenceSession:
    """A session over a graph whose weights are ``packed`` (see :mod:`device_sdk.bundle.weights`). source: the graph's
    file, for messages. architecture: what the graph's metadata must name, where given. quantized: the int8 weights, for
    a graph that reads them. The caller keeps ``packed`` and ``quantized`` alive. arena: keep freed memory for the next
    run. Good for a few large runs; the many shapes of streaming fragment it. Raises :class:`BundleError` for a graph
    that is damaged or of another architecture."""
    onnxruntime = quiet_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    files = {PACKED_FILE: packed, QUANTIZED_FILE: quantized}
    held = {name: content for name, content in files.items() if content is not None}
    if held:
        options.add_external_initializers_from_files_in_memory(
            list(held), list(held.values()), [len(content) for content in held.values()]
        )
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many types that share no public base
        raise BundleError(f"{source}: onnxruntime cannot load this graph ({error})") from error
    if architecture is not None:
        found = metadata(session, source).get(ARCHITECTURE_KEY)
        expected = architecture_digest(architecture)
        if found != expected:
            raise BundleError(
                f"{source}: metadata {ARCHITECTURE_KEY} is {found!r}, expected {expected!r}; "
                "the graph was exported for another architecture: export the bundle again"
            )
    return session


def metadata(session: InferenceSession, source: str) -> dict[str, str]:
    """What a graph says of itself. Raises :class:`BundleError` where that is no text."""
    try:
        return dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError as error:
        raise BundleError(f"{source}: metadata is no text ({error}); take the bundle from its source again") from error


def run(session: InferenceSession, feeds: Mapping[str, NDArray[np.generic]], name: str) -> list[Any]:
    """Every output of a graph. Raises :class:`BundleError` where it fails: a damaged one may, though it was loaded."""
    try:
        return session.run(None, feeds)
    except Exception as error:  # as in open_session
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> BundleError:
    return BundleError(f"{name}: onnxruntime cannot run this graph ({error}); export the bundle again")


class OnnxTransducer:
    """The :class:`~device_sdk.runtimes.protocol.Transducer` of a bundle on onnxruntime's CPU provider."""

    def __init__(self, bundle: Bundle, threads: int = 1, precision: Precision = "float32") -> None:
        """precision: ``int8`` quantizes the bundle's weights here and runs its int8 graphs; ``auto`` does so where the
        bundle has such graphs and the processor sums their products exactly. Raises BundleError where the bundle has
        none, or a graph is damaged; ConfigurationError for another precision."""
        if precision == "auto":
            precision = "int8" if bundle.has("encoder.int8.onnx") and exact_products(bundle) else "float32"
        check_choice("precision", precision, PRECISION_CHOICES)
        suffix = "" if precision == "float32" else f".{precision}"
        if not bundle.has(f"encoder{suffix}.onnx"):
            raise BundleError(
                f"{bundle.path}: holds no graphs of precision {precision}, its manifest lists "
                f"{sorted(bundle.manifest.files)}; run: idiolect export refresh, or use precision float32"
            )
        self.precision = precision
        self.architecture: Architecture = bundle.lstm
        self.windows = Windows(self.architecture.subsampling_factor, self.architecture.subsampling_factor)
        self._quantized = None
        made = None
        if precision == "int8":
            levels = LEVELS if exact_products(bundle) else COARSE_LEVELS
            self._quantized = quantize(bundle.architecture, bundle.weights, levels)
            made = layout(bundle.architecture), self._quantized
        self._encoder = Graph.open(bundle, f"encoder{suffix}.onnx", 3, threads, self._quantized)
        self._predictor = Graph.open(bundle, f"predictor{suffix}.onnx", 3, threads, self._quantized)
        self._joiner = Graph.open(bundle, f"joiner{suffix}.onnx", 1, threads, self._quantized)
        self._kernels = NativeKernels.begin(bundle.architecture, bundle.weights, made)
        self._begun: dict[int, tuple[Float, States]] = {}

    def encode(self, features: Float, state: States | None = None) -> tuple[Float, States]:
        sizes = self.architecture
        if state is None:
            state = zero_state(sizes.encoder_layers, 1, sizes.encoder_size)
        check_features(self.architecture.mel_bins, self.windows, features)
        if len(features) == 0:
            return np.zeros((0, sizes.joiner_size), np.float32), state
        encoded, h, c = self._encoder.run({"features": features[None], "h": state[0], "c": state[1]})
        return encoded[0], (h, c)

    def predict(self, tokens: NDArray[np.int64], state: States | None = None) -> tuple[Float, States]:
        if state is None:
            if len(tokens) == 1:
                return self._predict_first(int(tokens[0]))
            state = zero_state(self.architecture.predictor_layers, len(tokens), self.architecture.predictor_size)
        if self._kernels is not None:
            try:
                return self._kernels.predict(tokens, state)
            except (IndexError, ValueError) as error:
                raise _failed("predictor", error) from error
        predicted, h, c = self._predictor.run({"tokens": tokens, "h": state[0], "c": state[1]})
        return predicted, (h, c)

    def _predict_first(self, token: int) -> tuple[Float, States]:
        """What every utterance begins with, run once. The arrays are shared: nobody may write to them."""
        known = self._begun.get(token)
        if known is None:
            sizes = self.architecture
            state = zero_state(sizes.predictor_layers, 1, sizes.predictor_size)
            predicted, state = self.predict(np.array([token], np.int64), state)
            for array in (predicted, *state):
                array.flags.writeable = False
            known = self._begun[token] = predicted, state
        return known

    def join(self, encoded: Float, predicted: Float) -> Float:
        return join(self._joiner, self._kernels, encoded, predicted)


def join(joiner: Graph, kernels: NativeKernels | None, encoded: Float, predicted: Float) -> Float:
    """As :meth:`device_sdk.runtimes.protocol.Transducer.join`, by native code where there is some for these shapes."""
    if encoded.ndim == 2:
        return join(joiner, kernels, encoded[:, None], predicted[:, None])[:, 0]
    if kernels is not None and len(encoded) == 1 == predicted.shape[1]:
        return kernels.join(encoded[0], predicted[:, 0])
    log_probs: Float = joiner.run({"encoded": encoded, "predicted": predicted})[0]
    return log_probs.reshape(max(len(encoded), len(predicted)), -1, log_probs.shape[1])


class Graph:
    """Owns a session that is run many times a second. What onnxruntime's Python checks at every run takes a third of
    the joiner's time, so the native session is run itself, where this version has one. It checks inputs, too."""

    __slots__ = ("_held", "_name", "_outputs", "_run", "_session")

    def __init__(self, session: InferenceSession, name: str, held: tuple[bytes | None, ...]) -> None:
        """held: the weights that the session reads from memory."""
        self._name, self._session, self._held = name, session, held
        self._outputs = [output.name for output in session.get_outputs()]
        self._run = getattr(session, "_sess", session).run

    @classmethod
    def open(cls, bundle: Bundle, name: str, outputs: int, threads: int = 1, quantized: bytes | None = None) -> Graph:
        """A graph of a bundle, over its weights. Raises :class:`BundleError` for a damaged one or other outputs."""
        path = bundle.file(name)
        session = open_session(path.read_bytes(), str(path), bundle.packed, bundle.architecture, threads, quantized)
        found = len(session.get_outputs())
        if found != outputs:
            raise BundleError(f"{path}: has {found} outputs, expected {outputs}; take the bundle from its source again")
        return cls(session, path.name.partition(".")[0], (bundle.packed, quantized))

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> list[Any]:
        """As :func:`run`."""
        try:
            outputs: list[Any] = self._run(self._outputs, feeds, None)
            return outputs
        except Exception as error:
            raise _failed(self._name, error) from error


_exact: bool | None = None  # the processor does not change while a process runs


def exact_products(bundle: Bundle) -> bool:
    """Whether this processor sums products of bytes exactly: x86 without VNNI clamps the sum of each two to 16 bits."""
    global _exact
    if _exact is None:
        _exact = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686") or _tried_exact(bundle)
    return _exact


def _tried_exact(bundle: Bundle) -> bool:
    """The joiner with the largest inputs and weights that bytes hold, except that blank's weights are 0."""
    sizes, logit = bundle.architecture, 8.0
    slots = layout(sizes)
    output = slots["joiner.output.weight"]
    content = bytearray(max(slot.values + prod(slot.shape) for slot in slots.values()))
    np.frombuffer(content, np.int8, prod(output.shape), output.values).reshape(output.shape)[:, 1:] = LEVELS
    np.frombuffer(content, np.float32, output.scales, output.scale)[:] = logit / (LEVELS * sizes.joiner_size)
    path = bundle.file("joiner.int8.onnx")
    packed, quantized = bytes(len(bundle.packed)), bytes(content)
    joiner = open_session(path.read_bytes(), str(path), packed, sizes, quantized=quantized)
    row = np.full((1, 1, sizes.joiner_size), 10.0, np.float32)
    scores = np.asarray(run(joiner, {"encoded": row, "predicted": row}, str(path))[0])
    if scores.shape != (1, sizes.pieces):
        raise BundleError(f"{path}: gives shape {scores.shape}, expected {(1, sizes.pieces)}; export the bundle again")
    return bool(abs(scores[0, 1] - scores[0, 0] - logit) < 0.01)
