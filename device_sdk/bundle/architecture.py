"""The shape of an RNN-T and the names its parameters have in every weights file, delta and registry entry."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from device_sdk.checks import check_interval, check_type

BLANK = 0
LARGEST_LAYERS, LARGEST_SIZE = 64, 1 << 20  # far above any use; what a damaged manifest claims is not tried


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of an LSTM RNN-T (Rao et al. 2023, section 3).

    M: mel_bins; K: subsampling_factor (frames stacked into one); H: encoder_size; P: predictor_size;
    E: embedding_size; J: joiner_size; V: pieces, with blank 0.
    """

    encoder_layers: int
    encoder_size: int
    predictor_layers: int
    predictor_size: int
    embedding_size: int
    joiner_size: int
    pieces: int
    mel_bins: int = 64
    subsampling_factor: int = 3

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_type(f"architecture.{name}", getattr(self, name), int, "a whole number")
            largest = LARGEST_LAYERS if name.endswith("layers") else LARGEST_SIZE
            check_interval(f"architecture.{name}", getattr(self, name), f"[1, {largest}]")

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Trainable parameters, in the canonical order.

        LSTM layers are in ONNX layout: rows in gate order i, o, f, c, and one merged bias (input bias + recurrent
        bias). ``W`` [4H, input], ``R`` [4H, H], ``B`` [4H].
        """
        shapes: dict[str, tuple[int, ...]] = {}
        width = self.mel_bins * self.subsampling_factor
        for layer in range(self.encoder_layers):
            shapes |= _lstm(f"encoder.{layer}", width, self.encoder_size)
            width = self.encoder_size
        shapes["predictor.embedding"] = (self.pieces, self.embedding_size)
        width = self.embedding_size
        for layer in range(self.predictor_layers):
            shapes |= _lstm(f"predictor.{layer}", width, self.predictor_size)
            width = self.predictor_size
        shapes["joiner.encoder.weight"] = (self.joiner_size, self.encoder_size)
        shapes["joiner.encoder.bias"] = (self.joiner_size,)
        shapes["joiner.predictor.weight"] = (self.joiner_size, self.predictor_size)
        shapes["joiner.output.weight"] = (self.pieces, self.joiner_size)
        shapes["joiner.output.bias"] = (self.pieces,)
        return shapes

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        """What the weights file also holds but no step changes: normalized = (log-mel - mean) * scale."""
        return {"features.mean": (self.mel_bins,), "features.scale": (self.mel_bins,)}

    def parameter_count(self) -> int:
        return sum(prod(shape) for shape in self.parameter_shapes().values())


def _lstm(name: str, width: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.W": (4 * size, width), f"{name}.R": (4 * size, size), f"{name}.B": (4 * size,)}


PRESETS: dict[str, Architecture] = {
    "tiny": Architecture(1, 32, 1, 32, 32, 32, 64),
    "small": Architecture(2, 320, 1, 256, 256, 256, 256),
    "bench": Architecture(2, 256, 1, 256, 256, 256, 128),
    "paper": Architecture(5, 1024, 2, 1024, 512, 512, 2500),
}
