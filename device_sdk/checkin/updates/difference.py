"""A weights file as the difference to another one of the same tensors: exact to the bit, and about half as long.

Training moves weights little, so their bits, read as whole numbers, move little too: the upper bytes of the numbers'
difference are mostly zero, and only the lowest ones are noise. In blocks of ``BLOCK`` values each of the four bytes is
put together with those of its kind, and zlib finds what is the same:

    MAGIC, then zlib of: the new file's header as safetensors has it, then for each block of values in the file's
    order 4 planes of bytes, the lowest first, of zigzag(new - old) modulo 2^32

zigzag(d) = 2d for d >= 0 and -2d - 1 below, so that small steps down have zeros above, too. What comes out is checked
against the whole file's SHA-256 by whoever asked for it; here only its form is."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError

MAGIC = b"idiolect difference 1\n"
BLOCK = 1 << 16
"""Values at a time: bounds the memory that either side needs beside the file itself."""
HEADER_LIMIT = 1 << 20

Weights = Mapping[str, NDArray[np.float32]]
Bits = NDArray[np.uint32]


def make(base: Weights, content: bytes) -> bytes:
    """The difference of a safetensors file to ``base``. ProtocolError: the file has other tensors than these."""
    head, order = _order(content, base)
    values = np.frombuffer(content, "<u4", offset=len(head))
    packer = zlib.compressobj(6)
    parts = [MAGIC, packer.compress(head)]
    start = 0
    for old in _blocks(base, order):
        difference = (values[start : start + old.size] - old).view(np.int32)
        planes = ((difference << 1) ^ (difference >> 31)).astype("<i4").view(np.uint8).reshape(-1, 4).T
        parts.append(packer.compress(planes.tobytes()))
        start += old.size
    return b"".join([*parts, packer.flush()])


def apply(base: Weights, difference: bytes, limit: int) -> bytes:
    """The file. ProtocolError: this is no difference to ``base``, or of a file of more than ``limit`` bytes."""
    if not difference.startswith(MAGIC):
        raise ProtocolError(f"difference: found {difference[: len(MAGIC)]!r}, expected {MAGIC!r}")
    read = _reader(difference[len(MAGIC) :])
    length = read(8)
    size = int.from_bytes(length, "little")
    if size > HEADER_LIMIT:
        raise ProtocolError(f"difference: found a header of {size} bytes, expected at most {HEADER_LIMIT}")
    head, order = _order(length + read(size), base)
    total = len(head) + 4 * sum(base[name].size for name in order)
    if total > limit:
        raise ProtocolError(f"difference: found a file of {total} bytes, expected at most {limit}")
    content = bytearray(head)
    for old in _blocks(base, order):
        planes = np.frombuffer(read(4 * old.size), np.uint8).reshape(4, -1)
        folded: Bits = np.ascontiguousarray(planes.T).view("<u4").reshape(-1).astype(np.uint32)
        unfolded = (folded >> 1) ^ (0 - (folded & 1))
        content += (old + unfolded).astype("<u4").tobytes()
    read(0)
    return bytes(content)


def _order(content: bytes, base: Weights) -> tuple[bytes, list[str]]:
    """(header of a safetensors file, tensors' names in order). ProtocolError: not those of ``base``, in float32."""
    head = content[: 8 + int.from_bytes(content[:8], "little")]
    try:
        entries = {name: entry for name, entry in json.loads(head[8:]).items() if name != "__metadata__"}
        order = sorted(entries, key=lambda name: entries[name]["data_offsets"])
        end = 0
        for name in order:
            shape = tuple(entries[name]["shape"])
            if entries[name]["dtype"] != "F32" or name not in base or base[name].shape != shape:
                raise ProtocolError(f"difference: {name[:80]}: found {shape}, which the base does not have in float32")
            if entries[name]["data_offsets"] != [end, end + 4 * math.prod(shape)]:
                raise ProtocolError(f"difference: {name[:80]}: its values do not follow those before")
            end += 4 * math.prod(shape)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"difference: the header cannot be read ({type(error).__name__})") from None
    if len(order) != len(base):
        raise ProtocolError(f"difference: found {len(order)} tensors, expected {len(base)}")
    return bytes(head), order


def _blocks(base: Weights, order: list[str]) -> Iterator[Bits]:
    for name in order:
        bits = np.ascontiguousarray(base[name], "<f4").reshape(-1).view(np.uint32)
        for start in range(0, bits.size, BLOCK):
            yield bits[start : start + BLOCK]


def _reader(packed: bytes) -> Callable[[int], bytes]:
    """Reads exactly so many bytes of what is packed, and never unpacks more; 0: there is nothing left."""
    unpacker = zlib.decompressobj()
    left = packed

    def read(size: int) -> bytes:
        nonlocal left
        try:
            found = unpacker.decompress(left, size or 1)  # 0 would be without a limit
        except zlib.error as error:
            raise ProtocolError(f"difference: damaged ({error})") from None
        left = unpacker.unconsumed_tail
        if not size and (found or not unpacker.eof or unpacker.unused_data):
            raise ProtocolError("difference: found more than the file's values, or no end")
        if len(found) != size:
            raise ProtocolError(f"difference: found {len(found)} bytes of {size}; it is cut off")
        return found

    return read
