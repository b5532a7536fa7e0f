"""A transducer whose encoder is whatever graph a bundle brings: its window, its states and its weights by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal, get_args

from device_sdk.bundle.architecture import SUBSETS, Architecture, Subset, lstm_shapes
from device_sdk.errors import ConfigurationError

Activation = Literal["tanh", "relu"]
Kind = Literal["float32", "int64"]
LARGEST, MOST = 1 << 30, 4096  # values of a tensor, and tensors: far above any use
_NAME = re.compile(r"[A-Za-z0-9_.:/\-]{1,200}")


@dataclass(frozen=True, slots=True)
class EncoderState:
    """What the encoder's graph keeps from chunk to chunk, zero before the first. The graph takes it under ``name`` and
    gives the next one as ``next.NAME``."""

    name: str
    shape: tuple[int, ...]
    kind: Kind = "float32"


@dataclass(frozen=True, slots=True)
class StatelessPredictor:
    """Embeddings of the last ``context`` tokens, zeros where nothing came before blank, a grouped convolution over them
    (none where ``context`` is 1), a rectifier and a projection. size: of an embedding; group: its channels that the
    convolution mixes."""

    context: int
    size: int
    group: int

    def shapes(self, pieces: int, joiner: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"predictor.embedding": (pieces, self.size)}
        if self.context > 1:
            shapes["predictor.convolution"] = (self.size, self.group, self.context)
        return shapes | {"joiner.predictor.weight": (joiner, self.size)}


@dataclass(frozen=True, slots=True)
class LstmPredictor:
    """LSTM layers in ONNX layout (see :meth:`device_sdk.bundle.architecture.Architecture.parameter_shapes`)."""

    layers: int
    size: int
    embedding: int

    def shapes(self, pieces: int, joiner: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"predictor.embedding": (pieces, self.embedding)}
        width, size = self.embedding, self.size
        for layer in range(self.layers):
            shapes |= lstm_shapes(f"predictor.{layer}", width, size)
            width = size
        return shapes | {"joiner.predictor.weight": (joiner, size)}


@dataclass(frozen=True, slots=True)
class StreamingArchitecture:
    """What a decoder, a learner and a server must know of such a transducer.

    window: feature frames that the encoder's graph takes; shift: by how many the next window begins later, which give
    shift / subsampling_factor encoder frames, with the joiner's projection. encoder: its weights, name -> shape; the
    joiner's bias, ``joiner.encoder.bias``, is added in the graph, too.
    activation: of the joiner, W f(encoded + predicted) + b. symbols_per_frame: tokens that a frame may emit before its
    blank, 0 for one in its place."""

    mel_bins: int
    window: int
    shift: int
    subsampling_factor: int
    joiner_size: int
    pieces: int
    states: tuple[EncoderState, ...]
    encoder: tuple[tuple[str, tuple[int, ...]], ...]
    predictor: StatelessPredictor | LstmPredictor
    activation: Activation = "tanh"
    symbols_per_frame: int = 0

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in _SIZES}
        sizes |= {f"predictor.{name}": value for name, value in asdict(self.predictor).items()}
        for name, value in sizes.items():
            if type(value) is not int or not (name != "symbols_per_frame") <= value <= LARGEST:
                raise _wrong(name, value, f"a whole number from 1 to {LARGEST}")
        if self.window < self.shift or self.shift % self.subsampling_factor:
            raise _wrong(
                "window, shift", (self.window, self.shift), f"window >= shift, a multiple of {self.subsampling_factor}"
            )
        if isinstance(self.predictor, StatelessPredictor) and self.predictor.size % self.predictor.group:
            raise _wrong("predictor.group", self.predictor.group, f"a divisor of {self.predictor.size}")
        if self.activation not in get_args(Activation):
            raise _wrong("activation", self.activation, " or ".join(get_args(Activation)))
        named = [("states", each.name, each.shape) for each in self.states]
        named += [("encoder", name, shape) for name, shape in self.encoder]
        for field, name, shape in named:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise _wrong(field, name, "names of at most 200 letters, digits and _.:/-")
            if any(type(size) is not int or size < 1 for size in shape) or prod(shape) > LARGEST:
                raise _wrong(f"{field}.{name}", shape, f"positive sizes of at most {LARGEST} values")
        if len({name for _, name, _ in named}) < len(named) or len(named) > MOST:
            raise _wrong("states, encoder", len(named), f"at most {MOST} different names")
        if any(not name.startswith("encoder.") for name, _ in self.encoder):
            raise _wrong("encoder", [name for name, _ in self.encoder][:4], "names that begin with 'encoder.'")
        for each in self.states:
            if each.kind not in get_args(Kind):
                raise _wrong(f"states.{each.name}", each.kind, " or ".join(get_args(Kind)))
        total = sum(prod(shape) for shape in self.parameter_shapes().values())
        if total > LARGEST:
            raise _wrong("encoder, predictor, joiner", total, f"at most {LARGEST} weights")

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """What updates and deltas carry, in the canonical order."""
        shapes = dict(self.encoder) | self.predictor.shapes(self.pieces, self.joiner_size)
        shapes["joiner.encoder.bias"] = (self.joiner_size,)
        shapes["joiner.output.weight"] = (self.pieces, self.joiner_size)
        shapes["joiner.output.bias"] = (self.pieces,)
        return shapes

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        """Nothing: how features are normalized is part of the encoder's graph."""
        return {}

    @property
    def encoder_matrices(self) -> tuple[str, ...]:
        """Weights of the encoder that its int8 graph multiplies by."""
        return tuple(name for name, shape in self.encoder if len(shape) == 2)

    @property
    def predictor_layers(self) -> int:
        """LSTM layers of the prediction network; 0 where it is stateless."""
        return self.predictor.layers if isinstance(self.predictor, LstmPredictor) else 0

    @property
    def predictor_size(self) -> int:
        return self.predictor.size

    @property
    def embedding_size(self) -> int:
        return self.predictor.embedding if isinstance(self.predictor, LstmPredictor) else self.predictor.size

    def parameter_count(self) -> int:
        return sum(prod(shape) for shape in self.parameter_shapes().values())

    def to_mapping(self) -> dict[str, Any]:
        """As a manifest holds it."""
        plain = {name: getattr(self, name) for name in (*_SIZES, "activation")}
        kind = "stateless" if isinstance(self.predictor, StatelessPredictor) else "lstm"
        return plain | {
            "kind": "streaming",
            "states": {each.name: [each.kind, *each.shape] for each in self.states},
            "encoder": {name: list(shape) for name, shape in self.encoder},
            "predictor": {"kind": kind, **asdict(self.predictor)},
        }

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> StreamingArchitecture:
        """The inverse. Raises :class:`ConfigurationError` that names the field."""
        expected = {*_SIZES, "activation", "kind", "states", "encoder", "predictor"}
        if given.keys() != expected:
            raise _wrong("(its fields)", sorted(given.keys() ^ expected), f"exactly {', '.join(sorted(expected))}")
        states, encoder, predictor = (given[name] for name in ("states", "encoder", "predictor"))
        for name, value in (("states", states), ("encoder", encoder), ("predictor", predictor)):
            if not isinstance(value, Mapping):
                raise _wrong(name, value, "an object")
        for name, value in (states | encoder).items():
            if not isinstance(value, list) or (name in states and not value):
                raise _wrong(name, value, "a list of sizes, for states after their type")
        plain = dict(predictor)
        kind = plain.pop("kind", None)
        if kind not in ("stateless", "lstm"):
            raise _wrong("predictor.kind", kind, "stateless or lstm")
        try:
            made = StatelessPredictor(**plain) if kind == "stateless" else LstmPredictor(**plain)
        except TypeError as error:
            raise _wrong("predictor", sorted(plain), f"the sizes of a {kind} predictor ({error})") from error
        return cls(
            states=tuple(EncoderState(name, tuple(value[1:]), value[0]) for name, value in states.items()),
            encoder=tuple((name, tuple(shape)) for name, shape in encoder.items()),
            predictor=made,
            activation=given["activation"],
            **{name: given[name] for name in _SIZES},
        )


_SIZES = (
    "mel_bins",
    "window",
    "shift",
    "subsampling_factor",
    "joiner_size",
    "pieces",
    "symbols_per_frame",
)


def _wrong(field: str, found: object, expected: str) -> ConfigurationError:
    shown = repr(found)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    return ConfigurationError(f"architecture.{field}: found {shown}, expected {expected}")


AnyArchitecture = Architecture | StreamingArchitecture


def subsets_of(architecture: AnyArchitecture) -> tuple[Subset, ...]:
    """What local steps on a transducer may move, the default first."""
    if isinstance(architecture, StreamingArchitecture):
        return ("whole", "output", "adapters", "norms", "input")
    return tuple(subset for subset in SUBSETS if subset not in ("output", "norms", "input"))


def chosen(architecture: AnyArchitecture, subset: Subset | None) -> Subset:
    """The subset, or the default one. Raises ConfigurationError for what steps on this transducer cannot move."""
    known = subsets_of(architecture)
    if subset is not None and subset not in known:
        raise ConfigurationError(
            f"learning.subset: found {subset!r}, expected {' or '.join(known)}, which this bundle has gradients for"
        )
    return subset or known[0]
