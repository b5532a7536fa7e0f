import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Device, DeviceSettings, FeedbackError, LearningError, StateError
from device_sdk.checkin.reports import take_back
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, SlotLexicon
from device_sdk.learning import StepSettings, TeacherSettings
from device_sdk.personalization.cache import reported
from device_sdk.state import Store
from device_sdk.state.outbox import Outgoing
from tests.device_sdk.devices import KEY, LIGHT, personal, quick, tell
from tests.signals import hiss as speech

MEANT = Semantics({"place": "kitchen"}, SlotLexicon({"place": ("kitchen", "bedroom"), "thing": ("light", "window")}))


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle):
    with Device.open(tmp_path / "state", KEY, tiny_bundle, quick()) as opened:
        yield opened


def test_corrections_are_learned(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = quick(step=StepSettings(learning_rate=0.05), passes=4, cost_weight=0.0)
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        before, losses = device.student.weights, []
        for _ in range(5):
            tell(device)
            report = device.learn()
            losses.append(report.loss)
            assert (report.utterances, report.steps, report.skipped) == (1, 4, {})
            assert report.peak_bytes > 0 and report.stopped == "nothing left to learn from"
        assert losses[-1] < 0.7 * losses[0] and (device.student.steps, device.student.utterances) == (20, 5)
        changed = [name for name in before if not np.array_equal(before[name], device.student.weights[name])]
        assert set(changed) == set(tiny_bundle.architecture.parameter_shapes())
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        assert device.student.steps == 20 and "20 learning steps" in str(device.learned())


@pytest.mark.parametrize(("signal", "cost"), [(Accepted(), 0.0), (Cancelled(), 1.0), (MEANT, 1.0)])
def test_an_utterance_with_feedback_is_used_once(device: Device, signal, cost: float) -> None:
    heard = device.recognize(speech(3), 16_000).utterance_id
    assert device.learn().utterances == 0, "without feedback an utterance waits for it"
    device.feedback(heard, signal)
    report = device.learn()
    assert (report.utterances, report.steps, report.cost) == (1, 1, cost)
    for utterance in (heard, "never heard"):
        with pytest.raises(FeedbackError, match="not in memory"):
            device.feedback(utterance, signal)
    assert device.learn().steps == 0


@pytest.mark.parametrize(("confidence", "steps"), [(1.0, 0), (0.0, 1)])
def test_an_unsure_teacher_teaches_nothing(tmp_path: Path, tiny_bundle: Bundle, confidence: float, steps: int) -> None:
    settings = quick(wait_seconds=0.0, teacher=TeacherSettings(confidence=confidence))
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        device.recognize(speech(4), 16_000)
        report = device.learn()
        assert (report.utterances, report.steps) == (1, steps)
        assert report.skipped == ({} if steps else {"the teacher is not sure": 1})


def test_learning_stops_when_asked(device: Device) -> None:
    for seed in range(3):
        tell(device, seed, Accepted())
    stop = threading.Event()
    stop.set()
    assert device.learn(stop=stop).stopped == device.learn(stop=lambda: True).stopped == "asked to stop"
    assert device.learn(budget_seconds=0.0).stopped == "time is up" and device.learn().utterances == 3


def test_what_learning_asks_cannot_make_it_wait_for_itself(device: Device) -> None:
    def stop() -> bool:
        check_in, agree = partial(device.check_in, "http://127.0.0.1:9"), partial(device.agree, "deltas")
        for call in (agree, device.learn, device.forget, check_in, device.close):
            with pytest.raises(LearningError, match=r"called by what learning itself asks \(stop,"):
                call()
        device.withdraw("deltas")
        return False

    tell(device, 1, Accepted())
    assert device.learn(stop=stop).steps == 1
    assert device.learn().stopped == "nothing left to learn from", "the turn was given back"


def test_divergence_is_undone_and_said(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = quick(step=StepSettings(learning_rate=0.01, largest_norm=1e-6))
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        tell(device)
        before = {name: array.copy() for name, array in device.student.weights.items()}
        report = device.learn()
        assert report.steps == 0 and report.stopped.startswith("undone: step 0: gradient norm")
        for name, array in before.items():
            np.testing.assert_array_equal(device.student.weights[name], array)


def test_counts_follow_the_feedback(device: Device) -> None:
    result = device.recognize(speech(1), 16_000)
    assert device._model_state.cache.unlisted
    device.feedback(result, LIGHT)
    assert {"turn", "on", "the", "light"} <= set(dict(device.learned().words)) and device.learned().utterances == 1
    device.feedback(result, Cancelled())
    assert device._model_state.cache.counts.sum() == pytest.approx(0.0, abs=1e-9)
    assert not device._model_state.cache.unlisted


def test_what_was_reported_is_not_reported_again(device: Device) -> None:
    device.agree("marginals")
    kept, withdrawn = device.recognize(speech(1), 16_000), device.recognize(speech(2), 16_000)
    device._model_state.keep_cache(reported(device._model_state.cache))
    device._recent.reported()
    device.recognize(speech(2), 16_000)
    due = device._model_state.cache.pending.copy()
    device.feedback(kept, LIGHT)
    device.feedback(withdrawn, Cancelled())
    np.testing.assert_array_equal(device._model_state.cache.pending, due)
    assert device._model_state.cache.pending_utterances == dict(device.learned().words)["light"] == 1


def full(*arguments: object) -> None:
    raise StateError("state.sqlite: database or disk is full")


def test_a_full_disk_costs_no_result(tmp_path, tiny_bundle, monkeypatch, caplog) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, quick(cost_weight=0.0)) as device:
        device.agree("marginals")
        first, before, state = device.recognize(speech(1), 16_000), device.student, device._model_state
        device.feedback(first, LIGHT)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", full)
            assert device.recognize(speech(1), 16_000).text
            second = device.recognize(speech(2), 16_000)
            assert "counted in memory only" in caplog.text
            for call in (partial(device.feedback, second, LIGHT), device.learn):
                with pytest.raises(StateError, match="full"):
                    call()
        assert device.student is before
        device.recognize(speech(2), 16_000)
        assert device.learned().utterances == 4
        counts = state.cache.counts.copy()
        with monkeypatch.context() as patch, pytest.raises(StateError), state.together():
            state.keep_cache(reported(state.cache))
            patch.setattr(Store, "put", full)
            state.keep_cache(reported(state.cache))
        np.testing.assert_array_equal(state.cache.pending, counts)
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        np.testing.assert_array_equal(device._model_state.cache.counts, counts)


def test_a_refused_report_and_a_new_utterance_do_not_wait_for_each_other(device: Device) -> None:
    state, done = device._model_state, threading.Event()
    held = {"words_digest": state.cache.words_digest, "utterances": 0, "pending": {}, "mode": "bounded"}

    def refuse() -> None:
        for number in range(200):
            report = Outgoing(str(number), "http://server.test", "marginals", "r1", b"", json.dumps(held).encode())
            take_back(state, report)
        done.set()

    threading.Thread(target=refuse, daemon=True).start()
    deadline = time.monotonic() + 30
    while not done.is_set() and time.monotonic() < deadline:
        state.keep_cache(state.cache)
    assert done.is_set()


def test_forget_that_fails_half_way_writes_nothing_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Store._run
    device.recognize(speech(1), 16_000)
    with monkeypatch.context() as patch, pytest.raises(StateError, match="full"):
        patch.setattr(Store, "_run", lambda *given: full() if given[1] == "VACUUM" else run(*given))
        device.forget()
    assert device.learned().utterances == 0
    device.recognize(speech(2), 16_000)
    assert device.learned().utterances == 1


def test_marginals_are_personal_and_optional(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path / "on", KEY, tiny_bundle, DeviceSettings()) as device:
        for _ in range(3):
            tell(device, 1, Corrected("light light light"))
        assert personal(device) > 0 > personal(device, "turn") and personal(device, "grobnitz") == 0
    off = DeviceSettings(use_marginals=False, share_marginals=False, learn=False)
    with Device.open(tmp_path / "off", KEY, tiny_bundle, off) as device:
        result = device.recognize(speech(1), 16_000)
        assert personal(device) == 0 and device.learned().utterances == 0
        with pytest.raises(LearningError, match=r"device\.learn"):
            device.learn()
        with pytest.raises(FeedbackError, match="not in memory"):
            device.feedback(result.utterance_id, Accepted())


def test_forget_leaves_a_new_device(device: Device) -> None:
    plain = device.recognize(speech(1), 16_000)
    device.feedback(plain, LIGHT)
    device.learn()
    device.recognize(speech(2), 16_000)
    device.forget()
    learned = device.learned()
    assert (learned.utterances, learned.steps, learned.words, learned.unlisted) == (0, 0, (), 0)
    assert device.recognize(speech(1), 16_000).nbest == plain.nbest


def test_another_bundle_of_the_app_drops_local_weights_and_keeps_counts(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, quick(cost_weight=0.0)) as device:
        tell(device)
        assert device.learn().steps == 1
    with Device.open(tmp_path, KEY, tiny_bundle.with_weights(tiny_bundle.weights, "tiny-1"), quick()) as device:
        assert (device.model_version, device.student.steps) == ("tiny-1", 0)
        assert dict(device.learned().words)["light"] == 1.0


def test_int8_is_a_setting(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """Of a moment, of which a beam keeps every alignment that matters: a network that was never trained likes all texts
    alike."""
    scores, clip = {}, speech(1)[:1_600]
    for precision in ("float32", "int8"):
        settings = replace(quick(), precision=precision, use_marginals=False)
        with Device.open(tmp_path / precision, KEY, tiny_bundle, settings) as device:
            before = device.recognize(clip, 16_000)
            device.feedback(before, Corrected("light"))
            assert device.learn().steps > 0
            assert device.recognize(clip, 16_000).nbest[0].scores.acoustic != before.nbest[0].scores.acoustic
            scores[precision] = before.nbest[0].scores.acoustic
    assert scores["int8"] != scores["float32"] == pytest.approx(scores["int8"], rel=0.1)


def test_recognition_goes_on_while_the_device_learns(device: Device) -> None:
    for seed in range(4):
        tell(device, seed, Accepted())
    with ThreadPoolExecutor() as pool:
        learning = pool.submit(device.learn)
        heard = [device.recognize(speech(1), 16_000) for _ in range(6)]
        assert learning.result().steps == 4
    assert device.learned().utterances == 10 and len({result.utterance_id for result in heard}) == 6


def test_importing_is_cheap() -> None:
    code = (
        "import sys, device_sdk\n"
        "assert not {'numpy', 'onnxruntime', 'torch', 'fastapi', 'httpx'} & set(sys.modules), 'lazy'\n"
        "assert set(device_sdk.__all__) <= set(dir(device_sdk))\n"
        "for name in device_sdk.__all__: getattr(device_sdk, name)\n"
        "assert not {'torch', 'fastapi', 'server', 'export'} & set(sys.modules), 'light'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    import device_sdk

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = device_sdk.Nothing
