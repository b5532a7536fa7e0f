import io
import json
import os
import queue
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from device_sdk.cli import main
from device_sdk.formatting import written_form
from tests.signals import chirp, noise


@pytest.fixture
def recordings(tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    soundfile.write(folder / "a.wav", noise(16_000), 16_000)
    soundfile.write(folder / "b.flac", chirp(8_000, 2), 8_000)
    return folder


def run(tiny_bundle, *words):
    return main(["transcribe", "--bundle", str(tiny_bundle.path), *map(str, words)])


def files(capsys):
    """Of the JSON of one file."""
    return json.loads(capsys.readouterr().out)["files"]


def lines(capsys):
    """Of JSON, a line each."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_has_the_nbest_with_score_parts_and_word_times(tiny_bundle, recordings, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run(tiny_bundle, recordings / "a.wav", "--nbest", 4, "--json", "--output", out) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == json.loads(out.read_text("utf-8")) and report["bundle"] == tiny_bundle.version
    (entry,) = report["files"]
    assert entry["file"].endswith("a.wav") and entry["seconds"] == 1.0
    (utterance,) = entry["utterances"]
    assert utterance["offset"] == 0.0 and utterance["seconds"] == 1.0 and len(utterance["nbest"]) == 4
    best = utterance["nbest"][0]
    assert best["text"] == utterance["text"] == entry["text"]
    assert set(best["scores"]) == {"acoustic", "ngram", "neural", "personal", "hotword", "pieces", "ctc"}
    assert " ".join(word["text"] for word in best["words"]) == best["text"]
    assert " s  " in captured.err  # partials


def test_the_table_shows_every_part(tiny_bundle, recordings, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(tiny_bundle, recordings / "a.wav", "--beam", 3, "--no-rescore") == 0
    shown = capsys.readouterr().out
    for column in ("score", "acoustic", "neural", "n-gram", "personal", "text", "(1.00 s)"):
        assert column in shown
    assert "│ 3 │" in shown and "│ 4 │" not in shown


def test_partials_on_a_terminal_are_one_line_that_changes(tiny_bundle, recordings, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(tiny_bundle, recordings / "a.wav", "--json") == 0 and "\x1b[2K" in capsys.readouterr().err


def test_folders_are_expanded_and_rates_brought_to_16_khz(tiny_bundle, recordings, capsys):
    assert run(tiny_bundle, recordings, "--json", "--beam", 1) == 0
    entries = lines(capsys)
    assert {entry["bundle"] for entry in entries} == {tiny_bundle.version}
    found = [(entry["file"][-6:], entry["seconds"], len(entry["utterances"])) for entry in entries]
    assert found == [("/a.wav", 1.0, 1), ("b.flac", 1.0, 0)]


def test_a_bad_file_is_reported_and_the_others_go_on(tiny_bundle, recordings, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (recordings / "bad.wav").write_text("no audio")
    soundfile.write(recordings / "c.wav", np.zeros((100, 2)), 16_000)
    given = [tmp_path / "none.wav", recordings, tmp_path / "empty", recordings / "a.wav"]
    assert run(tiny_bundle, *given, "--json", "--strict") == 1
    captured = capsys.readouterr()
    errors = [json.loads(line).get("error", "") for line in captured.out.splitlines()]
    expected = ["no such file", "", "8000 Hz", "cannot be read", "2 channels", "no audio file", ""]
    assert all(part in error and bool(part) == bool(error) for part, error in zip(expected, errors, strict=True))
    assert captured.err.count("idiolect: AudioError:") == 5


def test_mono_mixes_down(tiny_bundle, tmp_path, capsys):
    soundfile.write(tmp_path / "c.wav", np.stack([chirp(8_000), chirp(8_000)], axis=1), 16_000)
    assert run(tiny_bundle, tmp_path / "c.wav", "--mono", "--json") == 0 and files(capsys)[0]["seconds"] == 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunk", "0"], "--chunk: found 0.0"),
        (["--beam", "2", "--nbest", "3"], "decoding.nbest: found 3"),
        (["--beam", "0"], "decoding.beam: found 0"),
        (["--jobs", "0"], "--jobs: found 0"),
        (["--srt", "--vtt"], "--srt, --vtt: found both"),
        (["--srt", "--json"], "--json, --srt: found both"),
        (["--srt"], "--srt: found a folder or several files"),
        (["--raw"], "--raw: found no -"),
        (["--mic"], "expected the microphone alone"),
        (["-"], "expected standard input alone"),
        (["--microphone", "0"], "--microphone: found no --mic"),
        (["--encoding", "mp3"], "--encoding: found 'mp3'"),
        (["--precision", "int2"], "found 'int2'"),
        (["--output", "/nowhere/x.json"], "/nowhere, which is no folder"),
        (["--hotwords", "/nowhere"], "/nowhere"),
    ],
)
def test_settings_are_checked(tiny_bundle, recordings, words, message, capsys):
    assert run(tiny_bundle, recordings, *words) == 1 and message in capsys.readouterr().err


def test_what_is_missing_is_named(tiny_bundle, tmp_path, monkeypatch, capsys):
    assert main(["transcribe", "--bundle", str(tmp_path / "none"), "a.wav"]) == 1
    assert "BundleError" in capsys.readouterr().err and run(tiny_bundle) == 1
    assert "found no input" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(), isatty=lambda: True))
    assert run(tiny_bundle, "-") == 1 and "standard input is the terminal" in capsys.readouterr().err


def test_processes_give_what_one_gives_in_the_same_order(tiny_bundle, recordings, capsys):
    for seed in range(3):
        soundfile.write(recordings / f"{seed}.wav", noise(8_000, seed), 16_000)
    (recordings / "1b.wav").write_text("no audio")
    said = []
    for jobs in (1, 3):
        assert run(tiny_bundle, recordings, "--json", "--jobs", jobs) == 1
        captured = capsys.readouterr()
        assert captured.err.count("1b.wav: cannot be read") == 1
        said.append(captured.out)
    assert said[0] == said[1] and len(said[0].splitlines()) == 6


def test_a_file_that_crashes_its_process_does_not_end_the_run(tiny_bundle, recordings, tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "import device_sdk.audio as audio\n"
        "read = audio.read_audio\n"
        "audio.read_audio = lambda path, **more: os.abort() if path.stem == 'a' else read(path, **more)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    soundfile.write(recordings / "c.wav", noise(8_000, 3), 16_000)
    assert run(tiny_bundle, recordings, "--jobs", 2) == 1
    captured = capsys.readouterr()
    assert captured.err.count("a.wav: the process that decoded this file crashed") == 1
    assert [line.partition(":")[0][-6:] for line in captured.out.splitlines()] == ["b.flac", "/c.wav"]


def test_several_files_are_a_line_each_or_tables(tiny_bundle, recordings, capsys, monkeypatch):
    assert run(tiny_bundle, recordings) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == [str(recordings / "a.wav"), str(recordings / "b.flac")]
    assert run(tiny_bundle, recordings, "--nbest", 2) == 0
    assert capsys.readouterr().out.count("acoustic") == 1  # nothing is said in the other one
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(tiny_bundle, recordings, "--json") == 0
    assert "2/2" in capsys.readouterr().err  # the progress bar


def test_output_is_whole_or_as_it_was(tiny_bundle, recordings, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    assert run(tiny_bundle, recordings, "--output", out) == 0
    whole = out.read_text("utf-8")
    assert len(whole.splitlines()) == 2
    monkeypatch.setattr("device_sdk.commands.workers.read_and_decode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tiny_bundle, recordings, "--output", out)
    assert out.read_text("utf-8") == whole and list(tmp_path.glob(".out*")) == []


def test_where_nothing_can_be_written_nothing_is_heard(tiny_bundle, recordings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("device_sdk.commands.workers.read_and_decode", lambda *_: 1 / 0)

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert run(tiny_bundle, recordings / "a.wav", "--output", tmp_path / "out.json") == 1
    assert f"{tmp_path / 'out.json'}: cannot be written (Permission denied)" in capsys.readouterr().err


def fed(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False))


def wav(samples, rate=16_000, subtype="PCM_16", form="WAV"):
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format=form, subtype=subtype)
    return content.getvalue()


@pytest.mark.parametrize(
    ("form", "subtype"),
    [("WAV", each) for each in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW")]
    + [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")],
)
def test_standard_input_is_recognized_as_its_file_is(tiny_bundle, tmp_path, monkeypatch, capsys, form, subtype):
    content = wav(noise(24_000, 1), subtype=subtype, form=form)
    (tmp_path / "a.wav").write_bytes(content)
    assert run(tiny_bundle, tmp_path / "a.wav", "--json") == 0
    (expected,) = files(capsys)
    fed(monkeypatch, content)
    assert run(tiny_bundle, "-", "--json") == 0
    captured = capsys.readouterr()
    (entry,) = map(json.loads, captured.out.splitlines())
    assert entry["file"] == "-" and entry["offset"] == 0.0 and " s  " in captured.err
    (utterance,) = expected["utterances"]
    assert entry["text"] == utterance["text"] and entry["seconds"] == utterance["seconds"]
    assert entry["nbest"][0]["score"] == pytest.approx(utterance["nbest"][0]["score"], abs=1e-3)


@pytest.mark.parametrize("known", [True, False])
def test_what_comes_after_the_samples_is_no_sound(tiny_bundle, monkeypatch, capsys, known):
    """Programs write chunks there; whoever writes to a pipe does not know the size, and writes nothing after it."""
    content = bytearray(wav(noise(16_000, 1)))
    if known:
        content += b"id3 " + (8_000).to_bytes(4, "little") + bytes(8_000)
    else:
        content[40:44] = b"\xff" * 4
    fed(monkeypatch, bytes(content))
    assert run(tiny_bundle, "-", "--json") == 0
    (entry,) = lines(capsys)
    assert entry["seconds"] == 1.0


@pytest.mark.parametrize(("encoding", "dtype"), [("s16le", "<i2"), ("f32le", "<f4")])
def test_raw_samples_of_another_rate(tiny_bundle, monkeypatch, capsys, encoding, dtype):
    samples = noise(48_000, 1)
    fed(monkeypatch, (samples * 32_767).astype("<i2").tobytes() if dtype == "<i2" else samples.astype(dtype).tobytes())
    assert run(tiny_bundle, "-", "--raw", "--rate", 32_000, "--encoding", encoding, "--json") == 0
    (entry,) = lines(capsys)
    assert entry["seconds"] == 1.5


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"", [], "is empty"),
        (b"OggS" + bytes(40), [], "standard input: cannot be read as audio"),
        (b"no audio at all", [], "expected WAV, FLAC, OGG or MP3, or with --raw samples"),
        (b"\0\0\0\x20ftypM4A " + bytes(40), [], "standard input: is AAC"),
        (wav(np.zeros((10, 2)), subtype="ULAW"), [], "standard input: found 2 channels"),
        (wav(np.zeros(10))[:20], [], "ends inside"),
        (wav(np.zeros((10, 2))), [], "found 2 channels"),
        (wav(np.zeros(10))[:12] + b"data" + bytes(4), [], "before the WAV header"),
        (wav(np.zeros(10))[:12] + b"junk" + b"\xff" * 4, [], "header chunk b'junk'"),
        (wav(np.zeros(10))[:12] + b"fmt " + b"\x02\0\0\0" + bytes(2), [], "WAV header of 2 bytes"),
        (wav(np.zeros(10), 8_000), ["--strict"], "8000 Hz"),
        (np.full(4_000, np.nan, "<f4").tobytes(), ["--raw", "--encoding", "f32le"], "found nan"),
        (b"", ["--raw", "--rate", "7"], "--rate: found sample rate 7"),
    ],
)
def test_bad_standard_input_is_named(tiny_bundle, monkeypatch, capsys, content, words, message):
    fed(monkeypatch, content)
    assert run(tiny_bundle, "-", *words) == 1 and message in capsys.readouterr().err


def test_a_stream_is_cut_into_utterances(tiny_bundle, monkeypatch, capsys, tmp_path):
    fed(monkeypatch, wav(np.tile(np.stack([chirp(400_000, 3)] * 2, axis=1), (2, 1))))  # longer than an utterance gets
    assert run(tiny_bundle, "-", "--mono", "--json", "--output", tmp_path / "out", "--beam", 2, "--no-rescore") == 0
    out = capsys.readouterr().out
    assert out == (tmp_path / "out").read_text("utf-8")
    entries = [json.loads(line) for line in out.splitlines()]
    assert len(entries) > 1
    for entry, later in pairwise(entries):
        assert later["offset"] >= entry["offset"] + entry["seconds"] - 1e-6
    fed(monkeypatch, wav(noise(24_000, 1)))
    assert run(tiny_bundle, "-") == 0 and len(capsys.readouterr().out.splitlines()) == 1
    fed(monkeypatch, wav(noise(24_000, 1)))
    assert run(tiny_bundle, "-", "--nbest", 2) == 0 and "- at 0.00 s" in capsys.readouterr().out


def test_subtitles(tiny_bundle, recordings, tmp_path, monkeypatch, capsys):
    assert run(tiny_bundle, recordings / "a.wav", "--srt") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1\n00:00:00,") and " --> " in shown
    out = tmp_path / "a.vtt"
    assert run(tiny_bundle, recordings / "a.wav", "--vtt", "--format", "--output", out) == 0
    assert not capsys.readouterr().out and out.read_text("utf-8").startswith("WEBVTT\n\n00:00:00.")
    fed(monkeypatch, (recordings / "a.wav").read_bytes())
    assert run(tiny_bundle, "-", "--srt") == 0 and capsys.readouterr().out == shown
    assert run(tiny_bundle, tmp_path / "none.wav", "--srt", "--output", out) == 1
    assert out.read_text("utf-8").startswith("WEBVTT"), "what could not be read replaces nothing"


def test_formatted_text_stands_beside_what_was_recognized(tiny_bundle, recordings, capsys):
    assert run(tiny_bundle, recordings / "a.wav", "--json", "--format") == 0
    (entry,) = files(capsys)
    assert entry["formatted"] == written_form(entry["text"]) != entry["text"]
    assert run(tiny_bundle, recordings / "a.wav", "--format") == 0
    assert entry["formatted"].split()[0] in capsys.readouterr().out


def test_hotwords_of_a_file(tiny_bundle, recordings, tmp_path, capsys):
    """One that is heard by another spelling is the phrase."""
    assert run(tiny_bundle, recordings / "a.wav", "--json") == 0
    heard = files(capsys)[0]["text"].split()[0]
    phrases = tmp_path / "phrases.txt"
    phrases.write_text(f"# names\nturn on :2.5\n\nAoife | {heard} :2.5\n")
    assert run(tiny_bundle, recordings / "a.wav", "--hotwords", phrases, "--json", "--format") == 0
    (entry,) = files(capsys)
    assert "aoife" in entry["text"].split() and heard not in entry["text"].split()
    assert "aoife" in entry["formatted"].lower().split()
    assert "aoife" in [word["text"] for word in entry["utterances"][0]["nbest"][0]["words"]]
    for content, message in (
        (b"turn :x\n", "line 1: found 'turn :x'"),
        (b"\xff", "line 1: found the byte 0xff"),
        (b"a |\n", "line 1"),
    ):
        phrases.write_bytes(content)
        assert run(tiny_bundle, recordings / "a.wav", "--hotwords", phrases) == 1
        assert message in capsys.readouterr().err


class Sound:
    """Stands for PortAudio where there is no sound card: a microphone that hears ``heard`` and is then interrupted."""

    class PortAudioError(Exception):
        pass

    def __init__(self, heard, broken=False):
        self.heard, self.broken = heard, broken

    def InputStream(self, *, samplerate, channels, dtype, device, blocksize, callback):
        assert (samplerate, channels, dtype) == (16_000, 1, "float32")
        if device == "none":
            raise ValueError("No input device matching 'none'")

        def start():
            for at in range(0, len(self.heard), blocksize):
                callback(self.heard[at : at + blocksize, None], blocksize, None, None)

        return SimpleNamespace(start=start, active=not self.broken, close=lambda: None)

    def query_devices(self):
        return [{"name": "built in", "max_input_channels": 2}, {"name": "speaker", "max_input_channels": 0}]


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names are Unicode there")
def test_names_need_not_be_utf_8(tiny_bundle, tmp_path, capsys):
    (tmp_path / "au").mkdir()
    for name in (b"a.wav", b"caf\xe9.wav"):
        with Path(os.fsdecode(os.fsencode(tmp_path / "au") + b"/" + name)).open("wb") as file:
            soundfile.write(file, noise(8_000, 1), 16_000, format="WAV")
    assert run(tiny_bundle, str(tmp_path / "au"), "--json", "--output", str(tmp_path / "r.jsonl")) == 0
    first, second = lines(capsys)
    assert second["file"].endswith("caf\\udce9.wav") and second["utterances"] == first["utterances"] != []
    assert (tmp_path / "r.jsonl").read_text("utf-8").count("\n") == 2


@pytest.mark.parametrize("others", [[], ["q.wav"]])
def test_results_never_take_the_place_of_a_recording(tiny_bundle, tmp_path, capsys, monkeypatch, others):
    monkeypatch.chdir(tmp_path)
    for name in ("p.wav", "q.wav"):
        soundfile.write(tmp_path / name, noise(8_000, 1), 16_000)
    before = (tmp_path / "p.wav").read_bytes()
    assert run(tiny_bundle, *(others or ["p.wav"]), "--output", "p.wav") == 1
    assert "--output: p.wav is a recording" in capsys.readouterr().err
    assert (tmp_path / "p.wav").read_bytes() == before


def test_the_microphone(tiny_bundle, monkeypatch, capsys):
    class Heard(queue.SimpleQueue):
        def get(self, timeout):
            if self.empty():
                raise KeyboardInterrupt
            return super().get(timeout=timeout)

    monkeypatch.setitem(sys.modules, "sounddevice", Sound(noise(24_000, 1)))
    with monkeypatch.context() as patch:
        patch.setattr("device_sdk.commands.sources.queue.SimpleQueue", Heard)
        assert run(tiny_bundle, "--mic", "--json", "--microphone", "0") == 0
    (entry,) = lines(capsys)
    assert entry["file"] == "microphone" and entry["seconds"] == 1.5
    assert run(tiny_bundle, "--mic", "--microphone", "none") == 1
    assert "cannot be opened (No input device matching 'none'); --microphone chooses one of: 0 built in" in (
        capsys.readouterr().err
    )
    monkeypatch.setitem(sys.modules, "sounddevice", Sound(chirp(1_600), broken=True))
    assert run(tiny_bundle, "--mic") == 1 and "unplugged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"), [(None, "idiolect[mic]"), ("raise OSError('no library')", "libportaudio2")]
)
def test_what_the_microphone_needs_is_named(tiny_bundle, tmp_path, monkeypatch, capsys, content, message):
    if content is None:
        monkeypatch.setitem(sys.modules, "sounddevice", None)
    else:
        monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
        (tmp_path / "sounddevice.py").write_text(content)
        monkeypatch.syspath_prepend(str(tmp_path))
    assert run(tiny_bundle, "--mic") == 1 and message in capsys.readouterr().err
