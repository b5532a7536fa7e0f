"""Writes a folder of ExecuTorch programs for phones and other small machines."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.manifest import FileEntry
from device_sdk.bundle.streaming import AnyArchitecture, StreamingArchitecture
from device_sdk.bundle.weights import architecture_digest
from device_sdk.errors import MissingExtraError
from device_sdk.runtimes.executorch.bindings import METHOD
from device_sdk.runtimes.executorch.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    PROGRAMS,
    Bucket,
    ExecutorchManifest,
    program_shapes,
)
from device_sdk.runtimes.executorch.transducer import encoder_digest, program_constants, with_constants
from export.executorch.steps import BATCH, EncoderStep, JoinerStep, PredictorStep, step_example
from export.executorch.streaming import Traced, Weights, streaming_steps
from export.executorch.training import TrainingStep, training_example
from export.networks.rnnt import RNNT

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

TRAINING_BUCKETS = (
    Bucket(frames=128, tokens=16, hypotheses=8),
    Bucket(frames=256, tokens=32, hypotheses=8),
    Bucket(frames=704, tokens=96, hypotheses=8),
)
"""A short command, a sentence, and the 20 s after which a session ends an utterance. A program's memory is that of its
bucket's full size; its time is that of the utterance's frames."""


def export_executorch(bundle: Bundle, folder: str | Path, training: Sequence[Bucket] = ()) -> Path:
    """Write ``encoder.pte``, ``predictor.pte``, ``joiner.pte``, a program for each training bucket, in the order given,
    and ``executorch.json``. Returns the folder. Raises BundleError for an imported bundle whose networks no
    program can run, or with ``training``; :class:`MissingExtraError` where ExecuTorch is not installed."""
    folder, sizes = Path(folder), bundle.lstm if training else bundle.architecture
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / MANIFEST
    manifest.unlink(missing_ok=True)  # without it nothing loads the programs while some of them are old
    files, constants = {}, {}
    values = program_constants(sizes, bundle.weights)
    for name, (program, places) in _recognizing(bundle, sizes).items():
        files[name] = _written(folder / name, with_constants(program, places, values[name], name))
        constants[name] = places
    for bucket in training:
        program = lower(TrainingStep(bundle.lstm), *training_example(bundle.lstm, bucket))
        files[bucket.file] = _written(folder / bucket.file, program)
    described = ExecutorchManifest(
        format_version=FORMAT_VERSION,
        architecture=architecture_digest(sizes),
        weights=hashlib.sha256(bundle.packed).hexdigest(),
        version=bundle.version,
        executorch=version("executorch"),
        batch=BATCH,
        files=files,
        programs=program_shapes(sizes),
        constants=constants,
        encoder=encoder_digest(bundle),
        training=tuple(training),
    )
    manifest.write_text(described.model_dump_json(indent=2) + "\n", "utf-8")
    return folder


def _written(path: Path, program: bytes) -> FileEntry:
    path.write_bytes(program)
    return FileEntry.of(program)


def _lstm_steps(sizes: Architecture) -> tuple[Weights, list[Traced]]:
    """Encoder, predictor and joiner, and the random weights that they have."""
    rng, shapes = np.random.default_rng(0), sizes.constant_shapes() | sizes.parameter_shapes()
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    network = RNNT(sizes).from_parameters(weights).eval().requires_grad_(False)
    steps = (EncoderStep(network), PredictorStep(network), JoinerStep(network))
    return weights, [(step, *step_example(step)) for step in steps]


def _recognizing(bundle: Bundle, sizes: AnyArchitecture) -> dict[str, tuple[bytes, dict[str, int]]]:
    """File -> (program, where its constants stand). Random weights tell each of them from all others by its bytes."""
    if isinstance(sizes, StreamingArchitecture):
        weights, steps = streaming_steps(bundle, sizes)
    else:
        weights, steps = _lstm_steps(sizes)
    values, found = program_constants(sizes, weights), {}
    for name, (step, inputs, varying) in zip(PROGRAMS, steps, strict=True):
        program = lower_to_xnnpack(step, inputs, varying)
        found[name] = program, _places(program, values[name], name)
    return found


def _places(program: bytes, constants: Mapping[str, NDArray[np.float32]], source: str) -> dict[str, int]:
    places = {}
    for name, values in constants.items():
        content = values.tobytes()
        places[name] = program.find(content)
        if places[name] < 0 or program.find(content, places[name] + 1) >= 0:
            raise RuntimeError(f"{source}: {name} stands in the program {program.count(content)} times, expected once")
    return places


Varying = tuple[object, ...]


def lower_to_xnnpack(module: nn.Module, inputs: tuple[Tensor, ...], varying: Varying) -> bytes:
    """A program whose operators XNNPACK runs as far as it has them. varying: for each input, sizes that may vary.
    Raises :class:`MissingExtraError` where ExecuTorch is not installed."""
    with _quiet():
        exir = _exir()
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        traced = torch.export.export(module.eval(), inputs, dynamic_shapes=varying)
        edge = exir.to_edge_transform_and_lower({METHOD: traced}, partitioner=[XnnpackPartitioner()])
        return bytes(edge.to_executorch().buffer)


def lower(module: nn.Module, inputs: tuple[Tensor, ...], varying: Varying) -> bytes:
    """A program of ExecuTorch's own kernels, with scans as loops. Its inputs are read where they lie, not copied.
    Raises :class:`MissingExtraError` where ExecuTorch is not installed."""
    with _quiet(), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        exir = _exir()
        from executorch.exir.passes import MemoryPlanningPass

        traced = torch.export.export(module.eval(), inputs, dynamic_shapes=varying, strict=False)
        unchecked = exir.EdgeCompileConfig(_check_ir_validity=False)
        edge = exir.to_edge_transform_and_lower({METHOD: traced}, compile_config=unchecked)
        # Views stay copies: what a loop writes and its next step reads must not lie in the same place.
        planning = MemoryPlanningPass(alloc_graph_input=False)
        config = exir.ExecutorchBackendConfig(remove_view_copy=False, memory_planning_pass=planning)
        return bytes(edge.to_executorch(config).buffer)


def _exir() -> ModuleType:
    try:
        import executorch.exir as exir
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"export to ExecuTorch needs the module {error.name!r}; "
            "install it with: pip install 'idiolect-server[train]'"
        ) from error
    return exir


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of torchao and ExecuTorch on their own optional parts."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
