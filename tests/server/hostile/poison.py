"""Delta reports that no honest device sends, each with the code that it must be refused by.

A kind is a function of a generator of random numbers and an honest report; whatever the generator draws, what comes out
must be refused. F32, F16, ...: types as the safetensors format names them."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.wire.delta_codec import SCALE, encode
from device_sdk.wire.messages import DeltaPlan
from server.aggregation.validation import norm_bound

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


def honest(rng: Draw, plan: DeltaPlan, shapes: Mapping[str, Any], fields: Any, size: float = 0.5) -> Report:
    """size: norm of the delta, as a share of every bound on it."""
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    total = sum(array.size for array in arrays.values())
    part = {name: array.size / total if plan.clipping == "dim" else 1 / len(arrays) for name, array in arrays.items()}
    norms = {name: size * plan.clip_norm * part[name] ** 0.5 for name in arrays}
    found = {name: (array * norms[name] / np.linalg.norm(array)).astype(np.float32) for name, array in arrays.items()}
    return Report(plan, fields, encode(found, plan.encoding, plan.scale_per), found, shapes)


def _one_of(rng: Draw, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _name(rng: Draw, report: Report) -> str:
    return str(_one_of(rng, sorted(report.shapes)))


def _tensor(rng: Draw, report: Report) -> str:
    return str(_one_of(rng, sorted(report.tensors)))


def _value(value: float) -> Callable[[Draw, Report], bytes]:
    """One value, or all of them, of one tensor that holds floating-point numbers."""

    def make(rng: Draw, report: Report) -> bytes:
        name = _one_of(rng, [name for name, array in sorted(report.tensors.items()) if array.dtype.kind == "f"])
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
    bound = norm_bound(report.plan, size, max(most, size) if report.plan.scale_per == "tensor" else most)
    norm = sum(float(np.square(array, dtype=np.float64).sum()) for array in report.arrays.values()) ** 0.5
    factor = 1.3 * bound / norm * 10 ** rng.uniform(0, 6)
    return report.encoded({name: (array * factor).astype(np.float32) for name, array in report.arrays.items()}).body()


def _missing(rng: Draw, report: Report) -> bytes:
    gone = _tensor(rng, report)
    return replace(report, tensors={name: array for name, array in report.tensors.items() if name != gone}).body()


def _extra(rng: Draw, report: Report) -> bytes:
    name = _one_of(rng, ("features.mean", "encoder.0.R", "", " ", "../../etc/passwd", "encoder.0.W\0", "x" * 5000))
    return report.with_tensors({name: np.zeros(4, report.tensors[_name(rng, report)].dtype)}).body()


def _renamed(rng: Draw, report: Report) -> bytes:
    old = _tensor(rng, report)
    new = _one_of(rng, (old.upper(), old + " ", " " + old, old.replace(".", "/"), old[:-1], old + ".", "Ж" + old))
    kept = {new if name == old else name: array for name, array in report.tensors.items()}
    return replace(report, tensors=kept).body()


def _swapped(rng: Draw, report: Report) -> bytes:
    """Two tensors under each other's name."""
    first, second = sorted(report.shapes)[:2]
    return report.with_tensors({first: report.tensors[second], second: report.tensors[first]}).body()


def _twice(rng: Draw, report: Report) -> bytes:
    """A name that is there twice: the second time over other bytes."""
    name, header = _tensor(rng, report), report.header()
    again = json.dumps(header[name] | {"data_offsets": [0, report.tensors[name].nbytes]})
    text = f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {again}}}"
    return written(text.encode(), report.data() + b"\0" * int(rng.integers(9)))


def _reshaped(rng: Draw, report: Report) -> bytes:
    name = _name(rng, report)
    array = report.tensors[name]
    shapes = [(1, *array.shape), (*array.shape, 1), (array.size,), array.shape[::-1], (array.size, 1)]
    fits = [shape for shape in shapes if shape != array.shape]
    return report.with_tensors({name: array.reshape(_one_of(rng, fits))}).body()


def _resized(rng: Draw, report: Report) -> bytes:
    name = _name(rng, report)
    shape = list(report.tensors[name].shape)
    shape[int(rng.integers(len(shape)))] += _one_of(rng, (-1, 1, 7))
    if rng.random() < 0.2:
        shape = _one_of(rng, ([0], []))
    return report.with_tensors({name: np.zeros(shape, report.tensors[name].dtype)}).body()


def _retyped(rng: Draw, report: Report) -> bytes:
    name = _tensor(rng, report)
    array = report.tensors[name]
    with np.errstate(invalid="ignore", over="ignore"):
        other = array.astype(_one_of(rng, [kind for kind in TYPES if np.dtype(kind) != array.dtype]))
    return report.with_tensors({name: other}).body()


def _relabelled(field: str, choices: Callable[[Draw, Any], Sequence[Any]]) -> Callable[[Draw, Report], bytes]:
    """A tensor's field in the header is another one. choices: (generator, the right one) -> wrong ones."""

    def make(rng: Draw, report: Report) -> bytes:
        header, name = report.header(), _tensor(rng, report)
        header[name][field] = _one_of(rng, choices(rng, header[name][field]))
        return written(header, report.data())

    return make


def _offsets(rng: Draw, right: list[int]) -> list[Any]:
    (start, end), shift = right, int(rng.integers(1, 1 << 20))
    pairs = [[start, end + 4], [start + 4, end + 4], [start + shift, end + shift], [end + 4, start], [-4, end]]
    return [*pairs, [start, 1 << 62], [(1 << 64) - 4, 1 << 64], [start], None, [float(start), float(end) + 0.5]]


