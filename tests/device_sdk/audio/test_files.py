from __future__ import annotations

import re

import numpy as np
import pytest
import soundfile

from device_sdk.audio import Resampler, list_audio, read_audio
from device_sdk.errors import AudioError
from tests.signals import chirp


@pytest.mark.parametrize(
    ("suffix", "subtype", "near"),
    [("wav", "PCM_16", 1e-4), ("flac", "PCM_16", 1e-4), ("ogg", None, 0.2), ("mp3", None, 0.2)],
)
def test_what_was_written_is_read(tmp_path, suffix, subtype, near):
    waveform = chirp(5_000)
    soundfile.write(tmp_path / f"a.{suffix}", waveform, 16_000, subtype=subtype)
    found = read_audio(tmp_path / f"a.{suffix}")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, waveform, atol=near)


def test_another_rate_is_resampled_or_refused(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, chirp(8_000), 8_000, subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(path), Resampler(8_000).feed(chirp(8_000), last=True))
    assert read_audio(path, sample_rate=8_000, strict=True).shape == (8_000,)
    with pytest.raises(AudioError, match=r"a\.wav: found a sample rate of 8000 Hz, expected 16000"):
        read_audio(path, strict=True)
    soundfile.write(path, chirp(100), 100)
    with pytest.raises(AudioError, match=r"a\.wav: found sample rate 100 Hz"):
        read_audio(path)


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
        ("text.wav", r"text\.wav: cannot be read as audio \(.*\); expected WAV, FLAC, OGG or MP3"),
        ("empty.flac", r"empty\.flac: cannot be read as audio"),
        ("nan.wav", r"nan\.wav: found nan at sample 0"),
        ("none.wav", r"none\.wav: no such file"),
        (".", "is a folder"),
    ]:
        with pytest.raises(AudioError, match=message):
            read_audio(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("memo.m4a", b"\0\0\0\x20ftypM4A \0\0\0\0M4A mp42isom"),
        ("memo.wav", b"\0\0\0\x20ftypmp42\0\0\0\0isom"),
        ("memo.aac", b"\xff\xf1\x50\x80\x02\x1f\xfc"),
    ],
)
def test_aac_is_said_to_be_unreadable_and_what_to_do(tmp_path, name, content):
    (tmp_path / name).write_bytes(content + bytes(100))
    expected = r"is AAC \(m4a, mp4\), which cannot be read.*: ffmpeg -i {0} -ac 1 -ar 16000 {0}\.wav"
    with pytest.raises(AudioError, match=rf"{name}: " + expected.format(re.escape(str(tmp_path / name)))):
        read_audio(tmp_path / name)
    with pytest.raises(AudioError, match=r"bytes: is AAC .*: ffmpeg -i FILE -ac 1 -ar 16000 FILE\.wav"):
        read_audio(content + bytes(100))
    assert list_audio([tmp_path]) == [tmp_path / name], "a folder is not silent about it either"


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
