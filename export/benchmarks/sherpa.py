"""The peer of decoding: sherpa-onnx's streaming recognizer on one thread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio import SAMPLE_RATE
from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import Architecture
from export.benchmarks.stages import CHUNK

if TYPE_CHECKING:
    from sherpa_onnx import OnlineRecognizer

BEAM = 8
METHODS = ("modified_beam_search", "greedy_search")

Waveform = NDArray[np.float32]


def sherpa_recognizer(folder: Path, bundle: Bundle, method: str) -> OnlineRecognizer:
    """sherpa-onnx over an exported folder. method: ``greedy_search`` or ``modified_beam_search``."""
    import sherpa_onnx

    return sherpa_onnx.OnlineRecognizer.from_transducer(
        tokens=str(folder / "tokens.txt"),
        **{name: str(folder / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")},
        num_threads=1,
        feature_dim=bundle.architecture.mel_bins,
        decoding_method=method,
        max_active_paths=BEAM,
        model_type="nemo_transducer" if isinstance(bundle.architecture, Architecture) else "",
    )


def sherpa_tokens(recognizer: OnlineRecognizer, clip: Waveform) -> tuple[list[str], list[float]]:
    """Tokens (pieces, with a space for the word mark) and their times (s), of the frames that sherpa-onnx decodes: it
    hands the encoder whole chunks only, and drops what is left over."""
    stream = recognizer.create_stream()
    for at in range(0, len(clip), CHUNK):
        stream.accept_waveform(SAMPLE_RATE, clip[at : at + CHUNK])
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
    stream.input_finished()
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    return list(recognizer.tokens(stream)), list(recognizer.timestamps(stream))
