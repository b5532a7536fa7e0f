from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import (
    Accepted,
    Bundle,
    Cancelled,
    ConfigurationError,
    Corrected,
    Device,
    DeviceSettings,
    FeedbackError,
    LearningError,
    LearningSettings,
    Semantics,
    SlotLexicon,
    StateError,
)
from device_sdk.checkin.reports import take_back
from device_sdk.learning import StepSettings, TeacherSettings
from device_sdk.learning.memory import Recent
from device_sdk.personalization.cache import UtteranceCounts, reported
from device_sdk.state import Store
from device_sdk.state.outbox import Outgoing

KEY = bytes(range(32))
LEXICON = SlotLexicon({"place": ("kitchen", "bedroom"), "thing": ("light", "window")})


def speech(seed: int, seconds: float = 0.6) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=int(16_000 * seconds)) * 0.05).astype(np.float32)


def quick(**learning) -> DeviceSettings:
    return DeviceSettings(learning=LearningSettings(**{"passes": 1, **learning}))


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle):
    with Device.open(tmp_path / "state", KEY, tiny_bundle, quick()) as opened:
        yield opened


def test_corrections_are_learned(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = quick(step=StepSettings(learning_rate=0.05), passes=4, cost_weight=0.0)
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        before = device.student.weights
        losses = []
        for _ in range(5):
            result = device.recognize(speech(1), 16_000)
            device.feedback(result.utterance_id, Corrected("turn on the light"))
            report = device.learn()
            losses.append(report.loss)
            assert (report.utterances, report.steps, report.skipped) == (1, 4, {})
            assert report.peak_bytes > 0
            assert report.stopped == "nothing left to learn from"
        assert losses[-1] < 0.7 * losses[0]
        assert device.student.steps == 20
        assert device.student.utterances == 5
        changed = [name for name in before if not np.array_equal(before[name], device.student.weights[name])]
        assert set(changed) == set(tiny_bundle.architecture.parameter_shapes())
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        assert device.student.steps == 20
        assert "20 learning steps" in str(device.learned())


def test_semantics_make_a_label_without_a_transcript(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, quick()) as device:
        result = device.recognize(speech(2), 16_000)
        device.feedback(result.utterance_id, Semantics({"place": "kitchen"}, LEXICON))
        report = device.learn()
        assert report.steps == 1
        assert report.cost == 1.0


@pytest.mark.parametrize(("signal", "steps"), [(Accepted(), 1), (Cancelled(), 1), (None, 0)])
def test_what_each_signal_teaches(device: Device, signal, steps: int) -> None:
    result = device.recognize(speech(3), 16_000)
    if signal is not None:
        device.feedback(result.utterance_id, signal)
    report = device.learn()
    assert report.steps == steps
    assert report.utterances == steps, "without feedback an utterance waits for it"


def test_an_unsure_teacher_teaches_nothing(tmp_path: Path, tiny_bundle: Bundle) -> None:
    for confidence, steps in ((1.0, 0), (0.0, 1)):
        settings = quick(wait_seconds=0.0, teacher=TeacherSettings(confidence=confidence))
        with Device.open(tmp_path / str(steps), KEY, tiny_bundle, settings) as device:
            device.recognize(speech(4), 16_000)
            report = device.learn()
            assert (report.utterances, report.steps) == (1, steps)
            assert report.skipped == ({} if steps else {"the teacher is not sure": 1})


def test_an_utterance_is_used_once(device: Device) -> None:
    result = device.recognize(speech(5), 16_000)
    device.feedback(result.utterance_id, Accepted())
    assert device.learn().steps == 1
    with pytest.raises(FeedbackError, match="not in memory"):
        device.feedback(result.utterance_id, Accepted())
    with pytest.raises(FeedbackError, match="not in memory"):
        device.feedback("never heard", Accepted())
    with pytest.raises(FeedbackError, match="signal: found str"):
        device.feedback(result.utterance_id, "accepted")
    assert device.learn().steps == 0


def test_learning_stops_when_asked(device: Device) -> None:
    for seed in range(3):
        device.feedback(device.recognize(speech(seed), 16_000).utterance_id, Accepted())
    stop = threading.Event()
    stop.set()
    assert device.learn(stop=stop).stopped == "asked to stop"
    assert device.learn(stop=lambda: True).stopped == "asked to stop"
    assert device.learn(budget_seconds=0.0).stopped == "time is up"
    assert device.learn().utterances == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda device: device.agree("deltas"),
        lambda device: device.learn(),
        lambda device: device.forget(),
        lambda device: device.check_in("http://127.0.0.1:9"),
        lambda device: device.close(),
    ],
    ids=["agree", "learn", "forget", "check in", "close"],
)
def test_what_learning_asks_cannot_make_it_wait_for_itself(device: Device, call: Callable[[Device], object]) -> None:
    device.feedback(device.recognize(speech(1), 16_000), Accepted())

    def stop() -> bool:
        with pytest.raises(LearningError, match=r"called by what learning itself asks \(stop,"):
            call(device)
        device.withdraw("deltas")
        return False

    assert device.learn(stop=stop).steps == 1
    assert device.learn().stopped == "nothing left to learn from", "the turn was given back"


