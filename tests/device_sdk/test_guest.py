"""A device that minds its host: it asks before it works, keeps to its memory, and takes back what does harm."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from device_sdk import (
    Bundle,
    Client,
    Conditions,
    Device,
    GuardSettings,
    LearningReport,
    LearningSettings,
    Postponed,
    Recognizer,
)
from device_sdk.feedback import Accepted, Corrected, Rating, Signal
from device_sdk.learning import MaskSettings, StepSettings, TeacherSettings
from device_sdk.learning.learner import step_bytes
from tests.device_sdk.devices import KEY, quick, tell
from tests.signals import noise
from tests.tiny import tiny_weights

STILL = replace(quick(step=StepSettings(learning_rate=1e-9)), use_marginals=False)
"""Steps are taken and lead nowhere: what is compared is what was put there. Words that were confirmed are not expected:
a model that knows nothing would hear them everywhere."""

Arrays = dict[str, np.ndarray]


def put(device: Device, weights: Arrays, **changes: object) -> None:
    """Local weights as if steps had made them."""
    device._model_state.commit(replace(device.student, weights=weights, teacher=weights, **changes))


def spoilt(device: Device) -> Arrays:
    weights = tiny_weights(device.base.architecture, seed=7)
    return {name: weights[name] for name in device.student.weights}


def close_to(found: Arrays, expected: Arrays, tolerance: float = 1e-6) -> bool:
    return all(np.allclose(found[name], array, rtol=1e-7, atol=tolerance) for name, array in expected.items())


def test_the_policy_is_asked_first_and_between(tmp_path: Path, tiny_bundle: Bundle) -> None:
    asked: list[Conditions] = []

    def conditions() -> Conditions:
        asked.append(Conditions(idle=len(asked) in (1, 2), battery=0.8))
        return asked[-1]

    with Device.open(tmp_path, KEY, tiny_bundle, STILL, conditions=conditions) as device:
        for seed in range(4):
            tell(device, seed)
        for steps, left in ((0, 4), (1, 3)):  # what was not learned from is still there
            report = device.learn()
            assert (report.stopped, report.steps) == ("not now: it is in use", steps)
            assert len(device.remembered()) == left


def test_an_app_has_its_own_policy_and_a_metered_network_is_not_used(tmp_path: Path, tiny_bundle: Bundle) -> None:
    own = {"policy": lambda work, conditions: f"no {work} today"}
    for host, steps, why in ((own, 0, "not now: no check in today; everything is kept"),
                             ({"conditions": lambda: Conditions(metered=True)}, 1, "metered")):  # fmt: skip
        with Device.open(tmp_path, KEY, tiny_bundle, STILL, **host) as device:
            tell(device, 1)
            report = device.learn()
            assert report.steps == steps and (steps or report.stopped == "not now: no learn today")
            with Client("http://127.0.0.1:9") as client, pytest.raises(Postponed, match=why):
                device.check_in(client, "token")


def test_memory_bounds_a_step(tmp_path: Path, tiny_bundle: Bundle) -> None:
    architecture = tiny_bundle.architecture
    with Device.open(tmp_path, KEY, tiny_bundle, STILL) as device:
        tell(device, 1)
        report = device.learn(budget_bytes=1000)
        assert report.stopped.startswith("a step takes") and len(device.remembered()) == 1
        frames = len(device._recent._examples[device.remembered()[0].utterance_id].features)
        least = step_bytes(architecture, "whole", architecture.subsampling_factor, [0])
        assert device.learn(budget_bytes=least).skipped == {"its step does not fit into the memory allowed": 1}
        tell(device, 1)
        report = device.learn(budget_bytes=step_bytes(architecture, "whole", frames, [8] * 3))
        assert (report.steps, report.shortened) == (1, 1)
        tell(device, 1)
        assert device.learn(budget_bytes=10**9).shortened == 0


def heard_well(tmp_path: Path, bundle: Bundle, count: int = 40) -> list[tuple[int, str]]:
    """(seed, text) of sounds that the published model hears words in."""
    with Device.open(tmp_path / "reference", KEY, bundle, replace(STILL, learn=False, use_marginals=False)) as device:
        heard = ((seed, device.recognize(noise(9600, seed), 16_000).text) for seed in range(3 * count))
        return list(islice(((seed, text) for seed, text in heard if text), count))


def learn_until_rolled_back(device: Device, spoken: list[tuple[int, str]], confirmed: bool = True) -> LearningReport:
    """Each is said, and learned from before the next. The last report."""
    for seed, text in spoken:
        if confirmed:
            tell(device, seed, Corrected(text))
        else:
            device.recognize(noise(9600, seed), 16_000)
        report = device.learn()
        if report.rolled_back:
            break
    return report


@pytest.mark.parametrize("sound", [False, True])
def test_a_local_model_that_serves_worse_is_rolled_back(tmp_path: Path, tiny_bundle: Bundle, sound: bool) -> None:
    spoken = heard_well(tmp_path, tiny_bundle)
    with Device.open(tmp_path / "state", KEY, tiny_bundle, STILL) as device:
        published = device.student.weights
        put(device, published if sound else spoilt(device), steps=5)
        report = learn_until_rolled_back(device, spoken)
        assert (report.rolled_back is None) == sound
        assert sound or report.stopped == f"rolled back: {report.rolled_back}"
        steps = device.student.steps
        assert steps >= 5, "a counter never goes back"
    with Device.open(tmp_path / "state", KEY, tiny_bundle, STILL) as device:
        assert (device.student.steps, device.learned().rollbacks) == (steps, 0 if sound else 1)
        assert sound or "taken back 1 time, since it did harm" in str(device.learned())
        assert close_to(device.student.weights, published)
        device.forget()
        assert device.learned().rollbacks == 0


@pytest.mark.parametrize("signal", [Accepted(), Rating(1.0)])
def test_what_feedback_confirmed_is_never_drift(tmp_path: Path, tiny_bundle: Bundle, signal: Signal) -> None:
    """The local model hears quite something else than the published one, and its user goes along with all of it."""
    with Device.open(tmp_path, KEY, tiny_bundle, STILL) as device:
        put(device, spoilt(device), steps=5)
        for seed in range(40):
            tell(device, seed, signal)
            assert device.learn().rolled_back is None


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_roll_back_leaves_what_feedback_has_proven(tmp_path: Path, tiny_bundle: Bundle, confirmed: bool) -> None:
    """A model proves itself in eight confirmed utterances; then harm comes, seen by feedback or by what had none."""
    spoken, rng = heard_well(tmp_path, tiny_bundle), np.random.default_rng(1)
    learning = replace(STILL.learning, wait_seconds=0.0, teacher=TeacherSettings(confidence=0.0))
    settings = replace(STILL, learning=learning, guard=GuardSettings(withhold=0))
    with Device.open(tmp_path / "state", KEY, tiny_bundle, settings) as device:
        good = {  # so like the published ones that the same is heard
            name: (array + 1e-5 * rng.standard_normal(array.shape)).astype(np.float32)
            for name, array in device.student.weights.items()
        }
        put(device, good, steps=5)
        assert learn_until_rolled_back(device, spoken[:9]).rolled_back is None
    with Device.open(tmp_path / "state", KEY, tiny_bundle, settings) as device:
        put(device, spoilt(device))
        why = learn_until_rolled_back(device, spoken, confirmed).rolled_back
        assert why is not None and why.startswith("back to the model that feedback has proven: ")
        assert close_to(device.student.weights, good, 1e-7)  # on the disk it is in half precision
        device.forget()
        assert device._model_state.proven is None


def test_where_the_proven_model_fails_too_the_published_one_is_left(tmp_path: Path, tiny_bundle: Bundle) -> None:
    spoken = heard_well(tmp_path, tiny_bundle)
    with Device.open(tmp_path / "state", KEY, tiny_bundle, replace(STILL, guard=GuardSettings(withhold=0))) as device:
        published, worse = device.student.weights, spoilt(device)
        student = replace(device.student, weights=worse, teacher=worse, steps=5)
        device._model_state.commit_judged(student, device._model_state.watch, student)
        reasons = [learn_until_rolled_back(device, [each]).rolled_back for each in spoken]
        where = [why.split(":")[0] for why in reasons if why]
        assert where == ["back to the model that feedback has proven", "back to the published model"]
        assert close_to(device.student.weights, published)


def test_steps_that_harm_what_is_withheld_are_taken_back(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """One run of learning wrecks the model; nothing was served by it yet, and only withheld utterances tell."""
    # No masks, which are random, and no check of a step by itself: the guard alone is to find out.
    unchecked = StepSettings(learning_rate=30.0, precondition=False, largest_norm=1e9, largest_rise=1e9)
    wild = LearningSettings(passes=2, replays=0, cost_weight=0.0, step=unchecked, masks=MaskSettings(0, 0, 0, 0))
    guard = GuardSettings(withhold=2, interval=4, capacity=12)
    first_pass = Recognizer(tiny_bundle)  # which is what withheld utterances are judged by
    with Device.open(tmp_path / "state", KEY, tiny_bundle, replace(STILL, learning=wild, guard=guard)) as device:
        before = device.student.weights
        for seed in range(24):
            if text := first_pass.recognize(noise(9600, seed), 16_000).text:
                tell(device, seed, Corrected(text))
        report = device.learn()
        assert report.steps > 0 and "withheld utterances are served worse" in str(report.rolled_back)
        assert close_to(device.student.weights, before, 0.0)
        held = [each for each in device.remembered() if each.withheld]
        assert held and all(0.0 < each.seconds_left <= 3600.0 for each in held)


def test_what_is_withheld_is_never_learned_from(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, replace(STILL, guard=GuardSettings(withhold=3, capacity=2))) as device:
        for seed in range(9):
            tell(device, seed)
        ids = [each.utterance_id for each in device.remembered()]
        report = device.learn()
        assert (report.utterances, report.steps) == (6, 6)
        assert [each.utterance_id for each in device.remembered()] == [ids[5], ids[8]], "the third made room"
        assert device.learn().utterances == 0
        device.withdraw("learning")
        assert device.remembered() == ()
