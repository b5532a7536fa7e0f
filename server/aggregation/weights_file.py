"""Weights and deltas as safetensors bytes: read with every offset checked, never pickled."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from device_sdk.errors import ProtocolError

HEADER_LIMIT = 1 << 20
DTYPES = {"F32": "<f4", "F16": "<f2", "I8": "i1"}
_deserialize: Any = deserialize  # the library has no type for it


def dump_weights(weights: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str] | None = None) -> bytes:
    """float32 arrays as safetensors, names sorted, so equal weights give equal bytes."""
    ordered = {name: np.ascontiguousarray(weights[name], dtype=np.float32) for name in sorted(weights)}
    content = bytes(save(ordered, metadata=dict(metadata) if metadata else None))
    if metadata is None or len(metadata) < 2:
        return content
    # The library writes metadata in an order that changes from call to call.
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def parse_weights(content: bytes) -> dict[str, NDArray[np.float32]]:
    """:func:`parse_tensors` of a file in float32."""
    return parse_tensors(content, ("F32",))


def parse_tensors(content: bytes, dtypes: Sequence[str] = tuple(DTYPES)) -> dict[str, NDArray[Any]]:
    """Every array of the file, read-only views of ``content``. dtypes: those expected, as the format names them. Raises
    ProtocolError for a damaged file and for an array of another type."""
    read_metadata(content)
    try:
        entries = _deserialize(content)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise ProtocolError(f"safetensors: damaged file ({error}); send it again") from error
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in entries:
        if entry["dtype"] not in dtypes:
            raise ProtocolError(f"{name[:80]}: found dtype {entry['dtype']}, expected {' or '.join(dtypes)}")
        arrays[name] = np.frombuffer(entry["data"], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def read_metadata(content: bytes) -> dict[str, str]:
    """The file's free-form metadata. Raises ProtocolError if the header is not what the format says."""
    if len(content) < 8:
        raise ProtocolError(f"safetensors: found {len(content)} bytes, expected a header of at least 8")
    length = int.from_bytes(content[:8], "little")
    if length > min(HEADER_LIMIT, len(content) - 8):
        raise ProtocolError(f"safetensors: header length {length} does not fit; found {len(content)} bytes in all")
    try:
        header: Any = json.loads(content[8 : 8 + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("safetensors: the header is not JSON, or names something twice") from error
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ProtocolError("safetensors: __metadata__ must be an object of strings")
    return metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. ValueError: a name is there twice, so that one reader may take the first and another the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found
