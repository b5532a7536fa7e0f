"""What is refused before it is counted."""

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from device_sdk.errors import ProtocolError
from device_sdk.learning.delta import bound
from device_sdk.wire.delta_codec import SCALE, encode
from device_sdk.wire.messages import FIXED_POINT, DeltaPlan, MarginalPlan
from server.aggregation.validation import norm_bound, read_delta, validate_counts, validate_delta, validate_shapes
from server.aggregation.weights_file import dump_weights, parse_weights, read_metadata

SHAPES = {"a": (2, 3), "b": (4,)}
CENTRAL = MarginalPlan(max_words=3, max_weight=2.0)
LOCAL = MarginalPlan(max_words=3, trust="local")


def delta(**changes: Any) -> dict[str, Any]:
    return {"a": np.full((2, 3), 0.1, np.float32), "b": np.full(4, -0.1, np.float32)} | changes


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"a": np.zeros((2, 3), np.float32)}, "b: missing"),
        (delta(c=np.zeros(1, np.float32)), "c: not a parameter"),
        (delta(a=np.zeros((3, 2), np.float32)), r"a: found shape \[3, 2\], expected \[2, 3\]"),
        (delta(b=np.array([0, 1, np.nan, 0], np.float32)), "b: holds NaN"),
        (delta(b=np.array([0, 1, np.inf, 0], np.float32)), "b: holds NaN or infinity"),
        (delta(b=np.full(4, 3e38, np.float32)), "L2 norm 6e"),
        (delta(b=np.full(4, 1.0, np.float32)), "clip before sending"),
    ],
)
def test_bad_deltas(found: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        validate_delta(found, SHAPES, DeltaPlan(clip_norm=1.0))
    assert validate_delta(delta(), SHAPES, DeltaPlan()) == pytest.approx(0.1 * 10**0.5, rel=1e-6)


@given(st.floats(0.01, 100), st.floats(0, 10), st.integers(1, 5000), st.integers(0, 2**31))
def test_honest_noise_is_within_the_bound(clip: float, noise: float, values: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    update = rng.normal(size=values)
    update *= clip / np.linalg.norm(update)
    sent = (update + rng.normal(0, noise, values)).astype(np.float32)
    assert np.linalg.norm(sent.astype(np.float64)) <= norm_bound(DeltaPlan(clip_norm=clip, noise_stddev=noise), values)


PLANS = [
    {"clipping": clipping, "encoding": encoding, "scale_per": per, "noise_stddev": noise}
    for clipping in ("global", "uniform", "dim")
    for encoding, per in (("float32", "row"), ("float16", "row"), ("int8", "tensor"), ("int8", "row"))
    for noise in (0.0, 0.01)
]


def written(arrays: dict[str, Any], plan: DeltaPlan, **changes: Any) -> bytes:
    return save(encode(arrays, plan.encoding, plan.scale_per) | changes)


@pytest.mark.parametrize("fields", PLANS, ids=lambda fields: "-".join(str(value) for value in fields.values()))
def test_whatever_an_honest_device_writes_is_read(fields: dict[str, Any]) -> None:
    """Spread out or in one value, far beyond the bound or within it: bound, noised and written, it is accepted."""
    plan, rng = DeltaPlan(**fields), np.random.default_rng(0)
    spread = {"a": rng.normal(size=(40, 50)), "b": rng.normal(size=300)}
    one = {"a": np.zeros((40, 50)), "b": np.zeros(300)}
    one["a"][3, 4], one["b"][7] = -5.0, 5.0
    shapes = {"a": (40, 50), "b": (300,)}
    for values in (spread, one, {name: 1e-3 * array for name, array in spread.items()}):
        found = {name: array.astype(np.float32) for name, array in values.items()}
        for _ in range(4):
            sent, _ = bound(found, plan)
            again = read_delta(written(sent, plan), shapes, plan)
            coarse = 0.0 if plan.encoding == "float32" else 0.3 if plan.encoding == "int8" else 1e-3
            for name in shapes:
                assert np.linalg.norm(again[name] - sent[name]) <= coarse * np.linalg.norm(sent[name])


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_layers_beyond_their_own_bound_are_refused_by_name(encoding: str) -> None:
    plan = DeltaPlan.model_validate({"clipping": "dim", "encoding": encoding})
    loud = written(delta(a=np.zeros((2, 3), np.float32), b=np.full(4, 0.45, np.float32)), plan)
    with pytest.raises(ProtocolError, match=r"b: found L2 norm 0\.\d+, expected at most 0\.6"):
        read_delta(loud, SHAPES, plan)
    read_delta(loud, SHAPES, plan.model_copy(update={"clipping": "global"}))


def test_a_scale_larger_than_any_value_is_refused_by_name() -> None:
    plan = DeltaPlan(encoding="int8")
    loud = written(delta(), plan, **{SCALE + "b": np.ones(1, np.float32), "b": np.zeros(4, np.int8)})
    with pytest.raises(ProtocolError, match=r"scale/b: found 1, expected at most 0\.0"):
        read_delta(loud, SHAPES, plan)
    with pytest.raises(ProtocolError, match="b: holds NaN or infinity"):
        read_delta(written(delta(), plan, **{SCALE + "b": np.full(1, 3e38, np.float32)}), SHAPES, plan)


@given(st.binary(max_size=300), st.sampled_from(["float32", "float16", "int8"]))
def test_any_bytes_are_refused_by_name(content: bytes, encoding: str) -> None:
    with pytest.raises(ProtocolError):
        read_delta(content, SHAPES, DeltaPlan.model_validate({"encoding": encoding}))
    with pytest.raises(ProtocolError):
        validate_shapes(parse_weights(content), SHAPES)


@given(st.data())
def test_damage_to_an_encoded_delta_is_refused_or_bounded(data: st.DataObject) -> None:
    """Any byte of an honest report changed: either it is refused by name, or what is read is still within the bound."""
    plan = DeltaPlan.model_validate({"encoding": data.draw(st.sampled_from(["float16", "int8"]))})
    content = bytearray(written(delta(), plan))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        found = read_delta(bytes(content), SHAPES, plan)
        assert sum(float(np.square(array).sum()) for array in found.values()) ** 0.5 <= norm_bound(plan, 10, 3)


@pytest.mark.parametrize(
    ("counts", "plan", "message"),
    [
        ({-1: 1}, CENTRAL, "word id -1"),
        ({10: 1}, CENTRAL, "expected 0 to 9"),
        ({1: 0}, CENTRAL, "expected 1 to 512"),
        ({1: 2 * FIXED_POINT + 1}, CENTRAL, "found 513"),
        ({1: -1}, CENTRAL, "found -1"),
        (dict.fromkeys(range(4), 1), CENTRAL, "at most 3"),
        ({1: 10**30}, CENTRAL, "expected"),
        ({1: -(10**30)}, LOCAL, "magnitude"),
        ({11: 5}, LOCAL, "word id 11"),
    ],
)
def test_bad_counts(counts: dict[int, int], plan: MarginalPlan, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        validate_counts(counts, 10, plan)


def test_good_counts() -> None:
    validate_counts({0: 1, 5: 2 * FIXED_POINT}, 10, CENTRAL)
    validate_counts(dict.fromkeys(range(10), -5000), 10, LOCAL)


def header(content: Any) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found 0 bytes"),
        (b"1234567", "found 7 bytes"),
        (struct.pack("<Q", 1 << 60), "does not fit"),
        (header(b"{"), "not JSON"),
        (header(b"[" * 100_000), "not JSON"),
        (header([1]), "__metadata__"),
        (header({"__metadata__": {"a": 1}}), "__metadata__"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), "damaged"),
        (header({"a": {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 8]}}) + bytes(8), "damaged"),
        (header({"a": {"dtype": "XX", "shape": [2], "data_offsets": [0, 8]}}) + bytes(8), "damaged"),
        (header({"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}) + bytes(8), "dtype F64"),
    ],
)
def test_bad_weight_files(content: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse_weights(content)


def test_equal_weights_are_equal_bytes_whatever_the_order() -> None:
    metadata = {"parent": "base", "inputs": "0123", "note": 'a "quote", ä'}
    contents = {dump_weights(delta(), dict(sorted(metadata.items(), reverse=bool(turn % 2)))) for turn in range(20)}
    contents |= {dump_weights(dict(reversed(delta().items())), metadata) for _ in range(20)}
    (content,) = contents
    assert read_metadata(content) == metadata
    for found in (parse_weights(content), load(content)):
        assert all(np.array_equal(found[name], values) for name, values in delta().items())
