"""Gradients on the device: the bundle's training graphs on plain onnxruntime, over the int8 layers that a subset's
steps leave alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import (
    Architecture,
    Frozen,
    Subset,
    factor_names,
    frozen_file,
    frozen_part,
    trainable,
    training_file,
)
from device_sdk.bundle.bundle import Bundle
from device_sdk.bundle.quantized import COARSE_LEVELS, LEVELS, quantize
from device_sdk.bundle.streaming import AnyArchitecture, StreamingArchitecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import exact_products, open_session, run
from device_sdk.runtimes.protocol import Gradients, Training, check_parameter, encode_whole
from device_sdk.runtimes.streaming import open_transducer
from device_sdk.runtimes.windows import BIAS, GRADIENT, WindowedEncoder

Float = NDArray[np.float32]


class FrozenLayers:
    """Owns the session, made from the weights of the first run and again where a later one brings others."""

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
        predictor, float32. parameters: all of them and the constants, checked. feeds: features [F, M] float32, tokens
        [N, U] int64. Raises :class:`BundleError` where the graph fails."""
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


class StreamingEncoder:
    """Owns the encoder that a bundle brings, which steps on its output leave alone."""

    outputs = ("encoder_hidden",)

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._transducer, self._bias = open_transducer(bundle, threads), bundle.weights[BIAS]

    def run(self, parameters: Mapping[str, Float], feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, Float]:
        """encoder_hidden [T, J], without the joiner's bias, of features [F, M] and the silence that ends them."""
        encoded = encode_whole(self._transducer, np.asarray(feeds["features"], np.float32))
        return {"encoder_hidden": encoded - self._bias}


HIDDEN = "encoder_hidden"
BENEATH = (HIDDEN, "predictor_hidden")
"""Inputs that the layers beneath a graph give."""


class TrainingSession(Training):
    """A training graph, loaded once; every run takes the parameters, so a step needs no new session."""

    def __init__(
        self,
        bundle: Bundle | None = None,
        threads: int = 1,
        *,
        subset: Subset = "whole",
        graph: bytes = b"",
        architecture: AnyArchitecture | None = None,
        beneath: FrozenLayers | StreamingEncoder | None = None,
    ) -> None:
        """bundle: whose graph for ``subset`` to run; or any graph with its architecture, and what gives the graph's
        ``encoder_hidden`` and ``predictor_hidden`` where it takes them. Raises :class:`BundleError` where the graph is
        not there, damaged, of another architecture or subset."""
        expected: list[str] | None = None
        self._encoder: WindowedEncoder | None = None
        if bundle is not None:
            file, architecture = training_file(subset), bundle.architecture
            if isinstance(architecture, StreamingArchitecture):
                if subset == "output":
                    beneath = StreamingEncoder(bundle, threads)
                else:
                    self._encoder = WindowedEncoder(bundle, subset, threads)
            if not bundle.has(file):
                raise BundleError(
                    f"{bundle.path}: holds no {file}, so subset {subset!r} cannot learn; "
                    "run: idiolect export refresh, or use subset 'whole'"
                )
            graph, source = bundle.file(file).read_bytes(), str(bundle.file(file))
            names = trainable(architecture, subset)
            expected = [each for name in names for each in (factor_names(name) if subset == "adapters" else (name,))]
            if frozen_part(architecture, subset) and bundle.has(frozen_file(subset)):
                beneath = _frozen_layers(bundle, subset, threads)
        elif architecture is not None:
            source = "training graph"
        else:
            raise ValueError("TrainingSession needs a bundle, or a graph with its architecture")
        self.architecture: AnyArchitecture = architecture
        self._source, self._beneath = source, beneath
        self._session = open_session(graph, source, architecture=architecture, threads=threads, arena=True)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]
        given_by = [name.removeprefix(GRADIENT) for name in self._outputs if name.startswith(GRADIENT)]
        self._own = tuple(name for name in given_by if name not in BENEATH)
        self.trainable = (*(() if self._encoder is None else self._encoder.trainable), *self._own)
        self._shapes = architecture.parameter_shapes() | architecture.constant_shapes()
        self._factors = {name: pair for name in self._shapes if (pair := factor_names(name))[0] in self.trainable}
        known = set(self._shapes).union(*self._factors.values())
        gives = {"negative_log_likelihoods", "expected_cost"} <= set(self._outputs)
        if not gives or not set(self.trainable) <= known or expected not in (None, list(self.trainable)):
            raise BundleError(
                f"{source}: has outputs {self._outputs}, expected losses and gradients for "
                f"{expected or 'parameters'}; export it again"
            )
        if self._encoder is not None and f"{GRADIENT}{HIDDEN}" not in self._outputs:
            raise BundleError(f"{source}: gives no gradient of the encoder's output; import the model again")
        taken, given = {*self._inputs} & {*BENEATH}, () if beneath is None else beneath.outputs
        if self._encoder is not None:
            given = (HIDDEN,)
        if taken != set(given):
            found = f"takes {sorted(taken)} from frozen layers, which give {list(given)}"
            raise BundleError(f"{source}: {found}; export the bundle again")

    def _gradients(self, parameters: Mapping[str, Float], feeds: dict[str, NDArray[np.generic]]) -> Gradients:
        for name, shape in (self._shapes | self._factor_shapes(parameters)).items():
            check_parameter(parameters, name, shape)
        if self._encoder is not None:
            encoded, passed = self._encoder.forward(parameters, np.asarray(feeds["features"], np.float32))
            feeds |= {HIDDEN: encoded - parameters[BIAS]}
        elif self._beneath is not None:
            feeds |= self._beneath.run(parameters, feeds)
        given = {**parameters, **feeds}
        values = run(self._session, {name: given[name] for name in self._inputs}, self._source)
        results = dict(zip(self._outputs, values, strict=True))
        gradients = {name: results[GRADIENT + name] for name in self._own}
        if self._encoder is not None:
            gradients |= self._encoder.backward(passed, results[GRADIENT + HIDDEN])
        return Gradients(
            negative_log_likelihoods=results["negative_log_likelihoods"],
            expected_cost=float(results["expected_cost"]),
            gradients={name: gradients[name] for name in self.trainable},
        )

    def _factor_shapes(self, parameters: Mapping[str, Float]) -> dict[str, tuple[int, ...]]:
        """As the rank of each factor that came in says; where none did, of rank 1."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, (up, down) in self._factors.items():
            out, width = self._shapes[name]
            given = parameters.get(up)
            rank = 1 if given is None or given.ndim != 2 else given.shape[1]
            shapes |= {up: (out, rank), down: (rank, width)}
        return shapes


def _frozen_layers(bundle: Bundle, subset: Subset, threads: int) -> FrozenLayers:
    path, levels = bundle.file(frozen_file(subset)), LEVELS if exact_products(bundle) else COARSE_LEVELS
    layers = frozen_part(bundle.architecture, subset)
    return FrozenLayers(path.read_bytes(), str(path), bundle.lstm, layers, levels, threads)
