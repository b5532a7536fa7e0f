from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import DataError
from examples.cohorts import DIGITS, digit_string
from examples.ramesh_2023.speech import corpora_speech
from server.lab.training.spectra import BINS
from tests.server.lab.corpora.test_recipes import librilight, librispeech, mls

PARTS = ("train-clean-100", "train-clean-360", "train-other-500", "dev-clean", "dev-other", "test-clean", "test-other")


def test_the_paper_s_corpora_in_english(tmp_path: Path) -> None:
    librilight(tmp_path / "librilight", "large")
    for number, part in enumerate(PARTS):
        librispeech(tmp_path / "LibriSpeech", part, 100 * number + 1)
    speech = corpora_speech(tmp_path, "en")
    assert speech.owners == (4, 2) and len(speech.silos.frames) == 6, "silos by speaker: 100, then 7"
    assert len(speech.taught.frames) == 9 and set(speech.tests) == set(PARTS[3:])
    clip = speech.taught[0]
    assert clip.text == "it's a tone of" and clip.features.shape[1] == BINS
    assert speech.silos[0].text == "" and abs(speech.silos[0].features.shape[0] - speech.silos.frames[0]) <= 3
    assert {example.source for example in speech.tests["dev-clean"]} == {"301", "308"}


def test_the_paper_s_corpora_in_french(tmp_path: Path) -> None:
    speakers = tuple(range(1, 31))
    mls(tmp_path / "mls", ("train", "dev", "test"), speakers)
    speech = corpora_speech(tmp_path, "fr")
    taught = {speech.taught[index].source for index in range(len(speech.taught.frames))}
    silos = {speech.silos[index].source for index in range(len(speech.silos.frames))}
    assert not taught & silos and len(taught | silos) == 30
    assert 1 <= len(taught) <= 14, "about a fifth of the speakers"
    assert speech.owners == (3,) * len(silos)
    assert set(speech.tests) == {"dev", "test"} and len(speech.tests["dev"]) == 90


def test_a_corpus_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="librilight"):
        corpora_speech(tmp_path, "en")


@pytest.mark.parametrize("language", DIGITS)
def test_digits_are_said_alike_often(language: str) -> None:
    generator = np.random.default_rng(0)
    said = " ".join(digit_string(generator, language, 4) for _ in range(2000)).split()
    counts = [said.count(word) for word in DIGITS[language]]
    assert sum(counts) == len(said) and max(counts) < 1.3 * min(counts)
