"""Prediction and joint of small transducers as native code, where an install compiled it for a processor that is quick.

A search runs these two on a few rows at a time, where starting a graph takes ten times as long as its products. One
function of C (``native.c``) gives what the graphs give, but for rounding; where it cannot run, they do.

V: pieces; P: state; J: joiner size; B: hypotheses; K: frames."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.quantized import COARSE_LEVELS, LEVELS, Matrix
from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.compilation import FOLDER, KERNELS, compiled_folder
from device_sdk.runtimes.protocol import States

__all__ = ["NativeKernels", "laid_out", "levels", "native_module"]

_BLOCK = 64  # columns that lie together
_NO_STATE = 16  # columns of the state that a stateless prediction network does not have
_MOST = 1_024  # columns of a state, of the joint and of the pieces
_NEVER = -1e30  # what a piece begins with that only fills a block

Float = NDArray[np.float32]


def native_module() -> Any:
    """The native module of exactly these sources, where an install made one and it is not switched off; else None."""
    if compiled_folder(Path(__file__).parent, KERNELS) is None:
        return None
    try:
        return import_module(f"{__name__}.{FOLDER}.native")
    except ImportError:  # of another Python
        return None


def levels() -> int:
    """The largest integer of a quantized weight whose products this processor is known to sum exactly."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return LEVELS
    native = native_module()
    return LEVELS if native is not None and native.LEVEL > 1 else COARSE_LEVELS


class NativeKernels:
    """Owns a transducer's matrices, laid out as the products read them. Safe to share between threads."""

    def __init__(
        self,
        native: Any,
        architecture: AnyArchitecture,
        weights: Mapping[str, Float],
        made: tuple[Mapping[str, Matrix], bytes] | None = None,
    ) -> None:
        """weights: of the bundle. made: (slots, buffer), int8 weights and where they lie, for products of bytes. Raises
        ValueError for sizes or a processor that ``native`` is not for; see :meth:`begin`."""
        self._sizes = architecture
        self._network = native.Network(*laid_out(architecture, weights, made))

    @classmethod
    def begin(
        cls,
        architecture: AnyArchitecture,
        weights: Mapping[str, Float],
        made: tuple[Mapping[str, Matrix], bytes] | None = None,
    ) -> NativeKernels | None:
        """The kernels of a transducer, None where its graphs have to do: one whose products are what takes the time,
        with several layers or sizes beyond a thousand, and wherever there is no native code for this processor."""
        a = architecture
        sizes = a.predictor_size if a.predictor_layers else _NO_STATE, a.joiner_size, a.pieces
        if a.activation != "tanh":
            return None
        if a.predictor_layers > 1 or any(not 16 <= size <= _MOST for size in sizes) or (sizes[0] | sizes[1]) % 16:
            return None
        native = native_module()
        level: int = 0 if native is None else native.LEVEL
        if level < (1 if made is None else 2):
            return None
        return cls(native, architecture, weights, made)

    def predict(self, tokens: NDArray[np.int64], state: States) -> tuple[Float, States]:
        """As :meth:`device_sdk.runtimes.protocol.Transducer.predict`. Raises IndexError for what is no token."""
        count, (h, c) = len(tokens), state
        predicted = np.empty((count, self._sizes.joiner_size), np.float32)
        next_h, next_c = np.empty_like(h, order="C"), np.empty_like(h, order="C")
        contiguous = np.ascontiguousarray
        self._network.predict(contiguous(tokens), contiguous(h), contiguous(c), predicted, next_h, next_c)
        return predicted, (next_h, next_c)

    def join(self, encoded: Float, predicted: Float) -> Float:
        """Every prefix with every frame. encoded: [K, J]; predicted: [B, J]. Returns log-probabilities [B, K, V]."""
        frames, prefixes = len(encoded), len(predicted)
        log_probs = np.empty((prefixes, frames, self._sizes.pieces), np.float32)
        contiguous = np.ascontiguousarray
        self._network.join(prefixes, frames, contiguous(encoded), contiguous(predicted), log_probs)
        return log_probs


def laid_out(
    architecture: AnyArchitecture,
    weights: Mapping[str, Float],
    made: tuple[Mapping[str, Matrix], bytes] | None = None,
) -> tuple[Any, ...]:
    """State, joint, pieces, whether products are of bytes, the gates of each token, and the three matrices."""
    state = architecture.predictor_size if architecture.predictor_layers else _NO_STATE
    if architecture.predictor_layers:
        table = weights["predictor.embedding"] @ weights["predictor.0.W"].T + weights["predictor.0.B"]
    else:  # a stateless prediction has nothing to compute here
        table, depth = np.zeros((architecture.pieces, 4 * state), np.float32), (architecture.joiner_size, state)
        nothing = {"predictor.0.R": np.zeros((4 * state, state)), "joiner.predictor.weight": np.zeros(depth)}
        weights = {**weights, **{name: value.astype(np.float32) for name, value in nothing.items()}}
    biases = {"predictor.0.R": None, "joiner.predictor.weight": None, "joiner.output.weight": "joiner.output.bias"}
    matrices = [
        _matrix(weights[name], None if bias is None else weights[bias])
        if made is None
        else _byte_matrix(*made, name, None if bias is None else weights[bias])
        for name, bias in biases.items()
    ]
    table = np.ascontiguousarray(table, np.float32)
    return state, architecture.joiner_size, architecture.pieces, made is not None, table, *matrices


def _matrix(weight: Float, bias: Float | None) -> tuple[Any, ...]:
    """[N, K] as (blocks of 64 columns [N / 64, K, 64], bias), filled up to a whole block."""
    rows, depth = weight.shape
    columns = -(-rows // _BLOCK) * _BLOCK
    padded = np.zeros((columns, depth), np.float32)
    padded[:rows] = weight
    blocks = padded.reshape(-1, _BLOCK, depth).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks), _filled(bias, rows, columns, _NEVER)


def _byte_matrix(slots: Mapping[str, Matrix], buffer: bytes, name: str, bias: Float | None) -> tuple[Any, ...]:
    """A quantized matrix as (blocks of 64 columns [N / 64, K / 4, 64, 4], bias, scales, zeros). zeros: what the sums
    have too much because inputs stand for x as 127 x + 128; scales: of the sums, without the 127."""
    slot = slots[name]
    depth, rows = slot.shape
    columns = -(-rows // _BLOCK) * _BLOCK
    padded = np.zeros((depth, columns), np.int8)
    padded[:, :rows] = np.frombuffer(buffer, np.int8, depth * rows, slot.values).reshape(slot.shape)
    blocks = padded.reshape(depth // 4, 4, -1, _BLOCK).transpose(2, 0, 3, 1)
    scales = _filled(np.frombuffer(buffer, np.float32, slot.scales, slot.scale) / np.float32(127.0), rows, columns)
    zeros = 128 * padded.sum(axis=0, dtype=np.int32)
    return np.ascontiguousarray(blocks), _filled(bias, rows, columns, _NEVER), scales, zeros


def _filled(values: Float | None, count: int, size: int, rest: float = 0.0) -> Float:
    found = np.full(size, 0.0 if values is None else rest, np.float32)
    if values is not None:
        found[:count] = values
    return found
