"""A folder of sherpa-onnx's layout: its graphs, checked before anything runs them, their metadata and tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from device_sdk.errors import BundleError

LARGEST_FILE = 1 << 31  # bytes; more is no ONNX file without external data either
LARGEST_TENSOR = 1 << 29  # values
MOST_NODES = 200_000
MOST_TOKENS = 1 << 17
REFUSED = {"Loop", "Scan", "SequenceMap"}  # they may run for ever, and no streaming transducer needs them
DOMAINS = {"", "ai.onnx", "com.microsoft"}
PARTS = ("encoder", "decoder", "joiner")
EDGES = {"encoder": (3, 3), "decoder": (1, 1), "joiner": (2, 1)}

Constants = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked graph. path: for messages. constants: initializers, constant nodes and what is one in another form, by
    name. metadata: as written."""

    path: Path
    model: onnx.ModelProto
    constants: Constants
    metadata: Mapping[str, str]

    def fail(self, what: str) -> BundleError:
        return BundleError(f"{self.path}: {what}")

    def number(self, key: str) -> int:
        """A whole number of the metadata. Raises :class:`BundleError` where it is missing or no such number."""
        return self.numbers(key, 1)[0]

    def numbers(self, key: str, count: int | None = None) -> list[int]:
        """Whole numbers of the metadata, with commas between them."""
        text = self.metadata.get(key)
        if text is None:
            raise self.fail(f"metadata has no {key!r}; expected the metadata that sherpa-onnx reads")
        try:
            found = [int(each) for each in text.split(",")]
        except ValueError:
            found = []
        if not found or (count is not None and len(found) != count) or min(found) < 0 or max(found) > 1 << 20:
            raise self.fail(f"metadata {key!r} is {text[:60]!r}; expected whole numbers from 0 to {1 << 20}")
        return found


@dataclass(frozen=True, slots=True)
class SherpaFolder:
    """The three graphs, and the pieces by their id."""

    path: Path
    encoder: Graph
    decoder: Graph
    joiner: Graph
    tokens: tuple[str, ...]


def open_folder(path: str | Path) -> SherpaFolder:
    """Read and check a folder: ``encoder*.onnx``, ``decoder*.onnx``, ``joiner*.onnx``, ``tokens.txt``. Where a part
    comes in float32 and int8 (``*.int8.onnx``), the float32 one is read. Raises :class:`BundleError` that names the
    file, what was found and what was expected."""
    folder = Path(path)
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder; expected one that sherpa-onnx loads")
    graphs = {part: read_graph(_file(folder, part)) for part in PARTS}
    for part, (inputs, outputs) in EDGES.items():
        given = graphs[part].model.graph
        if len(given.input) < inputs or len(given.output) < outputs:
            raise graphs[part].fail(
                f"has {len(given.input)} inputs, {len(given.output)} outputs; expected at least {inputs} and {outputs}"
            )
    return SherpaFolder(folder, **graphs, tokens=read_tokens(folder / "tokens.txt"))


def _file(folder: Path, part: str) -> Path:
    found = sorted(each for each in folder.glob(f"{part}*.onnx") if "offline" not in each.name)
    exact = [each for each in found if not each.name.endswith(".int8.onnx")] or found
    if len(exact) != 1:
        names = ", ".join(each.name for each in exact) or "none"
        raise BundleError(f"{folder}: holds {names}; expected one file {part}*.onnx, besides an .int8.onnx")
    return exact[0]


def read_graph(path: Path) -> Graph:
    """One graph. Refused are what cannot be read, control flow without bound, operators of other domains, tensors whose
    bytes are elsewhere or do not fill their shape, and sizes beyond any use."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise BundleError(f"{path}: {size} bytes, expected at most {LARGEST_FILE}")
        model = onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # protobuf's, which onnx brings along
        raise BundleError(f"{path}: is no ONNX file ({error})") from error
    nodes = list(_nodes(model.graph))
    if not nodes or len(nodes) > MOST_NODES:
        raise BundleError(f"{path}: holds {len(nodes)} nodes, expected 1 to {MOST_NODES}")
    for node in nodes:
        name = f"node {node.name or node.output[:1]!r} ({node.op_type})"
        if node.domain not in DOMAINS:
            raise BundleError(f"{path}: {name} is of domain {node.domain!r}; expected ONNX's and onnxruntime's own")
        if node.op_type in REFUSED:
            raise BundleError(f"{path}: {name} cannot be imported; expected a graph without loops")
    constants = _constants(model.graph, path)
    metadata = {each.key: each.value for each in model.metadata_props}
    return Graph(path, model, constants, metadata)


def _nodes(graph: onnx.GraphProto, depth: int = 0) -> Iterator[onnx.NodeProto]:
    """Of a graph and of the branches in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for branch in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                if depth < 8:
                    yield from _nodes(branch, depth + 1)


