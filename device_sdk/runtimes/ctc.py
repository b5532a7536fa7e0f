"""A bundle's CTC head on plain onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.pronunciation import Pronunciation
from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import metadata, open_session, run

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from device_sdk.bundle import Bundle

FILE = "ctc.onnx"
PRONUNCIATION_KEY = "idiolect.pronunciation"

Float = NDArray[np.float32]


class CtcHead:
    """What the encoder heard, as phones, each frame by itself (Graves et al. 2006). The graph (``ctc.onnx``) takes
    encoded [T, J] float32, of a whole utterance, and gives log_probs [T, C] float32. Owns an onnxruntime session; safe
    to call from several threads. pronunciation: how texts are said in these phones. T: encoder frames; J: joiner size;
    C: phones, and blank 0."""

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        path = bundle.file(FILE)
        self._session, self.pronunciation = open_graph(path.read_bytes(), bundle.architecture, str(path), threads)

    def __call__(self, encoded: Float) -> Float:
        """Log-probabilities [T, C] of an utterance's encoding [T, J]. Raises BundleError for a graph that gives what
        are none."""
        phones = 1 + len(self.pronunciation.symbols)
        if not len(encoded):
            return np.zeros((0, phones), np.float32)
        log_probs: Float = run(self._session, {"encoded": encoded}, FILE)[0]
        if log_probs.shape != (len(encoded), phones) or not np.isfinite(log_probs).all():
            raise BundleError(f"{FILE}: found values that are no log-probabilities; export the bundle again")
        return log_probs


def open_graph(
    graph: bytes, architecture: AnyArchitecture, source: str, threads: int = 1
) -> tuple[InferenceSession, Pronunciation]:
    """The session of a CTC head's graph, and how texts are said in its phones. Raises BundleError for what is no such
    graph, and for one that listens to another architecture."""
    session = open_session(graph, source, architecture=architecture, threads=threads)
    if [each.name for each in session.get_inputs()] != ["encoded"]:
        raise BundleError(f"{source}: found other inputs than encoded [T, J]; expected a CTC head's graph")
    try:
        return session, Pronunciation.read(metadata(session, source).get(PRONUNCIATION_KEY, ""))
    except ValueError as error:
        raise BundleError(f"{source}: metadata {PRONUNCIATION_KEY}, {error}; train the head again") from error
