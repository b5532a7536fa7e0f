"""A bundle's recognition on ExecuTorch, behind the same protocol as onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.runtimes.executorch.bindings import Runtime
from device_sdk.runtimes.executorch.constants import program_constants, with_constants
from device_sdk.runtimes.executorch.manifest import PROGRAMS, read_manifest, read_program
from device_sdk.runtimes.protocol import RecurrentState
from device_sdk.runtimes.trial import try_transducer

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

__all__ = ["ExecutorchTransducer"]

Float = NDArray[np.float32]


class ExecutorchTransducer:
    """The :class:`~device_sdk.runtimes.protocol.Transducer` of a bundle on ExecuTorch. Safe to share between threads,
    which take turns."""

    def __init__(self, folder: str | Path, bundle: Bundle, threads: int = 1) -> None:
        """folder: as ``idiolect export executorch`` wrote it from a bundle of this architecture.

        threads: of ExecuTorch's pool, which the whole process shares.

        Every program's size and sha256 is checked before ExecuTorch sees it, and its shapes and results after. The
        bundle's weights take the place of those that the programs were written with.
        Raises :class:`BundleError` for a folder that is damaged or of another architecture, and
        :class:`MissingExtraError` where ExecuTorch is not installed.
        """
        folder = Path(folder)
        self._architecture = bundle.architecture
        manifest = read_manifest(folder, bundle.architecture)
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
        try_transducer(self, str(folder))

    @property
    def architecture(self) -> Architecture:
        return self._architecture

    def encode(self, features: Float, state: RecurrentState | None = None) -> tuple[Float, RecurrentState]:
        sizes = self._architecture
        factor = sizes.subsampling_factor
        if state is None:
            state = _zeros(sizes.encoder_layers, 1, sizes.encoder_size)
        if features.ndim != 2 or features.shape[1] != sizes.mel_bins or len(features) % factor:
            raise ValueError(
                f"features: found shape {features.shape}, expected [F, {sizes.mel_bins}] with F a multiple of {factor}"
            )
        encoded = np.empty((len(features) // factor, sizes.joiner_size), np.float32)
        with self._lock:
            h, c = self._encoder.tensor(state.h), self._encoder.tensor(state.c)
            frames = self._encoder.tensor(features)
            for row in range(len(encoded)):
                out, h, c = self._encoder(frames[row * factor : (row + 1) * factor], h, c)
                encoded[row] = out.numpy()[0]
        return encoded, RecurrentState(h.numpy(), c.numpy())

    def predict(self, tokens: NDArray[np.int64], state: RecurrentState | None = None) -> tuple[Float, RecurrentState]:
        sizes = self._architecture
        if state is None:
            state = _zeros(sizes.predictor_layers, len(tokens), sizes.predictor_size)
        run = self._predictor
        parts = []
        with self._lock:
            for at in range(0, len(tokens), self._batch):
                rows = slice(at, at + self._batch)
                given = (tokens[rows], state.h[:, rows], state.c[:, rows])
                parts.append([out.numpy() for out in run(*(run.tensor(each) for each in given))])
        if len(parts) == 1:
            predicted, h, c = parts[0]
        else:
            columns = zip(*parts, strict=True)
            predicted, h, c = (np.concatenate(each, axis) for each, axis in zip(columns, (0, 1, 1), strict=True))
        return predicted, RecurrentState(h, c)

    def join(self, encoded: Float, predicted: Float) -> Float:
        encoded, predicted = np.broadcast_arrays(encoded, predicted)
        shape, run = encoded.shape, self._joiner
        encoded, predicted = encoded.reshape(-1, shape[-1]), predicted.reshape(-1, shape[-1])
        parts = []
        with self._lock:
            for at in range(0, len(predicted), self._batch):
                rows = slice(at, at + self._batch)
                parts.append(run(run.tensor(encoded[rows]), run.tensor(predicted[rows]))[0].numpy())
        log_probs = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return log_probs.reshape(*shape[:-1], -1)


def _zeros(layers: int, rows: int, size: int) -> RecurrentState:
    zeros = np.zeros((layers, rows, size), np.float32)
    return RecurrentState(zeros, zeros)
