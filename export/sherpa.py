"""A bundle's weights in the layout that sherpa-onnx's streaming NeMo transducers have, so that unmodified sherpa-onnx
decodes them: blank last, LSTM state in the caches, what sherpa must know in the encoder's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from device_sdk.bundle.architecture import Architecture

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

__all__ = ["CHUNK_FRAMES", "export_sherpa"]

CHUNK_FRAMES = 30
"""10 ms feature frames that sherpa-onnx hands to the encoder at a time; left-over frames at the end are dropped."""

OPSET, IR_VERSION = 17, 8
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
Float = NDArray[np.float32]
Edge = tuple[str, int, Sequence[Any]]


def export_sherpa(bundle: Bundle, folder: str | Path) -> Path:
    """Write ``encoder.onnx``, ``decoder.onnx``, ``joiner.onnx`` and ``tokens.txt`` for ``OnlineRecognizer``.

    Load them with ``from_transducer(..., model_type="nemo_transducer", feature_dim=64)``; sherpa-onnx then computes the
    same features. Returns the folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture, weights = bundle.architecture, bundle.weights
    pieces = architecture.pieces
    onnx.save(_encoder(architecture, weights), str(folder / "encoder.onnx"))
    onnx.save(_decoder(architecture, weights), str(folder / "decoder.onnx"))
    onnx.save(_joiner(architecture, weights), str(folder / "joiner.onnx"))
    lines = [f"{bundle.tokenizer.piece(token)} {token - 1}" for token in range(1, pieces)]
    (folder / "tokens.txt").write_text("\n".join([*lines, f"<blk> {pieces - 1}"]) + "\n", encoding="utf-8")
    return folder


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
    (x,) = g.op("Sub", x, g.array("mean", weights["features.mean"]))
    (x,) = g.op("Mul", x, g.array("scale", weights["features.scale"]))
    (x,) = g.op("Reshape", x, g.integers(0, -1, factor * bins))
    (x,) = g.op("Transpose", x, perm=[1, 0, 2])
    states = []
    for cache in ("cache_last_channel", "cache_last_time"):
        (flat,) = g.op("Squeeze", cache, g.integers(2))
        states += g.op("Transpose", flat, perm=[1, 0, 2])
    x, h, c = g.lstm(weights, "encoder", layers, x, *states)
    (x,) = g.op("MatMul", x, g.array("projection", weights["joiner.encoder.weight"].T))
    (x,) = g.op("Add", x, g.array("bias", weights["joiner.encoder.bias"]))
    g.op("Transpose", x, perm=[1, 2, 0], out="outputs")
    g.op("Div", "processed_signal_length", g.integers(factor), out="encoded_lengths")
    for state, cache in ((h, "cache_last_channel"), (c, "cache_last_time")):
        (flat,) = g.op("Transpose", state, perm=[1, 0, 2])
        g.op("Unsqueeze", flat, g.integers(2), out=f"{cache}_next")
    g.op("Add", "cache_last_channel_len", g.integers(1), out="cache_last_channel_next_len")
    cache_shape = ["B", layers, 1, width]
    metadata: dict[str, object] = {
        "vocab_size": sizes.pieces - 1,
        "subsampling_factor": factor,
        "normalize_type": "NA",
        "pred_rnn_layers": sizes.predictor_layers,
        "pred_hidden": sizes.predictor_size,
        "model_type": "EncDecRNNTBPEModel",
        "version": 1,
        "model_author": "idiolect",
        "comment": "exported from an idiolect bundle",
        "feat_dim": bins,
        "window_size": CHUNK_FRAMES,
        "chunk_shift": CHUNK_FRAMES,
    }
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
