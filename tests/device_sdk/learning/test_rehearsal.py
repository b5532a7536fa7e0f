"""Rehearsal: whose turn it is, and what a transcribed utterance teaches."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Accepted, AudioError, Bundle, Device, DeviceSettings, GuardSettings, LearningError
from device_sdk.learning.learner import Student, Trainer, rehearse_one
from device_sdk.learning.rehearsal import Transcribed, is_due, lesson, rotation
from device_sdk.learning.settings import LearningSettings, RehearsalSettings, StepSettings
from device_sdk.runtimes.training import TrainingSession
from tests.device_sdk.devices import KEY, tell
from tests.signals import hiss

NOISE = hiss(1)


@pytest.mark.parametrize(
    ("every", "weight", "turns"), [(1, 1.0, [1, 2, 3, 4, 5, 6]), (3, 0.5, [3, 6]), (7, 1.0, []), (2, 0.0, [])]
)
def test_whose_turn_it_is(every: int, weight: float, turns: list[int]) -> None:
    settings = RehearsalSettings(every, weight)
    assert [count for count in range(7) if is_due(count, settings)] == turns


def test_every_utterance_before_one_again() -> None:
    order = list(islice(rotation(5, np.random.default_rng(0)), 20))
    assert [sorted(order[start : start + 5]) for start in range(0, 20, 5)] == [[0, 1, 2, 3, 4]] * 4
    assert order[:5] != order[5:10] and list(rotation(0, np.random.default_rng(0))) == []


def test_a_lesson_is_supervision(tiny_bundle: Bundle) -> None:
    features, loss = lesson(Transcribed(NOISE, "  Turn on the LIGHT "), tiny_bundle, 0.5)
    assert features.shape == (60, 64) and features.dtype == np.float32
    assert loss.hypotheses == (tuple(tiny_bundle.tokenizer.encode("turn on the light")),)
    assert (loss.weights.tolist(), loss.cost_scale) == ([0.5], 0.0)


IMPOSSIBLE = [
    (NOISE, "møller", LearningError, "transcribed.text: found 'ø'"),
    (NOISE[:100], "light", LearningError, "rehearsal.waveform: found"),
    (np.full(9600, np.nan, np.float32), "light", AudioError, "rehearsal"),
    ([0.0] * 9600, "light", AudioError, "rehearsal: found list"),
]


@pytest.mark.parametrize(("waveform", "text", "error", "words"), IMPOSSIBLE)
def test_what_cannot_be_rehearsed_is_skipped_and_said(tmp_path, tiny_bundle, waveform, text, error, words) -> None:
    """The user's own steps stay, and learning goes on."""
    spoken = Transcribed(waveform, text)
    with pytest.raises(error, match=words):
        lesson(spoken, tiny_bundle)
    learning = LearningSettings(passes=1, replays=0, rehearsal=RehearsalSettings(every=1))
    settings = DeviceSettings(learning=learning, guard=GuardSettings(watch=False))
    with Device.open(tmp_path, KEY, tiny_bundle, settings, rehearsal=[spoken]) as device:
        for seed in range(2):
            tell(device, seed)
        report = device.learn()
    assert (report.utterances, report.steps, report.rehearsed) == (2, 2, 0)
    assert report.stopped == "nothing left to learn from"
    assert list(report.skipped.values()) == [2] and next(iter(report.skipped)).startswith(words)


def test_rehearsing_lowers_the_loss_and_is_not_the_users(tiny_bundle: Bundle) -> None:
    parameters = {name: tiny_bundle.weights[name] for name in tiny_bundle.architecture.parameter_shapes()}
    settings = LearningSettings(passes=3, rewrite_nats=1e6, step=StepSettings(learning_rate=0.05))
    trainer = Trainer(TrainingSession(tiny_bundle), tiny_bundle, settings, np.random.default_rng(0))
    student, losses = Student(parameters, parameters), []
    for _ in range(4):
        outcome = rehearse_one(student, Transcribed(NOISE, "turn on the light"), trainer)
        student = outcome.student
        losses += outcome.losses
    assert losses[-1] < 0.8 * losses[0] and (student.steps, student.utterances) == (12, 0)


def test_corrections_are_replayed_while_their_user_agrees(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = DeviceSettings(
        learning=LearningSettings(passes=1, replays=2, rewrite_nats=1e6), guard=GuardSettings(watch=False)
    )
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        steps = []
        for seed in range(5):
            tell(device, seed)
            tell(device, seed + 10, Accepted())  # teaches, and asks for no replay
            report = device.learn()
            steps.append((report.steps, report.rehearsed))
        assert steps == [(2, 0), (3, 1), (4, 2), (4, 2), (4, 2)] and device.student.utterances == 10
        assert [each.learned for each in device.remembered()] == [True] * 5
        assert "5 utterances is in its memory" in str(device.learned())
        device.withdraw("learning")
        assert device.remembered() == ()
