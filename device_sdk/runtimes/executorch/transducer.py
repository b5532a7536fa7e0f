"""A bundle's recognition on ExecuTorch, behind the same protocol as onnxruntime's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.streaming import AnyArchitecture, StatelessPredictor, StreamingArchitecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.executorch.bindings import Runtime
from device_sdk.runtimes.executorch.manifest import MANIFEST, PROGRAMS, REMEDY, read_manifest, read_program
from device_sdk.runtimes.protocol import States, Transducer, Windows, check_features, try_transducer, zero_state
from device_sdk.runtimes.streaming import TAIL, next_contexts, start_states

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

Float = NDArray[np.float32]

_GATES = {"i": 0, "f": 2, "g": 3, "o": 1}
"""Each gate's block among the rows i, o, f, c of W, R and B."""


def open_programs(folder: str | Path, bundle: Bundle, threads: int = 1) -> Transducer:
    """What runs a bundle's networks on ExecuTorch: of LSTMs, or of an imported encoder. As
    :class:`ExecutorchTransducer`."""
    streaming = isinstance(bundle.architecture, StreamingArchitecture)
    return (ExecutorchStreamingTransducer if streaming else ExecutorchTransducer)(folder, bundle, threads)


class _Programs:
    """Owns the three programs. Threads take turns."""

    def __init__(self, folder: str | Path, bundle: Bundle, threads: int = 1) -> None:
        folder = Path(folder)
        manifest = read_manifest(folder, bundle.architecture)
        if manifest.encoder != encoder_digest(bundle):
            raise BundleError(
                f"{folder / MANIFEST}: encoder: the programs hold other weights of the encoder (version "
                f"{manifest.version!r}) than bundle {bundle.version!r}; {REMEDY}"
            )
        self._batch = manifest.batch
        self._lock = Lock()
        runtime = Runtime(threads)
        constants = program_constants(bundle.architecture, bundle.weights)
        loaded = []
        for name in PROGRAMS:
            program, source = read_program(folder, name, manifest.files[name]), str(folder / name)
            program = with_constants(program, manifest.constants.get(name, {}), constants[name], source)
            loaded.append(runtime.load(program, source, manifest.programs[name], manifest.batch))
        self._encoder, self._predictor, self._joiner = loaded

    def join(self, encoded: Float, predicted: Float) -> Float:
        encoded, predicted = np.broadcast_arrays(encoded, predicted)
        shape, run = encoded.shape, self._joiner
        encoded, predicted = encoded.reshape(-1, shape[-1]), predicted.reshape(-1, shape[-1])
        parts = []
        with self._lock:
            for at in range(0, len(predicted), self._batch):
                rows = slice(at, at + self._batch)
                parts.append(run(run.tensor(encoded[rows]), run.tensor(predicted[rows]))[0].numpy())
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(*shape[:-1], -1)


