from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from device_sdk import cli


@pytest.fixture
def text(tmp_path: Path) -> dict[str, Path]:
    words, mine, held = tmp_path / "words.txt", tmp_path / "mine.txt", tmp_path / "held.txt"
    words.write_text("\n".join(["<unk>", "play", "some", "jazz", "the", "turn", "on", "light", "a", "please"]) + "\n")
    mine.write_text("play some jazz\nplay the jazz please\nturn on the light\n")
    held.write_text("play the light\n")
    return {"words": words, "mine": mine, "held": held}


def arguments(text: dict[str, Path], out: Path) -> list[str]:
    return [
        *("--words", str(text["words"]), "--text", str(text["mine"]), "--held-out", str(text["held"])),
        *("--sentences", "40", "--out", str(out), "--json"),
    ]


def test_lm_writes_a_graph_with_its_figures(
    text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    out = tmp_path / "out"
    sizes = ["--steps", "4", "--size", "8", "--blocks", "1", "--heads", "2"]
    assert cli.main(["train", "lm", *arguments(text, out), *sizes]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "language_model.json").read_text())
    assert report["texts"] == ["mine.txt"]
    assert report["shape"]["size"] == 8
    assert set(report["perplexity"]) == {"grammar", "held.txt"}
    session = onnxruntime.InferenceSession(out / "language_model.onnx")
    assert session.get_modelmeta().custom_metadata_map["words_digest"] == report["words_digest"]


def test_ngram_writes_an_arpa_file_and_the_background(
    text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["train", "ngram", *arguments(text, out), "--order", "3", "--cutoffs", "1,1,2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["order"], report["cutoffs"], len(report["ngrams"])) == (3, [1, 1, 2], 3)
    unigram = load_file(out / "background.safetensors")["unigram"]
    assert unigram.dtype == np.float64
    assert unigram.sum() == pytest.approx(1.0)
    assert (out / "ngram.arpa.gz").stat().st_size == report["bytes"]
    assert (
        cli.main(["train", "ngram", *arguments(text, out)[:-1], "--no-gzip", "--output", str(tmp_path / "r.json")]) == 0
    )
    assert (out / "ngram.arpa").is_file()
    assert "perplexity" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["order"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ngram", "--cutoffs", "one"], "--cutoffs"),
        (["ngram", "--order", "3", "--text", "absent.txt"], r"absent.txt"),
        (["lm", "--steps", "1", "--minutes", "1"], "exclude each other"),
    ],
)
def test_bad_requests_are_refused(
    text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given = ["--words", str(text["words"]), "--out", str(tmp_path / "out"), "--sentences", "5"]
    assert cli.main(["train", words[0], *given, *words[1:]]) == 1
    assert message in capsys.readouterr().err
