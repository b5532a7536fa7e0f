"""N-grams on a device: in memory by default, on the disk where the app allows it, and gone when it no longer does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from device_sdk.device import Device
from device_sdk.errors import StateError
from device_sdk.feedback.signals import Corrected
from device_sdk.personalization import ngrams
from device_sdk.settings import DeviceSettings
from rescoring.ngrams import BEGIN, NgramCounts, add, ngram_weights
from rescoring.words import UNKNOWN, WordList
from tests.device_sdk.state.audit import findings
from tests.device_sdk.test_device import KEY, speech

WORDS = WordList((UNKNOWN, "get", "me", "mocha"))
SAID = "get me coffee"


@pytest.fixture
def bundle(tiny_bundle: Bundle) -> Bundle:
    bundle = Bundle.open(tiny_bundle.path)
    bundle.combination = replace(bundle.combination, context=1.0)
    return bundle


def test_bytes_round_trip_sorted_and_without_unlisted_words() -> None:
    counts = add(NgramCounts(), ngram_weights([WORDS.ids("mocha get zog mocha")], [2.0], 3), decay=0.5)
    content = ngrams.to_bytes(counts, WORDS)
    assert b"zog" not in content
    texts = list(json.loads(content)["ngrams"])
    assert texts == sorted(texts)
    assert "<s> mocha get" in texts
    back = ngrams.from_bytes(content, WORDS)
    assert back.ngrams == {ngram: weight / counts.unit for ngram, weight in counts.ngrams.items()}
    assert back.contexts == {ngram: weight / counts.unit for ngram, weight in counts.contexts.items()}
    shorter = ngrams.from_bytes(content, WordList((UNKNOWN, "mocha")))
    assert shorter.ngrams[BEGIN, 1, 0] == 2.0


@pytest.mark.parametrize("content", [b"\xff", b"[]", b'{"format": 2}', b'{"format": 1, "ngrams": {"a b": -1}}',
                                     b'{"format": 1, "ngrams": {"a": 1}}'])  # fmt: skip
def test_damaged_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(StateError, match="n-grams"):
        ngrams.from_bytes(content, WORDS)


def say(device: Device) -> None:
    device.feedback(device.recognize(speech(1), 16_000), Corrected(SAID))


def test_they_outlive_the_app_only_where_it_allows_that(tmp_path: Path, bundle: Bundle) -> None:
    expected = ngram_weights([bundle.words.ids(SAID)], [1.0], 3)
    with Device.open(tmp_path, KEY, bundle) as device:
        say(device)
        assert device._model_state.cache.ngrams.ngrams == pytest.approx(expected)
        assert device._store.get("counts", "ngrams") is None
        assert f"{len(expected)} sequences of two or three words: in memory only" in str(device.learned())
    keeping = DeviceSettings(keep_ngrams=True)
    with Device.open(tmp_path, KEY, bundle, keeping) as device:
        assert "sequences" not in str(device.learned())
        say(device)
        assert f"{len(expected)} sequences of two or three words: kept here" in str(device.learned())
    with Device.open(tmp_path, KEY, bundle, keeping) as device:
        assert device._model_state.cache.ngrams.ngrams == pytest.approx(expected)
    assert findings(tmp_path, KEY, bundle) == []
    with Device.open(tmp_path, KEY, bundle) as device:
        assert device._store.get("counts", "ngrams") is None, "an app that allows it no longer"
    with Device.open(tmp_path, KEY, bundle, keeping) as device:
        say(device)
        device.forget()
        assert device._store.get("counts", "ngrams") is None
        assert not device._model_state.cache.ngrams.ngrams


def test_a_combination_without_them_counts_none(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(keep_ngrams=True)) as device:
        say(device)
        assert not device._model_state.cache.ngrams.ngrams
