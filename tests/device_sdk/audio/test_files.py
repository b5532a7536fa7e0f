from __future__ import annotations

import numpy as np
import pytest
import soundfile

from device_sdk.audio import Resampler, list_audio, read_audio
from device_sdk.errors import AudioError
from tests.signals import chirp


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_what_was_written_is_read(tmp_path, suffix):
    waveform = chirp(5_000)
    soundfile.write(tmp_path / f"a.{suffix}", waveform, 16_000, subtype="PCM_16")
    found = read_audio(tmp_path / f"a.{suffix}")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, waveform, atol=1e-4)


def test_ogg_is_read(tmp_path):
    soundfile.write(tmp_path / "a.ogg", chirp(16_000), 16_000)
    assert read_audio(str(tmp_path / "a.ogg")).shape == (16_000,)


def test_another_rate_is_resampled_or_refused(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, chirp(8_000), 8_000, subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(path), Resampler(8_000).feed(chirp(8_000), last=True))
    assert read_audio(path, sample_rate=8_000, strict=True).shape == (8_000,)
    with pytest.raises(AudioError, match=r"a\.wav: found a sample rate of 8000 Hz, expected 16000"):
        read_audio(path, strict=True)


def test_a_rate_that_cannot_be_is_refused(tmp_path):
    soundfile.write(tmp_path / "a.wav", chirp(100), 100)
    with pytest.raises(AudioError, match=r"a\.wav: found sample rate 100 Hz"):
        read_audio(tmp_path / "a.wav")


def test_several_channels_are_mixed_only_when_asked(tmp_path):
    path = tmp_path / "a.wav"
    stereo = np.stack([chirp(100, 1), chirp(100, 2)], axis=1)
    soundfile.write(path, stereo, 16_000, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"a\.wav: found 2 channels, expected one"):
        read_audio(path)
    np.testing.assert_allclose(read_audio(path, mono=True), stereo.mean(axis=1), atol=1e-6)


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "text.wav").write_text("no audio at all")
    (tmp_path / "empty.flac").write_bytes(b"")
    soundfile.write(tmp_path / "nan.wav", np.full(10, np.nan, np.float32), 16_000, subtype="FLOAT")
    for name, message in [
        ("text.wav", r"text\.wav: cannot be read as audio"),
        ("empty.flac", r"empty\.flac: cannot be read as audio"),
        ("nan.wav", r"nan\.wav: found nan at sample 0"),
        ("none.wav", r"none\.wav: no such file"),
        (".", "is a folder"),
    ]:
        with pytest.raises(AudioError, match=message):
            read_audio(tmp_path / name)


def test_an_empty_recording_is_read(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(0, np.float32), 16_000)
    assert read_audio(tmp_path / "a.wav").shape == (0,)


def test_folders_are_listed(tmp_path):
    for name in ("b.WAV", "sub/a.flac", "sub/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    given = tmp_path / "elsewhere.xyz"
    assert list_audio([given, tmp_path]) == [given, tmp_path / "b.WAV", tmp_path / "sub/a.flac"]
    (tmp_path / "bare").mkdir()
    with pytest.raises(AudioError, match=r"bare: found no audio file in this folder"):
        list_audio([tmp_path / "bare"])
