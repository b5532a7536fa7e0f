"""A bundle's weights in the layout that sherpa-onnx's NeMo transducers have, so that unmodified sherpa-onnx decodes
them, streaming and offline: blank last, LSTM state in the caches, what sherpa must know in the encoder's metadata.

Its streaming recognizer computes the very features of the bundle. Its offline recognizer takes another window (povey)
and mel filters that end 400 Hz lower, and its API changes neither, so the offline encoder first maps those features to
the bundle's: log-mel is a smooth function of frequency, hence each bin is interpolated between the two nearest ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.manifest import MANIFEST
from device_sdk.errors import BundleError
from device_sdk.features import FeatureSettings
from device_sdk.features.logmel import mel_filters

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

__all__ = ["CHUNK_FRAMES", "export_sherpa", "offline_mapping"]

CHUNK_FRAMES = 30
"""10 ms feature frames that sherpa-onnx hands to the encoder at a time; left-over frames at the end are dropped."""

OFFLINE_TOP = 400.0
"""Hz below half the sampling rate at which the mel filters of sherpa-onnx's offline recognizer end."""

README = """# {name}, version {version}, for sherpa-onnx

A streaming LSTM transducer in the layout of NeMo's. Unmodified sherpa-onnx (2.0.1 was tried) loads it; features have
{bins} mel bins, and the model type is `nemo_transducer`.

Streaming, the same features and tokens as idiolect:

```python
import sherpa_onnx

recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(
    tokens="tokens.txt", encoder="encoder.onnx", decoder="decoder.onnx", joiner="joiner.onnx",
    feature_dim={bins}, model_type="nemo_transducer", decoding_method="greedy_search",  # or modified_beam_search
)
stream = recognizer.create_stream()
stream.accept_waveform(16000, samples)  # float32, mono, in [-1, 1]; as often as there is more
stream.input_finished()
while recognizer.is_ready(stream):
    recognizer.decode_stream(stream)
print(recognizer.get_result(stream))
```

It decodes whole chunks of 300 ms and drops what is left over, so end a file with 0.3 s of silence.

Offline, with the other encoder:

```python
recognizer = sherpa_onnx.OfflineRecognizer.from_transducer(
    tokens="tokens.txt", encoder="encoder-offline.onnx", decoder="decoder.onnx", joiner="joiner.onnx",
    feature_dim={bins}, model_type="nemo_transducer",
)
stream = recognizer.create_stream()
stream.accept_waveform(16000, samples)
recognizer.decode_stream(stream)
print(stream.result.text)
```

sherpa-onnx's offline features differ a little from those the model was trained with (another window, mel filters up to
7600 Hz); this encoder maps them back as well as can be. Where the choice is free, take the streaming one.
"""

OPSET, IR_VERSION = 17, 8
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
Float = NDArray[np.float32]
Edge = tuple[str, int, Sequence[Any]]


