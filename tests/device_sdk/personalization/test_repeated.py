"""Requests that a user repeats: found by the device, and told what becomes of the repetition."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Device, DeviceSettings, FeedbackError, LearningSettings, RepetitionSettings, Transcribed
from device_sdk.feedback import Accepted, Alternate, Cancelled, Corrected, Rating, Repeated, Semantics, Together
from device_sdk.feedback.repetition import carried_back, silence
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result, Scores
from tests.device_sdk.devices import KEY
from tests.signals import hiss as speech

LEXICON = SlotLexicon({"room": ("kitchen", "bedroom")})
FEATURES = np.zeros((30, 64), np.float32)


@pytest.mark.parametrize(
    ("elapsed", "seconds", "start", "expected"),
    [
        (5.0, 2.0, 0.5, 3.5),
        (2.0, 2.0, 0.5, 0.5),
        (1.9, 2.0, 0.5, 0.4),
        (1.8, 2.0, 0.1, 0.0),
        (0.1, 2.0, 1.9, -1.9),  # a recording: it cannot have been spoken since
    ],
)
def test_silence_before_an_utterance(elapsed: float, seconds: float, start: float, expected: float) -> None:
    assert silence(elapsed, seconds, start) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Accepted(), Alternate("light in the kitchen")),
        (Corrected("kitchen light"), Alternate("kitchen light")),
        (Alternate("kitchen light"), Alternate("kitchen light")),
        (Semantics({"room": "kitchen"}, LEXICON), Semantics({"room": "kitchen"}, LEXICON)),
        (Cancelled(), None),
        (Repeated(), None),
        (Rating(1.0), None),
    ],
)
def test_what_a_repetition_tells_of_the_first(signal, expected) -> None:
    assert carried_back(signal, "light in the kitchen") == expected


def heard(name: str, *texts: str, seconds: float = 1.0) -> Result:
    nbest = tuple(Hypothesis((1, 2), text, (), Scores(-float(n)), -float(n)) for n, text in enumerate(texts))
    return Result(name, nbest, seconds)


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle, now: list[float]) -> Iterator[Device]:
    with Device.open(tmp_path, KEY, tiny_bundle) as opened:
        opened._recent._clock = lambda: now[0]
        yield opened


FIRST = ("light in the bedroom", "light in the kitchen")
AGAIN = ("light in the kitchen", "lied in the kitchen")


def signals(device: Device) -> dict[str, object]:
    return {key: example.signal for key, example in device._recent._examples.items()}


def say(device: Device, name: str, texts: tuple[str, ...], seconds: float = 1.0) -> None:
    device._utterances.add(heard(name, *texts, seconds=seconds), FEATURES)


def test_a_repetition_costs_the_first_and_what_it_meant_is_learned(device: Device, now: list[float]) -> None:
    say(device, "first", FIRST)
    assert dict(device.learned().words)["bedroom"] > 0
    now[0] += 4.0
    say(device, "again", AGAIN)
    assert signals(device) == {"first": Repeated(AGAIN), "again": None}
    assert "bedroom" not in dict(device.learned().words)
    assert dict(device.learned().words)["kitchen"] > 0, "the repetition's own"
    device.feedback("again", Accepted())
    assert signals(device) == {"first": Together((Repeated(AGAIN), Alternate(AGAIN[0]))), "again": Accepted()}


@pytest.mark.parametrize(
    ("wait", "second", "seconds", "before"),
    [
        (30.0, AGAIN, 1.0, None),
        (4.0, ("what is the time",), 1.0, None),
        (4.0, FIRST, 1.0, None),  # heard the same: wanted twice, perhaps
        (0.2, AGAIN, 3.0, None),  # a recording
        (4.0, AGAIN, 1.0, Accepted()),  # the user was content
    ],
)
def test_what_is_no_repetition(device: Device, now: list[float], wait, second, seconds, before) -> None:
    say(device, "first", FIRST)
    if before is not None:
        device.feedback("first", before)
    now[0] += wait
    say(device, "second", second, seconds)
    assert signals(device) == {"first": before, "second": None}


def test_feedback_to_a_repetition_of_what_was_learned_already(device: Device, now: list[float]) -> None:
    say(device, "first", FIRST)
    now[0] += 4.0
    say(device, "again", AGAIN)
    assert device._recent.take(60.0).utterance_id == "first"  # type: ignore[union-attr]
    device.feedback("again", Accepted())
    assert signals(device) == {"again": Accepted()}


def test_repetitions_may_be_left_alone(tmp_path: Path, tiny_bundle: Bundle, now: list[float]) -> None:
    settings = DeviceSettings(repetition=RepetitionSettings(similarity=2.0))
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        device._recent._clock = lambda: now[0]
        say(device, "first", FIRST)
        now[0] += 3.0
        say(device, "again", AGAIN)
        assert signals(device) == {"first": None, "again": None}


def test_accepting_after_all_counts_the_words_again(device: Device) -> None:
    say(device, "first", FIRST)
    words = device.learned().words
    device.feedback("first", Rating(0.0))
    assert device.learned().words == ()
    device.feedback(heard("first", *FIRST), Accepted())
    assert dict(device.learned().words) == pytest.approx(dict(words))
    with pytest.raises(FeedbackError, match="signal: found str"):
        device.feedback("first", "accepted")  # type: ignore[arg-type]


def test_sampled_serving_and_rehearsal_on_a_device(tmp_path: Path, tiny_bundle: Bundle) -> None:
    shares = {"label_weight": 0.0, "cost_weight": 0.0, "reinforce_weight": 1.0, "baseline_decay": 0.5}
    learning = LearningSettings(passes=1, serving="sampled", **shares)
    learning = replace(learning, rehearsal=replace(learning.rehearsal, every=2))
    spoken = [Transcribed(speech(9), "turn on the light")]
    settings = DeviceSettings(learning=learning, repetition=RepetitionSettings(similarity=2.0))
    with Device.open(tmp_path, KEY, tiny_bundle, settings, rehearsal=spoken) as device:
        device._generator = np.random.default_rng(0)
        results = [device.recognize(speech(1), 16_000) for _ in range(8)]
        assert len({result.text for result in results}) > 1, "not always the best"
        assert all(0.0 < result.probability < 1.0 for result in results)
        kept = device._recent._examples[results[0].utterance_id]
        assert (kept.probability, kept.nbest) == (results[0].probability, results[0].nbest)
        for result in results[:4]:
            device.feedback(result, Rating(0.0))
        report = device.learn()
        assert (report.utterances, report.rehearsed, report.steps) == (4, 2, 6)
        assert device.student.baseline == pytest.approx(1.0 - 0.5**4)


def test_counts_are_mended_without_learning(tmp_path: Path, tiny_bundle: Bundle) -> None:
    lexicon = SlotLexicon({"drink": ("coffee", "tea")})
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(learn=False)) as device:
        first = device.recognize(speech(1), 16_000).utterance_id
        before = dict(device.learned().words)
        device.feedback(first, Semantics({"drink": "coffee"}, lexicon))
        assert dict(device.learned().words).get("coffee", 0.0) > before.get("coffee", 0.0)
        device.feedback(first, Cancelled())
        assert device.learned().words == ()


def test_a_device_that_only_learns_counts_nothing(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(use_marginals=False, share_marginals=False)) as device:
        heard = device.recognize(speech(1), 16_000).utterance_id
        device.feedback(heard, Semantics({"drink": "tea"}, SlotLexicon({"drink": ("coffee", "tea")})))
        assert device.learned().words == ()
