"""Decoding with an imported model beside sherpa-onnx on the same graphs, in the same run, one thread."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.features import logmel
from device_sdk.runtimes.protocol import encode_whole
from export.benchmarks.sherpa import BEAM, METHODS, sherpa_recognizer, sherpa_tokens
from export.benchmarks.stages import UNIT, over, run_session, speeds
from export.imports.back import write_sherpa

RUNS = 15
REST = "ms of CPU/s of audio beyond the encoder's"

Waveform = NDArray[np.float32]


def figures(bundle: Bundle, clips: Sequence[Waveform]) -> list[Figure]:
    """Greedy and beam 8 with 8-best, in all and beyond what the encoder takes. sherpa-onnx hears as much silence at the
    end as ours does."""
    with TemporaryDirectory(prefix="idiolect-imported-") as place:
        folder = write_sherpa(bundle, Path(place))
        beam_peer, greedy_peer = (sherpa_recognizer(folder, bundle, method) for method in METHODS)
    beam = Recognizer(bundle, DecodingSettings(beam=BEAM, nbest=BEAM))
    greedy = Recognizer(bundle, DecodingSettings(beam=1, nbest=1), transducer=beam.transducer)
    features, windows = [logmel(clip, bundle.features) for clip in clips], beam.transducer.windows
    padded = [
        np.pad(clip, (0, 160 * (windows.silence(len(each)) + 1))) for clip, each in zip(clips, features, strict=True)
    ]
    ways: Mapping[str, Callable[[], object]] = {
        "their greedy": over(padded, partial(sherpa_tokens, greedy_peer)),
        "our greedy": over(clips, partial(run_session, greedy)),
        "their beam": over(padded, partial(sherpa_tokens, beam_peer)),
        "our beam": over(clips, partial(run_session, beam)),
        "encoder": over(features, partial(encode_whole, beam.transducer)),
    }
    speed = speeds(ways, clips, RUNS)
    beyond = {name: 1e3 / value - 1e3 / speed["encoder"] for name, value in speed.items()}
    found = []
    for kind, what in (("greedy", "greedy"), ("beam", "beam 8, 8-best")):
        ours, theirs, peer = f"our {kind}", f"their {kind}", f"sherpa-onnx {what.partition(',')[0]}"
        found += [
            Figure(f"{what}, imported", UNIT, speed[ours], peer, speed[theirs], 1.0),
            Figure(f"{what}, imported", REST, beyond[ours], peer, beyond[theirs], 0.5, lower_is_better=True),
        ]
    return [*found, Figure("encoder alone, imported", UNIT, speed["encoder"])]