def export_sherpa(bundle: Bundle, folder: str | Path) -> Path:
    """Write what sherpa-onnx's ``OnlineRecognizer`` and ``OfflineRecognizer`` load, and a README that says how.

    The streaming encoder is ``encoder.onnx``, the offline one ``encoder-offline.onnx``; ``decoder.onnx``,
    ``joiner.onnx`` and ``tokens.txt`` serve both. Returns the folder.
    Raises :class:`BundleError` for feature settings that sherpa-onnx cannot compute, and for a bundle's own folder.
    """
    folder = Path(folder)
    architecture, weights = bundle.architecture, bundle.weights
    only = FeatureSettings(mel_bins=architecture.mel_bins)
    if bundle.features != only:
        raise BundleError(f"{bundle.path}: features are {bundle.features}, sherpa-onnx computes {only} only")
    if (folder / MANIFEST).exists():
        raise BundleError(f"{folder}: this is a bundle, whose graphs have the same names; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    pieces = architecture.pieces
    onnx.save(_encoder(architecture, weights), str(folder / "encoder.onnx"))
    onnx.save(_offline_encoder(architecture, weights, bundle.features), str(folder / "encoder-offline.onnx"))
    onnx.save(_decoder(architecture, weights), str(folder / "decoder.onnx"))
    onnx.save(_joiner(architecture, weights), str(folder / "joiner.onnx"))
    lines = [f"{bundle.tokenizer.piece(token)} {token - 1}" for token in range(1, pieces)]
    (folder / "tokens.txt").write_text("\n".join([*lines, f"<blk> {pieces - 1}"]) + "\n", encoding="utf-8")
    readme = README.format(name=bundle.manifest.name, version=bundle.version, bins=architecture.mel_bins)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    return folder


def offline_mapping(settings: FeatureSettings) -> tuple[Float, float]:
    """From the log-mel frames of sherpa-onnx's offline recognizer, x [F, M], to the bundle's: x @ matrix + constant.

    Returns (matrix [M, M] float32, constant). The filters are area-normalized, so a bin is the mean power around its
    centre, and bins at other centres lie between; those above the highest one take its value.
    """
    given = mel_filters(replace(settings, high_frequency=settings.sample_rate / 2 - OFFLINE_TOP))
    hertz = np.linspace(0.0, settings.sample_rate / 2, len(given))
    have, want = ((hertz @ filters) / filters.sum(axis=0) for filters in (given, mel_filters(settings)))
    left = np.clip(np.searchsorted(have, want) - 1, 0, len(have) - 2)
    share = np.clip((want - have[left]) / (have[left + 1] - have[left]), 0.0, 1.0)
    matrix = np.zeros((len(have), len(want)), np.float32)
    matrix[left, np.arange(len(want))] = 1.0 - share
    matrix[left + 1, np.arange(len(want))] += share
    angle = 2.0 * np.pi * np.arange(settings.window)
    hann = 0.5 - 0.5 * np.cos(angle / settings.window)
    povey = (0.5 - 0.5 * np.cos(angle / (settings.window - 1))) ** 0.85
    return matrix, float(np.log((hann**2).sum() / (povey**2).sum()))


def _blank_last(rows: Float) -> Float:
    return np.roll(rows, -1, axis=0)


class _Graph:
    """Collects nodes and initializers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, out: str = "", count: int = 1, **attributes: Any) -> list[str]:
        outputs = [
            out or f"{kind.lower()}_{len(self.nodes)}",
            *(f"{kind}_{len(self.nodes)}_{i}" for i in range(1, count)),
        ]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs

    def array(self, name: str, value: NDArray[np.generic]) -> str:
        self.initializers.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def integers(self, *values: int) -> str:
        return self.array("i" + "_".join(map(str, values)), np.array(values, np.int64))

    def lstm(
        self, weights: Mapping[str, Float], name: str, layers: int, x: str, h: str, c: str
    ) -> tuple[str, str, str]:
        """x [T, B, D], h and c [layers, B, H] to y [T, B, H] and the next h and c."""
        states_h: list[str] = []
        states_c: list[str] = []
        for layer in range(layers):
            w, r, b = (weights[f"{name}.{layer}.{part}"] for part in "WRB")
            one = (self.integers(layer), self.integers(layer + 1), self.integers(0))
            y, h_next, c_next = self.op(
                "LSTM",
                x,
                self.array(f"{name}.{layer}.W", w[None]),
                self.array(f"{name}.{layer}.R", r[None]),
                self.array(f"{name}.{layer}.B", np.concatenate([b, np.zeros_like(b)])[None]),
                "",
                *self.op("Slice", h, *one),
                *self.op("Slice", c, *one),
                count=3,
                hidden_size=r.shape[1],
            )
            (x,) = self.op("Squeeze", y, self.integers(1))
            states_h.append(h_next)
            states_c.append(c_next)
        (h,), (c,) = self.op("Concat", *states_h, axis=0), self.op("Concat", *states_c, axis=0)
        return x, h, c

    def model(
        self, name: str, inputs: Sequence[Edge], outputs: Sequence[Edge], metadata: Mapping[str, object] | None = None
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(*edge) for edge in inputs],
            [helper.make_tensor_value_info(*edge) for edge in outputs],
            list(self.initializers.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        helper.set_model_props(model, {key: str(value) for key, value in (metadata or {}).items()})
        onnx.checker.check_model(model)
        return model


def _encoder(sizes: Architecture, weights: Mapping[str, Float]) -> onnx.ModelProto:
    """Features [B, M, F] to encoder outputs with the joiner's projection, [B, J, T]."""
    g = _Graph()
    layers, width, factor, bins = sizes.encoder_layers, sizes.encoder_size, sizes.subsampling_factor, sizes.mel_bins
    (x,) = g.op("Transpose", "processed_signal", perm=[0, 2, 1])
    states = []
    for cache in ("cache_last_channel", "cache_last_time"):
        (flat,) = g.op("Squeeze", cache, g.integers(2))
        states += g.op("Transpose", flat, perm=[1, 0, 2])
    h, c = _encoded(g, sizes, weights, x, *states)
    g.op("Div", "processed_signal_length", g.integers(factor), out="encoded_lengths")
    for state, cache in ((h, "cache_last_channel"), (c, "cache_last_time")):
        (flat,) = g.op("Transpose", state, perm=[1, 0, 2])
        g.op("Unsqueeze", flat, g.integers(2), out=f"{cache}_next")
    g.op("Add", "cache_last_channel_len", g.integers(1), out="cache_last_channel_next_len")
    cache_shape = ["B", layers, 1, width]
    metadata = _metadata(sizes) | {"window_size": CHUNK_FRAMES, "chunk_shift": CHUNK_FRAMES}
    for cache in ("cache_last_channel", "cache_last_time"):
        metadata |= {f"{cache}_dim1": layers, f"{cache}_dim2": 1, f"{cache}_dim3": width}
    return g.model(
        "encoder",
        [
            ("processed_signal", FLOAT, ["B", bins, "F"]),
            ("processed_signal_length", INT64, ["B"]),
            ("cache_last_channel", FLOAT, cache_shape),
            ("cache_last_time", FLOAT, cache_shape),
            ("cache_last_channel_len", INT64, ["B"]),
        ],
        [
            ("outputs", FLOAT, ["B", sizes.joiner_size, "T"]),
            ("encoded_lengths", INT64, ["B"]),
            ("cache_last_channel_next", FLOAT, cache_shape),
            ("cache_last_time_next", FLOAT, cache_shape),
            ("cache_last_channel_next_len", INT64, ["B"]),
        ],
        metadata,
    )


def _offline_encoder(sizes: Architecture, weights: Mapping[str, Float], settings: FeatureSettings) -> onnx.ModelProto:
    """sherpa-onnx's offline features of whole utterances, [B, M, F], to the same outputs; left-over frames go."""
    g = _Graph()
    layers, width, factor = sizes.encoder_layers, sizes.encoder_size, sizes.subsampling_factor
    matrix, constant = offline_mapping(settings)
    (batch,) = g.op("Shape", "audio_signal", start=0, end=1)
    (frames,) = g.op("Shape", "audio_signal", start=2, end=3)
    (left_over,) = g.op("Mod", frames, g.integers(factor))
    (whole,) = g.op("Sub", frames, left_over)
    (x,) = g.op("Slice", "audio_signal", g.integers(0), whole, g.integers(2))
    (x,) = g.op("Transpose", x, perm=[0, 2, 1])
    (x,) = g.op("MatMul", x, g.array("to_own_filters", matrix))
    (x,) = g.op("Add", x, g.array("to_own_window", np.array(constant, np.float32)))
    (shape,) = g.op("Concat", g.integers(layers), batch, g.integers(width), axis=0)
    (zeros,) = g.op("Expand", g.array("zero", np.zeros((1, 1, 1), np.float32)), shape)
    _encoded(g, sizes, weights, x, zeros, zeros)
    g.op("Div", "length", g.array("factor", np.array(factor, np.int64)), out="encoded_lengths")
    return g.model(
        "encoder",
        [("audio_signal", FLOAT, ["B", sizes.mel_bins, "F"]), ("length", INT64, ["B"])],
        [("outputs", FLOAT, ["B", sizes.joiner_size, "T"]), ("encoded_lengths", INT64, ["B"])],
        _metadata(sizes),
    )


def _encoded(g: _Graph, sizes: Architecture, weights: Mapping[str, Float], x: str, h: str, c: str) -> tuple[str, str]:
    """Frames [B, F, M] to ``outputs`` [B, J, T], the encoder's with the joiner's projection; the next h and c."""
    (x,) = g.op("Sub", x, g.array("mean", weights["features.mean"]))
    (x,) = g.op("Mul", x, g.array("scale", weights["features.scale"]))
    (x,) = g.op("Reshape", x, g.integers(0, -1, sizes.subsampling_factor * sizes.mel_bins))
    (x,) = g.op("Transpose", x, perm=[1, 0, 2])
    x, h, c = g.lstm(weights, "encoder", sizes.encoder_layers, x, h, c)
    (x,) = g.op("MatMul", x, g.array("projection", weights["joiner.encoder.weight"].T))
    (x,) = g.op("Add", x, g.array("bias", weights["joiner.encoder.bias"]))
    g.op("Transpose", x, perm=[1, 2, 0], out="outputs")
    return h, c


def _metadata(sizes: Architecture) -> dict[str, object]:
    """What sherpa-onnx reads from either encoder."""
    return {
        "vocab_size": sizes.pieces - 1,
        "subsampling_factor": sizes.subsampling_factor,
        "normalize_type": "NA",
        "pred_rnn_layers": sizes.predictor_layers,
        "pred_hidden": sizes.predictor_size,
        "model_type": "EncDecRNNTBPEModel",
        "version": 1,
        "model_author": "idiolect",
        "comment": "exported from an idiolect bundle",
        "feat_dim": sizes.mel_bins,
    }


def _decoder(sizes: Architecture, weights: Mapping[str, Float]) -> onnx.ModelProto:
    """Tokens [B, U] to prediction outputs with the joiner's projection, [B, J, U]."""
    g = _Graph()
    (x,) = g.op("Gather", g.array("embedding", _blank_last(weights["predictor.embedding"])), "targets", axis=0)
    (x,) = g.op("Transpose", x, perm=[1, 0, 2])
    x, h, c = g.lstm(weights, "predictor", sizes.predictor_layers, x, "states.1", "states.2")
    (x,) = g.op("MatMul", x, g.array("projection", weights["joiner.predictor.weight"].T))
    g.op("Transpose", x, perm=[1, 2, 0], out="outputs")
    g.op("Identity", "target_length", out="prednet_lengths")
    g.op("Identity", h, out="states")
    g.op("Identity", c, out="states_c_next")
    state = [sizes.predictor_layers, "B", sizes.predictor_size]
    return g.model(
        "decoder",
        [
            ("targets", INT32, ["B", "U"]),
            ("target_length", INT32, ["B"]),
            ("states.1", FLOAT, state),
            ("states.2", FLOAT, state),
        ],
        [
            ("outputs", FLOAT, ["B", sizes.joiner_size, "U"]),
            ("prednet_lengths", INT32, ["B"]),
            ("states", FLOAT, state),
            ("states_c_next", FLOAT, state),
        ],
    )


def _joiner(sizes: Architecture, weights: Mapping[str, Float]) -> onnx.ModelProto:
    """Outputs of encoder and decoder [B, J, 1] to logits [B, 1, 1, V]."""
    g = _Graph()
    (x,) = g.op("Tanh", *g.op("Add", "encoder_outputs", "decoder_outputs"))
    (x,) = g.op("Transpose", x, perm=[0, 2, 1])
    (x,) = g.op("MatMul", x, g.array("weight", _blank_last(weights["joiner.output.weight"]).T))
    (x,) = g.op("Add", x, g.array("bias", _blank_last(weights["joiner.output.bias"])))
    g.op("Unsqueeze", x, g.integers(1), out="outputs")
    side = ["B", sizes.joiner_size, 1]
    return g.model(
        "joiner",
        [("encoder_outputs", FLOAT, side), ("decoder_outputs", FLOAT, side)],
        [("outputs", FLOAT, ["B", 1, 1, sizes.pieces])],
    )
