"""A bundle's networks as ExecuTorch programs, behind the same protocol as onnxruntime.

A folder that ``idiolect export executorch`` wrote holds three programs and ``executorch.json``. Unlike the bundle's
graphs the programs hold their weights, so a folder serves one version of the weights.

ExecuTorch's Python bindings take torch tensors: this is the one module of the device that imports torch, and only when
a transducer is built. Apps in C++, Kotlin or Swift run the same programs without either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.manifest import FileEntry
from device_sdk.bundle.weights import architecture_digest
from device_sdk.errors import BundleError, MissingExtraError
from device_sdk.runtimes.protocol import RecurrentState
from device_sdk.runtimes.trial import try_transducer

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

__all__ = ["MANIFEST", "PROGRAMS", "ExecutorchManifest", "ExecutorchTransducer", "program_shapes", "weights_digest"]

MANIFEST = "executorch.json"
FORMAT_VERSION = 1
PROGRAMS = ("encoder.pte", "predictor.pte", "joiner.pte")
METHOD = "forward"
ROWS: Literal["batch"] = "batch"
REMEDY = "write it again with: idiolect export executorch BUNDLE DIR"

Float = NDArray[np.float32]
Shape = list[int | Literal["batch"]]

_pool = Lock()  # ExecuTorch's thread pool belongs to the process


class Edges(BaseModel):
    """Shapes of a program's inputs and outputs, in order; "batch" stands for any size from 1 to the manifest's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inputs: dict[str, Shape]
    outputs: dict[str, Shape]


class ExecutorchManifest(BaseModel):
    """``executorch.json``.

    architecture, weights: hex sha256 of the sizes and of the packed weights of the bundle that was exported.
    version: of the weights. executorch: the version that wrote the programs. batch: most rows of one call of the
    predictor and the joiner. files: of every program. programs: their shapes; tensors are float32, tokens int64.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: int
    architecture: str
    weights: str
    version: str
    executorch: str
    batch: int = Field(ge=1)
    files: dict[str, FileEntry]
    programs: dict[str, Edges]


def program_shapes(sizes: Architecture) -> dict[str, Edges]:
    """What each program takes and gives. The encoder takes one stacked frame: any length is a number of calls."""
    encoder: Shape = [sizes.encoder_layers, 1, sizes.encoder_size]
    predictor: Shape = [sizes.predictor_layers, ROWS, sizes.predictor_size]
    joint: Shape = [ROWS, sizes.joiner_size]
    return {
        "encoder.pte": Edges(
            inputs={"features": [sizes.subsampling_factor, sizes.mel_bins], "h": encoder, "c": encoder},
            outputs={"encoded": [1, sizes.joiner_size], "h_next": encoder, "c_next": encoder},
        ),
        "predictor.pte": Edges(
            inputs={"tokens": [ROWS], "h": predictor, "c": predictor},
            outputs={"predicted": joint, "h_next": predictor, "c_next": predictor},
        ),
        "joiner.pte": Edges(inputs={"encoded": joint, "predicted": joint}, outputs={"log_probs": [ROWS, sizes.pieces]}),
    }


def weights_digest(bundle: Bundle) -> str:
    """Hex sha256 of the weights that a bundle holds now."""
    return hashlib.sha256(bundle.packed).hexdigest()


class ExecutorchTransducer:
    """The :class:`~device_sdk.runtimes.protocol.Transducer` of a bundle on ExecuTorch. Safe to share between threads,
    which take turns."""

    def __init__(self, folder: str | Path, bundle: Bundle, threads: int = 1) -> None:
        """folder: as ``idiolect export executorch`` wrote it from this very bundle, and these weights.

        threads: of ExecuTorch's pool, which the whole process shares.

        Every program's size and sha256 is checked before ExecuTorch sees it, and its shapes and results after.
        Raises :class:`BundleError` for a folder that is damaged or of another architecture or other weights, and
        :class:`MissingExtraError` where ExecuTorch is not installed.
        """
        folder = Path(folder)
        self._architecture = bundle.architecture
        manifest = _read_manifest(folder)
        _check(manifest, bundle, folder)
        self._batch = manifest.batch
        self._lock = Lock()
        runtime = _Runtime(threads)
        programs = [_read_program(folder, name, manifest.files[name]) for name in PROGRAMS]
        self._encoder, self._predictor, self._joiner = (
            runtime.load(program, str(folder / name), manifest.programs[name], manifest.batch)
            for name, program in zip(PROGRAMS, programs, strict=True)
        )
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


class _Method:
    """A loaded program's method. Owns the bytes, which ExecuTorch reads for as long as it runs."""

    def __init__(self, program: bytes, method: Any, from_numpy: Any) -> None:
        self._program = program
        self._method = method
        self._from_numpy = from_numpy

    def tensor(self, array: NDArray[np.generic]) -> Any:
        """A tensor with a copy of the values, which may be read-only or a view."""
        return self._from_numpy(np.array(array, order="C"))

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return self._method(inputs)


