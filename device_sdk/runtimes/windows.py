"""Gradients of an encoder that a bundle brings, window by window through its states, on plain onnxruntime.

Forwards through all windows only the states before every fourth are kept. Backwards, from the last window to the first,
each is run once more together with its gradient, which hands the states' cotangents on to the window before: the
gradient of the whole utterance, in the memory of one window and a few states.

F: feature frames; M: mel bins; S: encoder frames of a window; T: of the utterance; J: joiner size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import FORWARD_FILE, Subset, backward_file, factor_names, trainable
from device_sdk.bundle.streaming import StreamingArchitecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import open_session, run
from device_sdk.runtimes.protocol import States, Windows, whole_windows
from device_sdk.runtimes.streaming import TAIL, start_states

Float = NDArray[np.float32]
GRADIENT, COTANGENT = "gradient.", "cotangent."
ENCODED = "encoded"
BIAS = "joiner.encoder.bias"
KEPT = 4
"""The states before one window in so many are kept; those between are run through again."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass, to go back through. states: before one window in :data:`KEPT`."""

    parameters: Mapping[str, Float]
    windows: list[Float]
    states: list[States]


class WindowedEncoder:
    """Owns the two sessions; weights come with every run."""

    def __init__(self, bundle: Bundle, subset: Subset, threads: int = 1) -> None:
        """Raises :class:`BundleError` where a graph is missing or does not take and give what its windows need."""
        sizes = bundle.architecture
        assert isinstance(sizes, StreamingArchitecture)
        self.architecture = sizes
        self._windows = Windows(sizes.window, sizes.shift, TAIL)
        self._start, self._names = start_states(sizes), [state.name for state in sizes.states]
        self._rows = sizes.shift // sizes.subsampling_factor
        moved = [name for name in trainable(sizes, subset) if name.startswith("encoder.")]
        factors = [factor_names(name) for name in moved] if subset == "adapters" else []
        self.trainable = tuple(each for pair in factors for each in pair) or tuple(moved)
        self._passed = [state.name for state in sizes.states if state.kind == "float32"]
        weights = {*sizes.parameter_shapes()}
        self._forward = _Session(bundle, FORWARD_FILE, threads, {"features", *self._names} | weights)
        backward = {f"{COTANGENT}{ENCODED}", *(f"{COTANGENT}next.{name}" for name in self._passed), *self.trainable}
        given = {"features", *self._names} | weights | backward
        self._backward = _Session(bundle, backward_file(subset), threads, given)
        expected = [ENCODED, *(f"next.{name}" for name in self._names)]
        wanted = {f"{GRADIENT}{name}" for name in self.trainable}
        if self._forward.outputs != expected or not wanted <= {*self._backward.outputs}:
            raise BundleError(
                f"{bundle.path}: graphs {FORWARD_FILE} and {backward_file(subset)} do not give the encoder's output, "
                "states and gradients; import the model again"
            )

    def forward(self, parameters: Mapping[str, Float], features: Float) -> tuple[Float, Pass]:
        """([T, J] of features [F, M] and the silence that ends them, what :meth:`backward` goes back through)."""
        heard, encoded = whole_windows(self._windows, features), list[Float]()
        size, shift = self._windows.size, self._windows.shift
        passed, state = Pass(parameters, [], []), self._start
        for at in range(0, len(heard) - size + 1, shift):
            if len(passed.windows) % KEPT == 0:
                passed.states.append(state)
            passed.windows.append(heard[None, at : at + size])
            rows, state = self._through(parameters, passed.windows[-1], state)
            encoded.append(rows[0])
        return np.concatenate(encoded), passed

    def _through(self, parameters: Mapping[str, Float], window: Float, state: States) -> tuple[Float, States]:
        feeds = {**parameters, **dict(zip(self._names, state, strict=True)), "features": window}
        rows, *following = self._forward.run(feeds)
        expected = (1, self._rows, self.architecture.joiner_size)
        if rows.shape != expected:
            raise self._forward.wrong("the encoder's output", rows.shape, expected)
        return rows, tuple(following)

    def backward(self, passed: Pass, cotangent: Float) -> dict[str, Float]:
        """Gradients of a loss by the trainable parameters. cotangent: its derivative by the output, [T, J]."""
        sums: dict[str, Float] = {}
        carried = {f"next.{name}": np.zeros_like(self._start[self._names.index(name)]) for name in self._passed}
        states: list[States] = []
        for index in reversed(range(len(passed.windows))):
            if not states:
                states.append(passed.states[index // KEPT])
                for window in passed.windows[index - index % KEPT : index]:
                    states.append(self._through(passed.parameters, window, states[-1])[1])
            rows = cotangent[None, index * self._rows : (index + 1) * self._rows]
            feeds = {**passed.parameters, **dict(zip(self._names, states.pop(), strict=True))}
            feeds |= {"features": passed.windows[index], f"{COTANGENT}{ENCODED}": rows}
            feeds |= {f"{COTANGENT}{name}": value for name, value in carried.items()}
            found = dict(zip(self._backward.outputs, self._backward.run(feeds), strict=True))
            for name in self.trainable:
                value = found[f"{GRADIENT}{name}"]
                if value.shape != passed.parameters[name].shape:
                    raise self._backward.wrong(f"the gradient of {name!r}", value.shape, passed.parameters[name].shape)
                if name in sums:
                    sums[name] += value
                else:
                    sums[name] = value
            for name in self._passed:
                arrived = found.get(f"{GRADIENT}{name}")  # none where the state moves nothing
                if arrived is not None:
                    carried[f"next.{name}"] = arrived
        return sums


class _Session:
    """A graph of the bundle that takes its weights with each run."""

    def __init__(self, bundle: Bundle, file: str, threads: int, known: set[str]) -> None:
        if not bundle.has(file):
            why = bundle.manifest.training.get("not_differentiable") or "it was imported before there were any"
            raise BundleError(
                f"{bundle.path}: holds no {file}, so its encoder cannot learn ({why}); import the model again, or set "
                "learning.subset to 'output'"
            )
        self._source = str(bundle.file(file))
        content = bundle.file(file).read_bytes()
        self._session = open_session(content, self._source, None, bundle.architecture, threads, arena=True)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self.outputs = [each.name for each in self._session.get_outputs()]
        if not known.issuperset(self._inputs):
            unknown = sorted({*self._inputs} - known)
            raise BundleError(f"{self._source}: takes {unknown[:4]}, which no run gives; import the model again")

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> list[Float]:
        return run(self._session, {name: feeds[name] for name in self._inputs}, self._source)

    def wrong(self, what: str, found: tuple[int, ...], expected: tuple[int, ...]) -> BundleError:
        said = f"gives {what} as {list(found)}, expected {list(expected)}"
        return BundleError(f"{self._source}: {said}; import the model again")