def test_divergence_is_undone_and_said(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = quick(step=StepSettings(learning_rate=0.01, largest_norm=1e-6))
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        device.feedback(device.recognize(speech(1), 16_000).utterance_id, Corrected("turn on the light"))
        before = {name: array.copy() for name, array in device.student.weights.items()}
        report = device.learn()
        assert report.steps == 0
        assert report.stopped.startswith("undone: step 0: gradient norm")
        for name, array in before.items():
            np.testing.assert_array_equal(device.student.weights[name], array)


def test_an_app_prices_hypotheses_itself(tmp_path: Path, tiny_bundle: Bundle) -> None:
    seen = []

    def price(signal, texts, served):
        seen.append((signal, served))
        return [0.25 if text == served else 1.0 for text in texts]

    with Device.open(tmp_path, KEY, tiny_bundle, quick(), cost_function=price) as device:
        result = device.recognize(speech(1), 16_000)
        device.feedback(result.utterance_id, Cancelled())
        assert device.learn().cost == 0.25
        assert seen == [(Cancelled(), result.text)]


def test_sessions_take_up_what_was_learned(tmp_path: Path, tiny_bundle: Bundle) -> None:
    settings = quick(step=StepSettings(learning_rate=0.3), passes=10, cost_weight=0.0)
    with Device.open(tmp_path, KEY, tiny_bundle, settings) as device:
        session = device.session(16_000)
        assert session.feed(speech(1)[:4000]).seconds == 0.25
        session.reset()
        session.feed(speech(1))
        assert session.partial().text == session.feed(speech(1)[:0]).text
        first = session.finish()
        assert first.utterance_id == session.utterance_id
        for _ in range(4):
            device.feedback(device.recognize(speech(1), 16_000).utterance_id, Corrected("stop the radio please"))
            device.learn()
        session.reset()
        session.feed(speech(1))
        second = session.finish()
        assert second.nbest[0].scores.acoustic != first.nbest[0].scores.acoustic


def test_counts_follow_the_feedback(device: Device) -> None:
    result = device.recognize(speech(1), 16_000)
    heard = device._model_state.cache.counts.sum()
    assert heard > 0
    device.feedback(result.utterance_id, Corrected("turn on the light"))
    words = dict(device.learned().words)
    assert {"turn", "on", "the", "light"} <= set(words)
    assert device.learned().utterances == 1
    device.feedback(result.utterance_id, Cancelled())
    assert device._model_state.cache.counts.sum() == pytest.approx(0.0, abs=1e-9)


def test_what_was_reported_is_not_reported_again(device: Device) -> None:
    device.agree("marginals")
    kept, withdrawn = device.recognize(speech(1), 16_000), device.recognize(speech(2), 16_000)
    device._model_state.keep_cache(reported(device._model_state.cache))
    device._recent.reported()
    device.recognize(speech(2), 16_000)
    due = device._model_state.cache.pending.copy()
    device.feedback(kept.utterance_id, Corrected("turn on the light"))
    device.feedback(withdrawn.utterance_id, Cancelled())
    np.testing.assert_array_equal(device._model_state.cache.pending, due)
    assert device._model_state.cache.pending_utterances == 1
    assert dict(device.learned().words)["light"] == 1.0


def test_a_full_disk_costs_no_result(
    tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Store, table: str, name: str, value: bytes) -> None:
        raise StateError("state.sqlite: database or disk is full")

    with Device.open(tmp_path, KEY, tiny_bundle, quick(cost_weight=0.0)) as device:
        device.agree("marginals")
        first = device.recognize(speech(1), 16_000)
        before = device.student
        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", full)
            assert device.recognize(speech(1), 16_000).text
            device.recognize(speech(2), 16_000)
            assert "counted in memory only" in caplog.text
            with pytest.raises(StateError, match="full"):
                device.feedback(first.utterance_id, Corrected("turn on the light"))
            with pytest.raises(StateError, match="full"):
                device.learn()
        assert device.student is before
        device.recognize(speech(2), 16_000)
        assert device.learned().utterances == 4
        counts = device._model_state.cache.counts.copy()
        with monkeypatch.context() as patch, pytest.raises(StateError), device._model_state.together():
            device._model_state.keep_cache(reported(device._model_state.cache))
            patch.setattr(Store, "put", full)
            device._model_state.keep_cache(reported(device._model_state.cache))
        np.testing.assert_array_equal(device._model_state.cache.pending, counts)
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        np.testing.assert_array_equal(device._model_state.cache.counts, counts)


def test_a_refused_report_and_a_new_utterance_do_not_wait_for_each_other(device: Device) -> None:
    held = json.dumps(
        {"words_digest": device._model_state.cache.words_digest, "utterances": 0, "pending": {}, "mode": "bounded"}
    ).encode()
    done = threading.Event()

    def refuse() -> None:
        for number in range(200):
            take_back(device._model_state, Outgoing(str(number), "http://server.test", "marginals", "r1", b"", held))
        done.set()

    threading.Thread(target=refuse, daemon=True).start()
    deadline = time.monotonic() + 30
    while not done.is_set() and time.monotonic() < deadline:
        device._model_state.keep_cache(device._model_state.cache)
    assert done.is_set()


def test_forget_that_fails_half_way_writes_nothing_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Store._run

    def no_room(self: Store, statement: str, *values: object):
        if statement == "VACUUM":
            raise StateError("state.sqlite: database or disk is full")
        return run(self, statement, *values)

    device.recognize(speech(1), 16_000)
    with monkeypatch.context() as patch, pytest.raises(StateError, match="full"):
        patch.setattr(Store, "_run", no_room)
        device.forget()
    assert device.learned().utterances == 0
    device.recognize(speech(2), 16_000)
    assert device.learned().utterances == 1


def test_marginals_are_personal_and_optional(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path / "on", KEY, tiny_bundle, DeviceSettings()) as device:
        for _ in range(3):
            device.feedback(device.recognize(speech(1), 16_000).utterance_id, Corrected("light light light"))
        adapted = device.recognize(speech(1), 16_000).nbest
        assert any(hypothesis.scores.personal != 0.0 for hypothesis in adapted)
    off = DeviceSettings(use_marginals=False, share_marginals=False, learn=False)
    with Device.open(tmp_path / "off", KEY, tiny_bundle, off) as device:
        result = device.recognize(speech(1), 16_000)
        assert {hypothesis.scores.personal for hypothesis in result.nbest} == {0.0}
        assert device.learned().utterances == 0
        with pytest.raises(LearningError, match=r"device\.learn"):
            device.learn()
        with pytest.raises(FeedbackError, match="not in memory"):
            device.feedback(result.utterance_id, Accepted())


def test_forget_leaves_a_new_device(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, quick(cost_weight=0.0)) as device:
        plain = device.recognize(speech(1), 16_000)
        device.feedback(plain.utterance_id, Corrected("turn on the light"))
        device.learn()
        device.recognize(speech(2), 16_000)
        device.forget()
        learned = device.learned()
        assert (learned.utterances, learned.steps, learned.words, learned.unlisted) == (0, 0, (), 0)
        assert device.recognize(speech(1), 16_000).nbest == plain.nbest
    with Device.open(tmp_path, KEY, tiny_bundle, quick()) as device:
        assert device.student.steps == 0


def test_another_bundle_of_the_app_drops_local_weights_and_keeps_counts(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, quick(cost_weight=0.0)) as device:
        device.feedback(device.recognize(speech(1), 16_000).utterance_id, Corrected("turn on the light"))
        device.learn()
        assert device.student.steps == 1
    newer = tiny_bundle.with_weights(tiny_bundle.weights, "tiny-1")
    with Device.open(tmp_path, KEY, newer, quick()) as device:
        assert device.model_version == "tiny-1"
        assert device.student.steps == 0
        assert dict(device.learned().words)["light"] == 1.0


def test_int8_is_a_setting(tmp_path: Path, tiny_bundle: Bundle) -> None:
    scores = {}
    for precision in ("float32", "int8"):
        settings = replace(quick(), precision=precision, use_marginals=False)
        with Device.open(tmp_path / precision, KEY, tiny_bundle, settings) as device:
            before = device.recognize(speech(1), 16_000)
            device.feedback(before.utterance_id, Corrected("light"))
            assert device.learn().steps > 0
            assert device.recognize(speech(1), 16_000).nbest[0].scores.acoustic != before.nbest[0].scores.acoustic
            scores[precision] = before.nbest[0].scores.acoustic
    assert scores["int8"] != scores["float32"]
    assert scores["int8"] == pytest.approx(scores["float32"], rel=0.1)


def test_one_owner_and_the_right_key(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle), pytest.raises(StateError, match="in use"):
        Device.open(tmp_path, KEY, tiny_bundle)
    with pytest.raises(StateError, match="cannot be decrypted"):
        Device.open(tmp_path, bytes(32), tiny_bundle)


def test_settings_are_checked() -> None:
    for change in ({"memory_utterances": 0}, {"memory_seconds": 0.0}, {"threads": 0}):
        with pytest.raises(ConfigurationError, match=f"device.{next(iter(change))}: found 0, |found 0.0, "):
            replace(DeviceSettings(), **change)
    with pytest.raises(
        ConfigurationError, match=r"device\.precision: found 'int4', expected one of float32, int8, auto"
    ):
        DeviceSettings(precision="int4")  # type: ignore[arg-type]
    for change in ({"label_weight": -1.0}, {"passes": 0}, {"hypotheses": 0}, {"baseline": float("nan")}):
        with pytest.raises(ConfigurationError, match="learning"):
            LearningSettings(**change)


def test_memory_is_bounded_in_number_and_time() -> None:
    now = [0.0]
    recent = Recent(2, 10.0, clock=lambda: now[0])
    counts = UtteranceCounts({})
    for name in "abc":
        recent.add(name, np.zeros((3, 64), np.float32), (), counts)
        now[0] += 1.0
    assert len(recent) == 2
    with pytest.raises(FeedbackError, match="'a'"):
        recent.mark("a", Accepted())
    recent.mark("c", Accepted())
    assert recent.take(wait_seconds=60).utterance_id == "c"
    assert recent.take(wait_seconds=60) is None
    assert recent.take(wait_seconds=1.5).utterance_id == "b"
    recent.add("d", np.zeros((3, 64), np.float32), (), counts)
    now[0] += 10.5
    assert len(recent) == 0


def test_recognition_goes_on_while_the_device_learns(device: Device) -> None:
    for seed in range(4):
        device.feedback(device.recognize(speech(seed), 16_000).utterance_id, Accepted())
    reports = []
    learning = threading.Thread(target=lambda: reports.append(device.learn()))
    learning.start()
    heard = [device.recognize(speech(1), 16_000) for _ in range(6)]
    learning.join()
    assert reports[0].steps == 4
    assert len({result.utterance_id for result in heard}) == 6
    assert device.learned().utterances == 10


LEARNER = """
import sys
import numpy as np
from device_sdk import Bundle, Corrected, Device, DeviceSettings, LearningSettings
settings = DeviceSettings(learning=LearningSettings(passes=1, cost_weight=0.0))
with Device.open(sys.argv[1], bytes(range(32)), Bundle.open(sys.argv[2]), settings) as device:
    waveform = (np.random.default_rng(0).normal(size=9600) * 0.05).astype(np.float32)
    while True:
        result = device.recognize(waveform, 16_000)
        device.feedback(result.utterance_id, Corrected("turn on the light"))
        device.learn()
        print(device.student.steps, flush=True)
"""


def test_sigkill_leaves_a_device_that_opens_and_never_goes_back(tmp_path: Path, tiny_bundle: Bundle) -> None:
    generator, steps, utterances = random.Random(3), 0, 0
    for told in (1, 3, 5):
        command = [sys.executable, "-c", LEARNER, str(tmp_path), str(tiny_bundle.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = [int(process.stdout.readline()) for _ in range(told)]
            time.sleep(generator.uniform(0.0, 0.1))
            process.kill()
        with Device.open(tmp_path, KEY, tiny_bundle) as device:
            assert device.student.steps >= said[-1] == steps + told
            assert device.learned().utterances >= max(utterances, device.student.utterances)
            steps, utterances = device.student.steps, device.learned().utterances
            device.recognize(speech(1), 16_000)


CANARIES = ("croissants", "espresso", "garage", "sofa")


def test_nothing_that_was_said_reaches_disk_or_log(
    tmp_path: Path, tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    waveform = speech(7)
    with Device.open(tmp_path, KEY, tiny_bundle, quick()) as device:
        result = device.recognize(waveform, 16_000)
        features = device._recent._examples[result.utterance_id].features
        device.feedback(result.utterance_id, Corrected(" ".join(CANARIES)))
        device.learn()
        needles = [word.encode(code) for word in CANARIES for code in ("utf-8", "utf-16-le", "utf-32-le")]
        needles += [result.text.encode()] if len(result.text) > 5 else []
        needles += [waveform[start : start + 8].tobytes() for start in range(0, 9000, 1000)]
        needles += [(waveform[:9000:1000] * 32767).astype(np.int16).tobytes()]
        needles += [features[row, :8].tobytes() for row in range(0, 50, 10)]
        needles += [features[row, :8].astype(np.float16).tobytes() for row in range(0, 50, 10)]
        open_files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert len(open_files) >= 2
    closed_files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for content in (*open_files, *closed_files, caplog.text.encode()):
        for needle in needles:
            assert needle not in content


def test_importing_is_cheap() -> None:
    code = (
        "import sys, device_sdk\n"
        "assert not {'numpy', 'onnxruntime', 'torch', 'fastapi', 'httpx'} & set(sys.modules), 'lazy'\n"
        "device_sdk.Device, device_sdk.Client, device_sdk.StateError\n"
        "assert not {'torch', 'fastapi', 'server', 'export'} & set(sys.modules), 'light'\n"
        "assert set(device_sdk.__all__) <= set(dir(device_sdk))\n"
        "for name in device_sdk.__all__: getattr(device_sdk, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    import device_sdk

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = device_sdk.Nothing
