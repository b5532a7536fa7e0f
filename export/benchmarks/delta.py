"""What a delta costs to send and what its encoding costs it: size, error, bias, time, on one thread.

The delta is the mean gradient of the packaged weights on the shipped speech, clipped to 1. Bias: an unbiased encoding's
mean over N draws is off by a single draw's error over sqrt(N); a biased one's stays off."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio import read_audio
from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.learning.delta import add, add_noise, empty, mean
from device_sdk.learning.rehearsal import Transcribed, lesson
from device_sdk.learning.step import global_norm
from device_sdk.privacy.clipping import clip
from device_sdk.runtimes.training import TrainingSession
from device_sdk.wire.delta_codec import ScalePer, decode, encode
from device_sdk.wire.messages import Encoding

FORMS: tuple[tuple[Encoding, ScalePer, float], ...] = (
    ("float16", "tensor", 0.501),
    ("int8", "row", 0.26),
    ("int8", "tensor", 0.251),
)
"""Encoding, what shares a scale, and the largest share of float32's size that it may have."""
DRAWS = 64

Arrays = Mapping[str, NDArray[np.float32]]


def benchmark() -> list[Figure]:
    """Figures of every encoding beside float32's."""
    return figures_of(clip(speech_gradient(Bundle.open()), 1.0, "global")[0])


def speech_gradient(bundle: Bundle) -> dict[str, NDArray[np.float32]]:
    """The mean gradient at the bundle's weights of the shipped recordings, whose names are what is said in them."""
    session, total = TrainingSession(bundle), empty(bundle.architecture.parameter_shapes())
    for path in sorted((Path(__file__).parent / "speech").glob("*.ogg")):
        features, loss = lesson(Transcribed(read_audio(path), path.stem.replace("-", " ")), bundle)
        total = add(total, session.run(dict(bundle.weights), features, loss.hypotheses, loss.weights).gradients)
    return mean(total)


def figures_of(delta: Arrays, draws: int = DRAWS) -> list[Figure]:
    """Size, error and bias of one delta, times of writing and reading it, and what rounding adds to noise."""
    length, size = global_norm(delta), sum(array.nbytes for array in delta.values()) / 1e6
    figures = []
    for encoding, scale_per, share in FORMS:
        form = encoding if encoding == "float16" else f"{encoding}, a scale a {scale_per}"
        total = {name: np.zeros(array.shape, np.float64) for name, array in delta.items()}
        writing, reading, errors, sent = [], [], [], 0.0
        for _ in range(draws):
            begin = time.thread_time()  # a busy machine changes it less than the clock
            tensors, written = encode(delta, encoding, scale_per), time.thread_time()
            found = decode(tensors, encoding, scale_per)
            reading.append(time.thread_time() - written)
            writing.append(written - begin)
            errors.append(_distance(found, delta) / length)
            sent = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
            for name, array in found.items():
                total[name] += array
        error = math.sqrt(sum(each * each for each in errors) / draws)
        bias = _distance({name: array / draws for name, array in total.items()}, delta) / length
        single = error / math.sqrt(draws)
        noisy = add_noise(delta, length / math.sqrt(sum(array.size for array in delta.values())))
        added = _distance(decode(encode(noisy, encoding, scale_per), encoding, scale_per), noisy) / length
        figures += [
            Figure(f"size ({form})", "MB", sent, "float32", size, share, True),
            Figure(f"relative error of a draw ({form})", "1", error),
            Figure(f"bias over {draws} draws ({form})", "1", bias, "error / sqrt(draws)", single, 1.1, True),
            Figure(f"variance added to noise as long as the delta ({form})", "%", 100 * added**2),
            Figure(f"writing ({form})", "ms of CPU", 1e3 * median(writing)),
            Figure(f"reading ({form})", "ms of CPU", 1e3 * median(reading)),
        ]
    return figures


def _distance(one: Mapping[str, NDArray[np.floating]], other: Arrays) -> float:
    return math.sqrt(sum(float(np.square(one[name] - array, dtype=np.float64).sum()) for name, array in other.items()))
