"""Decoding end to end, samples to n-best list, beside sherpa-onnx on the same exported weights and audio, one thread.

Audio: recordings of ``barista`` where ``IDIOLECT_DATA`` holds them, else the made speech next to this file (held-out
voices of espeak-ng). sherpa-onnx runs its streaming recognizer; like ours it gets 300 ms at a time. Figures of *files*
decode in longer blocks, as ``idiolect transcribe`` does with a folder; the encoder alone has 300 ms at a time there.
Time is the processor's. Precision is float32, the peer's, where a figure does not say int8. Profiles, see
:mod:`export.benchmarks.stages`, say where the rest of the time goes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio import list_audio, read_audio
from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.bundle.streaming import StreamingArchitecture
from device_sdk.commands.workers import FILE_BLOCK
from device_sdk.decoding import DecodingSettings, Hotwords, Recognizer
from device_sdk.decoding.beam import greedy, paths, start
from device_sdk.decoding.block import Block
from device_sdk.features import logmel
from device_sdk.runtimes.onnxruntime import PRECISIONS, OnnxTransducer
from export.benchmarks import imported
from export.benchmarks.sherpa import BEAM, METHODS, sherpa_recognizer, sherpa_tokens
from export.benchmarks.stages import (
    CHUNK,
    UNIT,
    encode,
    over,
    profile,
    profile_figures,
    run_session,
    speeds,
    stream_features,
)
from export.sherpa import CHUNK_FRAMES, export_sherpa

if TYPE_CHECKING:
    from sherpa_onnx import OnlineRecognizer

RUNS, CLIPS = 5, 16
LARGE = "paper"  # the preset that must keep up with speech
LARGE_CLIPS = 3
LATENCY = 15.0
HOTWORDS, HOTWORD_COST = 10_000, 0.1  # phrases, and the share of time that they may cost
SHERPA_SYMBOLS = 10  # tokens that sherpa-onnx's greedy search may emit on one frame

Waveform = NDArray[np.float32]

_BEAM, _GREEDY = DecodingSettings(beam=BEAM, nbest=BEAM), DecodingSettings(beam=1, nbest=1)


def benchmark(bundle: Path | None = None) -> list[Figure]:
    """Beam 8 with 8-best and greedy, ours beside sherpa-onnx and beside our encoder alone; int8 beside float32; what
    hotwords cost; the latency of a chunk; the ``paper`` preset; how far the tokens agree. bundle: by default the
    packaged one; an imported one beside sherpa-onnx on its graphs."""
    import sherpa_onnx  # noqa: F401  (so that a missing install is named before anything runs)

    given, clips = Bundle.open(bundle), speech()
    if isinstance(given.architecture, StreamingArchitecture):
        return imported.figures(given, clips)
    return _figures(given, clips)


def _figures(bundle: Bundle, clips: list[Waveform]) -> list[Figure]:
    features = [logmel(clip) for clip in clips]
    with TemporaryDirectory(prefix="idiolect-decode-") as folder:
        exported = export_sherpa(bundle, Path(folder))
        beam_peer, greedy_peer = (sherpa_recognizer(exported, bundle, method) for method in METHODS)
    beams = {precision: Recognizer(bundle, _BEAM, precision=precision) for precision in PRECISIONS}
    ways = {
        "sherpa beam": over(clips, partial(sherpa_tokens, beam_peer)),
        "sherpa greedy": over(clips, partial(sherpa_tokens, greedy_peer)),
    }
    watched: dict[str, Recognizer] = {}
    for precision, beam in beams.items():  # beside what they are compared with: a shared machine's pace changes
        for blocks, seconds in (("", _BEAM.block_seconds), ("files, ", FILE_BLOCK)):
            for kind, settings in (("beam", _BEAM), ("greedy", _GREEDY)):
                held = Recognizer(bundle, replace(settings, block_seconds=seconds), transducer=beam.transducer)
                watched[f"{'beam 8' if kind == 'beam' else kind}, {blocks}{precision}"] = held
                ways[f"{kind}, {blocks}{precision}"] = over(clips, partial(run_session, held))
        if precision == "float32":
            ways["hotwords"] = over(clips, partial(run_session, beam, hotwords=_phrases(HOTWORDS)))
        ways[f"encoder, {precision}"] = over(features, partial(encode, beam.transducer))
        ways[f"encoder, 3 s, {precision}"] = over(features, partial(encode, beam.transducer, block=10 * CHUNK_FRAMES))
        ways[f"features and encoder, {precision}"] = over(clips, partial(_hear, beam))
    speed = speeds(ways, clips, RUNS)
    profiles = {name: profile(recognizer, clips, RUNS) for name, recognizer in watched.items()}
    what = f"{bundle.manifest.name} weights"
    figures = []
    for precision in PRECISIONS:
        alone, both = speed[f"encoder, {precision}"], speed[f"features and encoder, {precision}"]
        for blocks in ("", "files, "):
            beam_speed, greedy_speed = speed[f"beam, {blocks}{precision}"], speed[f"greedy, {blocks}{precision}"]
            kind, how = f"{blocks}{what}, {precision}", f"{blocks}{precision}"
            figures += [
                Figure(f"beam 8, 8-best, {kind}", UNIT, beam_speed, "sherpa-onnx beam 8", speed["sherpa beam"], 10.0),
                Figure(f"beam 8 by the encoder, {how}", UNIT, beam_speed, "it alone", alone, 0.5),
                Figure(f"beam 8 by features and encoder, {how}", UNIT, beam_speed, "those alone", both),
                Figure(f"greedy, {kind}", UNIT, greedy_speed, "sherpa-onnx greedy", speed["sherpa greedy"]),
                Figure(f"greedy by the encoder, {how}", UNIT, greedy_speed, "it alone", alone, 0.85),
                Figure(f"greedy by features and encoder, {how}", UNIT, greedy_speed, "those alone", both),
            ]
        metric = f"300 ms chunk at beam 8, 95th percentile, {precision}"
        for clock, values in _latencies(beams[precision], clips).items():
            figures.append(Figure(metric, clock, values, target=LATENCY, lower_is_better=True))
    for block in ("", "3 s, "):
        exact, quick = speed[f"encoder, {block}float32"], speed[f"encoder, {block}int8"]
        metric = f"int8 encoder, chunks of {block.strip(', ') or '300 ms'}"
        figures.append(Figure(metric, UNIT, quick, "float32", exact, None if block else 2.5))
    cost, metric = speed["beam, float32"] / speed["hotwords"] - 1.0, f"time that {HOTWORDS:,} hotwords add at beam 8"
    agreement = greedy_agreement(bundle, greedy_peer, clips)
    native = float(not hasattr(Block.search, "__code__"))  # else they are Python, see CONTRIBUTING.md
    return [
        *figures,
        Figure(metric, "share", cost, target=HOTWORD_COST, lower_is_better=True),
        Figure("clips whose greedy tokens and times are sherpa-onnx's", "share", agreement, target=1.0),
        Figure("loops of the search that run as native modules", "share", native),
        *_large(clips[:LARGE_CLIPS]),
        *profile_figures(profiles),
    ]


def _large(clips: list[Waveform]) -> list[Figure]:
    """The largest preset, random weights: how much faster than speech it is."""
    with TemporaryDirectory(prefix="idiolect-large-") as folder:
        bundle = Bundle.open(_random_bundle(Path(folder) / "bundle", LARGE))
        recognizer = Recognizer(bundle, _BEAM, precision="int8")
        ways = {
            "beam": over(clips, partial(run_session, recognizer)),
            "encoder": over(clips, partial(_hear, recognizer)),
        }
        speed = speeds(ways, clips, RUNS)
    what = f"{LARGE} preset, random weights, int8"
    return [
        Figure(f"beam 8, 8-best, {what}", UNIT, speed["beam"], target=10.0),
        Figure(f"features and encoder, {what}", UNIT, speed["encoder"]),
    ]


def _hear(recognizer: Recognizer, clip: Waveform) -> None:
    """Features and encoder, 300 ms at a time."""
    encode(recognizer.transducer, stream_features(clip))


def _latencies(recognizer: Recognizer, clips: list[Waveform]) -> dict[str, float]:
    """95th percentile of what ``feed`` of 300 ms takes, in ms, by the clock and by the processor; medians of runs."""
    found: dict[str, list[float]] = {"ms": [], "ms of CPU": []}
    for _ in range(RUNS):
        times = []
        for clip in clips:
            session = recognizer.session(16_000)
            for at in range(0, len(clip), CHUNK):
                clock, processor = perf_counter(), process_time()
                session.feed(clip[at : at + CHUNK])
                times.append((perf_counter() - clock, process_time() - processor))
        for values, taken in zip(found.values(), zip(*times, strict=True), strict=True):
            values.append(1e3 * float(np.percentile(taken, 95)))
    return {unit: median(values) for unit, values in found.items()}


def speech() -> list[Waveform]:
    """The clips to decode: each [S] float32 at 16 kHz."""
    data = os.environ.get("IDIOLECT_DATA")
    real = Path(data) / "barista" / "audio" if data else None
    if real is None or not real.is_dir():
        return shipped_speech()
    return [read_audio(path) for path in list_audio([real])[:CLIPS]]


def shipped_speech() -> list[Waveform]:
    """Commands that held-out voices of espeak-ng say: each [S] float32 at 16 kHz. Files are named by what is said."""
    return [read_audio(path) for path in list_audio([Path(__file__).parent / "speech"])[:CLIPS]]


def _random_bundle(folder: Path, preset: str) -> Path:
    """A preset with seeded random weights, scaled so that tokens come about as often as in speech, and without language
    models: the packaged ones are over other pieces."""
    import io

    import sentencepiece

    from device_sdk.bundle.architecture import PRESETS
    from export.bundles import rewrite

    architecture, random = PRESETS[preset], np.random.default_rng(0)
    weights: dict[str, NDArray[np.generic]] = {}
    gains = {"joiner.output.weight": 3.0, "joiner.encoder.weight": 5.0, "joiner.predictor.weight": 4.0}
    for name, shape in architecture.parameter_shapes().items():
        scale = gains.get(name, 1.0) / (np.sqrt(shape[-1]) if len(shape) > 1 else 10.0)
        weights[name] = (scale * random.standard_normal(shape)).astype(np.float32)
    weights["joiner.output.bias"][0] += np.float32(3.0)
    weights["features.mean"] = np.full(architecture.mel_bins, -8.0, np.float32)
    weights["features.scale"] = np.full(architecture.mel_bins, 0.3, np.float32)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    sentences = [" ".join("".join(random.choice(letters, 5)) for _ in range(6)) for _ in range(4 * architecture.pieces)]
    model = io.BytesIO()
    options: dict[str, Any] = {"model_type": "bpe", "normalization_rule_name": "identity", "minloglevel": 2}
    options |= {"vocab_size": architecture.pieces, "unk_id": 0, "bos_id": -1, "eos_id": -1, "pad_id": -1}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    parts = {"architecture": architecture, "weights": weights, "tokenizer_model": model.getvalue()}
    return rewrite(Bundle.open(), folder, version="random", second_moments=None, models={}, **parts)


def _phrases(count: int) -> Hotwords:
    """Made names, of one word or two, such as an address book holds."""
    draw = Random(0)
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvw" for vowel in "aeiou"]
    names = dict[str, None]()
    while len(names) < count:
        words = ["".join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(draw.randint(1, 2))]
        names[" ".join(words)] = None
    return Hotwords.build(names)


def greedy_agreement(bundle: Bundle, peer: OnlineRecognizer, clips: list[Waveform]) -> float:
    """Share of clips on which both greedy searches emit the same tokens at the same times, as far as sherpa's goes."""
    settings = DecodingSettings(beam=1, nbest=1, symbols_per_frame=SHERPA_SYMBOLS)
    transducer, same = OnnxTransducer(bundle), 0
    seconds = bundle.architecture.subsampling_factor * bundle.features.shift / bundle.features.sample_rate
    for clip in clips:
        (tokens, times), features = sherpa_tokens(peer, clip), logmel(clip)
        encoded, _ = transducer.encode(features[: (len(features) - 1) // CHUNK_FRAMES * CHUNK_FRAMES])
        (path,) = paths(greedy(start(transducer), encoded, transducer, settings))
        ours = [bundle.tokenizer.piece(token).replace("\u2581", " ") for token in path.tokens]
        same += ours == tokens and np.allclose(np.array(path.frames) * seconds, times, atol=1e-3)
    return same / len(clips)
