"""Gradients on ExecuTorch: the training programs of a folder, each for utterances up to its bucket's size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture, Subset, trainable
from device_sdk.bundle.manifest import FileEntry
from device_sdk.errors import BundleError, ConfigurationError, LearningError
from device_sdk.runtimes.executorch.bindings import Method, Runtime
from device_sdk.runtimes.executorch.manifest import (
    FRAMES_AT_ONCE,
    MANIFEST,
    Bucket,
    read_manifest,
    read_program,
    training_shapes,
)
from device_sdk.runtimes.protocol import Gradients, Training, check_parameter

ABSENT = -1

Float = NDArray[np.float32]
Feeds = dict[str, NDArray[np.generic]]


class ExecutorchTrainingSession(Training):
    """Training programs, each loaded when the first utterance needs it; every run takes the parameters."""

    def __init__(
        self, folder: str | Path, architecture: Architecture, threads: int = 1, subset: Subset = "whole"
    ) -> None:
        """folder: as ``idiolect export executorch --training`` wrote it. threads: of ExecuTorch's pool. subset: which
        gradients to return; all are worked out, in float32. Raises :class:`ConfigurationError` for subset ``adapters``,
        whose factors no program knows, :class:`BundleError` for a folder that is damaged, of another architecture or
        without training programs, and :class:`MissingExtraError` where ExecuTorch is not installed."""
        if subset == "adapters":
            raise ConfigurationError(
                "learning.subset: found 'adapters', which runtime 'executorch' has no programs for; "
                "use runtime 'onnxruntime' or another subset"
            )
        self.architecture = architecture
        self.trainable = trainable(architecture, subset)
        self._folder = Path(folder)
        manifest = read_manifest(self._folder, architecture)
        if not manifest.training:
            raise BundleError(
                f"{self._folder / MANIFEST}: training: found no bucket, so runtime 'executorch' cannot learn; "
                "write it again with: idiolect export executorch BUNDLE DIR --training"
            )
        self.buckets: tuple[Bucket, ...] = manifest.training
        self._files: Mapping[str, FileEntry] = manifest.files
        self._runtime = Runtime(threads)
        self._loaded: dict[Bucket, Method] = {}
        self._shapes = architecture.constant_shapes() | architecture.parameter_shapes()

    def too_large(self, features: Float, hypotheses: Sequence[Sequence[int]]) -> str | None:
        """Why no bucket holds an utterance, None where one does. features: [F, M]."""
        sizes = len(features) // self.architecture.subsampling_factor, max(map(len, hypotheses)), len(hypotheses)
        return None if self._bucket(*sizes) else "the utterance is larger than every training program"

    def _gradients(self, parameters: Mapping[str, Float], feeds: Feeds) -> Gradients:
        given = [check_parameter(parameters, name, shape) for name, shape in self._shapes.items()]
        sizes = len(feeds["features"]) // self.architecture.subsampling_factor, *feeds["tokens"].shape[::-1]
        bucket = self._bucket(*sizes)
        if bucket is None:
            largest = max((each.frames, each.tokens, each.hypotheses) for each in self.buckets)
            raise LearningError(
                f"features, hypotheses: found {sizes} stacked frames, tokens, hypotheses, expected at most {largest}; "
                "leave the utterance out, or export a larger training program"
            )
        method = self._method(bucket)
        inputs = [*pad(feeds, self.architecture.subsampling_factor, bucket).values(), *given]
        names, wanted = self.architecture.parameter_shapes(), frozenset(self.trainable)
        likelihoods, expected, *gradients = method(*(method.tensor(each) for each in inputs))
        return Gradients(
            negative_log_likelihoods=likelihoods.numpy()[: len(feeds["lengths"])],
            expected_cost=float(expected),
            gradients={name: value.numpy() for name, value in zip(names, gradients, strict=True) if name in wanted},
        )

    def _bucket(self, frames: int, tokens: int, hypotheses: int) -> Bucket | None:
        return next((bucket for bucket in self.buckets if bucket.holds(frames, tokens, hypotheses)), None)

    def _method(self, bucket: Bucket) -> Method:
        if bucket not in self._loaded:
            program = read_program(self._folder, bucket.file, self._files[bucket.file])
            assert isinstance(self.architecture, Architecture)
            shapes = training_shapes(self.architecture, bucket)
            self._loaded[bucket] = self._runtime.load(program, str(self._folder / bucket.file), shapes)
        return self._loaded[bucket]


def pad(feeds: Feeds, stacked: int, bucket: Bucket) -> Feeds:
    """A program's inputs besides parameters, in order, from an utterance's (see :mod:`device_sdk.runtimes.protocol`).
    stacked: K, frames that the encoder stacks into one. Padding changes neither losses nor gradients: frames behind the
    utterance's own and rows of no hypothesis lead to no end of the lattice."""
    features, tokens, lengths = feeds["features"], feeds["tokens"], feeds["lengths"]
    frames, count = len(features) // stacked, len(lengths)
    whole = np.zeros((-(-frames // FRAMES_AT_ONCE) * FRAMES_AT_ONCE, stacked, features.shape[1]), np.float32)
    whole[:frames] = features[: frames * stacked].reshape(frames, stacked, -1)
    pull = np.pad(feeds["pull"], ((0, len(whole) - frames), (0, 0)))
    rows = np.zeros((bucket.hypotheses, bucket.tokens), np.int64)
    rows[:count, : tokens.shape[1]] = tokens
    ends = np.full(bucket.hypotheses, ABSENT, np.int64)
    ends[:count] = lengths
    representatives, prefix_of = distinct_prefixes(rows, ends)
    missing = (0, bucket.hypotheses - count)
    return {
        "features": whole,
        "frames": np.array([frames], np.int64),
        "tokens": rows,
        "lengths": ends,
        "representatives": representatives,
        "prefix_of": prefix_of,
        "weights": np.pad(feeds["weights"], missing),
        "costs": np.pad(feeds["costs"], missing),
        "cost_scale": feeds["cost_scale"],
        "pull": pull,
    }


def distinct_prefixes(
    tokens: NDArray[np.generic], lengths: NDArray[np.generic]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """N: hypotheses; U: tokens; P: distinct prefixes, the empty one among them. n-best lists share most of them.
    tokens: [N, U] int64, padded; lengths: [N] int64, negative for no hypothesis. Row (u, i), the first u tokens of
    hypothesis i, has number u * N + i. Returns the number of the first row of each prefix [P] and the prefix of each
    row [(U + 1) N], int64 (that of a row behind its hypothesis' end means nothing)."""
    count, longest = tokens.shape
    numbers: dict[tuple[int, ...], int] = {}
    representatives: list[int] = []
    prefix_of = np.zeros((longest + 1) * count, np.int64)
    lists = [row[: max(int(length), 0)].tolist() for row, length in zip(tokens, lengths, strict=True)]
    for length in range(longest + 1):
        for row, said in enumerate(lists):
            if length > lengths[row]:
                continue
            prefix = tuple(said[:length])
            if prefix not in numbers:
                numbers[prefix] = len(representatives)
                representatives.append(length * count + row)
            prefix_of[length * count + row] = numbers[prefix]
    return np.array(representatives, np.int64), prefix_of
