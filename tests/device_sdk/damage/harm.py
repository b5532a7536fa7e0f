"""Damage to bytes, to JSON and to the headers of weights, all of it drawn from a generator."""

import gzip
import json
import math

import numpy as np

Generator = np.random.Generator
BOMB = 300_000_000  # bytes that a small gzip file unpacks to
VALUES: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**70, -(2**63), 10**30, 0.5, -0.5, 1e308, math.inf, -math.inf,
    math.nan, "", "x", "1", "\x00", "../up", "é" * 300, [], [1], [[[]]], {}, {"a": 1},
)  # fmt: skip


def damaged(content: bytes, rng: Generator) -> bytes:
    """Bytes flipped, missing, added, overwritten, moved; one to a few times."""
    for _ in range(1 if rng.random() < 0.7 else int(rng.integers(2, 6))):
        way = int(rng.integers(11))
        content = _flip(content, rng, bit=way == 3) if way < 4 else _splice(content, rng, way)
    return content


def _flip(content: bytes, rng: Generator, bit: bool) -> bytes:
    data = bytearray(content)
    for at in rng.integers(len(data), size=1 if bit else int(rng.integers(1, 9))) if data else ():
        data[at] ^= 1 << int(rng.integers(8)) if bit else int(rng.integers(1, 256))
    return bytes(data)


def _splice(content: bytes, rng: Generator, way: int) -> bytes:
    start, longest = int(rng.integers(len(content) + 1)), (8, 100, len(content) + 1)[rng.integers(3)]
    stop = min(len(content), start + int(rng.integers(1, longest + 1)))
    head, span, tail = content[:start], content[start:stop], content[stop:]
    match way:
        case 4:
            return head
        case 5:
            return head + tail
        case 6:
            return head + rng.bytes(int(rng.integers(1, 64))) + span + tail
        case 7:
            return head + rng.bytes(len(span)) + tail
        case 8:
            return head + bytes(len(span)) + tail
        case 9:
            return head + span + span + tail
    rest = head + tail
    at = int(rng.integers(len(rest) + 1))
    return rest[:at] + span + rest[at:]


def gzipped(plain: bytes, rng: Generator) -> bytes:
    """Damaged before or after it is compressed; or a bomb."""
    way = rng.random()
    if way < 0.04:
        return gzip.compress(bytes(BOMB), 1, mtime=0)
    return damaged(gzip.compress(plain, mtime=0), rng) if way < 0.5 else gzip.compress(damaged(plain, rng), mtime=0)


def with_other_value(content: bytes, rng: Generator) -> bytes:
    """JSON of which one value, or one name, is another."""
    try:
        document = json.loads(content)
    except ValueError:
        return damaged(content, rng)
    holder, key = document, None
    while isinstance(holder, dict | list) and len(holder):
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = keys[rng.integers(len(keys))]
        if not isinstance(holder[key], dict | list) or not len(holder[key]) or rng.random() < 0.15:
            break
        holder = holder[key]
    if key is None:
        return json.dumps(VALUES[rng.integers(len(VALUES))]).encode()
    way = rng.random()
    if way < 0.1:
        del holder[key]
    elif way < 0.15 and isinstance(holder, dict):
        holder["other"] = holder.pop(key)
    elif way < 0.35 and isinstance(holder[key], int | float):
        holder[key] = type(holder[key])(holder[key] * 2 if way < 0.25 else holder[key] - 1)
    else:
        holder[key] = VALUES[rng.integers(len(VALUES))]
    return json.dumps(document).encode()


def lie_in_header(content: bytes, rng: Generator) -> bytes:
    """A safetensors file whose header is another, or whose numbers are NaN, infinite, or huge."""
    size, way = int.from_bytes(content[:8], "little"), int(rng.integers(4))
    header, body = content[8 : 8 + size], bytearray(content[8 + size :])
    if way == 0:
        lie = int(rng.choice([0, 1, size - 1, size + 1, len(content), 2**31, 2**63 - 1]))
        return lie.to_bytes(8, "little") + header + bytes(body)
    if way == 1:
        header = with_other_value(header, rng)
    elif way == 2:
        kinds = [b"F64", b"F16", b"BF16", b"I8", b"U64", b"BOOL", b"F8_E4M3", b"X"]
        header = header.replace(b"F32", kinds[rng.integers(len(kinds))], int(rng.integers(1, 9)))
    elif len(body) >= 4:
        values = np.frombuffer(body, "<f4")
        at = int(rng.integers(len(values)))
        stop = at + int(rng.integers(1, (2, len(values) + 1)[rng.integers(2)]))
        values[at:stop] = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e30, 1e-42, 0.0][rng.integers(8)]
    return len(header).to_bytes(8, "little") + header + bytes(body)
