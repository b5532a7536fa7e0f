"""Delta reports that no honest device sends, each with the code that it must be refused by.

A kind is a function of a generator of random numbers and an honest report; whatever the generator draws, what comes out
must be refused. F32, F16, ...: types as the safetensors format names them.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.wire.delta_codec import SCALE, encode
from device_sdk.wire.messages import DeltaPlan
from server.aggregation.validation import norm_bound

__all__ = ["KINDS", "PLANS", "Kind", "Report", "honest"]

TYPES = {"<f4": "F32", "<f2": "F16", "|i1": "I8", "<f8": "F64", "<i4": "I32", "<i8": "I64", "|u1": "U8", "|b1": "BOOL"}
CODES = {code: name for name, code in TYPES.items()}
HUGE = 3e38

PLANS = {
    "float32": DeltaPlan(),
    "float32 by layer": DeltaPlan(clipping="dim", clip_norm=2.0),
    "float16": DeltaPlan(encoding="float16"),
    "int8": DeltaPlan(encoding="int8"),
    "int8 by tensor": DeltaPlan(encoding="int8", scale_per="tensor", clipping="uniform"),
}

Draw = np.random.Generator


@dataclass(frozen=True)
class Report:
    """A report as its parts. fields: of the DeltaHeader; tensors: arrays to write, honest ones of the plan's encoding;
    arrays: the float32 values that they stand for; shapes: what the round's model has."""

    plan: DeltaPlan
    fields: Mapping[str, Any]
    tensors: Mapping[str, NDArray[Any]]
    arrays: Mapping[str, NDArray[np.float32]]
    shapes: Mapping[str, tuple[int, ...]]

    def with_tensors(self, changes: Mapping[str, NDArray[Any]]) -> Report:
        return replace(self, tensors={**self.tensors, **changes})

    def with_fields(self, **changes: Any) -> Report:
        return replace(self, fields={**self.fields, **changes})

    def encoded(self, arrays: Mapping[str, NDArray[np.float32]]) -> Report:
        return self.with_tensors(encode(arrays, self.plan.encoding, self.plan.scale_per))

    def header(self) -> dict[str, Any]:
        """The safetensors header, offsets in the order of the names."""
        found: dict[str, Any] = {"__metadata__": {"header": json.dumps(dict(self.fields))}}
        start = 0
        for name, array in sorted(self.tensors.items()):
            end = start + array.nbytes
            found[name] = {"dtype": TYPES[array.dtype.str], "shape": list(array.shape), "data_offsets": [start, end]}
            start = end
        return found

    def data(self) -> bytes:
        return b"".join(np.ascontiguousarray(array).tobytes() for _, array in sorted(self.tensors.items()))

    def body(self) -> bytes:
        return written(self.header(), self.data())


@dataclass(frozen=True)
class Kind:
    """make: (generator, honest report) -> body. codes: by which it may be refused. plans: names of plans it is for."""

    make: Callable[[Draw, Report], bytes]
    codes: tuple[str, ...]
    encodings: tuple[str, ...] = ("float32", "float16", "int8")


