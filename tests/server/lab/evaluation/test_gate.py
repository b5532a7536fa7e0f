"""The gate on the packaged model and shipped recordings: the same model passes, a spoilt one does not."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, DataError, cli
from server.lab.corpora import open_corpus
from server.lab.corpora.roles import ROLES
from server.lab.evaluation.gate import WordErrorGate

SPEECH = Path(__file__).parents[4] / "export" / "benchmarks" / "speech"


@pytest.fixture(scope="module")
def packaged_bundle() -> Bundle:
    return Bundle.open()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the shipped recordings, whose names are what is said in them."""
    found = tmp_path_factory.mktemp("held-out")
    for name in ("set-the-volume-up", "has-sven-called-yet"):
        shutil.copy(SPEECH / f"{name}.ogg", found)
        (found / f"{name}.txt").write_text(name.replace("-", " "))
    return found


def test_the_same_model_passes_and_a_spoilt_one_is_refused(folder: Path, packaged_bundle: Bundle) -> None:
    gate = WordErrorGate(packaged_bundle, [open_corpus(f"folder:{folder}", ROLES)])
    base = dict(packaged_bundle.weights)
    same = gate(base, base)
    assert same.passed and same.figures["word_error"] == same.figures["base_word_error"] < 1.0
    noise = np.random.default_rng(0)
    learned = packaged_bundle.architecture.parameter_shapes()
    spoilt = base | {name: base[name] + noise.normal(0, 0.5, shape).astype("f4") for name, shape in learned.items()}
    refused = gate(spoilt, base)
    assert not refused.passed and refused.figures["word_error"] > refused.figures["base_word_error"]
    assert "on 2 held-out utterances: above" in refused.note
    assert WordErrorGate(packaged_bundle, [open_corpus(f"folder:{folder}", ROLES)], tolerance=1e6)(spoilt, base).passed


def test_a_server_is_not_started_with_speech_it_cannot_use(tmp_path: Path, packaged_bundle: Bundle, capsys) -> None:
    given = ["--held-out", f"folder:{tmp_path}", "--database", str(tmp_path / "server.db"), "--port", "0"]
    assert cli.main(["serve", *given]) == 1 and "no audio file" in capsys.readouterr().err
    shutil.copy(SPEECH / "set-the-volume-up.ogg", tmp_path)
    with pytest.raises(DataError, match="no utterance has a sure transcript"):
        WordErrorGate(packaged_bundle, [open_corpus(f"folder:{tmp_path}", ROLES)])
