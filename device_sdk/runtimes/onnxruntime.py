"""Sessions of plain onnxruntime: graphs are per architecture, weights are handed over from memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.weights import PACKED_FILE, architecture_digest
from device_sdk.errors import BundleError
from device_sdk.runtimes.protocol import RecurrentState

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from device_sdk.bundle import Bundle

__all__ = ["ARCHITECTURE_KEY", "OnnxTransducer", "open_session"]

ARCHITECTURE_KEY = "idiolect.architecture"

Float = NDArray[np.float32]


def open_session(
    graph: bytes,
    source: str,
    packed: bytes | None = None,
    architecture: Architecture | None = None,
    threads: int = 1,
) -> InferenceSession:
    """A session over a graph whose weights are ``packed`` (see :mod:`device_sdk.bundle.weights`).

    source: the graph's file, for messages. architecture: what the graph's metadata must name, where given.
    The caller keeps ``packed`` alive.
    Raises :class:`BundleError` for a graph that is damaged or of another architecture.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if packed is not None:
        options.add_external_initializers_from_files_in_memory([PACKED_FILE], [packed], [len(packed)])
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many types that share no public base
        raise BundleError(f"{source}: onnxruntime cannot load this graph ({error})") from error
    if architecture is not None:
        found = session.get_modelmeta().custom_metadata_map.get(ARCHITECTURE_KEY)
        expected = architecture_digest(architecture)
        if found != expected:
            raise BundleError(
                f"{source}: metadata {ARCHITECTURE_KEY} is {found!r}, expected {expected!r}; "
                "the graph was exported for another architecture: export the bundle again"
            )
    return session


class OnnxTransducer:
    """The :class:`~device_sdk.runtimes.protocol.Transducer` of a bundle on onnxruntime's CPU provider."""

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        self._architecture = bundle.architecture
        self._packed = bundle.packed
        self._encoder = self._open(bundle.file("encoder.onnx"), threads)
        self._predictor = self._open(bundle.file("predictor.onnx"), threads)
        self._joiner = self._open(bundle.file("joiner.onnx"), threads)

    @property
    def architecture(self) -> Architecture:
        return self._architecture

    def encode(self, features: Float, state: RecurrentState | None = None) -> tuple[Float, RecurrentState]:
        sizes = self._architecture
        if state is None:
            state = _zeros(sizes.encoder_layers, 1, sizes.encoder_size)
        if features.ndim != 2 or features.shape[1] != sizes.mel_bins or len(features) % sizes.subsampling_factor:
            raise ValueError(
                f"features: found shape {features.shape}, expected [F, {sizes.mel_bins}] "
                f"with F a multiple of {sizes.subsampling_factor}"
            )
        if len(features) == 0:
            return np.zeros((0, sizes.joiner_size), np.float32), state
        encoded, h, c = self._encoder.run(None, {"features": features[None], "h": state.h, "c": state.c})
        return encoded[0], RecurrentState(h, c)

    def predict(self, tokens: NDArray[np.int64], state: RecurrentState | None = None) -> tuple[Float, RecurrentState]:
        if state is None:
            state = _zeros(self._architecture.predictor_layers, len(tokens), self._architecture.predictor_size)
        predicted, h, c = self._predictor.run(None, {"tokens": tokens, "h": state.h, "c": state.c})
        return predicted, RecurrentState(h, c)

    def join(self, encoded: Float, predicted: Float) -> Float:
        log_probs: Float = self._joiner.run(None, {"encoded": encoded, "predicted": predicted})[0]
        return log_probs

    def _open(self, path: Path, threads: int) -> InferenceSession:
        return open_session(path.read_bytes(), str(path), self._packed, self._architecture, threads)


def _zeros(layers: int, batch: int, size: int) -> RecurrentState:
    zeros = np.zeros((layers, batch, size), np.float32)
    return RecurrentState(zeros, zeros)
