"""Where the time of decoding goes: how quick ways of it are, and profiles of a second of audio, stage by stage."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio import SAMPLE_RATE
from device_sdk.benchmarks import Figure, alternate
from device_sdk.decoding import Hotwords, Recognizer
from device_sdk.decoding import stream as streams
from device_sdk.decoding.beam import paths
from device_sdk.decoding.nbest import distinct, with_confidence
from device_sdk.features.logmel import EMPTY, frames
from device_sdk.runtimes.protocol import Transducer
from export.sherpa import CHUNK_FRAMES

CHUNK = SAMPLE_RATE * 3 // 10
UNIT, PART = "s of audio/s of CPU", "ms of CPU/s of audio"
NEEDED = ("features", "encoder", "predictor", "joiner")

Waveform = NDArray[np.float32]


def speeds(ways: Mapping[str, Callable[[], object]], clips: Sequence[Waveform], runs: int) -> dict[str, float]:
    """Seconds of audio in a second of CPU, of ways that each go :func:`over` all clips; medians of runs. Turns of a
    clip would measure whose weights the way before has left in the cache: the encoder alone would follow itself, and a
    search another's network."""
    seconds = sum(map(len, clips)) / SAMPLE_RATE
    return {name: seconds / spent for name, spent in alternate(ways, runs).items()}


def over(items: Sequence[Waveform], way: Callable[[Waveform], object]) -> Callable[[], None]:
    def run() -> None:
        for item in items:
            way(item)

    return run


def encode(transducer: Transducer, features: Waveform, block: int = CHUNK_FRAMES) -> None:
    """The encoder over features [F, M] in chunks of ``block`` frames, as the recognizer uses it."""
    factor, state = transducer.architecture.subsampling_factor, None
    for at in range(0, len(features) - len(features) % factor, block):
        chunk = features[at : at + block]
        _, state = transducer.encode(chunk[: len(chunk) - len(chunk) % factor], state)


def profile(recognizer: Recognizer, clips: Sequence[Waveform], runs: int) -> dict[str, float]:
    """Where the time goes, stage by stage, in ms of CPU a second of audio; medians of runs. clips: each [S]. features,
    encoder, predictor, joiner: what any search over these graphs needs; search: what else makes beams of samples;
    n-best: the list of an utterance with its confidences; session: checks, partials, endpoints."""
    seconds = sum(len(clip) for clip in clips) / SAMPLE_RATE
    found = [_once(recognizer, clips) for _ in range(runs)]
    return {stage: 1e3 / seconds * median(run[stage] for run in found) for stage in found[0]}


def _once(recognizer: Recognizer, clips: Sequence[Waveform]) -> dict[str, float]:
    """CPU seconds of one run over the clips, by stage."""
    timed = _Timed(recognizer.transducer)
    settings, features = recognizer.settings, recognizer.features
    block = round(settings.block_seconds * SAMPLE_RATE)
    spent = dict.fromkeys((*NEEDED, "search", "n-best", "session"), 0.0)
    for clip in clips:
        times = [process_time()]
        stream_features(clip, block)
        times.append(process_time())
        stream, whole = streams.begin(timed, features), len(clip) // block * block
        for at in range(0, whole, block):
            stream = streams.push(stream, clip[at : at + block], timed, features, settings)
        stream = streams.end(stream, clip[whole:], timed, features, settings)
        times.append(process_time())
        searched = sum(timed.seconds.values())
        found = distinct(paths(stream.beam), recognizer.tokenizer, recognizer.frame_seconds, len(clip) / SAMPLE_RATE)
        with_confidence(found, recognizer.bundle.combination.confidence)
        times.append(process_time())
        run_session(recognizer, clip)
        times.append(process_time())
        for stage, begin, end in zip(("features", "search", "n-best", "session"), times, times[1:], strict=False):
            spent[stage] += end - begin
        last = sum(timed.seconds.values()) - searched  # the list runs the joiner for hypotheses that were set aside
        spent["search"], spent["n-best"] = spent["search"] + last, spent["n-best"] - last
    spent |= timed.seconds
    spent["session"] = max(0.0, spent["session"] - spent["search"] - spent["n-best"])
    spent["search"] = max(0.0, spent["search"] - sum(spent[stage] for stage in NEEDED))
    return spent


def run_session(recognizer: Recognizer, clip: Waveform, hotwords: Hotwords | None = None) -> None:
    """A session from its first chunk to its result."""
    session = recognizer.session(SAMPLE_RATE, hotwords=hotwords)
    for at in range(0, len(clip), CHUNK):
        session.feed(clip[at : at + CHUNK])
    session.finish()


def stream_features(clip: Waveform, block: int = CHUNK) -> Waveform:
    """Features, [F, M], of samples that come ``block`` at a time; without the last frames, which need the end."""
    chunks, remainder = [], EMPTY
    for at in range(0, max(1, len(clip)), block):
        found, remainder = frames(clip[at : at + block], remainder)
        chunks.append(found)
    return np.concatenate(chunks)


def profile_figures(profiles: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """Every stage of every profile beside the whole of it."""
    return [
        Figure(f"{name}: {stage}", PART, spent, "all of it", sum(parts.values()))
        for name, parts in profiles.items()
        for stage, spent in parts.items()
    ]


class _Timed:
    """A transducer that adds up the CPU seconds of each of its networks."""

    def __init__(self, transducer: Transducer) -> None:
        self.architecture, self.windows = transducer.architecture, transducer.windows
        self.seconds = {"encoder": 0.0, "predictor": 0.0, "joiner": 0.0}
        self.encode = self._timed("encoder", transducer.encode)
        self.predict = self._timed("predictor", transducer.predict)
        self.join = self._timed("joiner", transducer.join)

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = process_time()
            result = call(*arguments)
            self.seconds[name] += process_time() - begin
            return result

        return timed
