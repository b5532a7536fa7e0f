from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from device_sdk.cli import main
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


def test_json_has_the_nbest_with_score_parts_and_word_times(tiny_bundle, recordings, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run(tiny_bundle, recordings / "a.wav", "--nbest", 4, "--json", "--output", out) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == json.loads(out.read_text("utf-8"))
    assert report["bundle"] == tiny_bundle.version
    (entry,) = report["files"]
    assert entry["file"].endswith("a.wav")
    assert entry["seconds"] == 1.0
    assert len(entry["nbest"]) == 4
    best = entry["nbest"][0]
    assert best["text"] == entry["text"]
    assert set(best["scores"]) == {"acoustic", "ngram", "neural", "personal", "hotword"}
    assert " ".join(word["text"] for word in best["words"]) == best["text"]
    assert " s  " in captured.err  # partials


def test_the_table_shows_every_part(tiny_bundle, recordings, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(tiny_bundle, recordings / "a.wav", "--beam", 3, "--no-rescore") == 0
    shown = capsys.readouterr().out
    for column in ("score", "acoustic", "neural", "n-gram", "personal", "text", "(1.00 s)"):
        assert column in shown
    assert "│ 3 │" in shown
    assert "│ 4 │" not in shown


def test_partials_on_a_terminal_are_one_line_that_changes(tiny_bundle, recordings, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(tiny_bundle, recordings / "a.wav", "--json") == 0
    assert "\x1b[2K" in capsys.readouterr().err


def test_folders_are_expanded_and_rates_brought_to_16_khz(tiny_bundle, recordings, capsys):
    assert run(tiny_bundle, recordings, "--json", "--beam", 1) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [(entry["file"][-6:], entry["seconds"], len(entry["nbest"])) for entry in files] == [
        ("/a.wav", 1.0, 1),
        ("b.flac", 1.0, 1),
    ]


def test_a_bad_file_is_reported_and_the_others_go_on(tiny_bundle, recordings, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (recordings / "bad.wav").write_text("no audio")
    soundfile.write(recordings / "c.wav", np.zeros((100, 2)), 16_000)
    given = [tmp_path / "none.wav", recordings, tmp_path / "empty", recordings / "a.wav"]
    assert run(tiny_bundle, *given, "--json", "--strict") == 1
    captured = capsys.readouterr()
    files = json.loads(captured.out)["files"]
    errors = [entry.get("error", "") for entry in files]
    expected = ["no such file", "", "8000 Hz", "cannot be read", "2 channels", "no audio file", ""]
    assert len(errors) == len(expected)
    assert all(part in error and bool(part) == bool(error) for part, error in zip(expected, errors, strict=True))
    assert captured.err.count("idiolect: AudioError:") == 5


def test_mono_mixes_down(tiny_bundle, tmp_path, capsys):
    soundfile.write(tmp_path / "c.wav", np.stack([chirp(8_000), chirp(8_000)], axis=1), 16_000)
    assert run(tiny_bundle, tmp_path / "c.wav", "--mono", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["seconds"] == 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunk", "0"], "--chunk: found 0.0"),
        (["--beam", "2", "--nbest", "3"], "decoding.nbest: found 3"),
        (["--beam", "0"], "decoding.beam: found 0"),
    ],
)
def test_settings_are_checked(tiny_bundle, recordings, words, message, capsys):
    assert run(tiny_bundle, recordings, *words) == 1
    assert message in capsys.readouterr().err


def test_a_missing_bundle_is_named(tmp_path, capsys):
    assert main(["transcribe", "--bundle", str(tmp_path / "none"), "a.wav"]) == 1
    assert "BundleError" in capsys.readouterr().err
