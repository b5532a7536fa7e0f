"""The layers that a subset's steps leave alone: one int8 session over a whole utterance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.quantized import COARSE_LEVELS, quantize
from device_sdk.bundle.subsets import Frozen
from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import open_session, run

__all__ = ["FrozenLayers"]

Float = NDArray[np.float32]


class FrozenLayers:
    """Owns the session, made from the weights of the first run and made again where a later one brings others."""

    def __init__(
        self,
        graph: bytes,
        source: str,
        architecture: Architecture,
        frozen: Frozen,
        levels: int = COARSE_LEVELS,
        threads: int = 1,
    ) -> None:
        """graph: ``frozen.SUBSET.int8.onnx``. source: where it is from, for messages. levels: largest integer of a
        quantized weight: what this processor multiplies exactly (see :mod:`device_sdk.bundle.quantized`)."""
        self._graph, self._source, self._architecture = graph, source, architecture
        self._levels, self._threads = levels, threads
        self._names = frozen.parameters(architecture)
        self._held: dict[str, Float] = {}
        self._open({name: np.zeros(shape, np.float32) for name, shape in self._shapes().items()})

    @property
    def outputs(self) -> tuple[str, ...]:
        """``encoder_hidden``, ``predictor_hidden`` or both: what the training graph above takes."""
        return tuple(output.name for output in self._session.get_outputs())

    def run(self, parameters: Mapping[str, Float], feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, Float]:
        """encoder_hidden [T, 1, H] of the last frozen encoder layer, predictor_hidden [U + 1, N, P] of the frozen
        predictor, float32.

        parameters: all of them and the constants, checked. feeds: features [F, M] float32, tokens [N, U] int64.
        Raises :class:`BundleError` where the graph fails.
        """
        # Steps hand on the very arrays that they leave alone, so another array means other weights.
        if any(self._held.get(name) is not parameters[name] for name in self._names):
            self._open(parameters)
            self._held = {name: parameters[name] for name in self._names}
        given = {**parameters, **feeds}
        wanted = [each.name for each in self._session.get_inputs()]
        found = run(self._session, {name: given[name] for name in wanted}, self._source)
        return dict(zip(self.outputs, found, strict=True))

    def _open(self, parameters: Mapping[str, Float]) -> None:
        self._quantized = quantize(self._architecture, parameters, self._levels, self._names)
        self._session = open_session(
            self._graph, self._source, None, self._architecture, self._threads, self._quantized, arena=True
        )
        known = self._shapes().keys() | {"features", "tokens"} | self._architecture.constant_shapes().keys()
        inputs = {each.name for each in self._session.get_inputs()}
        if not inputs <= known or not set(self.outputs) <= {"encoder_hidden", "predictor_hidden"}:
            raise BundleError(
                f"{self._source}: has inputs {sorted(inputs)} and outputs {list(self.outputs)}, expected features, "
                "tokens and parameters, encoder_hidden and predictor_hidden; export the bundle again"
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return self._architecture.parameter_shapes()
