import itertools
import re

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.audio import Resampler, check_sample_rate, check_waveform, list_audio, read_audio
from device_sdk.errors import AudioError
from tests.signals import chirp


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.array([-32_768, 0, 16_384, 32_767], np.int16), [-1.0, 0.0, 0.5, 32_767 / 32_768]),
        (np.array([-1.0, 0.1]), np.array([-1.0, 0.1], np.float32)),
    ],
)
def test_other_types_become_float32(samples, expected):
    found = check_waveform(samples)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("samples", "mix_down", "message"),
    [
        ([0.0], False, r"mic: found list, expected a numpy array"),
        (None, False, r"mic: found NoneType"),
        (np.zeros(3, np.float16), False, r"found dtype float16, expected float32 or float64 in \[-1, 1\], or int16"),
        (np.zeros(3, np.int32), False, r"mic: found dtype int32"),
        (np.zeros(3, object), False, r"mic: found dtype object"),
        (np.zeros((3, 2), np.float32), False, r"mic: found shape \(3, 2\), expected one channel"),
        (np.zeros((1, 3), np.int16), False, r"mic: found shape \(1, 3\)"),
        (np.float32(0).reshape(()), False, r"mic: found shape \(\)|mic: found float32"),
        (np.array([0, 0, np.nan], np.float32), False, r"mic: found nan at sample 2, expected finite"),
        (np.array([0.0, np.nan]), False, r"mic: found nan at sample 1"),
        (np.array([0, -np.inf, np.nan], np.float32), False, r"mic: found -inf at sample 1"),
        (np.array([300, -2e4], np.float32), False, r"found values from -2e\+04 to 300, .*pass 16-bit samples as int16"),
        (np.zeros((2, 16_000), np.float32), True, r"\(2, 16000\), .*transpose it where channels come first"),
        (np.zeros((16_000, 0), np.float32), True, r"mic: found shape \(16000, 0\), expected \[samples\] or"),
        (np.zeros((2, 2, 2), np.int16), True, r"mic: found shape \(2, 2, 2\)"),
        (np.float32(0).reshape(()), True, r"mic: found"),
        (np.array([[0, 0], [0, np.nan]], np.float32), True, r"mic: found nan at sample 1, expected finite"),
        (np.array([[0, 300], [0, 0]], np.float32), True, r"mic: found values from 0 to 300"),
    ],
)
def test_what_is_no_waveform_is_named(samples, mix_down, message):
    with pytest.raises(AudioError, match=message):
        check_waveform(samples, "mic", mix_down=mix_down)


def test_float32_is_taken_as_it_is():
    samples = np.array([-1.0, 0.25, 1.5], np.float32)
    assert check_waveform(samples) is samples and check_waveform(np.zeros(0, np.float32)).size == 0
    assert check_waveform(np.zeros(10, np.float32)[::2]).shape == (5,)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_channels_are_averaged_where_asked(dtype):
    stereo = np.array([[0.0, 0.5], [1.0, -1.0], [0.25, 0.25]]) * (1 if dtype is np.float32 else 32_768 / 2)
    found = check_waveform(stereo.astype(dtype), mix_down=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.25, 0.0, 0.25] if dtype is np.float32 else [0.125, 0.0, 0.125])
    assert check_waveform(stereo.astype(dtype)[:, :1], mix_down=True).shape == (3,)
    assert check_waveform(stereo.astype(dtype)[:0], mix_down=True).shape == (0,)


def test_masked_values_are_values():
    wave = np.ma.masked_array(np.array([0.1, np.nan, 0.2], np.float32), [False, True, False])
    with pytest.raises(AudioError, match="found nan at sample 1"):
        check_waveform(wave)
    assert type(check_waveform(np.ma.masked_array(np.zeros(3, np.float32), True))) is np.ndarray


@settings(max_examples=30, deadline=None)
@given(
    rate=st.sampled_from([8_000, 11_025, 16_000, 22_050, 44_100, 48_000]),
    length=st.integers(0, 9_000),
    cuts=st.lists(st.integers(0, 9_000), max_size=6),
)
def test_any_chunking_gives_the_same_samples(rate, length, cuts):
    samples = chirp(length)
    whole, resampler = Resampler(rate).feed(samples, last=True), Resampler(rate)
    bounds = [0, *sorted(min(cut, length) for cut in cuts), length]
    parts = [resampler.feed(samples[a:b]) for a, b in itertools.pairwise(bounds)]
    np.testing.assert_array_equal(np.concatenate([*parts, resampler.feed(np.zeros(0, np.float32), last=True)]), whole)
    np.testing.assert_array_equal(resampler.feed(samples, last=True), whole)  # it can begin again
    assert abs(len(whole) - length * 16_000 / rate) <= 1


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_a_tone_stays_a_tone(rate):
    found = Resampler(rate).feed(np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32), last=True)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=1e-3)


@pytest.mark.parametrize("rate", [0, -1, 3_999, 400_000, 16_000.0, "16000", None, True])
def test_rates_that_cannot_be_are_refused(rate):
    with pytest.raises(AudioError, match=r"call: found sample rate .* expected an integer from 4000 to 384000"):
        check_sample_rate(rate, "call")
    assert check_sample_rate(np.int64(8_000)) == 8_000


@pytest.mark.parametrize(
    ("suffix", "length", "near"),
    [("wav", 0, 1e-4), ("wav", 5_000, 1e-4), ("flac", 5_000, 1e-4), ("ogg", 5_000, 0.2), ("mp3", 5_000, 0.2)],
)
def test_what_was_written_is_read(tmp_path, suffix, length, near):
    waveform = chirp(length)
    soundfile.write(tmp_path / f"a.{suffix}", waveform, 16_000)
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
    path, stereo = tmp_path / "a.wav", np.stack([chirp(100, 1), chirp(100, 2)], axis=1)
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


def test_folders_are_listed(tmp_path):
    for name in ("b.WAV", "sub/a.flac", "sub/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    given = tmp_path / "elsewhere.xyz"
    assert list_audio([given, tmp_path]) == [given, tmp_path / "b.WAV", tmp_path / "sub/a.flac"]
    (tmp_path / "bare").mkdir()
    with pytest.raises(AudioError, match=r"bare: found no audio file in this folder"):
        list_audio([tmp_path / "bare"])