def _constants(graph: onnx.GraphProto, path: Path) -> dict[str, NDArray[np.generic]]:
    found = {tensor.name: _array(tensor, path) for tensor in graph.initializer}
    if len(graph.sparse_initializer):
        raise BundleError(f"{path}: holds sparse tensors; expected dense ones")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                value = _array(attribute.t, path)
                if node.op_type == "Constant" and attribute.name == "value":
                    found[node.output[0]] = value
    _fold(graph, found)
    return found


def _fold(graph: onnx.GraphProto, constants: dict[str, NDArray[np.generic]]) -> None:
    """Adds what is only a constant in another form, in the order of the graph."""
    for node in graph.node:
        fold = FOLDED.get(node.op_type)
        given = [constants.get(name) for name in node.input]
        values = [value for value in given if value is not None]
        if fold is None or not values or len(values) < len(given) or len(node.output) != 1:
            continue
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        try:
            constants[node.output[0]] = np.asarray(fold(values, attributes))
        except (ValueError, TypeError, IndexError, AttributeError):  # of a graph that is wrong, as a trial will tell
            continue


def _axes(values: list[NDArray[np.generic]], attributes: Mapping[str, Any]) -> tuple[int, ...]:
    found = values[1] if len(values) > 1 else attributes["axes"]
    return tuple(int(axis) for axis in found)


FOLDED: Mapping[str, Callable[[list[NDArray[np.generic]], Mapping[str, Any]], NDArray[np.generic]]] = {
    "Identity": lambda values, _: values[0],
    "Transpose": lambda values, attributes: np.transpose(values[0], attributes.get("perm")),
    "Unsqueeze": lambda values, attributes: np.expand_dims(values[0], _axes(values, attributes)),
    "Squeeze": lambda values, attributes: np.squeeze(values[0], _axes(values, attributes)),
    "Concat": lambda values, attributes: np.concatenate(values, axis=attributes["axis"]),
}


def _array(tensor: TensorProto, path: Path) -> NDArray[np.generic]:
    """A tensor's values. Raises :class:`BundleError` where they are not in the file, or not as many as it says."""
    name, shape = f"tensor {tensor.name[:80]!r}", list(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL or len(tensor.external_data):
        raise BundleError(f"{path}: {name} lies in another file; expected a graph that holds its own weights")
    if any(size < 0 for size in shape) or prod(shape) > LARGEST_TENSOR:
        raise BundleError(f"{path}: {name} has shape {shape[:8]}; expected at most {LARGEST_TENSOR} values")
    if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE):
        kind = TensorProto.DataType.Name(tensor.data_type).lower()
        raise BundleError(f"{path}: {name} is {kind}; expected float32 or int8 weights")
    try:
        value = numpy_helper.to_array(tensor)
    except Exception as error:  # of many types: protobuf, numpy and onnx each have their own
        raise BundleError(f"{path}: {name} does not hold what its shape {shape[:8]} says ({error})") from error
    if value.dtype == np.float32 and not np.isfinite(value).all() and value.size > 1:
        raise BundleError(f"{path}: {name} holds NaN or infinity; take the file from its source again")
    return value


def write_tokens(path: Path, pieces: Iterable[str]) -> None:
    """The inverse of :func:`read_tokens`."""
    path.write_text("".join(f"{piece} {index}\n" for index, piece in enumerate(pieces)), "utf-8")


def read_tokens(path: Path) -> tuple[str, ...]:
    """Pieces by id of a ``tokens.txt``: one a line, the piece and its id with a space between them."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: is no UTF-8 text ({error})") from error
    pieces: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        piece, _, index = line.rstrip().rpartition(" ")
        if not index.isascii() or not index.isdigit() or int(index) >= MOST_TOKENS or int(index) in pieces:
            raise BundleError(f"{path}:{number}: found {line[:60]!r}, expected a piece, a space and an id of its own")
        pieces[int(index)] = piece.strip() or "\u2581"
    if sorted(pieces) != list(range(len(pieces))) or len(pieces) < 2:
        raise BundleError(f"{path}: ids are not 0 to {len(pieces) - 1} without a gap; expected all pieces of the model")
    return tuple(pieces[index] for index in range(len(pieces)))