class _Runtime:
    """ExecuTorch's bindings. ``executorch.runtime`` is a thin layer over them whose import costs more than torch's."""

    def __init__(self, threads: int) -> None:
        try:
            import torch  # the bindings need its libraries loaded first
            from executorch.extension.pybindings import _portable_lib as bindings
        except ImportError as error:
            raise MissingExtraError(
                f"runtime 'executorch' cannot be loaded ({error}); install it with: pip install 'idiolect[executorch]'"
            ) from error
        self._bindings = bindings
        self._from_numpy = torch.from_numpy
        with _pool:
            if bindings._threadpool_get_thread_count() != threads:
                bindings._unsafe_reset_threadpool(threads)

    def load(self, program: bytes, source: str, expected: Edges, batch: int) -> _Method:
        """Raises :class:`BundleError` for what is no program, or one of other shapes."""
        check = self._bindings.Verification.InternalConsistency
        try:
            loaded = self._bindings._load_program_from_buffer(program, program_verification=check)
            found = loaded.method_meta(METHOD)
            inputs = [list(found.input_tensor_meta(index).sizes()) for index in range(found.num_inputs())]
            outputs = [list(found.output_tensor_meta(index).sizes()) for index in range(found.num_outputs())]
            method = loaded.load_method(METHOD)
        except Exception as error:  # the bindings document no type
            raise BundleError(f"{source}: ExecuTorch cannot load this program ({error}); {REMEDY}") from error
        for kind, shapes, wanted in (("inputs", inputs, expected.inputs), ("outputs", outputs, expected.outputs)):
            largest = [[batch if size == ROWS else size for size in shape] for shape in wanted.values()]
            if shapes != largest:
                raise BundleError(f"{source}: {kind} have shapes {shapes}, expected {largest}; {REMEDY}")
        return _Method(program, method, self._from_numpy)


def _read_manifest(folder: Path) -> ExecutorchManifest:
    source = folder / MANIFEST
    try:
        return ExecutorchManifest.model_validate_json(source.read_bytes())
    except OSError as error:
        raise BundleError(f"{source}: cannot be read ({error.strerror}); {REMEDY}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise BundleError(f"{source}: field {field}: {first['msg']}; {REMEDY}") from error


def _check(manifest: ExecutorchManifest, bundle: Bundle, folder: Path) -> None:
    source = folder / MANIFEST
    if manifest.format_version != FORMAT_VERSION:
        raise BundleError(
            f"{source}: format_version is {manifest.format_version}, this version reads {FORMAT_VERSION}; {REMEDY}"
        )
    for field, found, expected in (
        ("architecture", manifest.architecture, architecture_digest(bundle.architecture)),
        ("weights", manifest.weights, weights_digest(bundle)),
    ):
        if found != expected:
            raise BundleError(
                f"{source}: {field} is {found} (version {manifest.version!r}), expected {expected} of {bundle!r}: "
                f"the programs are another bundle's; {REMEDY}"
            )
    for name in PROGRAMS:
        if name not in manifest.files:
            raise BundleError(f"{source}: files: {name!r} is missing; {REMEDY}")
    if manifest.programs != program_shapes(bundle.architecture):
        raise BundleError(f"{source}: programs: the shapes are not the architecture's; {REMEDY}")


def _read_program(folder: Path, name: str, entry: FileEntry) -> bytes:
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder / name}: cannot be read ({error.strerror}); {REMEDY}") from error
    found = hashlib.sha256(content).hexdigest()
    if len(content) != entry.size or found != entry.sha256:
        raise BundleError(
            f"{folder / name}: {len(content)} bytes with sha256 {found}, expected {entry.size} with {entry.sha256}; "
            f"{REMEDY}"
        )
    return content


def _zeros(layers: int, rows: int, size: int) -> RecurrentState:
    zeros = np.zeros((layers, rows, size), np.float32)
    return RecurrentState(zeros, zeros)
