"""A bundle's weights in the layout that sherpa-onnx's NeMo transducers have, so that unmodified sherpa-onnx decodes
them, streaming and offline: blank last, LSTM state in the caches, what sherpa must know in the encoder's metadata.

Its streaming recognizer computes the very features of the bundle. Its offline recognizer takes another window (povey)
and mel filters that end 400 Hz lower, so the offline encoder first interpolates the bundle's bins between those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.manifest import MANIFEST
from device_sdk.errors import BundleError
from device_sdk.features import FeatureSettings
from device_sdk.features.logmel import mel_filters
from export.graphs.builder import INT32, INT64, GraphBuilder, Shape, Value
from export.graphs.lstm import stack
from export.imports.folder import write_tokens

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

CHUNK_FRAMES = 30
"""10 ms feature frames that sherpa-onnx hands to the encoder at a time; left-over frames at the end are dropped."""

OFFLINE_TOP = 400.0
"""Hz below half the sampling rate at which the mel filters of sherpa-onnx's offline recognizer end."""

OPSET, IR_VERSION = 17, 8
CACHES = ("cache_last_channel", "cache_last_time")
Float = NDArray[np.float32]


def export_sherpa(bundle: Bundle, folder: str | Path) -> Path:
    """Write what sherpa-onnx's ``OnlineRecognizer`` and ``OfflineRecognizer`` load, and a README that says how. The
    streaming encoder is ``encoder.onnx``, the offline one ``encoder-offline.onnx``; ``decoder.onnx``, ``joiner.onnx``
    and ``tokens.txt`` serve both. Returns the folder. Raises :class:`BundleError` for feature settings that sherpa-onnx
    cannot compute, and for a bundle's own folder."""
    folder, architecture, weights = Path(folder), bundle.lstm, bundle.weights
    only = FeatureSettings(mel_bins=architecture.mel_bins)
    if bundle.features != only:
        raise BundleError(f"{bundle.path}: features are {bundle.features}, sherpa-onnx computes {only} only")
    if (folder / MANIFEST).exists():
        raise BundleError(f"{folder}: this is a bundle, whose graphs have the same names; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    pieces = architecture.pieces
    blank_last = ("predictor.embedding", "joiner.output.weight", "joiner.output.bias")
    given = {**weights, **{name: np.roll(weights[name], -1, axis=0) for name in blank_last}}
    (folder / "encoder-offline.onnx").write_bytes(_offline_encoder(architecture, given, bundle.features))
    for name, build in (("encoder", _encoder), ("decoder", _decoder), ("joiner", _joiner)):
        (folder / f"{name}.onnx").write_bytes(build(architecture, given))
    write_tokens(folder / "tokens.txt", [*map(bundle.tokenizer.piece, range(1, pieces)), "<blk>"])
    readme = Path(__file__).with_name("sherpa_readme.md").read_text("utf-8")
    named = {"name": bundle.manifest.name, "version": bundle.version, "bins": architecture.mel_bins}
    (folder / "README.md").write_text(readme.format(**named), encoding="utf-8")
    return folder


def offline_mapping(settings: FeatureSettings) -> tuple[Float, float]:
    """From the log-mel frames of sherpa-onnx's offline recognizer, x [F, M], to the bundle's: x @ matrix + constant.
    Returns (matrix [M, M] float32, constant). The filters are area-normalized, so a bin is the mean power around its
    centre, and bins at other centres lie between; those above the highest one take its value."""
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


def _encoder(sizes: Architecture, weights: Mapping[str, Float]) -> bytes:
    """Features [B, M, F] to encoder outputs with the joiner's projection, [B, J, T]."""
    g = GraphBuilder(sizes, weights=weights)
    layers, width = sizes.encoder_layers, sizes.encoder_size
    features = g.input("processed_signal", ["B", sizes.mel_bins, "F"])
    length = g.input("processed_signal_length", ["B"], INT64)
    shape: Shape = ["B", layers, 1, width]
    h, c = (g.transpose(g.squeeze(g.input(cache, shape), 2), 1, 0, 2) for cache in CACHES)
    counted = g.input("cache_last_channel_len", ["B"], INT64)
    states = _encode(g, g.transpose(features, 0, 2, 1), length, h, c)
    metadata = _metadata(sizes) | {"window_size": CHUNK_FRAMES, "chunk_shift": CHUNK_FRAMES}
    for state, cache in zip(states, CACHES, strict=True):
        g.output(f"{cache}_next", g.unsqueeze(g.transpose(state, 1, 0, 2), 2), shape)
        metadata |= {f"{cache}_dim1": layers, f"{cache}_dim2": 1, f"{cache}_dim3": width}
    g.output("cache_last_channel_next_len", g.add(counted, g.integers(1)), ["B"], INT64)
    return g.finish("encoder", metadata, OPSET, IR_VERSION)


def _offline_encoder(sizes: Architecture, weights: Mapping[str, Float], settings: FeatureSettings) -> bytes:
    """sherpa-onnx's offline features of whole utterances, [B, M, F], to the same outputs; left-over frames go."""
    g = GraphBuilder(sizes, weights=weights)
    matrix, constant = offline_mapping(settings)
    signal, length = g.input("audio_signal", ["B", sizes.mel_bins, "F"]), g.input("length", ["B"], INT64)
    frames = g.size(signal, 2)
    whole = g.subtract(frames, g.op("Mod", frames, g.integers(sizes.subsampling_factor)))
    x = g.transpose(g.slice(signal, 0, whole, 2), 0, 2, 1)
    x = g.add(g.matmul(x, g.constant(matrix, np.float32)), g.single(constant))
    zeros = g.expand(g.single(0.0), sizes.encoder_layers, g.size(signal, 0), sizes.encoder_size)
    _encode(g, x, length, zeros, zeros)
    return g.finish("encoder", _metadata(sizes), OPSET, IR_VERSION)


def _encode(g: GraphBuilder, x: Value, length: Value, h: Value, c: Value) -> tuple[Value, Value]:
    """Frames [B, F, M] to the outputs: the encoder's with the joiner's projection, and how many; the next h and c."""
    sizes = g.architecture
    x = g.multiply(g.subtract(x, g.weight("features.mean")), g.weight("features.scale"))
    x = g.op("Reshape", x, g.integers(0, -1, sizes.subsampling_factor * sizes.mel_bins))
    x, h, c = stack(g, g.transpose(x, 1, 0, 2), "encoder", sizes.encoder_layers, sizes.encoder_size, h, c)
    x = g.add(g.matmul(x, g.transpose(g.weight("joiner.encoder.weight"))), g.weight("joiner.encoder.bias"))
    g.output("outputs", g.transpose(x, 1, 2, 0), ["B", sizes.joiner_size, "T"])
    g.output("encoded_lengths", g.op("Div", length, g.integers(sizes.subsampling_factor)), ["B"], INT64)
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


def _decoder(sizes: Architecture, weights: Mapping[str, Float]) -> bytes:
    """Tokens [B, U] to prediction outputs with the joiner's projection, [B, J, U]."""
    g = GraphBuilder(sizes, weights=weights)
    state: Shape = [sizes.predictor_layers, "B", sizes.predictor_size]
    tokens, length = g.input("targets", ["B", "U"], INT32), g.input("target_length", ["B"], INT32)
    h, c = g.input("states.1", state), g.input("states.2", state)
    x = g.transpose(g.op("Gather", g.weight("predictor.embedding"), tokens, axis=0), 1, 0, 2)
    x, h, c = stack(g, x, "predictor", sizes.predictor_layers, sizes.predictor_size, h, c)
    x = g.matmul(x, g.transpose(g.weight("joiner.predictor.weight")))
    g.output("outputs", g.transpose(x, 1, 2, 0), ["B", sizes.joiner_size, "U"])
    g.output("prednet_lengths", length, ["B"], INT32)
    g.output("states", h, state)
    g.output("states_c_next", c, state)
    return g.finish("decoder", {}, OPSET, IR_VERSION)


def _joiner(sizes: Architecture, weights: Mapping[str, Float]) -> bytes:
    """Outputs of encoder and decoder [B, J, 1] to logits [B, 1, 1, V]."""
    g = GraphBuilder(sizes, weights=weights)
    encoded, predicted = (g.input(f"{side}_outputs", ["B", sizes.joiner_size, 1]) for side in ("encoder", "decoder"))
    x = g.transpose(g.op("Tanh", g.add(encoded, predicted)), 0, 2, 1)
    x = g.add(g.matmul(x, g.transpose(g.weight("joiner.output.weight"))), g.weight("joiner.output.bias"))
    g.output("outputs", g.unsqueeze(x, 1), ["B", 1, 1, sizes.pieces])
    return g.finish("joiner", {}, OPSET, IR_VERSION)
