from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk import cli
from server.lab.corpora import open_corpus
from server.lab.corpora.heterogeneity import MEASURES
from tests.server.lab.corpora.test_recipes import librispeech

pytest.importorskip("espeakng_loader")
CutSet = pytest.importorskip("lhotse").CutSet


def test_corpora_are_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    librispeech(tmp_path / "books")
    public = f"librispeech:{tmp_path / 'books'}@train-clean-100"
    files = {"output": tmp_path / "r" / "report.json", "plot": tmp_path / "r" / "report.svg"}
    words = ["corpora", "report", "made:heldout", public, "--limit", "1"]
    assert cli.main([*words, "--json", "--output", str(files["output"]), "--plot", str(files["plot"])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(files["output"].read_text())
    made, books = document["corpora"]
    assert (made["clients"], made["recordings"], books["clients"], books["recordings"]) == (10, 10, 2, 2)
    assert set(made["measures"]) == set(MEASURES)
    assert files["plot"].read_text().count("<circle") == 12
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "clustering purity" in shown and "Common Voice" in shown


def test_a_manifest_refers_to_public_audio(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    librispeech(tmp_path)
    target = tmp_path / "cuts.jsonl.gz"
    assert cli.main(["corpora", "manifest", f"librispeech:{tmp_path}@train-clean-100", str(target)]) == 0
    assert "3 utterances of 2 speakers" in capsys.readouterr().out
    assert [cut.id for cut in CutSet.from_file(target)] == ["19-198-0000", "19-1987-0000", "26-495-0000"]
    assert not (tmp_path / "cuts-audio").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("librispeech:/nowhere@dev-clean", "no such folder"),
        ("librispeech:/nowhere", "PATH@PART"),
        ("timit:/nowhere@train", "expected one of"),
    ],
)
def test_wrong_sources_are_named(source: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["corpora", "report", source]) != 0
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_public_corpus_opens_like_any_other(tmp_path: Path) -> None:
    librispeech(tmp_path)
    corpus = open_corpus(f"librispeech:{tmp_path}@train-clean-100")
    assert corpus.speakers == ("19", "26") and len(corpus) == 3