class ExecutorchTransducer(_Programs):
    """The :class:`~device_sdk.runtimes.protocol.Transducer` of a bundle of LSTMs on ExecuTorch."""

    def __init__(self, folder: str | Path, bundle: Bundle, threads: int = 1) -> None:
        """folder: as ``idiolect export executorch`` wrote it from a bundle of this architecture. threads: of
        ExecuTorch's pool, which the whole process shares. Every program's size and sha256 is checked before ExecuTorch
        sees it, and its shapes and results after. The bundle's weights take the place of those that the programs were
        written with. Raises :class:`BundleError` for a folder that is damaged or of another architecture, and
        :class:`MissingExtraError` where ExecuTorch is not installed."""
        self.architecture = bundle.lstm
        self.windows = Windows(self.architecture.subsampling_factor, self.architecture.subsampling_factor)
        super().__init__(folder, bundle, threads)
        try_transducer(self, str(folder))

    def encode(self, features: Float, state: States | None = None) -> tuple[Float, States]:
        sizes = self.architecture
        factor = sizes.subsampling_factor
        if state is None:
            state = zero_state(sizes.encoder_layers, 1, sizes.encoder_size)
        check_features(self.architecture.mel_bins, self.windows, features)
        encoded = np.empty((len(features) // factor, sizes.joiner_size), np.float32)
        with self._lock:
            h, c = self._encoder.tensor(state[0]), self._encoder.tensor(state[1])
            frames = self._encoder.tensor(features)
            for row in range(len(encoded)):
                out, h, c = self._encoder(frames[row * factor : (row + 1) * factor], h, c)
                encoded[row] = out.numpy()[0]
        return encoded, (h.numpy(), c.numpy())

    def predict(self, tokens: NDArray[np.int64], state: States | None = None) -> tuple[Float, States]:
        sizes = self.architecture
        if state is None:
            state = zero_state(sizes.predictor_layers, len(tokens), sizes.predictor_size)
        run = self._predictor
        parts = []
        with self._lock:
            for at in range(0, len(tokens), self._batch):
                rows = slice(at, at + self._batch)
                given = (tokens[rows], state[0][:, rows], state[1][:, rows])
                parts.append([out.numpy() for out in run(*(run.tensor(each) for each in given))])
        if len(parts) == 1:
            predicted, h, c = parts[0]
        else:
            columns = zip(*parts, strict=True)
            predicted, h, c = (np.concatenate(each, axis) for each, axis in zip(columns, (0, 1, 1), strict=True))
        return predicted, (h, c)


class ExecutorchStreamingTransducer(_Programs):
    """The same of a bundle that brings an encoder of its own, whose weights are in its program for good."""

    def __init__(self, folder: str | Path, bundle: Bundle, threads: int = 1) -> None:
        """As :class:`ExecutorchTransducer`; also refuses programs with other weights of the encoder."""
        sizes = bundle.architecture
        assert isinstance(sizes, StreamingArchitecture) and isinstance(sizes.predictor, StatelessPredictor)
        self.architecture, self.context = sizes, sizes.predictor.context
        self.windows = Windows(sizes.window, sizes.shift, TAIL)
        super().__init__(folder, bundle, threads)
        try_transducer(self, str(folder))

    def encode(self, features: Float, state: States | None = None) -> tuple[Float, States]:
        check_features(self.architecture.mel_bins, self.windows, features)
        run, encoded = self._encoder, list[Float]()
        with self._lock:
            following = [run.tensor(each) for each in (start_states(self.architecture) if state is None else state)]
            for at in range(0, len(features) - self.windows.size + 1, self.windows.shift):
                rows, *following = run(run.tensor(features[None, at : at + self.windows.size]), *following)
                encoded.append(rows.numpy()[0])
            return np.concatenate(encoded), tuple(each.numpy() for each in following)

    def predict(self, tokens: NDArray[np.int64], state: States | None = None) -> tuple[Float, States]:
        contexts, run, parts = next_contexts(tokens, state, self.context), self._predictor, list[Float]()
        with self._lock:
            for at in range(0, len(tokens), self._batch):
                parts.append(run(run.tensor(contexts[at : at + self._batch]))[0].numpy())
        return np.concatenate(parts), (contexts[None],)


def encoder_digest(bundle: Bundle) -> str:
    """Of the weights of an encoder that a bundle brings, hex sha256; empty for LSTMs, whose weights are exchanged."""
    sizes = bundle.architecture
    if not isinstance(sizes, StreamingArchitecture):
        return ""
    return hashlib.sha256(b"".join(bundle.weights[name].tobytes() for name, _ in sizes.encoder)).hexdigest()


def program_constants(sizes: AnyArchitecture, weights: Mapping[str, Float]) -> dict[str, dict[str, Float]]:
    """Program -> constant -> float32 values, made of parameters and constants by their public names. XNNPACK packs them
    when a program is loaded, so until then they can be exchanged. ``NAME.LAYER.GATE.weight`` [H, D + H] is the gate's
    block of W beside that of R: one map of input and state."""
    if isinstance(sizes, StreamingArchitecture):
        named = {
            "encoder.pte": ["joiner.encoder.bias"],
            "predictor.pte": list(sizes.predictor.shapes(sizes.pieces, sizes.joiner_size)),
            "joiner.pte": ["joiner.output.weight", "joiner.output.bias"],
        }
        return {program: {name: weights[name] for name in names} for program, names in named.items()}
    plain = {
        "encoder.pte": ("features.mean", "features.scale", "joiner.encoder.weight", "joiner.encoder.bias"),
        "predictor.pte": ("predictor.embedding", "joiner.predictor.weight"),
        "joiner.pte": ("joiner.output.weight", "joiner.output.bias"),
    }
    found = {program: {name: weights[name] for name in names} for program, names in plain.items()}
    for program, name, layers in (
        ("encoder.pte", "encoder", sizes.encoder_layers),
        ("predictor.pte", "predictor", sizes.predictor_layers),
    ):
        for layer in range(layers):
            w, r, b = (weights[f"{name}.{layer}.{part}"] for part in "WRB")
            size = r.shape[1]
            for gate, block in _GATES.items():
                rows = slice(block * size, (block + 1) * size)
                found[program][f"{name}.{layer}.{gate}.weight"] = np.concatenate([w[rows], r[rows]], axis=1)
                found[program][f"{name}.{layer}.{gate}.bias"] = b[rows]
    return found


def with_constants(program: bytes, places: Mapping[str, int], constants: Mapping[str, Float], source: str) -> bytes:
    """The program with these constants at their places. Raises :class:`BundleError` for places that cannot be."""
    if places.keys() != constants.keys():
        wrong = sorted(places.keys() ^ constants.keys())[0]
        raise BundleError(f"{source}: constants: {wrong!r} is missing or not the architecture's; {REMEDY}")
    content, end = bytearray(program), 0
    for name, begin in sorted(places.items(), key=lambda place: place[1]):
        values = constants[name].tobytes()
        if begin < end or begin + len(values) > len(content):
            raise BundleError(
                f"{source}: constants: {name!r} is said to be at bytes {begin} to {begin + len(values)} of "
                f"{len(content)}, behind {end}; {REMEDY}"
            )
        end = begin + len(values)
        content[begin:end] = values
    return bytes(content)
