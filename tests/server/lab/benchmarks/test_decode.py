"""Word errors that the decoding benchmark adds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from server.lab.benchmarks import decode
from server.lab.corpora import open_corpus


def test_word_errors_are_compared(tiny_bundle: Bundle) -> None:
    figures = decode.word_errors(tiny_bundle, open_corpus("made:heldout").first(2))
    beam, pruned, *others, files, quick_files = figures
    assert (files.peer_value, quick_files.peer_value) == (beam.ours, others[0].ours)
    assert beam.peer == "unpruned" and beam.peer_value is not None
    assert pruned.ours == pytest.approx(beam.ours - beam.peer_value) and pruned.target == decode.PRUNED
    for rates, added in zip(others[::2], others[1::2], strict=True):
        assert rates.peer == "float32" and rates.peer_value is not None
        assert added.ours == pytest.approx(rates.ours - rates.peer_value) and added.target == decode.INT8
        assert added.holds is (added.ours <= decode.INT8)


def test_without_recordings_there_is_no_word_error(tiny_bundle: Bundle, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    assert decode.unseen_speech(tiny_bundle) is None
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    assert decode.unseen_speech(tiny_bundle) is None


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
def test_speakers_that_training_heard_are_left_out() -> None:
    bundle = Bundle.open()
    corpus = decode.unseen_speech(bundle)
    assert corpus is not None
    voices = bundle.manifest.training["voices"]["barista"]
    assert {utterance.speaker for utterance in corpus.utterances} == {*voices["devices"], *voices["heldout"]}
