"""Gradients on the device: the bundle's training graphs on plain onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.bundle import Bundle
from device_sdk.bundle.quantized import COARSE_LEVELS, LEVELS
from device_sdk.bundle.subsets import Subset, factor_names, frozen, frozen_file, trainable, training_file
from device_sdk.errors import BundleError
from device_sdk.runtimes.feeds import check_parameter, utterance_feeds
from device_sdk.runtimes.frozen import FrozenLayers
from device_sdk.runtimes.onnxruntime import exact_products, open_session, run
from device_sdk.runtimes.protocol import Gradients

__all__ = ["TrainingSession", "open_training"]

GRADIENT = "gradient."
BENEATH = ("encoder_hidden", "predictor_hidden")
"""Inputs that the layers beneath a graph give."""

Float = NDArray[np.float32]


def open_training(bundle: Bundle, subset: Subset = "whole", threads: int = 1) -> TrainingSession:
    """Gradients for a subset of a bundle's parameters, whatever runs beneath: the session's ``run`` is always the same.

    Raises :class:`BundleError` where the bundle has no graphs for it, or damaged ones.
    """
    return TrainingSession(bundle, threads, subset=subset)


class TrainingSession:
    """A training graph, loaded once; every run takes the parameters, so a step needs no new session.

    Not for use by several threads at once. Open one with :func:`open_training`.
    """

    def __init__(
        self,
        bundle: Bundle | None = None,
        threads: int = 1,
        *,
        subset: Subset = "whole",
        graph: bytes = b"",
        architecture: Architecture | None = None,
        beneath: FrozenLayers | None = None,
    ) -> None:
        """bundle: whose graph for ``subset`` to run; or any graph with its architecture, and what gives the graph's
        ``encoder_hidden`` and ``predictor_hidden`` where it takes them.

        Raises :class:`BundleError` where the graph is not there, damaged, of another architecture or subset.
        """
        expected: list[str] | None = None
        if bundle is not None:
            file, architecture = training_file(subset), bundle.architecture
            if not bundle.has(file):
                raise BundleError(
                    f"{bundle.path}: holds no {file}, so subset {subset!r} cannot learn; "
                    "run: idiolect export refresh, or use subset 'whole'"
                )
            graph, source = bundle.file(file).read_bytes(), str(bundle.file(file))
            names = trainable(architecture, subset)
            expected = [each for name in names for each in (factor_names(name) if subset == "adapters" else (name,))]
            if frozen(architecture, subset) and bundle.has(frozen_file(subset)):
                beneath = _frozen_layers(bundle, subset, threads)
        elif architecture is not None:
            source = "training graph"
        else:
            raise ValueError("TrainingSession needs a bundle, or a graph with its architecture")
        self.architecture: Architecture = architecture
        self._source, self._beneath = source, beneath
        self._session = open_session(graph, source, architecture=architecture, threads=threads, arena=True)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]
        self._shapes = architecture.parameter_shapes() | architecture.constant_shapes()
        self._factors = {name: pair for name in self._shapes if (pair := factor_names(name))[0] in self._inputs}
        known = set(self._shapes).union(*self._factors.values())
        gives = {"negative_log_likelihoods", "expected_cost"} <= set(self._outputs)
        if not gives or not set(self.trainable) <= known or expected not in (None, list(self.trainable)):
            raise BundleError(
                f"{source}: has outputs {self._outputs}, expected losses and gradients for "
                f"{expected or 'parameters'}; export it again"
            )
        taken, given = {*self._inputs} & {*BENEATH}, () if beneath is None else beneath.outputs
        if taken != set(given):
            raise BundleError(
                f"{source}: takes {sorted(taken)} from frozen layers, which give {list(given)}; export the bundle again"
            )

    @property
    def trainable(self) -> tuple[str, ...]:
        """What the graph returns gradients for, in the canonical order; factors by their own names."""
        return tuple(name.removeprefix(GRADIENT) for name in self._outputs if name.startswith(GRADIENT))

    def too_large(self, features: Float, hypotheses: Sequence[Sequence[int]]) -> str | None:
        """Why an utterance cannot be run: never here, since the graph's sizes are free."""
        return None

    def run(
        self,
        parameters: Mapping[str, Float],
        features: Float,
        hypotheses: Sequence[Sequence[int]],
        weights: ArrayLike,
        costs: ArrayLike | None = None,
        cost_scale: float = 0.0,
    ) -> Gradients:
        """d(sum_i weights_i NLL_i + cost_scale * E[M]) by every trainable parameter (Rao et al. 2023, eq. 1).

        F: frames; M: mel bins; N: hypotheses; r: rank.
        parameters: parameters and constants by name, float32, and for adapters the factors, [out, r] and [r, in], whose
        products the matrices hold already. features: [F, M] float32 raw log-mel, F at least the subsampling factor
        (left-over frames are dropped). hypotheses: N token lists without blank; one may be empty.
        weights, costs: [N]; costs default to 0.
        Raises :class:`LearningError` that names the argument for a wrong shape, type, value or token.
        """
        feeds = utterance_feeds(self.architecture, features, hypotheses, weights, costs, cost_scale)
        for name, shape in (self._shapes | self._factor_shapes(parameters)).items():
            check_parameter(parameters, name, shape)
        if self._beneath is not None:
            feeds |= self._beneath.run(parameters, feeds)
        given = {**parameters, **feeds}
        values = run(self._session, {name: given[name] for name in self._inputs}, self._source)
        results = dict(zip(self._outputs, values, strict=True))
        return Gradients(
            negative_log_likelihoods=results["negative_log_likelihoods"],
            expected_cost=float(results["expected_cost"]),
            gradients={name: results[GRADIENT + name] for name in self.trainable},
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
    layers = frozen(bundle.architecture, subset)
    return FrozenLayers(path.read_bytes(), str(path), bundle.architecture, layers, levels, threads)