def written(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def honest(
    rng: Draw, plan: DeltaPlan, shapes: Mapping[str, tuple[int, ...]], fields: Mapping[str, Any], size: float = 0.5
) -> Report:
    """size: norm of the delta, as a share of every bound on it."""
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    share = size * plan.clip_norm / len(arrays) ** 0.5
    if plan.clipping == "dim":
        total = sum(array.size for array in arrays.values())
        shares = {name: size * plan.clip_norm * (array.size / total) ** 0.5 for name, array in arrays.items()}
    else:
        shares = dict.fromkeys(arrays, share)
    found = {name: (array * shares[name] / np.linalg.norm(array)).astype(np.float32) for name, array in arrays.items()}
    return Report(plan, fields, encode(found, plan.encoding, plan.scale_per), found, shapes)


def _name(rng: Draw, report: Report) -> str:
    return str(rng.choice(sorted(report.shapes)))


def _tensor(rng: Draw, report: Report) -> str:
    return str(rng.choice(sorted(report.tensors)))


def _value(value: float) -> Callable[[Draw, Report], bytes]:
    """One value, or all of them, of one tensor that holds floating-point numbers."""

    def make(rng: Draw, report: Report) -> bytes:
        floating = [name for name, array in sorted(report.tensors.items()) if array.dtype.kind == "f"]
        name = str(rng.choice(floating))
        array = report.tensors[name].copy()
        places = np.arange(array.size) if rng.random() < 0.3 else rng.integers(array.size, size=1)
        with np.errstate(over="ignore"):
            array.reshape(-1)[places] = np.asarray(value * rng.choice([-1, 1])).astype(array.dtype)
        return report.with_tensors({name: array}).body()

    return make


def _too_long(rng: Draw, report: Report) -> bytes:
    """Just above what an honest delta may be, or far above it."""
    size = sum(array.size for array in report.arrays.values())
    most = max(array.shape[-1] if array.ndim > 1 else array.size for array in report.arrays.values())
    group = max(most, size) if report.plan.scale_per == "tensor" else most
    bound = norm_bound(report.plan, size, group)
    norm = sum(float(np.square(array, dtype=np.float64).sum()) for array in report.arrays.values()) ** 0.5
    factor = 1.3 * bound / norm * 10 ** rng.uniform(0, 6)
    return report.encoded({name: (array * factor).astype(np.float32) for name, array in report.arrays.items()}).body()


def _missing(rng: Draw, report: Report) -> bytes:
    gone = _tensor(rng, report)
    kept = {name: array for name, array in report.tensors.items() if name != gone}
    return replace(report, tensors=kept).body()


def _extra(rng: Draw, report: Report) -> bytes:
    name = str(rng.choice(["features.mean", "encoder.0.R", "", " ", "../../etc/passwd", "encoder.0.W\0", "x" * 5000]))
    kind = report.tensors[_name(rng, report)].dtype
    return report.with_tensors({name: np.zeros(4, kind)}).body()


def _renamed(rng: Draw, report: Report) -> bytes:
    old = _tensor(rng, report)
    new = str(rng.choice([old.upper(), old + " ", " " + old, old.replace(".", "/"), old[:-1], old + ".", "Ж" + old]))
    kept = {new if name == old else name: array for name, array in report.tensors.items()}
    return replace(report, tensors=kept).body()


def _swapped(rng: Draw, report: Report) -> bytes:
    """Two tensors under each other's name."""
    first, second = sorted(report.shapes)[:2]
    return report.with_tensors({first: report.tensors[second], second: report.tensors[first]}).body()


def _twice(rng: Draw, report: Report) -> bytes:
    """A name that is there twice: the second time over other bytes."""
    name = _tensor(rng, report)
    header = report.header()
    again = json.dumps(header[name] | {"data_offsets": [0, report.tensors[name].nbytes]})
    text = json.dumps(header)
    return written(f"{text[:-1]}, {json.dumps(name)}: {again}}}".encode(), report.data() + b"\0" * int(rng.integers(9)))


def _reshaped(rng: Draw, report: Report) -> bytes:
    name = _name(rng, report)
    array = report.tensors[name]
    shapes = [(1, *array.shape), (*array.shape, 1), (array.size,), array.shape[::-1], (array.size, 1)]
    fits = [shape for shape in shapes if shape != array.shape]
    return report.with_tensors({name: array.reshape(fits[int(rng.integers(len(fits)))])}).body()


def _resized(rng: Draw, report: Report) -> bytes:
    name = _name(rng, report)
    array = report.tensors[name]
    shape = list(array.shape)
    shape[int(rng.integers(len(shape)))] += int(rng.choice([-1, 1, 7]))
    if rng.random() < 0.2:
        shape = [0] if rng.random() < 0.5 else []
    return report.with_tensors({name: np.zeros(shape, array.dtype)}).body()


def _retyped(rng: Draw, report: Report) -> bytes:
    name = _tensor(rng, report)
    array = report.tensors[name]
    others = [kind for kind in TYPES if np.dtype(kind) != array.dtype]
    with np.errstate(invalid="ignore", over="ignore"):
        return report.with_tensors({name: array.astype(str(rng.choice(others)))}).body()


def _mislabelled(rng: Draw, report: Report) -> bytes:
    """The type in the header is another one of the same size, or none."""
    header, name = report.header(), _tensor(rng, report)
    right = header[name]["dtype"]
    names = ("BF16", "F8_E4M3", "I32", "U32", "F64", "I16", "U8", "BOOL", "f32", "", None, 7, "float32")
    others = [kind for kind in names if kind != right]
    header[name]["dtype"] = others[int(rng.integers(len(others)))]
    return written(header, report.data())


def _stale(rng: Draw, report: Report) -> bytes:
    version = str(rng.choice(["base-0", "base-2", "", "base-1 ", "BASE-1", "latest", "b" * 300]))
    return report.with_fields(model_version=version).body()


def _other_plan(rng: Draw, report: Report) -> bytes:
    changes = [
        {"kind": "gradient"},
        {"encoding": str(rng.choice([e for e in ("float32", "float16", "int8") if e != report.plan.encoding]))},
        {"scale_per": "tensor" if report.plan.scale_per == "row" else "row"},
    ]
    return report.with_fields(**changes[int(rng.integers(3))]).body()


def _bad_fields(rng: Draw, report: Report) -> bytes:
    changes: list[dict[str, Any]] = [
        {"utterances": 0},
        {"utterances": -int(rng.integers(1, 1 << 40))},
        {"utterances": 1.5},
        {"utterances": None},
        {"utterances": 10**400},
        {"report_id": ""},
        {"report_id": "x" * 65},
        {"report_id": "a/../b"},
        {"report_id": 7},
        {"kind": "both"},
        {"encoding": "pickle"},
        {"scale_per": "column"},
        {"more": 1},
        {"version": 99},
        {"model_version": 1},
        {"model_version": None},
    ]
    return report.with_fields(**changes[int(rng.integers(len(changes)))]).body()


def _bad_metadata(rng: Draw, report: Report) -> bytes:
    header = report.header()
    text = header["__metadata__"]["header"]
    choices: list[Any] = [
        None,
        {},
        {"header": ""},
        {"header": "null"},
        {"header": "[" * 5000},
        {"header": '{"a":' * 5000},
        {"header": text[: int(rng.integers(len(text)))]},
        {"header": text.replace('"utterances": 1', '"utterances": NaN')},
        {"header": text + text},
        {"header": json.loads(text)},
        {"header": "\ud800"},
        [],
        "header",
    ]
    header["__metadata__"] = choices[int(rng.integers(len(choices)))]
    return written(header, report.data())


def _cut(rng: Draw, report: Report) -> bytes:
    body = report.body()
    return body[: int(rng.integers(len(body)))]


def _longer(rng: Draw, report: Report) -> bytes:
    return report.body() + rng.bytes(int(rng.integers(1, 64)))


def _offsets(rng: Draw, report: Report) -> bytes:
    header, name = report.header(), _tensor(rng, report)
    start, end = header[name]["data_offsets"]
    shift = int(rng.integers(1, 1 << 20))
    choices: list[Any] = [
        [start, end + 4],
        [start + 4, end + 4],
        [start + shift, end + shift],
        [end + 4, start],
        [-4, end],
        [start, 1 << 62],
        [(1 << 64) - 4, 1 << 64],
        [start],
        None,
        [float(start), float(end) + 0.5],
    ]
    header[name]["data_offsets"] = choices[int(rng.integers(len(choices)))]
    return written(header, report.data())


def _shape_field(rng: Draw, report: Report) -> bytes:
    header, name = report.header(), _tensor(rng, report)
    choices: list[Any] = [[1 << 62, 4], [-1], [1 << 32, 1 << 32], "all", None, [1.5], [[]], {}]
    header[name]["shape"] = choices[int(rng.integers(len(choices)))]
    return written(header, report.data())


def _not_safetensors(rng: Draw, report: Report) -> bytes:
    arrays = dict(report.arrays)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("delta", bytes(1 << 20))
    npz = io.BytesIO()
    np.savez(npz, **{name.replace(".", "_"): array for name, array in arrays.items()})
    choices = [
        b"",
        rng.bytes(int(rng.integers(1, 4000))),
        pickle.dumps({name: array.tolist() for name, array in arrays.items()}),
        archive.getvalue(),
        npz.getvalue(),
        b"\x1f\x8b\x08" + rng.bytes(100),
        json.dumps(report.header()).encode(),
        written(b"[" * 100_000, b""),
        written(b'{"a":' * 30_000, report.data()),
        written(b"\xff\xfe" + report.body()[8:], b""),
        (1 << 63).to_bytes(8, "little") + report.body()[8:],
        bytes(8) + report.body()[8:],
        written(json.dumps(report.header()).encode() + b" " * (1 << 20), report.data()),
    ]
    return choices[int(rng.integers(len(choices)))]


def _flipped(rng: Draw, report: Report) -> bytes:
    """The sign or the exponent of a scale, or of a value, such that it cannot be honest."""
    name = str(rng.choice([name for name in report.tensors if name.startswith(SCALE)]))
    scales = report.tensors[name].copy()
    place = int(rng.integers(scales.size))
    values = [-scales[place] - 1e-3, np.nan, np.inf, -np.inf, HUGE]
    if report.plan.encoding == "float16":
        values += [0.0, scales[place] * 1.5, scales[place] * 3]
    else:
        values += [1e9, 10.0]
    scales[place] = values[int(rng.integers(len(values)))]
    return report.with_tensors({name: scales}).body()


def _level(rng: Draw, report: Report) -> bytes:
    name = _name(rng, report)
    array = report.tensors[name].copy()
    array.reshape(-1)[int(rng.integers(array.size))] = -128
    return report.with_tensors({name: array}).body()


def _scales(rng: Draw, report: Report) -> bytes:
    """Too few or too many scales, or scales of nothing."""
    name = str(rng.choice([name for name in report.tensors if name.startswith(SCALE)]))
    scales = report.tensors[name]
    changes = [
        {name: np.concatenate((scales, scales[:1]))},
        {name: scales[:0]},
        {name: scales.reshape(1, -1)},
        {name: scales.astype("<f8")},
        {f"{SCALE}{SCALE}x": scales},
        {f"{SCALE}nobody": scales},
    ]
    return report.with_tensors(changes[int(rng.integers(len(changes)))]).body()


_DELTA, _MESSAGE = ("bad_delta",), ("bad_message",)

KINDS: dict[str, Kind] = {
    "NaN": Kind(_value(np.nan), _DELTA),
    "infinity": Kind(_value(np.inf), _DELTA),
    "3e38": Kind(_value(HUGE), _DELTA),
    "norm above the bound": Kind(_too_long, _DELTA),
    "missing key": Kind(_missing, _DELTA),
    "key of no parameter": Kind(_extra, _DELTA),
    "wrong key": Kind(_renamed, _DELTA),
    "keys swapped": Kind(_swapped, _DELTA),
    "key twice": Kind(_twice, _DELTA),
    "other dimensions": Kind(_reshaped, _DELTA),
    "wrong size": Kind(_resized, _DELTA),
    "wrong type": Kind(_retyped, _DELTA),
    "type that is not its own": Kind(_mislabelled, _DELTA),
    "stale base": Kind(_stale, ("stale_model",)),
    "other plan": Kind(_other_plan, ("other_plan",)),
    "bad fields": Kind(_bad_fields, (*_MESSAGE, "utterances")),
    "bad metadata": Kind(_bad_metadata, (*_DELTA, *_MESSAGE)),
    "cut off": Kind(_cut, (*_DELTA, *_MESSAGE)),
    "more at the end": Kind(_longer, _DELTA),
    "offsets": Kind(_offsets, _DELTA),
    "shape that is none": Kind(_shape_field, _DELTA),
    "another format": Kind(_not_safetensors, (*_DELTA, *_MESSAGE, "too_large")),
    "scale that is none": Kind(_flipped, _DELTA, ("float16", "int8")),
    "scales too few or too many": Kind(_scales, _DELTA, ("float16", "int8")),
    "level out of range": Kind(_level, _DELTA, ("int8",)),
}
"""Every way to poison a delta that a server sees by itself, without comparing devices."""
