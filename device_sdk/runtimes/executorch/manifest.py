"""``executorch.json``: what a folder of programs holds, and the checks before ExecuTorch sees any of it."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.manifest import FileEntry
from device_sdk.bundle.streaming import AnyArchitecture, StreamingArchitecture
from device_sdk.bundle.weights import architecture_digest
from device_sdk.errors import BundleError

MANIFEST = "executorch.json"
FORMAT_VERSION = 1
PROGRAMS = ("encoder.pte", "predictor.pte", "joiner.pte")
ROWS: Literal["batch"] = "batch"
FRAMES_AT_ONCE = 8
"""A training program takes a multiple of so many stacked frames."""
LEAST_FRAMES = 4 * FRAMES_AT_ONCE
"""Of a bucket: a loop of fewer turns would be traced as one of just so many."""

REMEDY = "write it again with: idiolect export executorch BUNDLE DIR"

Shape = list[int | Literal["batch"]]


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Edges(_Written):
    """Shapes of a program's inputs and outputs, in order; "batch" stands for any size from 1 to the manifest's."""

    inputs: dict[str, Shape]
    outputs: dict[str, Shape]


class Bucket(_Written):
    """The largest utterance that a training program takes. frames: stacked ones; tokens: of the longest hypothesis."""

    frames: int = Field(ge=LEAST_FRAMES, multiple_of=FRAMES_AT_ONCE)
    tokens: int = Field(ge=1)
    hypotheses: int = Field(ge=1)

    @property
    def file(self) -> str:
        return f"training-{self.frames}-{self.tokens}-{self.hypotheses}.pte"

    def holds(self, frames: int, tokens: int, hypotheses: int) -> bool:
        return frames <= self.frames and tokens <= self.tokens and hypotheses <= self.hypotheses


class ExecutorchManifest(_Written):
    """``executorch.json``. architecture: hex sha256 of the sizes. weights, version: hex sha256 of the packed weights
    that the programs were written with, and their version. executorch: the version that wrote the programs. batch: most
    rows of one call of the predictor and the joiner. files: of every program. programs: shapes of those that recognize;
    tensors are float32, tokens, contexts and some states int64. constants: program -> constant -> where its float32
    values begin, in bytes. encoder: of an imported encoder, whose weights stay as written, hex sha256 of these.
    training: buckets in the order to try them."""

    format_version: int
    architecture: str
    weights: str
    version: str
    executorch: str
    batch: int = Field(ge=1)
    files: dict[str, FileEntry]
    programs: dict[str, Edges]
    constants: dict[str, dict[str, int]]
    encoder: str = ""
    training: tuple[Bucket, ...] = ()


def program_shapes(sizes: AnyArchitecture) -> dict[str, Edges]:
    """What each program takes and gives. The encoder takes one stacked frame, an imported one its window: any length is
    a number of calls. Of streaming architectures, those whose prediction network is stateless."""
    joint: Shape = [ROWS, sizes.joiner_size]
    joiner = Edges(inputs={"encoded": joint, "predicted": joint}, outputs={"log_probs": [ROWS, sizes.pieces]})
    if isinstance(sizes, StreamingArchitecture):
        states: dict[str, Shape] = {state.name: [*state.shape] for state in sizes.states}
        encoded: Shape = [1, sizes.shift // sizes.subsampling_factor, sizes.joiner_size]
        contexts: Shape = [ROWS, getattr(sizes.predictor, "context", 0)]
        return {
            "encoder.pte": Edges(
                inputs={"features": [1, sizes.window, sizes.mel_bins], **states},
                outputs={"encoded": encoded, **{f"next.{name}": shape for name, shape in states.items()}},
            ),
            "predictor.pte": Edges(inputs={"contexts": contexts}, outputs={"predicted": joint}),
            "joiner.pte": joiner,
        }
    encoder: Shape = [sizes.encoder_layers, 1, sizes.encoder_size]
    predictor: Shape = [sizes.predictor_layers, ROWS, sizes.predictor_size]
    return {
        "encoder.pte": Edges(
            inputs={"features": [sizes.subsampling_factor, sizes.mel_bins], "h": encoder, "c": encoder},
            outputs={"encoded": [1, sizes.joiner_size], "h_next": encoder, "c_next": encoder},
        ),
        "predictor.pte": Edges(
            inputs={"tokens": [ROWS], "h": predictor, "c": predictor},
            outputs={"predicted": joint, "h_next": predictor, "c_next": predictor},
        ),
        "joiner.pte": joiner,
    }


def training_shapes(sizes: Architecture, bucket: Bucket) -> Edges:
    """What a training program takes and gives, at its bucket's full size."""
    rows, count = (bucket.tokens + 1) * bucket.hypotheses, bucket.hypotheses
    constants, parameters = sizes.constant_shapes(), sizes.parameter_shapes()
    inputs: dict[str, Shape] = {
        "features": [bucket.frames, sizes.subsampling_factor, sizes.mel_bins],
        "frames": [1],
        "tokens": [count, bucket.tokens],
        "lengths": [count],
        "representatives": [rows],
        "prefix_of": [rows],
        "weights": [count],
        "costs": [count],
        "cost_scale": [],
        "pull": [bucket.frames, sizes.joiner_size],
    }
    outputs: dict[str, Shape] = {"negative_log_likelihoods": [count], "expected_cost": []}
    return Edges(
        inputs=inputs | {name: [*shape] for name, shape in (constants | parameters).items()},
        outputs=outputs | {f"gradient.{name}": [*shape] for name, shape in parameters.items()},
    )


def read_manifest(folder: Path, architecture: AnyArchitecture) -> ExecutorchManifest:
    """Raises :class:`BundleError` for a manifest that is not there, damaged or of another architecture."""
    source = folder / MANIFEST
    try:
        manifest = ExecutorchManifest.model_validate_json(source.read_bytes())
    except OSError as error:
        raise BundleError(f"{source}: cannot be read ({error.strerror}); {REMEDY}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise BundleError(f"{source}: field {field}: {first['msg']}; {REMEDY}") from error
    version = manifest.format_version
    if version != FORMAT_VERSION:
        raise BundleError(f"{source}: format_version is {version}, this version reads {FORMAT_VERSION}; {REMEDY}")
    expected = architecture_digest(architecture)
    if manifest.architecture != expected:
        raise BundleError(
            f"{source}: architecture is {manifest.architecture} (version {manifest.version!r}), expected {expected}: "
            f"the programs are another bundle's; {REMEDY}"
        )
    for name in (*PROGRAMS, *(bucket.file for bucket in manifest.training)):
        if name not in manifest.files:
            raise BundleError(f"{source}: files: {name!r} is missing; {REMEDY}")
    if manifest.programs != program_shapes(architecture):
        raise BundleError(f"{source}: programs: the shapes are not the architecture's; {REMEDY}")
    return manifest


def read_program(folder: Path, name: str, entry: FileEntry) -> bytes:
    """Raises :class:`BundleError` where the file is not what the manifest says."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder / name}: cannot be read ({error.strerror}); {REMEDY}") from error
    entry.check(content, str(folder / name), REMEDY)
    return content
