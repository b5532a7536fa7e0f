"""Phrases are spotted where, of all places and alignments, they are least behind what the head heard."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_sdk import SAMPLE_AUDIO, Bundle, Device
from device_sdk.audio.files import given_audio
from device_sdk.decoding import Hotwords, Recognizer, session, spotting
from device_sdk.decoding import stream as streams
from device_sdk.decoding.spotting import FAR, MOST, Spot, likely, spot
from device_sdk.feedback import Semantics, SlotLexicon
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.settings import DeviceSettings
from tests.device_sdk.devices import KEY

Float = NDArray[np.float32]


def heard(*frames: tuple[float, ...]) -> Float:
    return np.log(np.array(frames, np.float32))


CLEAR = heard((0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))
"""Blank, phone 1, blank, phone 1, phone 2."""


@pytest.mark.parametrize(
    ("phones", "eighths", "begin", "end"),
    [
        ([1, 2], 0, 3, 5),
        ([1, 1], 0, 1, 4),
        ([1, 1, 2], 0, 1, 5),
        ([2], 0, 4, 5),
        ([2, 1], 1, 0, 2),  # 2 for the first blank; later, in place of the second one, it costs as much
        ([2, 1, 2], 1, 2, 5),
    ],
)
def test_by_hand(phones: list[int], eighths: int, begin: int, end: int) -> None:
    (found,) = spot(CLEAR, [phones])
    assert found.score == pytest.approx(-eighths * np.log(8), abs=1e-6)
    assert (found.begin, found.end) == (begin, end)


def test_no_room() -> None:
    assert [each.score for each in spot(CLEAR[:2], [[1, 1], [1, 2, 1], [1, 2]])] == pytest.approx(
        [-np.inf, -np.inf, -2 * np.log(8)]
    )


def enumerated(log_probs: Float, phones: list[int], begin: int, end: int) -> float:
    """The best alignment of a phrase with these frames, whose first and last belong to its first and last phone."""
    best, behind = -np.inf, log_probs - log_probs.max(1, keepdims=True)
    for path in product(range(log_probs.shape[1]), repeat=end - begin):
        collapsed = [one for one, before in zip(path, (0, *path[:-1]), strict=True) if one and one != before]
        if collapsed == phones and path[0] and path[-1]:
            best = max(best, float(behind[np.arange(begin, end), path].sum()))
    return best


@given(st.integers(0, 2**32 - 1), st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_best_of_all_places(seed: int, phrases: list[list[int]]) -> None:
    log_probs = np.log(np.random.default_rng(seed).dirichlet([0.5] * 3, 5)).astype(np.float32)
    log_probs = np.maximum(log_probs, -50.0)
    for phones, found in zip(phrases, spot(log_probs, phrases), strict=True):
        places = [(i, j) for i in range(5) for j in range(i + 1, 6)]
        best = max(enumerated(log_probs, phones, *place) for place in places)
        assert found.score == pytest.approx(best, abs=1e-4)
        if np.isfinite(best):
            assert enumerated(log_probs, phones, found.begin, found.end) == pytest.approx(best, abs=1e-4)


def test_what_may_have_been_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least behind for each phone first; what is far behind, has no phones or no room is not; nor is anything in
    an utterance without frames."""
    phrases = [[2, 2], [], [1, 2], [2, 1], [1] * 9]
    assert [number for number, _ in likely(CLEAR, phrases)] == [2, 3, 0]
    assert 1.0 < np.log(8) < FAR < 10.0
    assert likely(np.minimum(10 * CLEAR, 0.0), phrases[:1]) == [], "20 nats for each phone"
    assert likely(CLEAR[:0], phrases) == likely(CLEAR, []) == likely(CLEAR, [[]]) == []
    assert len(likely(CLEAR, [[1, 2]] * 20)) == MOST
    monkeypatch.setattr(spotting, "MOST", 1)
    assert likely(CLEAR, phrases) == [(2, Spot(0.0, 3, 5))]


def noisy(seed: int) -> Float:
    samples, _ = given_audio(SAMPLE_AUDIO, None)
    return np.clip(samples + 0.08 * np.random.default_rng(seed).standard_normal(samples.size), -1, 1).astype(np.float32)


def test_what_the_user_confirmed_is_heard_in_noise(tmp_path: Path) -> None:
    """An order in noise is heard as another drink, until the user has ordered a mocha once. What is heard clearly stays
    as it is, whatever was confirmed."""
    menu = SlotLexicon({"drink": ("mocha", "light roast", "dark roast", "blonde roast", "iced chai latte")})
    with Device.open(tmp_path, KEY, settings=DeviceSettings(learn=False)) as device:
        before = [device.recognize(noisy(seed), 16_000) for seed in range(5)]
        clear = device.recognize(SAMPLE_AUDIO)
        assert clear.text == "can i have a large mocha please"
        wrong = [seed for seed, result in enumerate(before) if "mocha" not in result.text]
        assert len(wrong) >= 3
        device.feedback(before[wrong[0]], Semantics({"drink": "mocha"}, menu))
        after = [device.recognize(noisy(seed), 16_000) for seed in wrong[1:]]
        assert sum("mocha" in result.text for result in after) >= len(after) - 1, [result.text for result in after]
        device.feedback(after[0], Semantics({"drink": "iced chai latte"}, menu))
        assert device.recognize(SAMPLE_AUDIO).text == clear.text


def test_only_what_is_unsure_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open()
    recognizer, asked = Recognizer(bundle, rescore=Rescorer(bundle).rescore), list[int]()
    expected = replace(Hotwords.build(["zyzzyva"]), said={"large mocha": -2.0, "seldom said": -2.0})

    def counting(log_probs: Float, phrases: list[list[int]]) -> list[tuple[int, Spot]]:
        asked.append(len(phrases))
        return likely(log_probs, phrases)

    monkeypatch.setattr(session, "likely", counting)
    recognizer.recognize(SAMPLE_AUDIO, hotwords=expected)
    assert asked == []
    heard = recognizer.recognize(noisy(0), 16_000, hotwords=expected)
    assert asked == [2] and heard.text.split()[-1] == "mocha" and heard.nbest[0].scores.hotword > 0
    assert recognizer.recognize(noisy(0), 16_000, hotwords=["zyzzyva"]).text.split()[-1] != "mocha"


def test_rows_in_time() -> None:
    """Two frames after one of which nothing is known, a pause of two, and two more."""
    first = streams.Encoded(None, np.zeros((2, 4), np.float32), 1, True)
    whole = streams.Encoded(first, np.zeros((2, 4), np.float32), 5, True)
    stream = SimpleNamespace(encoded=whole)
    assert streams.in_time(stream).tolist() == [0, 0, 1, 1, 1, 2, 3]  # type: ignore[arg-type]
    assert streams.in_time(SimpleNamespace(encoded=None)).tolist() == []  # type: ignore[arg-type]
