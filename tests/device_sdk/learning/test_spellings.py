"""What learning, counting and feedback see of a phrase that was heard by another spelling."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Device, DeviceSettings, GuardSettings, Hotword, LearningSettings, Recognizer, Result
from device_sdk.feedback import Accepted, Corrected, Semantics, Signal, SlotLexicon
from device_sdk.learning.candidates import Candidates, gather, objective
from device_sdk.learning.memory import Example
from device_sdk.learning.teacher import Teacher, heard_of
from tests.device_sdk.devices import KEY
from tests.signals import noise

PHRASE = "zugzwang"
SETTINGS = DeviceSettings(learning=LearningSettings(passes=1), guard=GuardSettings(watch=False))


def hear(device: Device) -> tuple[Result, str, Example]:
    """An utterance whose first word was heard by a spelling of the phrase."""
    heard = Recognizer(device.base).recognize(noise(9_600, 3), 16_000).text.split()[0]
    result = device.recognize(noise(9_600, 3), 16_000, hotwords=[Hotword(PHRASE, spellings=(heard,))])
    (example,) = device._recent._examples.values()
    return result, heard, example


def candidates_of(device: Device, example: Example, signal: Signal | None) -> Candidates:
    teacher = Teacher(device.base, device.settings.decoding, device._local._open)
    taught, score = teacher.hear(device.student.teacher, example)
    found = gather(heard_of(example.nbest), taught, signal, device.base.tokenizer.encode, SETTINGS.learning)
    for index in np.flatnonzero(np.isnan(found.nlls)):
        found.nlls[index] = -score([found.tokens[index]])[0]
    return found


def test_every_hypothesis_is_there_once_as_the_app_had_it(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """Texts hold the phrase, tokens what was heard."""
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        result, heard, example = hear(device)
        decoded = tiny_bundle.tokenizer.decode(result.nbest[0].tokens)
        assert PHRASE in result.text.split() and heard in decoded.split() and PHRASE not in decoded
        counted = device._model_state.cache.unlisted
        assert PHRASE in counted and heard not in counted and example.nbest == result.nbest
        for signal in (None, Accepted()):
            found = candidates_of(device, example, signal)
            assert not any(heard in text.split() for text in found.texts)
            assert len(set(found.texts)) == len(found.texts) and len(set(found.tokens)) == len(found.tokens)
            assert (found.texts[0], found.tokens[0]) == (result.text, result.nbest[0].tokens) and found.costs[0] == 0.0


@pytest.mark.parametrize(
    "say",
    [
        lambda text: Accepted(),
        lambda text: Corrected(text.upper()),
        lambda text: Semantics({"who": PHRASE}, SlotLexicon({"who": [PHRASE]})),
    ],
    ids=["accepted", "corrected", "semantics"],
)
def test_the_label_of_a_confirmed_phrase_is_what_was_heard_for_it(tmp_path: Path, tiny_bundle: Bundle, say) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        result, _, example = hear(device)
        signal = say(result.text)
        found = candidates_of(device, example, signal)
        loss = objective(found, None, signal, LearningSettings(cost_weight=0.0, labels="feedback"))
        assert not isinstance(loss, str)
        assert loss.hypotheses == (found.tokens[found.texts.index(result.text)],) == (result.nbest[0].tokens,)
        device.feedback(result, signal)
        report = device.learn()
        assert (report.utterances, report.steps, report.cost) == (1, 1, 0.0)
        assert PHRASE in device._model_state.cache.unlisted


def test_the_teacher_hears_what_feedback_says_was_meant(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        _, _, example = hear(device)
        teacher = Teacher(device.base, device.settings.decoding, device._local._open)
        plain, _ = teacher.hear(device.student.teacher, example)
        other = next(word for text in plain.texts[1:] for word in text.split() if word not in plain.texts[0].split())
        meant, _ = teacher.hear(device.student.teacher, example, [other, "\u00e4"])
        assert other in meant.texts[0].split() and meant.totals[0] > meant.scores[0]
        assert teacher.hear(device.student.teacher, example, ["\u00e4"])[0] == plain


def test_the_teacher_hears_with_the_phrases_that_users_were_served_with(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """So does the guard, which would compare unlike things else."""
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        *_, example = hear(device)
        teacher = Teacher(device.base, device.settings.decoding, device._local._open)
        (with_, _), (without, _) = (
            teacher.hear(device.student.teacher, each) for each in (example, replace(example, expected=None))
        )
        served = heard_of(example.nbest)
        assert set(served.texts) == set(with_.texts)
        assert sorted(served.scores) == pytest.approx(sorted(with_.scores), abs=1e-3)
        assert without.totals == without.scores and PHRASE not in without.texts[0].split()