def _other_plan(rng: Draw, report: Report) -> bytes:
    changes = [
        {"kind": "gradient"},
        {"encoding": _one_of(rng, [each for each in ("float32", "float16", "int8") if each != report.plan.encoding])},
        {"scale_per": "tensor" if report.plan.scale_per == "row" else "row"},
    ]
    return report.with_fields(**_one_of(rng, changes)).body()


def _bad_fields(rng: Draw, report: Report) -> bytes:
    wrong: dict[str, tuple[Any, ...]] = {
        "utterances": (0, -int(rng.integers(1, 1 << 40)), 1.5, None, 10**400),
        "report_id": ("", "x" * 65, "a/../b", 7),
        "model_version": (1, None),
    }
    wrong |= {"kind": ("both",), "encoding": ("pickle",), "scale_per": ("column",), "more": (1,), "version": (99,)}
    name, value = _one_of(rng, [(name, value) for name, values in wrong.items() for value in values])
    return report.with_fields(**{name: value}).body()


def _bad_metadata(rng: Draw, report: Report) -> bytes:
    header = report.header()
    text = header["__metadata__"]["header"]
    wrong = ["", "null", "[" * 5000, '{"a":' * 5000, text + text, json.loads(text), "\ud800"]
    wrong += [text[: int(rng.integers(len(text)))], text.replace('"utterances": 1', '"utterances": NaN')]
    header["__metadata__"] = _one_of(rng, [None, {}, [], "header", *({"header": each} for each in wrong)])
    return written(header, report.data())


def _not_safetensors(rng: Draw, report: Report) -> bytes:
    archive, npz = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("delta", bytes(1 << 20))
    np.savez(npz, **{name.replace(".", "_"): array for name, array in report.arrays.items()})
    told, tail = json.dumps(report.header()).encode(), report.body()[8:]
    choices = [
        *(b"", rng.bytes(int(rng.integers(1, 4000))), archive.getvalue(), npz.getvalue(), told),
        pickle.dumps({name: array.tolist() for name, array in report.arrays.items()}),
        b"\x1f\x8b\x08" + rng.bytes(100),
        *(written(b"[" * 100_000, b""), written(b'{"a":' * 30_000, report.data()), written(b"\xff\xfe" + tail, b"")),
        *((1 << 63).to_bytes(8, "little") + tail, bytes(8) + tail, written(told + b" " * (1 << 20), report.data())),
    ]
    return bytes(_one_of(rng, choices))


def _scale(rng: Draw, report: Report) -> str:
    return str(_one_of(rng, [name for name in report.tensors if name.startswith(SCALE)]))


def _flipped(rng: Draw, report: Report) -> bytes:
    """The sign or the exponent of a scale, or of a value, such that it cannot be honest."""
    name = _scale(rng, report)
    scales = report.tensors[name].copy()
    place = int(rng.integers(scales.size))
    values = [-scales[place] - 1e-3, np.nan, np.inf, -np.inf, HUGE]
    values += [0.0, scales[place] * 1.5, scales[place] * 3] if report.plan.encoding == "float16" else [1e9, 10.0]
    scales[place] = _one_of(rng, values)
    return report.with_tensors({name: scales}).body()


def _level(rng: Draw, report: Report) -> bytes:
    name = _name(rng, report)
    array = report.tensors[name].copy()
    array.reshape(-1)[int(rng.integers(array.size))] = -128
    return report.with_tensors({name: array}).body()


def _scales(rng: Draw, report: Report) -> bytes:
    """Too few or too many scales, or scales of nothing."""
    name = _scale(rng, report)
    scales = report.tensors[name]
    wrong = [np.concatenate((scales, scales[:1])), scales[:0], scales.reshape(1, -1), scales.astype("<f8")]
    changes = [*((name, each) for each in wrong), (f"{SCALE}{SCALE}x", scales), (f"{SCALE}nobody", scales)]
    return report.with_tensors(dict([_one_of(rng, changes)])).body()


_DELTA, _MESSAGE, _BASE = ("bad_delta",), ("bad_message",), ("stale_model",)
_STALE = ("base-0", "base-2", "", "base-1 ", "BASE-1", "latest", "b" * 300)
_LABELS = ("BF16", "F8_E4M3", "I32", "U32", "F64", "I16", "U8", "BOOL", "f32", "", None, 7, "float32")
_SHAPES = ([1 << 62, 4], [-1], [1 << 32, 1 << 32], "all", None, [1.5], [[]], {})

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
    "type that is not its own": Kind(_relabelled("dtype", lambda *_: _LABELS), _DELTA),
    "stale base": Kind(lambda rng, report: report.with_fields(model_version=_one_of(rng, _STALE)).body(), _BASE),
    "other plan": Kind(_other_plan, ("other_plan",)),
    "bad fields": Kind(_bad_fields, (*_MESSAGE, "utterances")),
    "bad metadata": Kind(_bad_metadata, (*_DELTA, *_MESSAGE)),
    "cut off": Kind(lambda rng, report: (body := report.body())[: int(rng.integers(len(body)))], (*_DELTA, *_MESSAGE)),
    "more at the end": Kind(lambda rng, report: report.body() + rng.bytes(int(rng.integers(1, 64))), _DELTA),
    "offsets": Kind(_relabelled("data_offsets", _offsets), _DELTA),
    "shape that is none": Kind(_relabelled("shape", lambda *_: _SHAPES), _DELTA),
    "another format": Kind(_not_safetensors, (*_DELTA, *_MESSAGE, "too_large")),
    "scale that is none": Kind(_flipped, _DELTA, ("float16", "int8")),
    "scales too few or too many": Kind(_scales, _DELTA, ("float16", "int8")),
    "level out of range": Kind(_level, _DELTA, ("int8",)),
}
"""Every way to poison a delta that a server sees by itself, without comparing devices."""
