"""Waveforms and audio files that are none, or odd ones."""

import io
from collections.abc import Callable

import numpy as np
import soundfile
from numpy.typing import NDArray

from device_sdk import Device, IdiolectError, read_audio
from tests.device_sdk.damage.ground import KEY, SETTINGS, SOUND, Ground, Wrong, check_same, rows, unchanged, valid
from tests.device_sdk.damage.ground import valid_text as check_text
from tests.device_sdk.damage.harm import Generator, damaged
from tests.signals import chirp, noise

FORMATS = {
    "a.wav": ("WAV", "PCM_16"),
    "float.wav": ("WAV", "FLOAT"),
    "adpcm.wav": ("WAV", "IMA_ADPCM"),
    "a.flac": ("FLAC", "PCM_16"),
    "a.ogg": ("OGG", "VORBIS"),
    "a.opus": ("OGG", "OPUS"),
    "a.mp3": ("MP3", "MPEG_LAYER_III"),
    "a.aiff": ("AIFF", "PCM_16"),
}
SHAPES: list[Callable[[NDArray[np.float32]], object]] = [
    lambda wave: wave,
    lambda wave: np.zeros(wave.size, np.float32),
    lambda wave: np.zeros(wave.size, np.int16),
    lambda wave: np.full(wave.size, -32_768, np.int16),
    lambda wave: np.full(wave.size, 16.0, np.float32),
    lambda wave: wave * np.float32(1e4),
    *(lambda wave, kind=kind: wave.astype(kind) for kind in ("f8", "f2", "i4", "c8", "O", "S4", ">f4")),
    *(lambda wave, kind=kind: (wave * 100).astype(kind) for kind in ("u1", ">i2")),
    lambda wave: wave > 0,
    lambda wave: np.stack([wave, wave]),
    lambda wave: wave[:, None],
    lambda wave: np.float32(0.5),
    lambda wave: np.array(0.5, np.float32),
    lambda wave: wave.tolist(),
    lambda wave: wave.tobytes(),
    lambda wave: None,
    lambda wave: wave[::-2],
    lambda wave: np.frombuffer(wave.tobytes(), np.float32),
    lambda wave: np.ma.masked_array(wave, wave > 0),
    lambda wave: np.zeros((0, 2), np.float32),
    lambda wave: np.array(["2026-01-01"], "datetime64[D]"),
]


def waveform(ground: Ground, rng: Generator) -> None:
    rate = int(rng.choice([16_000, 16_000, 8_000, 44_100, 48_000, 11_025]))
    if rng.random() < 0.05:
        rate = [0, -1, 1, 2**40, 16_000.5, "16000", None, True, float("nan")][rng.integers(9)]
    state = ground.state()
    with Device.open(state, KEY, ground.bundle, SETTINGS) as device:
        before, session, refused = rows(state), device.session(rate), None
        for _ in range(rng.integers(1, 5)):
            heard = session.partial().seconds
            try:
                check_text(session.feed(_samples(rng)).text)
            except IdiolectError as error:
                refused = error
                if session.partial().seconds != heard:
                    raise Wrong("audio that was refused moved the session on") from error
        check_same(before, state, "nothing was finished")
        valid(session.finish())
        check_same(before, state, "an utterance was finished", counts=False)
        if rng.random() < 0.1:
            device.learn()
        if refused is not None:
            raise refused


def _samples(rng: Generator) -> object:
    length = int(rng.choice([0, 1, 2, 159, 160, 161, 399, 400, 401, 1_600, 4_800, 8_000]))
    wave = noise(length, int(rng.integers(1 << 30))) if rng.random() < 0.5 else chirp(length, int(rng.integers(99)))
    at, choice = int(rng.integers(max(1, length))), int(rng.integers(22))
    if choice < 5 and length:
        special = [np.nan, np.inf, -np.inf, np.finfo(np.float32).max, np.float32(1e-42)][choice]
        wave[at : at + int(rng.integers(1, length + 1))] = special
        return wave
    return SHAPES[rng.integers(len(SHAPES))](wave)


def file(ground: Ground, rng: Generator) -> None:
    name = list(FORMATS)[rng.integers(len(FORMATS))]
    (container, subtype), written = FORMATS[name], io.BytesIO()
    soundfile.write(written, SOUND, 16_000, format=container, subtype=subtype)
    content = written.getvalue()
    # Half of the damage is done to the header, which says how much there is.
    split = 64 if rng.random() < 0.5 else len(content)
    path = ground.scratch / name
    path.write_bytes(damaged(content[:split], rng) + content[split:])
    sound, state = read_audio(path, mono=bool(rng.integers(2)))[:16_000], ground.state()
    before = rows(state)
    with (
        Device.open(state, KEY, ground.bundle, SETTINGS) as device,
        unchanged(before, state, "an utterance could not be recognized"),
    ):
        valid(device.recognize(sound, 16_000))
