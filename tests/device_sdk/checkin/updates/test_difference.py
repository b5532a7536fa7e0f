"""Differences of weights: exact to the bit, and refused where they are damaged."""

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from device_sdk.checkin.updates.difference import BLOCK, MAGIC, apply, make
from device_sdk.errors import ProtocolError

Weights = dict[str, NDArray[np.float32]]
BITS = st.integers(0, 2**32 - 1)


def floats(bits: list[int]) -> NDArray[np.float32]:
    return np.array(bits, np.uint32).view(np.float32)


@given(st.lists(st.tuples(BITS, BITS), min_size=1, max_size=40), st.integers(0, 40))
def test_any_bits_come_back(pairs: list[tuple[int, int]], cut: int) -> None:
    """Infinities, signed zeros and the payloads of NaNs too."""
    old, new = (floats([pair[which] for pair in pairs]) for which in (0, 1))
    base = {"a": old[:cut], "b.c": old[cut:].reshape(1, -1)}
    content = save({"a": new[:cut], "b.c": new[cut:].reshape(1, -1)}, metadata={"version": "v2"})
    assert apply(base, make(base, content), len(content)) == content


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_files_of_many_blocks_are_shorter(size: int) -> None:
    rng = np.random.default_rng(size)
    base = {"w": rng.standard_normal(size, dtype=np.float32), "still": np.ones(size, np.float32)}
    content = save(base | {"w": base["w"] + np.float32(1e-3) * rng.standard_normal(size, dtype=np.float32)})
    made = make(base, content)
    assert apply(base, made, len(content)) == content
    if size > 1:
        assert len(made) < 0.4 * len(content)


def small() -> tuple[Weights, bytes]:
    rng = np.random.default_rng(0)
    base = {name: rng.standard_normal((20, 3), dtype=np.float32) for name in ("a", "b")}
    return base, save({name: values + np.float32(0.01) for name, values in base.items()})


def packed(content: bytes) -> bytes:
    return MAGIC + zlib.compress(content)


def head(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (lambda made: b"", "found b''"),
        (lambda made: b"x" + made[1:], "expected b'idiolect difference"),
        (lambda made: made[:-1], "no end|cut off|damaged"),
        (lambda made: made[: len(made) // 2], "cut off|damaged"),
        (lambda made: made[: len(MAGIC)], "cut off"),
        (lambda made: made + b"more", "more than the file"),
        (lambda made: MAGIC + b"\x00" * 50, "damaged"),
        (lambda made: packed(zlib.decompress(made[len(MAGIC) :]) + b"\0"), "more than the file"),
        (lambda made: packed((1 << 40).to_bytes(8, "little")), "a header of 1099511627776 bytes"),
        (lambda made: packed(head(b"[" * 5000)), "header cannot be read"),
        (lambda made: packed(head(b"[]")), "header cannot be read"),
        (lambda made: packed(head(b'{"a": 1}')), "header cannot be read"),
        (lambda made: packed(head(b'{"a": {"dtype": "F32", "shape": [20, 3], "data_offsets": [0, 240]}}')),
         "found 1 tensors, expected 2"),
        (lambda made: packed(head(b'{"a": {"dtype": "F16", "shape": [20, 3], "data_offsets": [0, 120]}}')),
         "not have in float32"),
        (lambda made: packed(head(b'{"a": {"dtype": "F32", "shape": [20, 3], "data_offsets": [4, 244]}}')),
         "do not follow"),
        (lambda made: packed(head(b'{"z": {"dtype": "F32", "shape": [20, 3], "data_offsets": [0, 240]}}')),
         "z: found"),
    ],
)  # fmt: skip
def test_damage_is_told(damaged: Any, why: str) -> None:
    base, content = small()
    made = make(base, content)
    with pytest.raises(ProtocolError, match=why):
        apply(base, damaged(made), len(content))


def test_a_file_longer_than_wanted_is_refused() -> None:
    base, content = small()
    with pytest.raises(ProtocolError, match=f"a file of {len(content)} bytes, expected at most {len(content) - 1}"):
        apply(base, make(base, content), len(content) - 1)


def test_another_base_gives_another_file() -> None:
    base, content = small()
    assert apply(base | {"a": base["a"] + 1}, make(base, content), len(content)) != content
    with pytest.raises(ProtocolError, match="b: found"):
        apply({"a": base["a"], "c": base["b"]}, make(base, content), len(content))
    with pytest.raises(ProtocolError, match="b: found"):
        make({"a": base["a"], "c": base["b"]}, content)


def test_a_bomb_is_not_unpacked() -> None:
    """64 MB of zeros in 64 kB: neither before the values nor after them."""
    base, content = small()
    whole = zlib.decompress(make(base, content)[len(MAGIC) :])
    packer = zlib.compressobj(9)
    zeros = b"".join([packer.compress(whole), *(packer.compress(bytes(1 << 20)) for _ in range(64)), packer.flush()])
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than the file"):
            apply(base, MAGIC + zeros, len(content))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
