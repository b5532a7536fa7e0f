"""What may be given as an utterance: arrays with their rate, files and their bytes, which know theirs."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from device_sdk import AudioError, Bundle, Device, Recognizer
from tests.device_sdk.decoding.test_session import without_id
from tests.device_sdk.devices import KEY
from tests.signals import chirp

SOUND = np.round(chirp(16_000) * 32_767).astype(np.int16)


@pytest.fixture(scope="module", params=["device", "recognizer"])
def recognize(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle):
    with Device.open(tmp_path_factory.mktemp("state"), KEY, tiny_bundle) as device:
        device.withdraw("counting", "learning")
        yield (device if request.param == "device" else Recognizer(tiny_bundle)).recognize


def written(form: str, sound: np.ndarray = SOUND, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=form, subtype="PCM_16")
    return file.getvalue()


def test_arrays_paths_and_encoded_bytes_are_the_same_audio(recognize, tmp_path: Path) -> None:
    path = tmp_path / "sound.flac"
    path.write_bytes(written("FLAC"))
    expected = without_id(recognize(SOUND.astype(np.float32) / np.float32(32_768), 16_000))
    assert expected.text and expected.seconds == 1.0
    for name, found in {
        "int16": recognize(SOUND, 16_000),
        "float64": recognize(SOUND / 32_768.0, sample_rate=16_000),
        "Path": recognize(path),
        "str": recognize(str(path)),
        "bytes of a FLAC file": recognize(path.read_bytes()),
        "bytes of a WAV file": recognize(bytearray(written("WAV"))),
        "its rate said once more": recognize(path, 16_000),
        "another numpy integer": recognize(SOUND, np.int64(16_000)),
    }.items():
        assert without_id(found) == expected, name


def test_files_and_bytes_know_their_rate_and_channels_are_mixed_only_when_asked(recognize) -> None:
    assert without_id(recognize(written("WAV", chirp(8_000).astype(np.float32), 8_000))).seconds == 1.0
    stereo = np.stack([SOUND, SOUND], axis=1)
    assert recognize(written("WAV", stereo), mix_down=True).text == recognize(SOUND, 16_000).text
    assert recognize(stereo, 16_000, mix_down=True).text == recognize(SOUND, 16_000).text
    with pytest.raises(AudioError, match=r"found shape \(16000, 2\), expected one channel.*mix_down"):
        recognize(written("WAV", stereo))


@pytest.mark.parametrize(
    ("given", "rate", "message"),
    [
        (SOUND, None, r"sample_rate: found none, expected .*, as in recognize\(samples, 48_000\)"),
        (written("WAV"), 8_000, r"found a sample rate of 16000 Hz, expected 8000, as sample_rate says"),
        (SOUND.tobytes(), None, r"audio: 32000 bytes: cannot be read as audio .*numpy\.frombuffer.*sample rate"),
        ("nowhere.wav", None, r"nowhere\.wav: no such file"),
        ([0.0, 0.1], 16_000, r"audio: found list, expected a numpy array, a path or the bytes of a file"),
        (SOUND, 1_000, r"found sample rate 1000 Hz"),
        (SOUND, "16000", r"found sample rate '16000' Hz"),
    ],
)
def test_what_cannot_be_heard_is_named(recognize, given, rate, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        recognize(given, rate)
